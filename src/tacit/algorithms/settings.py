"""An algorithm's own settings: plain values by name, and the parts they describe.

An algorithm's settings and their defaults are read from its function's signature. A parameter of a plain type (a
number, a word) is a setting of the same name. For every other type, `KINDS` says which settings describe it, and
how to convert between the settings and the part. To add a setting, add a parameter; nothing else is needed.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.shuffler import Shuffler
from tacit.algorithms.trust import Aggregator, Nobody, Trust
from tacit.client.bounds import Bound, build_bound, describe_bound
from tacit.client.sampling import Sampling, build_sampling
from tacit.compress import Compressor, parse_compressor
from tacit.errors import RequestError, positive, similar_names
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.schedules import Schedule, parse_schedule
from tacit.server.accelerated import Stage
from tacit.server.participation import Everyone, Participation
from tacit.server.projection import Projection, parse_projection
from tacit.server.update import Output, describe_output, parse_output
from tacit.side.release import SideRelease

Make = Callable[..., Algorithm]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class About:
    """Public numbers of a run, on which a part may depend in addition to its own settings."""

    federation: Federation
    """the records; parts use only their public numbers"""
    rounds: int
    """the number of rounds"""
    seed: int = 0
    """the seed of public coins"""
    participation: Participation = field(default_factory=Everyone)
    """which clients take part in a round"""
    before: SideRelease[float] | None = None
    """the release that the bound was derived from, if any"""


@dataclass(frozen=True)
class Kind:
    """How parts of one type are written as settings.

    `read` takes the values of `settings` in order; `write` is its inverse.
    """

    settings: Settings
    """name and plain type of each; "" stands for the parameter's own name"""
    read: Callable[..., Any]
    write: Callable[[Any], tuple[Any, ...]] = lambda part: ()
    usual: tuple[Any, ...] = ()
    """fallback values if neither a setting nor the signature gives one"""


