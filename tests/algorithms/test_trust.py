"""What is printed beside a promise that rests on secret coins must not tell how the coins fell."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats

import tacit
from tacit.algorithms.calibrate import Calibration, attendance, calibrate, releases
from tacit.algorithms.trust import Aggregator
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Adversary, Guarantee, Target, epsilon, events
from tacit.privacy.promises.protection import protection
from tacit.server.participation import PoissonClients

DELTA = 1e-5


def algorithm(federation: Federation, expected: float) -> tacit.Algorithm:
    made = tacit.dp_fedavg(
        tacit.build_model("logistic", federation, {"intercept": False}),
        clip_norm=1.0,
        sampling=tacit.Full(),
        local_steps=1,
        local_step=0.1,
        step=1.0,
        trust=Aggregator(expected),
    )
    return replace(made, participation=PoissonClients(expected))


def federation(clients: int) -> Federation:
    return Federation.from_clients([([[0.0, 1.0]], [0])] * clients, classes=2)


def calibrated(clients: int, expected: float, rounds: int, target: float) -> Calibration:
    records, made = federation(clients), algorithm(federation(clients), expected)
    attended = attendance(made, clients, rounds, Randomness(0))
    return calibrate(
        made,
        records,
        releases=releases(made, attended),
        privacy=Target(target, DELTA),
        attended=attended,
    )


def table(found: Calibration) -> str:
    """All that a reader is shown."""
    assert found.guarantee is not None
    return json.dumps([row.to_dict() for row in protection(found.guarantee, beside=found.beside)])


def attacked(outcomes: list[tuple[str, int, float]], rounds: int, noise: float) -> float:
    """A lower bound on the epsilon of table and sums together, for the first client.

    `outcomes` has, for every way that the coins may fall, the table, the rounds of the client, and the chance.
    The attacker reads the table and adds up the sums of all rounds: N(+-N, T z^2) if the client came N times.
    """
    told: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for shown, times, chance in outcomes:
        told[shown][times] += chance
    x = np.linspace(-rounds - 9 * noise * math.sqrt(rounds), rounds + 9 * noise * math.sqrt(rounds), 8001)

    def log_density(chances: dict[int, float], sign: int) -> Any:
        parts = [
            math.log(p) + stats.norm.logpdf(x, sign * n, noise * math.sqrt(rounds)) for n, p in chances.items()
        ]
        return np.logaddexp.reduce(parts)

    densities = [(log_density(chances, 1), log_density(chances, -1)) for chances in told.values()]

    def delta_at(at: float) -> float:
        gains = [np.exp(p) * np.maximum(-np.expm1(np.minimum(at + q - p, 0.0)), 0.0) for p, q in densities]
        return float(sum(np.trapezoid(gain, x) for gain in gains))

    if delta_at(0.0) <= DELTA:
        return 0.0
    return float(optimize.brentq(lambda at: delta_at(at) - DELTA, 0.0, 200.0))


@pytest.mark.parametrize(
    ("clients", "rate", "rounds", "target"), [(1, 0.1, 5, 1.95), (2, 0.2, 3, 1.95), (3, 0.5, 2, 1.0)]
)
def test_whoever_reads_the_table_learns_no_more_than_it_promises(
    monkeypatch: pytest.MonkeyPatch, clients: int, rate: float, rounds: int, target: float
) -> None:
    """All ways in which the coins of a run may fall, each with the table that is printed for it.

    Were the table computed from the largest cohort and the most rounds of one client, the attack would reach
    10.1 in the first case, 5.0 in the second and 1.4 in the third.
    """
    outcomes = []
    for coins in itertools.product(itertools.product((False, True), repeat=clients), repeat=rounds):
        drawn = [torch.tensor(who).nonzero()[:, 0] for who in coins]
        monkeypatch.setattr(PoissonClients, "cohort", lambda self, n, t, randomness, drawn=drawn: drawn[t])
        found = calibrated(clients, clients * rate, rounds, target)
        chance = math.prod(rate if here else 1 - rate for who in coins for here in who)
        outcomes.append((table(found), sum(who[0] for who in coins), chance))
    noise = float(found.noise_multipliers[0])
    assert found.guarantee is not None
    assert 0.85 * target < attacked(outcomes, rounds, noise) <= found.guarantee.epsilon <= target
    # The attack has teeth: told how often the client came, it gets far beyond.
    told = [(str(times), times, chance) for _, times, chance in outcomes]
    assert attacked(told, rounds, noise) > 1.4 * target


def test_beside_the_promise_stand_the_laws_of_the_coins() -> None:
    clients, expected, rounds = 40, 10.0, 6
    found = calibrated(clients, expected, rounds, 4.0)
    z, cost = float(found.noise_multipliers[0]), partial(epsilon, delta=DELTA)
    known, alone = found.beside
    assert (known.adversary, alone.adversary) == (Adversary.COHORT, Adversary.SERVER)

    def exact(eps: float) -> float:
        # Known participants: the Gaussian mechanism as often as a coin of 1/4 says.
        chances = stats.binom.pmf(np.arange(1, rounds + 1), rounds, expected / clients)
        shifts = 2 * np.sqrt(np.arange(1, rounds + 1)) / z
        below = stats.norm.cdf(shifts / 2 - eps / shifts) - np.exp(eps) * stats.norm.cdf(
            -shifts / 2 - eps / shifts
        )
        return float(chances @ below)

    assert exact(known.epsilon) == pytest.approx(DELTA, rel=1e-3)
    # A message alone: no more noise than ten share, and no less than all share.
    most, least = (events.revealed_batches(rounds, 0.25, z / math.sqrt(n), 1.0, 0.0) for n in (expected, clients))
    assert cost(most) < alone.epsilon < cost(least)
    assert found.guarantee is not None
    assert found.guarantee.epsilon < known.epsilon < alone.epsilon


def test_with_everybody_there_a_message_has_its_share_of_the_noise() -> None:
    found = calibrated(20, 20.0, 3, 1.0)
    z = float(found.noise_multipliers[0])
    known, alone = found.beside
    assert known.epsilon == pytest.approx(epsilon(events.repeated(events.gaussian(z), 3), DELTA))
    own = events.repeated(events.gaussian(z / math.sqrt(20)), 3)
    assert alone.epsilon == pytest.approx(epsilon(own, DELTA))


def test_promises_to_clients_of_one_size_and_of_any_size_read_differently() -> None:
    event = events.repeated(events.poisson(0.1, 2.0), 5)
    protects = Guarantee((event,), delta=DELTA, unit="client", public=("the number of clients",))  # type: ignore[arg-type]
    assert "if all the data of any one client had been different, their number included" in protects.sentence()
    takes = Guarantee((event,), delta=DELTA, unit="client")  # type: ignore[arg-type]
    assert "if all records of any one client had been different ones, as many of them" in takes.sentence()
    assert "the number of records of every client" in takes.sentence()
