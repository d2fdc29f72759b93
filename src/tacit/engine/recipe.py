"""A recipe: everything that determines a run, as plain values that can be written as TOML and read back."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import tomli_w

from tacit.errors import RequestError, unknown_name


@dataclass(frozen=True)
class Recipe:
    """What to train, on what, how, and with which promise.

    None means "choose for me": the theory's prescription where there is one. `Plan.recipe` of a resolved
    recipe has every choice filled in, and reproduces the run.
    """

    # what and on what
    algorithm: str = "soteriafl-svrg"
    data: str = "digits"
    clients: int | None = None
    partition: str = "iid"
    model: str | None = None
    # the promise
    privacy: str | None = None
    """whose influence is hidden: "record" or "client", whichever the algorithm protects, or "none" for a run
    without any privacy"""
    epsilon: float | list[float] | dict[str, float] | None = 8.0
    """one for all clients, one for each of them in order, or one for each name"""
    delta: float | list[float] | dict[str, float] | None = 1e-5
    adjacency: str = "replace-one"
    client_epsilon: float | None = None
    """what all records of a client together are promised as well; the noise is the larger of the two needs"""
    client_delta: float | None = None
    """the delta of that promise; as large as `delta` unless given"""
    adversary: str | None = None
    """against whom client-level algorithms calibrate: "server", or "sum" if an aggregator shows only sums"""
    weights: str | list[float] | dict[str, float] | None = None
    """how much each client counts: "equal", "records", or a number for each"""
    # how
    rounds: int | None = None
    sampling: str | None = None
    batch: float | None = None
    bound: str = "clip-norm"
    """"clip-norm", "normalise" or "clip-each-coordinate"; `clip_norm` is its size"""
    clip_norm: float = 1.0
    bound_from: str | None = None
    """where `clip_norm` comes from if it is not given: "quantile:SHARE" of epsilon, "public:DATA", or "median" in
    a run without privacy"""
    compressor: str | None = None
    step: float | None = None
    shift_step: float | None = None
    snapshot_probability: float | None = None
    difference_bound: float | None = None
    """of SVRG and SAGA: how far a record's gradient may be from its remembered one, as a fraction of the bound"""
    projection: str | None = None
    """"none", "ball:RADIUS" or "box:LOW:HIGH": where the model must lie"""
    strong_convexity: float | None = None
    """of the loss, mu; the strength of a ridge penalty unless given"""
    stages: int | list[list[float]] | None = None
    """into how many equal stages of first curvature 1/step the accelerated algorithm cuts its rounds, or the
    [rounds, curvature] of each"""
    regularisation: float | None = None
    """of the accelerated algorithm: the strength of a ridge around the start, for losses that are only convex"""
    local_steps: int | None = None
    """how many steps a client takes at home in a round"""
    local_step: float | None = None
    """how long they are; as long as `step` unless given"""
    step_schedule: str | None = None
    """"constant", "exponential:DECAY" or "inverse-sqrt": how `step` and `local_step` change with the rounds"""
    momentum: float | None = None
    """of the server"""
    beta_1: float | None = None
    """of the adaptive server: how long it remembers directions"""
    beta_2: float | None = None
    """and how long their squares"""
    kappa: float | None = None
    """and from which size on a coordinate's movements are scaled"""
    bits: int | None = None
    """for every coordinate of a message of whole numbers"""
    rotate: bool | None = None
    """whether gradients are spread over their coordinates before they are rounded to whole numbers"""
    output: str | None = None
    """"last", "average" or "random": which point is the model"""
    cohort: int | str | None = None
    """how many clients take part in a round, or "FEWEST-MOST"; all of them unless given"""
    feature_norm: float | None = None
    """a public bound on the norm of a record's features, for the theory's constants"""
    target_bound: float | None = None
    """a public bound on the absolute target of a regression, for the theory's constants"""
    noise: str = "gaussian"
    """"gaussian" from the seed, for research, or "lattice" from the operating system's entropy"""
    # the run
    seed: int = 0
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    memory_limit_mb: int = 1024
    """about how much of a cohort is worked on at a time; 0 for one client after the other, which rounds exactly
    as a deployed silo does"""
    device: str = "cpu"
    model_settings: dict[str, Any] = field(default_factory=dict)
    data_settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kinds in _kinds().items():
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool) and float in kinds and int not in kinds:
                object.__setattr__(self, name, _as_float(name, value))
            elif not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                wanted = " or ".join(k.__name__ for k in kinds if k is not type(None))
                raise RequestError(f"{name} must be {wanted}, not {value!r}")
        for name in ("epsilon", "delta", "weights"):
            object.__setattr__(self, name, _as_numbers(name, getattr(self, name)))
        if self.privacy not in (None, "record", "client", "none"):
            raise unknown_name("privacy", self.privacy, ["record", "client", "none"])
        if self.adversary not in (None, "sum", "server"):
            raise unknown_name("adversary", self.adversary, ["sum", "server"])

    @property
    def memory_limit_bytes(self) -> int:
        """The same in bytes, at least one."""
        return max(1, self.memory_limit_mb * 2**20)

    def with_settings(self, settings: dict[str, Any]) -> Recipe:
        """This recipe with some settings changed; `model.hidden` and `data.unit_norm` reach into the tables."""
        plain: dict[str, Any] = {}
        tables = {"model": dict(self.model_settings), "data": dict(self.data_settings)}
        for key, value in settings.items():
            table, dot, name = key.partition(".")
            if dot and table in tables:
                tables[table][name] = value
            elif key.replace("-", "_") in _NAMES:
                plain[key.replace("-", "_")] = value
            else:
                raise unknown_name("setting", key, [*_NAMES, "model.NAME", "data.NAME"])
        return replace(self, **{"model_settings": tables["model"], "data_settings": tables["data"], **plain})

    def to_toml(self) -> str:
        """As TOML; settings that are None are left out."""
        return tomli_w.dumps(
            {key: value for key, value in asdict(self).items() if value is not None and value != {}}
        )

    @classmethod
    def from_toml(cls, text: str, source: str = "recipe") -> Recipe:
        """The inverse of `to_toml`. Tables `[model_settings]` and `[data_settings]` hold the makers' own."""
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise RequestError(f"{source} is not valid TOML: {error}") from error
        for name in values:
            if name not in _NAMES:
                raise unknown_name(f"setting in {source}", name, _NAMES)
        # A choice left out of a file is left open, even where the built-in recipe has made it.
        open_choices = {"epsilon": None, "delta": None} if values.get("privacy") == "none" else {}
        return cls(**{**open_choices, **values})

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """A recipe from a file."""
        try:
            return cls.from_toml(path.read_text(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"cannot read recipe {path}: {error}") from error


def _as_float(name: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise RequestError(f"{name} must be a number that fits into a float") from error


def _as_numbers(name: str, value: Any) -> Any:
    """The same value, with every number of a list or table a float."""
    if not isinstance(value, list | dict):
        return value
    entries = value if isinstance(value, list) else list(value.values())
    if not entries or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in entries):
        raise RequestError(f"{name} must be a number for each client, not {value!r}")
    if isinstance(value, list):
        return [_as_float(name, v) for v in value]
    return {key: _as_float(name, v) for key, v in value.items()}


_NAMES = [f.name for f in fields(Recipe)]


@lru_cache(maxsize=1)
def _kinds() -> dict[str, tuple[type, ...]]:
    hints = get_type_hints(Recipe)
    kinds = {}
    for name, hint in hints.items():
        members = get_args(hint) if not name.endswith("_settings") else ()
        kinds[name] = tuple(get_origin(m) or m for m in members) or (
            (dict,) if name.endswith("_settings") else (hint,)
        )
    return kinds


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` as on the command line; the value is TOML, or else a plain word.

    >>> parse_setting("step=0.3"), parse_setting("partition=dirichlet:0.5"), parse_setting("data.unit_norm=true")
    (('step', 0.3), ('partition', 'dirichlet:0.5'), ('data.unit_norm', True))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RequestError(f"--set takes key=value, not {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


DEMONSTRATION = Recipe(
    algorithm="soteriafl-gd",
    data="digits",
    clients=10,
    model="softmax",
    epsilon=8.0,
    delta=1e-5,
    rounds=200,
    clip_norm=0.5,
    compressor="natural",
    step=4.0,
    model_settings={"intercept": False},
    data_settings={"unit_norm": True},
)
"""What `tacit run` does when it is told nothing: embedded data, ten clients, no download.

Its clip norm, step, compressor and rounds were chosen by test accuracy, so that accuracy is a little flattering.
"""