def _stages(about: About, stages: int | list[list[float]], step: float | None) -> tuple[Stage, ...]:
    """The stages as given, or the rounds split into stages of nearly equal length, first curvature 1/step."""
    rounds = about.rounds
    if isinstance(stages, list):
        if not all(isinstance(stage, list) and len(stage) == 2 for stage in stages):
            raise RequestError(f"stages must be a number, or [rounds, curvature] for each stage, not {stages!r}")
        lengths = [_whole(length) for length, _ in stages]
        if sum(lengths) != rounds:
            raise RequestError(f"stages have {sum(lengths)} rounds, but the recipe has {rounds}")
        return tuple(Stage(length, curvature) for length, (_, curvature) in zip(lengths, stages, strict=True))
    if not 1 <= stages <= rounds:
        raise RequestError(f"stages must be between 1 and the {rounds} rounds, not {stages}")
    lengths = [rounds // stages + (k < rounds % stages) for k in range(stages)]
    curvature = None if step is None else 1 / positive("step", step)
    return tuple(Stage(length, curvature) for length in lengths)


def _whole(rounds: float) -> int:
    if not isinstance(rounds, int | float) or rounds != rounds // 1:
        raise RequestError(f"the rounds of a stage must be a whole number, not {rounds!r}")
    return int(rounds)


def _trust(about: About, adversary: str) -> Trust:
    """Against the server nobody is trusted; otherwise an aggregator hides the messages and who takes part."""
    who = about.participation
    return Aggregator(who.typical(about.federation.clients)) if adversary == "sum" and who.secret else Nobody()


def _before(about: About, bound_from: str | None) -> SideRelease[float] | None:
    """The release that the bound was derived from; without it, a private statistic would go uncharged."""
    if about.before is None and (bound_from or "").startswith("quantile"):
        raise RequestError(
            f"bound_from = {bound_from!r} needs a release before the first round, which cannot be made here: "
            "give clip_norm"
        )
    return about.before


def _shuffler(about: About) -> Shuffler:
    """A shuffler of all clients, or of a fixed number of them."""
    return Shuffler().fitted(about.participation, about.federation)


KINDS: dict[Any, Kind] = {
    Sampling: Kind(
        {"": str, "batch": float},
        lambda about, name, batch: build_sampling(name, batch),
        lambda sampling: (sampling.name, getattr(sampling, "batch", None)),
        usual=("poisson", 0.1),
    ),
    Bound: Kind({"": str, "clip_norm": float}, lambda about, name, size: build_bound(name, size), describe_bound),
    Compressor: Kind({"": str}, lambda about, text: parse_compressor(text), lambda part: (part.spec(),)),
    Projection: Kind({"": str}, lambda about, text: parse_projection(text), lambda part: (part.spec(),)),
    Schedule: Kind({"": str}, lambda about, text: parse_schedule(text), lambda part: (part.spec(),)),
    Output: Kind(
        {"": str},
        lambda about, name: parse_output(name, about.rounds, Randomness(about.seed)),
        lambda output: (describe_output(output),),
    ),
    tuple[Stage, ...]: Kind({"": int | list[list[float]], "step": float}, _stages, usual=(1,)),
    Trust: Kind({"adversary": Literal["sum", "server"]}, _trust, usual=("sum",)),
    Shuffler: Kind({}, _shuffler),
    SideRelease[float] | None: Kind({"bound_from": str}, _before, lambda release: (None,)),
}
"""Maps a parameter's type to the settings that describe it."""

_PLAIN = Kind({"": None}, lambda about, value: value, lambda value: (value,))
"""A parameter that is itself a setting."""


@dataclass(frozen=True)
class _Parameter:
    """A parameter of an algorithm's function, and the settings it is read from."""

    name: str
    kind: Kind
    settings: Settings
    """names and plain types of the settings"""
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


@lru_cache(maxsize=256)
def _parameters(make: Make) -> tuple[_Parameter, ...]:
    hints, found = get_type_hints(make), []
    for name, parameter in inspect.signature(make).parameters.items():
        if name == "model":
            continue
        annotation = hints[name]
        if annotation not in KINDS and not _is_plain(annotation):
            # A recipe would have no way to write this parameter.
            raise TypeError(f"{make.__name__}: no kind in tacit/algorithms/settings.py for {name}: {annotation}")
        kind = KINDS.get(annotation, _PLAIN)
        settings = {own or name: plain or annotation for own, plain in kind.settings.items()}
        found.append(_Parameter(name, kind, settings, parameter.default))
    return tuple(found)


def settings_of(make: Make) -> dict[str, Any]:
    """Name and plain type of every setting of an algorithm."""
    return {name: plain for one in _parameters(make) for name, plain in one.settings.items()}


def takes_part(make: Make, kind: Any) -> bool:
    """Whether an algorithm takes a part of this type (a key of `KINDS`)."""
    return any(one.kind is KINDS[kind] for one in _parameters(make))


def usual_settings(make: Make) -> dict[str, Any]:
    """The defaults as plain values. Settings without a default, or whose default is None, are left out."""
    usual: dict[str, Any] = {}
    for one in _parameters(make):
        written = () if one.required else one.kind.write(one.default)
        for name, value, fallback in zip_longest(one.settings, written, one.kind.usual):
            usual[name] = fallback if value is None else value
    return {name: value for name, value in usual.items() if value is not None}


def checked_settings(algorithm: str, make: Make, settings: Settings) -> dict[str, Any]:
    """Checks that the algorithm takes the settings and that their types are right. Drops those that are None."""
    taken, found = settings_of(make), {}
    for name, value in settings.items():
        if value is None:
            continue
        if name not in taken:
            close = similar_names(name, taken)
            meant = f"; did you mean {' or '.join(close)}? It" if close else "; it"
            raise RequestError(f"algorithm {algorithm!r} takes no {name}{meant} takes {', '.join(sorted(taken))}")
        found[name] = plain_value(name, taken[name], value)
    return found


def read_parts(algorithm: str, make: Make, settings: Settings, about: About) -> dict[str, Any]:
    """The arguments of an algorithm's function; its defaults fill in whatever no setting gives."""
    values = usual_settings(make) | checked_settings(algorithm, make, settings)
    arguments = {}
    for one in _parameters(make):
        said = [values.get(name) for name in one.settings]
        if one.required and said and all(value is None for value in said):
            name = next(iter(one.settings))
            raise RequestError(f"algorithm {algorithm!r} needs {name}: set algorithm.{name}")
        arguments[one.name] = one.kind.read(about, *said)
    return arguments


_IN_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a table",
}


def plain_value(name: str, kind: Any, value: Any) -> Any:
    """Checks that a value has the plain type `kind`; integers become floats where a float is wanted."""
    members = _members(kind)
    words = [word for member in members if get_origin(member) is Literal for word in get_args(member)]
    types_ = tuple(get_origin(member) or member for member in members if get_origin(member) is not Literal)
    if isinstance(value, str) and value in words:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and float in types_ and int not in types_:
        try:
            return float(value)
        except OverflowError as error:
            raise RequestError(f"{name} must be a number that fits into a float") from error
    if not isinstance(value, types_) or (isinstance(value, bool) and bool not in types_):
        wanted = [*map(repr, words), *(_IN_WORDS[kind] for kind in types_ if kind is not types.NoneType)]
        raise RequestError(f"{name} must be {' or '.join(wanted)}, not {value!r}")
    return value


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _is_plain(kind: Any) -> bool:
    plain = (bool, int, float, str, list, dict, types.NoneType)
    return all(get_origin(one) is Literal or (get_origin(one) or one) in plain for one in _members(kind))
