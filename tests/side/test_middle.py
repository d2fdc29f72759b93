"""The middle of a regression's targets: what learning it costs, that it is found, and where it says nothing."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from tacit.federation import Federation
from tacit.privacy import Target
from tacit.side import middle
from tacit.side.middle import CERTAIN, middle_release, private_middle
from tacit.side.release import NoisyMeans

TARGETS = [Target(0.8, 1e-5)]


def holding(targets: Any, clients: int = 4) -> Federation:
    held = torch.as_tensor(np.asarray(targets)).double()
    return Federation.from_arrays(held[:, None], held, np.arange(len(held)) % clients)


def normal(centre: float, spread: float, records: int = 8000) -> Federation:
    return holding(centre + spread * np.random.default_rng(0).standard_normal(records))


@pytest.mark.parametrize(
    ("centre", "spread"), [(0.0, 1.0), (2000.0, 10.0), (-3e5, 1e5), (0.0, 1e-5), (13_000.0, 12_000.0), (1e8, 1e7)]
)
def test_the_middle_is_found_wherever_targets_lie(centre: float, spread: float) -> None:
    for seed in range(3):
        found = private_middle(normal(centre, spread), targets=TARGETS, seed=seed)
        assert found is not None
        # Quartiles are 0.67 standard deviations from the mean, and the scale has steps of 0.15%.
        assert abs(found.value.centre - centre) < 0.15 * spread + 0.002 * abs(centre)
        assert found.value.half is not None
        assert 0.5 * spread < found.value.half < 0.9 * spread + 0.002 * abs(centre)
        assert found.guarantee.epsilon <= 0.8


def test_the_noise_is_that_of_the_exact_formula() -> None:
    """Balle and Wang (2018): a replaced record moves 16 sums by two bounds."""
    found = private_middle(normal(0.0, 1.0), targets=TARGETS, seed=0)
    assert found is not None
    ratio = 2 * math.sqrt(16) / found.noise_multiplier
    phi = NormalDist().cdf
    delta = phi(ratio / 2 - 0.8 / ratio) - math.exp(0.8) * phi(-ratio / 2 - 0.8 / ratio)
    assert delta == pytest.approx(1e-5, rel=1e-2)


def test_no_target_moves_a_message_farther_than_its_noise_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without noise of neighbours, with the same thresholds, differ by two bounds at most, and do."""
    sums: list[list[torch.Tensor]] = []

    def exact(self: NoisyMeans, own: torch.Tensor, release: int = 0) -> torch.Tensor:
        sums[-1].append(own)
        return torch.zeros_like(own)  # so thresholds do not depend on the targets

    monkeypatch.setattr(NoisyMeans, "messages", exact)
    base = normal(5.0, 1.0).targets.numpy()
    moves = []
    for one, other in ((-1e30, 1e30), (0.0, -0.0), (5.0, 1e13), (-1e-12, 1e-12), (3e38, -3e38)):
        sums.clear()
        for target in (one, other):
            held = base.copy()
            held[7] = target
            sums.append([])
            assert private_middle(holding(held), targets=TARGETS, seed=1) is not None
        moves += [float((a - b).norm()) for a, b in zip(*sums, strict=True)]
    assert max(moves) == pytest.approx(2 * math.sqrt(0.5))


def test_targets_that_are_mostly_the_same_have_no_spread() -> None:
    """More than half are 3: their distance says nothing about the others."""
    found = private_middle(holding([3.0] * 6000 + [1.0, 50.0] * 1000), targets=TARGETS, seed=0)
    assert found is not None
    assert found.value.half is None
    assert found.value.centre == pytest.approx(3.0, rel=0.01)
    assert middle.exact_middle(torch.tensor([3.0] * 6 + [1.0, 50.0])).half is None


def test_the_cheapest_search_that_is_certain_is_made_or_none() -> None:
    """From 0.14 to 0.007 of noise on the shares: public numbers alone decide."""
    targets = [Target(epsilon, 1e-5) for epsilon in (0.2, 0.3, 0.4)]
    made = [middle_release(normal(0.0, 1.0, records), targets=targets, seed=0) for records in (500, 1350, 30_000)]
    assert made[0] is None
    assert made[1] is not None
    assert made[2] is not None
    assert (made[1].target, made[1].releases) == (targets[2], 12)
    assert (made[2].target, made[2].releases) == (targets[0], 16)
    assert made[2].noise_std < made[1].noise_std <= CERTAIN


def test_noise_from_the_operating_system_differs() -> None:
    found = [private_middle(normal(0.0, 1.0), targets=TARGETS) for _ in range(2)]
    assert found[0] is not None
    assert found[1] is not None
    assert not found[0].seeded
    assert found[0].value != found[1].value
