"""A recipe: everything that determines a run, as plain values that can be written as TOML and read back.

Data, model and algorithm each have a name and settings of their own:

    rounds = 100
    epsilon = 2.0
    delta = 1e-5

    [data]
    name = "digits"
    unit_norm = true

    [algorithm]
    name = "soteriafl-gd"
    compressor = "natural"

The name determines which settings there are. `algorithm = "soteriafl-gd"` gives only the name.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

import tomli_w

from tacit.algorithms.registry import ALGORITHMS, algorithm_entry
from tacit.algorithms.settings import plain_value, settings_of, usual_settings
from tacit.data.files import KINDS
from tacit.engine.files import toml_values
from tacit.errors import RequestError, reason, similar_names, unknown_name

TABLES = ("algorithm", "model", "data", "evaluation")
"""Tables of a recipe: each has settings of its own, and all but the evaluation have a name."""


@dataclass(frozen=True)
class Recipe:
    """What to train, on which data, how, and with which promise.

    None, or a setting that is left out, means "choose for me": the theory's prescription where there is one.
    `Plan.recipe` has every choice filled in, and reproduces the run. `Recipe()` is the demonstration that `tacit
    run` shows if it is given nothing.
    """

    # what and on what
    algorithm: str = "soteriafl-sgd"
    """the name of an algorithm (`tacit list`)"""
    data: str = "digits"
    """the name of a data set (`tacit list`), or your own files, joined by commas"""
    clients: int | None = None
    """how many clients the records of a named data set are dealt to; 10 unless the partition says"""
    partition: str = "iid"
    """how the records of a named data set are dealt: "iid", "dirichlet:0.5", "sorted", ..."""
    model: str | None = None
    """the name of a model (`tacit list`), or "module:PACKAGE:FACTORY"; by default the linear model for the
    task"""
    # the promise
    privacy: str | None = None
    """unit of privacy: "record" or "client", as the algorithm defines it; "none" turns privacy off"""
    epsilon: float | list[float] | dict[str, float] | None = 8.0
    """one value for all clients, a list with one per client in order, or a table with one per name"""
    delta: float | list[float] | dict[str, float] | None = 1e-5
    """delta of the promise, for all clients or for each, as epsilon"""
    adjacency: str = "replace-one"
    """which data sets the promise compares: "replace-one" record for another, or "add-remove" one"""
    trust: str | None = None
    """"sum" if the server can open only sums over clients, by masks; by default as the algorithm says"""
    quorum: int | None = None
    """under trust = "sum", the fewest clients whose sum can be opened; by default a fifth may be missing"""
    colluding: int | None = None
    """under trust = "sum", the most clients that may help the server; by default a fifth"""
    client_epsilon: float | None = None
    """additional epsilon for all records of a client together; the noise is the larger of the two needs"""
    client_delta: float | None = None
    """the delta of that promise; by default as large as `delta`"""
    noise: str = "gaussian"
    """"gaussian" from the seed, for research, or "lattice" from the operating system's entropy"""
    # what everybody knows
    weights: str | list[float] | dict[str, float] | None = None
    """weights of the clients: "noise-aware" (by records, small clients less, because noise hides what they send),
    "records", "equal", or a number for each"""
    feature_norm: float | None = None
    """a public bound on the norm of a record's features, for the theory's constants"""
    target_bound: float | Literal["learn"] | None = None
    """a public bound on the absolute target of a regression; or "learn", if where the targets lie is learned
    privately (`tacit.engine.middle`). By default it is learned where that can be charged; 0 for neither"""
    settings_from: str = "defaults"
    """source of the settings that are left out: "defaults", chosen for a good model at this noise, or "theory",
    as the paper's theorems prescribe"""
    correction: float | None = None
    """what correcting the mean and slope of a trained regression may cost alone, as a share of epsilon
    (`tacit.engine.correction`); 0 for none. By default a fifth, where a schema says the target's range"""
    # the run
    rounds: int | None = None
    """number of communication rounds"""
    cohort: int | str | None = None
    """how many clients take part in a round, or "FEWEST-MOST"; all of them by default"""
    seed: int = 0
    """seed of all randomness; whoever knows it can subtract seeded noise"""
    stream: str | None = None
    """the stream of the seed that noise, batches and secret coins come from; runs with the same seed and stream
    share them. `tacit compare` gives every run its own"""
    evaluate_every: int | None = None
    """rounds between two rows of the history; by default there are about fifty"""
    checkpoint_every: int | None = None
    """rounds between two checkpoints; by default there is one every few seconds"""
    memory_limit_mb: int = 1024
    """approximate memory for the part of a cohort that is processed at a time; 0 for one client after the other,
    which rounds exactly as a deployed silo does"""
    client_groups: int | None = None
    """number of groups of clients whose sums are added one after the other; processes started by torchrun share
    the groups, and then there are two to twelve unless given. It changes results by rounding only"""
    device: str = "cpu"
    """where tensors are kept, such as "cuda:0" on a machine with a GPU"""
    algorithm_settings: dict[str, Any] = field(default_factory=dict)
    """the parameters of the algorithm's function (`tacit.algorithms.settings`)"""
    model_settings: dict[str, Any] = field(default_factory=dict)
    """settings of the model (`tacit.models.registry`)"""
    data_settings: dict[str, Any] = field(default_factory=dict)
    """settings of the data set (`tacit.data.named`), or of your own files (`tacit.data.files`)"""
    evaluation_settings: dict[str, Any] = field(default_factory=dict)
    """private evaluation on records that are held back (`tacit.engine.evaluation`); empty for none"""

    def __post_init__(self) -> None:
        for name, kind in _kinds().items():
            object.__setattr__(self, name, plain_value(name, kind, getattr(self, name)))
        for name in ("epsilon", "delta", "weights"):
            object.__setattr__(self, name, _as_numbers(name, getattr(self, name)))
        if self.privacy not in (None, "record", "client", "none"):
            raise unknown_name("privacy", self.privacy, ["record", "client", "none"])
        if self.trust not in (None, "sum"):
            raise RequestError(
                f"trust must be 'sum' (the server opens only sums over clients) or be left out (the algorithm "
                f"says whom it trusts, usually nobody), not {self.trust!r}"
            )
        if self.trust is None and (self.quorum, self.colluding) != (None, None):
            raise RequestError("quorum and colluding are settings of trust = 'sum'")
        if self.settings_from not in ("defaults", "theory"):
            raise unknown_name("settings_from", self.settings_from, ["defaults", "theory"])
        if isinstance(self.target_bound, float):
            bound = self.target_bound
            if not (math.isfinite(bound) and bound >= 0):
                raise RequestError(f"target_bound must be a finite number of at least 0, not {bound!r}")
        given = {name: value for name, value in self.algorithm_settings.items() if value is not None}
        object.__setattr__(self, "algorithm_settings", given)

    @property
    def public_target_bound(self) -> float | None:
        """The bound on targets, if one was given; 0 means that none is known."""
        return self.target_bound if isinstance(self.target_bound, float) and self.target_bound else None

    @property
    def memory_limit_bytes(self) -> int:
        """The memory limit in bytes, at least one."""
        return max(1, self.memory_limit_mb * 2**20)

    def with_settings(self, settings: dict[str, Any]) -> Recipe:
        """This recipe with some settings changed.

        `algorithm.step`, `model.hidden` and `data.unit_norm` reach into the tables.
        """
        plain: dict[str, Any] = {}
        tables = {name: dict(getattr(self, f"{name}_settings")) for name in TABLES}
        for key, value in settings.items():
            table, dot, name = key.partition(".")
            if dot and table in tables:
                tables[table][name.replace("-", "_")] = value
            else:
                plain[key.replace("-", "_")] = value
        _check_names(plain)
        plain |= {f"{name}_settings": own for name, own in tables.items()}
        return replace(self, **plain)

    def with_algorithm_settings(self, **settings: Any) -> Recipe:
        """This recipe with some of its algorithm's settings changed; None leaves one open."""
        return replace(self, algorithm_settings={**self.algorithm_settings, **settings})

    def for_algorithm(self, algorithm: str) -> Recipe:
        """This recipe with another algorithm, without the settings that the new algorithm does not take."""
        make = algorithm_entry(algorithm).make
        own = {name: value for name, value in self.algorithm_settings.items() if name in settings_of(make)}
        if (usual_settings(make) | own).get("sampling") == "full":
            own.pop("batch", None)
        return replace(self, algorithm=algorithm, algorithm_settings=own)

    def flat(self) -> dict[str, Any]:
        """Every setting, by the name that `with_settings` uses."""
        values = asdict(self)
        tables = {name: values.pop(f"{name}_settings") for name in TABLES}
        return values | {f"{table}.{name}": v for table, own in tables.items() for name, v in own.items()}

    def to_toml(self) -> str:
        """As TOML; settings that are None are left out."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        tables = {name: values.pop(f"{name}_settings") for name in TABLES}
        for name, own in tables.items():
            if own:
                values[name] = {"name": values[name], **own} if name in values else own
        return tomli_w.dumps(values)

    @classmethod
    def from_toml(cls, text: str, source: str = "recipe") -> Recipe:
        """The inverse of `to_toml`."""
        values = toml_values(text, source)
        _check_format(values, source)
        _check_names(values, source)
        known = [one.name for one in fields(cls)]
        for name in TABLES:
            if isinstance(values.get(name), dict):
                own = dict(values.pop(name))
                values |= {name: own.pop("name")} if "name" in own else {}
                values[f"{name}_settings"] = own
            elif name in values and name not in known:
                raise RequestError(f"{name} must be a table in {source}, not {values[name]!r}: write [{name}]")
        # A choice left out of a file stays open, even if the built-in recipe has made it.
        open_choices = {"epsilon": None, "delta": None} if values.get("privacy") == "none" else {}
        return cls(**{**open_choices, **values})

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """A recipe from a file."""
        if path.suffix.lower() in KINDS:
            raise RequestError(f"{path} is no recipe (TOML); your own records are an option: --data {path}")
        try:
            text = path.read_text()
        except (OSError, ValueError) as error:
            # A word without an ending is seldom a file.
            named = "" if path.suffix else ". Data sets and algorithms are options: --data NAME, --algorithm NAME"
            raise RequestError(f"cannot read recipe {path}: {reason(error)}{named}") from error
        return cls.from_toml(text, str(path))


def _former_names() -> dict[str, tuple[str, str]]:
    """Table and name of settings that were at the top level before algorithm, model and data had tables."""
    names = {name: ("algorithm", name) for entry in ALGORITHMS.values() for name in entry.settings}
    return names | {"step_schedule": names["schedule"]}


def _home(setting: str) -> str | None:
    """How a setting of some algorithm, model or data set is written; None if none of them has it."""
    from tacit.engine.records import DATA_SETTINGS
    from tacit.models.registry import MODELS

    if setting in _former_names():
        return ".".join(_former_names()[setting])
    models = any(setting in entry.settings for entry in MODELS.values())
    return f"model.{setting}" if models else f"data.{setting}" if setting in DATA_SETTINGS else None


def _check_names(names: Iterable[str], where: str = "") -> None:
    """Refuses unknown settings; for those of an algorithm, model or data set, says where they are written.

    where: the file, if the settings are in one.
    """
    known = [f.name for f in fields(Recipe) if not f.name.endswith("_settings")]
    strangers = [name for name in names if name not in (*known, *TABLES)]
    homes = {name: home for name in strangers if (home := _home(name))}
    if homes:
        instead = ", ".join(f"for {name} write {home}" for name, home in homes.items())
        inside = f" in {where}" if where else ""
        raise RequestError(f"algorithm, model and data have settings of their own{inside}: {instead}")
    if strangers:
        table, dot, own = strangers[0].partition(".")
        meant = [f"{close}.{own}" for close in similar_names(table, TABLES)] if dot else []
        names = meant or [*known, *(f"{table}.NAME" for table in TABLES)]
        raise unknown_name("setting", strangers[0], names, where)


def _check_format(values: dict[str, Any], source: str) -> None:
    """Refuses a recipe from before there were tables, and shows how to write all of it now."""
    own = {f"{table}_settings": table for table in TABLES}
    former = _former_names()
    moved = [name for name in values if name in former or name in own]
    named = values.get("algorithm", Recipe.algorithm)
    if not moved or not isinstance(named, str) or named not in ALGORITHMS:
        return
    now = {name: value for name, value in values.items() if name not in moved}
    tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for name in moved:
        if name in own and isinstance(values[name], dict):
            tables[own[name]] |= values[name]
        elif name in former:
            table, setting = former[name]
            # Recipes used to hold every setting, including those that their algorithm does not have.
            if setting in algorithm_entry(named).settings:
                tables[table][setting] = values[name]
    for table, settings in tables.items():
        if settings:
            now[table] = ({"name": now[table]} if table in now else {}) | settings
    raise RequestError(
        f"{source} is from an older version: algorithm, model and data now have a table each, which holds their "
        f"name and their own settings. Write instead:\n\n{tomli_w.dumps(now)}"
    )


def _as_numbers(name: str, value: Any) -> Any:
    """The same value, with every number of a list or table as a float."""
    if not isinstance(value, list | dict):
        return value
    entries = value if isinstance(value, list) else list(value.values())
    if not entries or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in entries):
        raise RequestError(f"{name} must be a number for each client, not {value!r}")
    if isinstance(value, list):
        return [plain_value(name, float, v) for v in value]
    return {key: plain_value(name, float, v) for key, v in value.items()}


@lru_cache(maxsize=1)
def _kinds() -> dict[str, Any]:
    return get_type_hints(Recipe)


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` as on the command line; the value is TOML, or else a plain word.

    >>> parse_setting("rounds=30"), parse_setting("partition=dirichlet:0.5"), parse_setting("algorithm.step=0.3")
    (('rounds', 30), ('partition', 'dirichlet:0.5'), ('algorithm.step', 0.3))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RequestError(f"--set takes key=value, such as --set epsilon=4, not {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()
