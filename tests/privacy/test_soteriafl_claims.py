"""What SoteriaFL's experiments really kept: the table of true epsilons in the privacy notes (delta = 1e-3).

The noise on the mean of a batch is as published, variance 12 G^2 T log(1/delta) / (m epsilon)^2, with every
record clipped by itself.
"""

from __future__ import annotations

import math

import pytest

from tacit.privacy import Adjacency, calibrate_noise, epsilon, events

DELTA = 1e-3
CLAIMS = [
    # claimed, batch, rounds, records of a client, then true: add-remove, replace-one, without, with replacement
    (1, 10, 25, 3256, 42.6, 42.6, 200, 202),
    (5, 51, 100, 3256, 25, 26, 144, 169),
    (10, 103, 150, 3256, 27, 30, 172, 206),
    (1, 128, 150, 6000, 0.24, 0.51, 0.85, 0.865),
    (2, 128, 200, 6000, 0.65, 1.2, 3.6, 4.07),
    (4, 128, 300, 6000, 2.2, 3.2, 18.6, 22.2),
    (8, 128, 500, 6000, 9.8, 12, 92, 104),
    (16, 128, 1000, 6000, 44, 53, 383, 413),
]


def published_std_on_the_mean(claimed: float, rounds: int, records: int) -> float:
    return math.sqrt(12 * rounds * math.log(1 / DELTA)) / (records * claimed)


@pytest.mark.parametrize(
    ("claimed", "batch", "rounds", "records", "removed", "replaced", "without", "with_"), CLAIMS
)
def test_true_epsilons_of_the_published_noise(
    claimed: float,
    batch: int,
    rounds: int,
    records: int,
    removed: float,
    replaced: float,
    without: float,
    with_: float,
) -> None:
    noise = published_std_on_the_mean(claimed, rounds, records) * batch
    poisson = events.repeated(events.poisson(batch / records, noise), rounds)
    fixed = events.repeated(events.without_replacement(records, batch, noise), rounds)
    again = events.repeated(events.with_replacement(records, batch, noise), rounds)
    assert epsilon(poisson, DELTA, Adjacency.ADD_REMOVE) == pytest.approx(removed, rel=0.02)
    assert epsilon(poisson, DELTA) == pytest.approx(replaced, rel=0.02)
    assert epsilon(fixed, DELTA) == pytest.approx(without, rel=0.02)
    assert epsilon(again, DELTA) == pytest.approx(with_, rel=0.02)


@pytest.mark.parametrize(("row", "share"), [(0, 0.57), (1, 0.76), (2, 0.89)])
def test_full_batches_make_the_labels_true_with_less_noise(row: int, share: float) -> None:
    claimed, _, rounds, records, *_ = CLAIMS[row]
    noise = calibrate_noise(lambda z: events.repeated(events.gaussian(z), rounds), epsilon=claimed, delta=DELTA)
    assert noise / records / published_std_on_the_mean(claimed, rounds, records) == pytest.approx(share, abs=0.01)
