"""Noisy MB-SGD: Lemmas D.2 and D.6, by hand, by recursion and on a run."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness
from tacit.theory import isrl_dp as theory
from tacit.theory.isrl_dp import ConvexProblem

PROBLEMS = st.from_type(ConvexProblem)


@given(problem=PROBLEMS, rounds=st.integers(1, 60), noise_std=st.floats(0, 10), share=st.floats(0.01, 1))
def test_the_bound_is_the_recursion_of_eq_16(
    problem: ConvexProblem, rounds: int, noise_std: float, share: float
) -> None:
    """r_{t+1} = (1 - mu step) r_t - 2 step s_t + c step^2 with r_R = 0: the weighted mean of s is the bound."""
    step = share * theory.longest_step(problem)
    growth = 1 / (1 - problem.strong_convexity * step)
    weights = np.array([growth**t for t in range(rounds)])
    c = problem.lipschitz**2 + problem.dim * noise_std**2 / problem.reporting
    # Spent as it comes, the rest at the end: the recursion is linear, so any way to spend it weighs the same.
    left, spent = problem.diameter**2, np.zeros(rounds)
    for t in range(rounds):
        target = 0.0 if t == rounds - 1 else left
        spent[t] = ((1 - problem.strong_convexity * step) * left + c * step**2 - target) / (2 * step)
        left = target
    mean = float(weights @ spent / weights.sum())
    bound = theory.mb_sgd_bound(problem, rounds=rounds, step=step, noise_std=noise_std)
    assert bound == pytest.approx(mean, rel=1e-6)


@given(problem=PROBLEMS, rounds=st.integers(1, 10**6), noise_std=st.floats(0, 10))
def test_the_step_is_allowed_and_no_other_convex_step_promises_more(
    problem: ConvexProblem, rounds: int, noise_std: float
) -> None:
    step = theory.mb_sgd_step(problem, rounds=rounds, noise_std=noise_std)
    bound = theory.mb_sgd_bound(problem, rounds=rounds, step=step, noise_std=noise_std)
    assert 0 < step <= theory.longest_step(problem)
    assert math.isfinite(bound)
    if not problem.is_strongly_convex:
        for other in (step / 2, min(2 * step, 1 / problem.smooth)):
            assert bound <= (1 + 1e-9) * theory.mb_sgd_bound(
                problem, rounds=rounds, step=other, noise_std=noise_std
            )


def test_the_printed_bound_of_lemma_d_6(mnist: ConvexProblem) -> None:
    """Part 1 with the sigma of the lemma put in, as it stands there."""
    std = theory.resampled_noise_std(
        lipschitz=2.0, records=1238, rounds=80, epsilon=mnist.epsilon, delta=mnist.delta
    )
    logs = math.log(2.5 * 80 / mnist.delta) * math.log(2 / mnist.delta)
    printed = 100 / (2 * 0.1 * 80) + 0.1 * 4 / 2 * (256 * 51 * 80 * logs / (25 * (1238 * 3) ** 2) + 1)
    found = theory.mb_sgd_bound(mnist, rounds=80, step=0.1, noise_std=std)
    assert found == pytest.approx(printed)
    generalisation = theory.stability(mnist, step=0.1, rounds=80)
    assert generalisation == pytest.approx(4 * 0.1 * 79 / (1238 * 25))
    assert generalisation <= 2 * 4 * 80 * 0.1 / (1238 * 25)  # the lemma's own, larger


def test_the_strongly_convex_step_is_that_of_lemma_d_5(mnist: ConvexProblem) -> None:
    curved = dataclasses.replace(mnist, strong_convexity=0.1)
    c = 4 + 51 * 9 / 25
    step = theory.mb_sgd_step(curved, rounds=5000, noise_std=3.0)
    assert step == pytest.approx(math.log(0.01 * 100 * 5000**2 / c) / (0.1 * 5000))
    assert theory.mb_sgd_step(curved, rounds=5, noise_std=3.0) == pytest.approx(0.5)
    assert theory.stability(curved, step=0.5, rounds=9) == pytest.approx(4 * 4 / (0.1 * (25 * 1238 - 1)))
    # Lemma D.6, part 2: beta D^2 exp(-R/(2 kappa)) + c/(mu R), up to a logarithm.
    bound = theory.mb_sgd_bound(curved, rounds=5000, step=step, noise_std=3.0)
    assert bound <= math.log(5000**2) * (100 * math.exp(-5000 / 20) + c / (0.1 * 5000))


def test_stability_is_attained_by_a_linear_loss() -> None:
    """f(w, x) = <x, w>: two runs on data that differ in one record, with the same batches and the same noise."""
    draw = Randomness(4).generator(Purpose.SAMPLE)
    silos, records, batch, rounds, step, runs = 2, 5, 2, 21, 0.1, 20_000
    drawn = (draw.integers(0, records, size=(runs, rounds - 1, batch)) == 0).sum(axis=2)
    apart = np.concatenate([np.zeros((runs, 1)), 2 * step * drawn.cumsum(axis=1) / (silos * batch)], axis=1)
    p = ConvexProblem(clients=silos, records=records, dim=1, epsilon=1.0, delta=0.1, smoothness=1.0)
    bound = theory.stability(p, step=step, rounds=rounds)
    assert apart.mean() == pytest.approx(bound, rel=0.02)


def _loss(point: np.ndarray, anchors: np.ndarray, mu: float) -> float:
    return float(np.sqrt(1 + (point - anchors) ** 2).sum(axis=-1).mean() + mu / 2 * np.sum(point**2))


def _gradients(point: np.ndarray, anchors: np.ndarray, mu: float) -> np.ndarray:
    gaps = point - anchors
    return np.asarray(gaps / np.sqrt(1 + gaps**2) + mu * point)


@pytest.mark.parametrize("mu", [0.0, 0.2])
def test_the_bound_holds_for_a_run_and_is_not_idle(mu: float) -> None:
    """f(w, x) = sum_k sqrt(1 + (w_k - x_k)^2) + mu/2 ||w||^2 on a ball of radius 2: L is sqrt(d) + 2 mu."""
    draw = Randomness(8).generator(Purpose.NOISE)
    silos, records, dim, radius, batch, rounds, noise_std = 6, 20, 5, 2.0, 4, 150, 0.8
    problem = ConvexProblem(
        clients=silos,
        records=records,
        dim=dim,
        epsilon=1.0,
        delta=0.01,
        lipschitz=math.sqrt(dim) + mu * radius,
        diameter=2 * radius,
        smoothness=1 + mu,
        strong_convexity=mu,
    )
    anchors = draw.normal(size=(silos, records, dim)) + draw.normal(size=(silos, 1, dim)) + 0.7
    best = np.zeros(dim)
    for _ in range(500):
        best = best - 0.8 * _gradients(best, anchors, mu).mean(axis=(0, 1))
    assert np.linalg.norm(best) < radius
    step = theory.mb_sgd_step(problem, rounds=rounds, noise_std=noise_std)
    growth = 1 / (1 - problem.strong_convexity * step)
    risks = []
    for _ in range(10):
        point, average, weight, total = np.zeros(dim), np.zeros(dim), 1.0, 0.0
        for _ in range(rounds):
            average, total = average + weight * point, total + weight
            picks = draw.integers(0, records, size=(silos, batch))
            gradients = _gradients(point, anchors[np.arange(silos)[:, None], picks], mu).mean(axis=1)
            point = point - step * (gradients + noise_std * draw.normal(size=(silos, dim))).mean(axis=0)
            point = point * min(1.0, radius / np.linalg.norm(point))
            weight *= growth
        risks.append(_loss(average / total, anchors, mu) - _loss(best, anchors, mu))
    bound = theory.mb_sgd_bound(problem, rounds=rounds, step=step, noise_std=noise_std)
    assert bound / 1000 < np.mean(risks) < bound


def test_what_the_lemmas_do_not_cover_is_refused(mnist: ConvexProblem) -> None:
    with pytest.raises(RequestError, match="at most 1 for Lemmas"):
        theory.mb_sgd_bound(mnist, rounds=10, step=1.1, noise_std=0.0)
    rough = dataclasses.replace(mnist, smoothness=None)
    assert theory.mb_sgd_bound(rough, rounds=10, step=7.0, noise_std=0.0) > 0
    lone = dataclasses.replace(mnist, clients=1, records=1, strong_convexity=0.1)
    with pytest.raises(RequestError, match="one record"):
        theory.stability(lone, step=0.1, rounds=2)
