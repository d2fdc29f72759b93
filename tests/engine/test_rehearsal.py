"""What the planner rehearses with: nobody's records, and no more of them in a batch than noise asks for."""

from __future__ import annotations

import torch

import tacit
from tacit.engine.batches import RATES, thrifty_rate
from tacit.planning.rehearsal import synthetic_like
from tacit.privacy import Target, calibrate_noise
from tacit.privacy.events import gaussian, poisson, repeated


def test_records_are_dealt_by_target_and_charges_have_their_range() -> None:
    real = tacit.load("diabetes", clients=4)
    made = synthetic_like(real, 2.0, seed=0, target_bound=300.0, by_target=True)
    assert (made.targets.diff() >= 0).all()
    assert (float(made.targets.min()), float(made.targets.max())) == (0.0, 300.0)
    assert float((made.features.norm(dim=1) - 2).abs().max()) < 1e-5
    assert not torch.equal(made.features, real.features)


def test_another_seed_makes_other_records_and_the_same_seed_the_same() -> None:
    real = tacit.load("digits", clients=3)
    one, same, other = (synthetic_like(real, 1.0, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.features, same.features)
    assert torch.equal(one.targets, same.targets)
    assert not torch.equal(one.features, other.features)


def test_a_thrifty_rate_wastes_neither_noise_nor_records() -> None:
    records, rounds, target = 1000, 40, Target(2.0, 1e-3)

    def std(rate: float) -> float:
        noise = calibrate_noise(
            lambda z: repeated(poisson(rate, z) if rate < 1 else gaussian(z), rounds),
            epsilon=target.epsilon,
            delta=target.delta,
        )
        return noise / (rate * records)

    least = min(map(std, RATES))
    chosen = thrifty_rate(records, rounds, target)
    assert std(chosen) <= 1.02 * least
    assert all(std(rate) > 1.02 * least for rate in RATES if rate < chosen)
