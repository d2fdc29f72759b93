"""What happened to one client's records, as events of `dp_accounting`. Their cost is computed elsewhere.

The noise multiplier of every event is the standard deviation of the noise on the *sum* of the contributions,
divided by the bound on one record's contribution. An event describes one release, unless its docstring says
"whole run"; `repeated` and `composed` put releases together.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import dp_accounting
from dp_accounting import DpEvent

from tacit.errors import RequestError, count, positive, probability, unknown_name
from tacit.privacy.events.crowds import CoinSumDpEvent, OnceDpEvent, SharedNoiseDpEvent, ShuffledDpEvent
from tacit.privacy.events.plain_numbers import batch_of, number, whole
from tacit.privacy.events.runs import ChosenRunsDpEvent
from tacit.privacy.events.samples import FixedSizeTwoLevelDpEvent as FixedSizeTwoLevelDpEvent
from tacit.privacy.events.samples import InexactNoiseDpEvent as InexactNoiseDpEvent
from tacit.privacy.events.samples import OnePassDpEvent as OnePassDpEvent
from tacit.privacy.events.samples import RevealedBatchesDpEvent as RevealedBatchesDpEvent
from tacit.privacy.events.samples import TwoLevelDpEvent as TwoLevelDpEvent

two_level = TwoLevelDpEvent
fixed_size_two_level = FixedSizeTwoLevelDpEvent
revealed_batches = RevealedBatchesDpEvent
one_pass = OnePassDpEvent
inexact_noise = InexactNoiseDpEvent
shuffled = ShuffledDpEvent
coin_sum = CoinSumDpEvent
shared_noise = SharedNoiseDpEvent
once = OnceDpEvent
non_private = dp_accounting.NonPrivateDpEvent
"""a release without any guarantee; its epsilon is infinite"""
nothing = dp_accounting.NoOpDpEvent
"""a release that does not depend on the data; its epsilon is zero"""


def gaussian(noise_multiplier: float) -> DpEvent:
    """One release to which every record contributes (a full batch)."""
    noise_multiplier = number("noise_multiplier", noise_multiplier)
    return dp_accounting.GaussianDpEvent(positive("noise_multiplier", noise_multiplier))


def poisson(sampling_rate: float, noise_multiplier: float) -> DpEvent:
    """One release of a batch that each record joins by its own independent coin."""
    sampling_rate = probability("sampling_rate", number("sampling_rate", sampling_rate))
    return dp_accounting.PoissonSampledDpEvent(sampling_rate, gaussian(noise_multiplier))


def without_replacement(records: int, batch: int, noise_multiplier: float) -> DpEvent:
    """One release of a uniformly drawn batch of fixed size, without repeated records."""
    records, batch = batch_of(records, batch, replacement=False)
    return dp_accounting.SampledWithoutReplacementDpEvent(records, batch, gaussian(noise_multiplier))


def with_replacement(records: int, batch: int, noise_multiplier: float) -> DpEvent:
    """One release of `batch` independent draws of a record; a record drawn j times contributes j times."""
    records, batch = batch_of(records, batch, replacement=True)
    return dp_accounting.SampledWithReplacementDpEvent(records, batch, gaussian(noise_multiplier))


def repeated(event: DpEvent, rounds: int) -> DpEvent:
    """The same kind of release `rounds` times; each may depend on the results of earlier ones."""
    return dp_accounting.SelfComposedDpEvent(event, count("rounds", whole("rounds", rounds)))


def composed(events: Iterable[DpEvent]) -> DpEvent:
    """Several releases one after the other; each may depend on the results of earlier ones."""
    return dp_accounting.ComposedDpEvent(list(events))


def chosen_runs(runs: Iterable[DpEvent], epsilon: float) -> DpEvent:
    """Whole runs under a policy of `epsilon`, each chosen by someone who may have seen the earlier ones."""
    return ChosenRunsDpEvent(tuple(runs), epsilon)


_READERS: dict[str, Callable[..., DpEvent]] = {
    "gaussian": gaussian,
    "poisson": poisson,
    "two-level": two_level,
    "without-replacement": without_replacement,
    "with-replacement": with_replacement,
    "fixed-size-two-level": fixed_size_two_level,
    "revealed-batches": revealed_batches,
    "one-pass": one_pass,
    "inexact-noise": inexact_noise,
    "shuffled": shuffled,
    "coin-sum": coin_sum,
    "shared-noise": shared_noise,
    "non-private": non_private,
    "nothing": nothing,
}

_PLAIN = {made: kind for kind, made in _READERS.items() if isinstance(made, type)}

_SAMPLED = {
    dp_accounting.SampledWithoutReplacementDpEvent: "without-replacement",
    dp_accounting.SampledWithReplacementDpEvent: "with-replacement",
}


def to_dict(event: DpEvent) -> dict[str, Any]:
    """The event as plain numbers, strings, lists and dicts, for the ledger; `from_dict` reads it back.

    Both refuse an event that is invalid or that no accountant of tacit knows.

    >>> to_dict(repeated(poisson(0.1, 2.0), 30))
    {'kind': 'repeated', 'rounds': 30,
     'event': {'kind': 'poisson', 'sampling_rate': 0.1, 'noise_multiplier': 2.0}}
    """
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        rounds = count("rounds", whole("rounds", event.count))
        return {"kind": "repeated", "rounds": rounds, "event": to_dict(event.event)}
    if isinstance(event, OnceDpEvent):
        return {"kind": "once", "rounds": event.rounds, "event": to_dict(event.event)}
    if isinstance(event, dp_accounting.ComposedDpEvent):
        return {"kind": "composed", "events": [to_dict(part) for part in event.events]}
    if isinstance(event, ChosenRunsDpEvent):
        return {"kind": "chosen-runs", "runs": [to_dict(run) for run in event.runs], "epsilon": event.epsilon}
    kind, values = _flat(event)
    sound = _READERS[kind](**values)
    return {"kind": kind, **_flat(sound)[1]}


_MOST_NESTED = 50


def from_dict(data: Mapping[str, Any], *, nested: int = 0) -> DpEvent:
    """The event that `to_dict` wrote; an unknown kind, a wrong entry or a bad number is refused.

    >>> from_dict({"kind": "gaussian", "noise_multiplier": -1.0})
    Traceback (most recent call last):
    tacit.errors.RequestError: noise_multiplier must be a finite number above 0, not -1.0
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        raise RequestError(f"an event must be a mapping with a 'kind', not {data!r}")
    if nested > _MOST_NESTED:
        raise RequestError(f"events are nested more than {_MOST_NESTED} levels deep")
    values = {str(key): value for key, value in data.items() if key != "kind"}
    match data["kind"]:
        case "repeated":
            _entries("repeated", values, ("rounds", "event"))
            return repeated(from_dict(values["event"], nested=nested + 1), values["rounds"])
        case "once":
            _entries("once", values, ("rounds", "event"))
            return once(from_dict(values["event"], nested=nested + 1), values["rounds"])
        case "composed":
            _entries("composed", values, ("events",))
            return composed(_list("events", values["events"], nested))
        case "chosen-runs":
            _entries("chosen-runs", values, ("runs", "epsilon"))
            return chosen_runs(_list("runs", values["runs"], nested), values["epsilon"])
        case kind if kind in _READERS:
            settings = inspect.signature(_READERS[kind]).parameters
            # Entries with a default were added later, so events written before that lack them.
            later = {name for name, setting in settings.items() if setting.default is not setting.empty}
            _entries(kind, values, tuple(name for name in settings if name in values or name not in later))
            return _READERS[kind](**values)
        case kind:
            raise unknown_name("event kind", kind, [*_READERS, "repeated", "once", "composed", "chosen-runs"])


