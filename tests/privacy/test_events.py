"""Events: what they accept, and that the ledger can write them down and read them back."""

from __future__ import annotations

import json
import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.privacy import events

rates = st.floats(1e-6, 1.0)
noises = st.floats(1e-3, 1e4)
levels = st.tuples(st.floats(0.01, 10.0), st.floats(0.0, 1.0)).map(lambda pair: (pair[0], pair[0] * pair[1]))
sizes = st.integers(1, 10**6)


@st.composite
def releases(draw: st.DrawFn) -> object:
    rate, noise, (inside, outside) = draw(rates), draw(noises), draw(levels)
    records, rounds = draw(sizes), draw(sizes)
    batch = draw(st.integers(1, records))
    return draw(
        st.sampled_from(
            [
                events.gaussian(noise),
                events.poisson(rate, noise),
                events.two_level(rate, noise, inside, outside),
                events.without_replacement(records, batch, noise),
                events.with_replacement(records, batch, noise),
                events.fixed_size_two_level(records, batch, draw(st.booleans()), noise, inside, outside + 0.1),
                events.revealed_batches(rounds, rate, noise, inside, outside),
                events.one_pass(noise, rounds),
                events.shuffled(draw(sizes), records, batch, noise),
                events.shared_noise(records, records * rate, noise),
                events.coin_sum(draw(sizes), draw(sizes), rounds, inside),
                events.once(events.shuffled(draw(sizes), records, batch, noise), rounds),
                events.non_private(),
                events.nothing(),
            ]
        )
    )


nested = st.recursive(
    releases(),
    lambda inner: st.one_of(
        st.builds(events.repeated, inner, st.integers(1, 100)),
        st.builds(events.composed, st.lists(inner, max_size=3)),
    ),
    max_leaves=4,
)


@given(nested)
def test_every_event_survives_json(event: object) -> None:
    assert events.from_dict(json.loads(json.dumps(events.to_dict(event)))) == event


def test_numbers_of_numpy_become_plain() -> None:
    event = events.repeated(
        events.fixed_size_two_level(np.int64(100), np.int32(10), True, np.float32(2.0), np.float64(2.0), 0.5),
        np.int64(3),
    )
    assert json.loads(json.dumps(events.to_dict(event)))["event"]["records"] == 100


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan, math.inf, "1", None, True])
@pytest.mark.parametrize(
    "make",
    [
        events.gaussian,
        lambda z: events.poisson(0.1, z),
        lambda z: events.two_level(0.1, z, 2.0, 0.1),
        lambda z: events.without_replacement(10, 2, z),
        lambda z: events.with_replacement(10, 2, z),
        lambda z: events.fixed_size_two_level(10, 2, False, z, 2.0, 0.1),
        lambda z: events.revealed_batches(3, 0.1, z, 2.0, 0.1),
        lambda z: events.one_pass(z, 3),
        lambda z: events.shuffled(9, 10, 2, z),
        lambda z: events.shared_noise(9, 2.5, z),
    ],
)
def test_bad_noise_is_refused_by_name(make: object, noise: object) -> None:
    with pytest.raises(RequestError, match="noise_multiplier"):
        make(noise)  # type: ignore[operator]


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan, "0.1", True])
def test_bad_rates_are_refused_by_name(rate: object) -> None:
    for make in (
        lambda: events.poisson(rate, 1.0),  # type: ignore[arg-type]
        lambda: events.two_level(rate, 1.0, 1.0, 0.0),  # type: ignore[arg-type]
        lambda: events.revealed_batches(2, rate, 1.0, 1.0, 0.0),  # type: ignore[arg-type]
    ):
        with pytest.raises(RequestError, match="sampling_rate"):
            make()


@pytest.mark.parametrize("expected", [0.0, -1.0, 9.5, math.inf, "3", True])
def test_a_cohort_that_cannot_be_expected_is_refused(expected: object) -> None:
    with pytest.raises(RequestError, match="expected"):
        events.shared_noise(9, expected, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("rounds", [0, -1, 1.5, 2.0, "3", True])
def test_bad_rounds_are_refused_by_name(rounds: object) -> None:
    for make in (
        lambda: events.repeated(events.gaussian(1.0), rounds),  # type: ignore[arg-type]
        lambda: events.one_pass(1.0, rounds),  # type: ignore[arg-type]
        lambda: events.revealed_batches(rounds, 0.1, 1.0, 1.0, 0.0),  # type: ignore[arg-type]
    ):
        with pytest.raises(RequestError, match="rounds"):
            make()


def test_impossible_batches_and_levels_are_refused() -> None:
    with pytest.raises(RequestError, match="batch must be at most records = 5"):
        events.without_replacement(5, 6, 1.0)
    with pytest.raises(RequestError, match="records"):
        events.with_replacement(0, 1, 1.0)
    with pytest.raises(RequestError, match="outside"):
        events.two_level(0.1, 1.0, inside=1.0, outside=1.5)
    with pytest.raises(RequestError, match="inside"):
        events.two_level(0.1, 1.0, inside=0.0, outside=0.0)
    with pytest.raises(RequestError, match="replacement"):
        events.fixed_size_two_level(10, 2, "no", 1.0, 2.0, 0.1)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="full"):
        events.fixed_size_two_level(10, 2, False, 1.0, 2.0, 0.0)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"kind": "poison", "sampling_rate": 0.1, "noise_multiplier": 1.0}, "did you mean 'poisson'"),
        ({"kind": "gaussian"}, "needs exactly noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": 1.0, "epsilon": 1.0}, "needs exactly noise_multiplier"),
        ({"kind": "gaussian", "noise_multiplier": "1"}, "noise_multiplier"),
        ({"kind": "repeated", "rounds": 2}, "needs exactly rounds, event"),
        ({"kind": "repeated", "rounds": 2, "event": 7}, "mapping with a 'kind'"),
        ({"kind": "composed", "events": {}}, "list of events"),
        ({"noise_multiplier": 1.0}, "mapping with a 'kind'"),
        ([], "mapping with a 'kind'"),
    ],
)
def test_a_damaged_ledger_entry_is_refused(data: object, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        events.from_dict(data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "event",
    [
        dp_accounting.LaplaceDpEvent(1.0),
        dp_accounting.UnsupportedDpEvent(),
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.LaplaceDpEvent(1.0)),
        dp_accounting.PoissonSampledDpEvent(0.1, events.two_level(0.1, 1.0, 1.0, 0.5)),
        dp_accounting.SampledWithReplacementDpEvent(10, 2, events.two_level(0.1, 1.0, 1.0, 0.5)),
    ],
)
def test_pairs_of_sampling_and_mechanism_without_a_proof_are_named_and_refused(event: object) -> None:
    with pytest.raises(RequestError, match="one of the pairs: gaussian, poisson, two-level"):
        events.to_dict(event)


def test_events_built_around_the_checks_are_checked_all_the_same() -> None:
    unsound = dp_accounting.PoissonSampledDpEvent(2.0, dp_accounting.GaussianDpEvent(-1.0))
    with pytest.raises(RequestError, match="must be"):
        events.to_dict(unsound)
    with pytest.raises(RequestError, match="rounds"):
        events.to_dict(dp_accounting.SelfComposedDpEvent(events.gaussian(1.0), 0))
