"""One sum over all clients: its noise, its two costs, and bars that hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from tacit.algorithms.secure_sum import SecureSum
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate
from tacit.federation import Federation
from tacit.models import logistic_regression
from tacit.privacy import Adjacency, Target, events
from tacit.privacy.accountant import accounting
from tacit.side.evaluation import exact_evaluation, read_total, total_release
from tacit.side.noisy_total import NoisyTotal
from tacit.side.scoring import Groups, Scoring

GROUPS = Groups(3, (0.5,), ("young", "old"))
POINT = torch.tensor([1.2, 1.1, 0.1, -0.5, -0.2])


def _silos(seed: int) -> Federation:
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(600, 4))
    features[:, 3] = draw.random(600) < 0.3
    chance = 1 / (1 + np.exp(-(1.5 * features[:, 0] + features[:, 1] - 0.7 * features[:, 3] - 0.4)))
    labels = (draw.random(600) < chance).astype(np.int64)
    return Federation.from_arrays(features.astype(np.float32), labels, np.arange(600) % 5, classes=2)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_two_costs_are_those_of_the_gaussian_mechanism(adjacency: Adjacency) -> None:
    """The delta of Balle and Wang (2018), theorem 8: with the noise of 3 shares, and with that of one."""
    total = NoisyTotal("q", 1.3, Target(1.5, 1e-5, adjacency), 0, 20, clients=5, honest=3)
    moves = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    for event, noise in (
        (total.event(total.noise_multiplier), total.share_multiplier * math.sqrt(3)),
        (total.exposed(total.noise_multiplier), total.share_multiplier),
    ):
        epsilon, shift = accounting.epsilon(event, 1e-5, adjacency), moves / noise
        delta = norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
        assert delta == pytest.approx(1e-5, rel=0.02)
    assert accounting.epsilon(total.event(total.noise_multiplier), 1e-5, adjacency) <= 1.5


def test_a_total_has_the_noise_of_all_shares() -> None:
    totals = [NoisyTotal(str(k), 1.3, Target(1.5, 1e-5), 0, 400, clients=5, honest=3) for k in range(3)]
    drawn = torch.stack([total.total(torch.zeros(5, 400)) for total in totals])
    assert float(drawn.std()) == pytest.approx(totals[0].share_std * math.sqrt(5), rel=0.1)
    assert abs(float(torch.corrcoef(drawn)[0, 1])) < 0.25, "another question has other noise"


def _coverage(seeds: range, target: Target) -> dict[str, float]:
    model, scoring = logistic_regression(features=4), Scoring(2, 4.0, groups=GROUPS)
    covered: dict[str, list[bool]] = {}
    for seed in seeds:
        silos = _silos(seed)
        release = total_release(scoring, "t", target, seed, clients=5, honest=3)
        noisy = release.total(scoring.sums(model, POINT, silos.batch()))
        told = read_total(scoring, noisy, 600, release.share_std * math.sqrt(5)).pooled
        exact = exact_evaluation(model, POINT, silos, scoring).pooled
        area = roc_auc_score(silos.targets.numpy(), (silos.features @ POINT[:4]).numpy())
        pairs = {name: (one, exact.estimates[name].value) for name, one in told.estimates.items()}
        pairs["auc"] = told.estimates["auc"], area
        for group, own in told.groups.items():
            pairs |= {f"{group} {name}": (one, exact.groups[group][name].value) for name, one in own.items()}
        for name, (one, value) in pairs.items():
            covered.setdefault(name, []).append(value is not None and one.low - 1e-9 <= value <= one.high + 1e-9)
    return {name: float(np.mean(hits)) for name, hits in covered.items()}


def test_bars_cover_the_exact_value() -> None:
    """A quarter of the 200 consortia in which every quantity was covered in at least 95%."""
    rates = _coverage(range(50), Target(1.0, 1e-5))
    assert len(rates) == 4 + 2 * 6
    assert min(rates.values()) >= 0.95, rates


def test_a_run_with_sums_shows_only_the_total_and_both_lines_cover_it() -> None:
    recipe = Recipe(
        algorithm="soteriafl-gd", data="breast-cancer", clients=5, rounds=2, epsilon=2.0, trust="sum",
        evaluation_settings={"held_back": 0.2},
    )  # fmt: skip
    plan = make_plan(recipe)
    assert plan.evaluation is not None
    assert plan.guarantee is not None
    alone = [plan.evaluation.event, plan.evaluation.exposed]
    group, trust, work = plan.calibration.groups[0], plan.algorithm.trust, plan.algorithm.work
    assert isinstance(trust, SecureSum)
    for z, also, stated in zip(
        (group.noise_multiplier, group.noise_multiplier / math.sqrt(trust.honest)),
        alone,
        (plan.guarantee, plan.calibration.beside[0]),
        strict=True,
    ):
        assert also is not None
        parts = [work.event(group.size, z, 2), also]
        assert stated.epsilon == pytest.approx(accounting.epsilon(events.composed(parts), 1e-5), rel=1e-6)
    assert plan.guarantee.epsilon <= 2.0
    told = simulate(plan).summary()["evaluation"]
    assert told["clients"] == {}
    assert "each client's own numbers" in told["left_out"]
    assert told["all"]["records"] == plan.evaluation.held.records