def _list(name: str, parts: object, nested: int) -> list[DpEvent]:
    if not isinstance(parts, list | tuple):
        raise RequestError(f"{name} must be a list of events, not {parts!r}")
    return [from_dict(part, nested=nested + 1) for part in parts]


def _flat(event: DpEvent) -> tuple[str, dict[str, Any]]:
    """Kind and settings of an event that is not a composition."""
    kind = _PLAIN.get(type(event))
    if kind is not None:
        own = fields(event) if hasattr(event, "__dataclass_fields__") else ()
        return kind, {field.name: getattr(event, field.name) for field in own}
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return "gaussian", {"noise_multiplier": event.noise_multiplier}
    inner = getattr(event, "event", None)
    if isinstance(inner, dp_accounting.GaussianDpEvent):
        noise = {"noise_multiplier": inner.noise_multiplier}
        if isinstance(event, dp_accounting.PoissonSampledDpEvent):
            return "poisson", {"sampling_rate": event.sampling_probability, **noise}
        if type(event) in _SAMPLED:
            return _SAMPLED[type(event)], {
                "records": event.source_dataset_size,
                "batch": event.sample_size,
                **noise,
            }
    raise RequestError(
        f"no accountant for {event!r}; sampling and mechanism must be one of the pairs: "
        f"{', '.join(_READERS)} (alone, repeated or composed)"
    )


def _entries(kind: str, values: Mapping[str, Any], wanted: tuple[str, ...]) -> None:
    if set(values) != set(wanted):
        raise RequestError(
            f"event {kind!r} needs exactly {', '.join(wanted) or 'nothing'}; it has {sorted(values)}"
        )
