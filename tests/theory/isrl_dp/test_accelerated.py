"""Algorithm 1: its parameters, its inequality against a direct sum, and its promises on a run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness
from tacit.theory import isrl_dp as theory
from tacit.theory.isrl_dp import ConvexProblem
from tacit.theory.isrl_dp.accelerated import Stages

PROBLEMS = st.from_type(ConvexProblem)


def _bound(*, variance: float, distance_squared: float, **stage: Any) -> float:
    start, noise = theory.stage_weights(**stage)
    return start * distance_squared + noise * variance


@given(
    rounds=st.integers(1, 300),
    smoothness=st.floats(0.01, 10),
    stretch=st.floats(1, 50),
    curvature=st.just(0.0) | st.floats(1e-3, 1),
    variance=st.floats(1e-6, 100),
)
def test_the_bound_covers_the_sum_that_it_closes(
    rounds: int, smoothness: float, stretch: float, curvature: float, variance: float
) -> None:
    """Gamma_R (eta_1 ||.||^2/2 + sum_r alpha_r^2 V^2/(2 Gamma_r A_r)), A_r = mu + eta_r - beta alpha_r^2."""
    mu, scale, gamma, total = curvature * smoothness, stretch * smoothness, 1.0, 0.0
    for r in range(1, rounds + 1):
        alpha, eta = 2 / (r + 1), 4 * scale / (r * (r + 1))
        gamma = 1.0 if r == 1 else gamma * (1 - alpha)
        assert eta / gamma == pytest.approx(2 * scale)
        slack = mu + eta - smoothness * alpha**2
        assert slack > 0
        total += alpha**2 * variance / (2 * gamma * slack)
    direct = gamma * 2 * scale / 2 * 9.0 + gamma * total
    bound = _bound(
        rounds=rounds,
        curvature=scale,
        smoothness=smoothness,
        strong_convexity=mu,
        variance=variance,
        distance_squared=9.0,
    )
    assert direct <= bound * (1 + 1e-9)
    if mu == 0 and stretch >= 2:
        assert bound <= 2 * direct


def test_the_bound_by_hand() -> None:
    settings: dict[str, Any] = {"rounds": 4, "smoothness": 1.0, "variance": 6.0, "distance_squared": 5.0}
    assert _bound(curvature=2.0, strong_convexity=0.0, **settings) == pytest.approx(1 + 4.5)
    assert _bound(curvature=2.0, strong_convexity=2.0, **settings) == pytest.approx(1 + 1.2)
    assert _bound(curvature=1.0, strong_convexity=2.0, **settings) == pytest.approx(0.5 + 1.2)
    assert _bound(curvature=1.0, strong_convexity=0.0, **settings) == math.inf
    with pytest.raises(RequestError, match="curvature must be at least smoothness"):
        _bound(curvature=0.9, strong_convexity=0.0, **settings)


@given(problem=PROBLEMS, rounds=st.integers(1, 10**6), std=st.floats(0, 100))
def test_the_regularised_bound_has_the_form_of_lemma_e_1(problem: ConvexProblem, rounds: int, std: float) -> None:
    def bound(strength: float) -> float:
        return theory.regularised_bound(problem, rounds=rounds, variance=std**2, regularisation=strength)

    best = theory.best_regularisation(problem, rounds=rounds, variance=std**2)
    printed = std / (2 * problem.diameter * math.sqrt(rounds))
    d, noise = problem.diameter, std * problem.diameter / math.sqrt(rounds)
    quiet = 2 * problem.smooth * d**2 / rounds**2
    assert bound(best) <= quiet + (2 + 4 / rounds**2) * noise + 1e-12 * d
    assert bound(printed) <= quiet + (4.25 + 1 / rounds**2) * noise + 1e-12 * d


def test_the_compound_bounds_by_hand() -> None:
    flat = ConvexProblem(clients=1, records=9, dim=1, epsilon=1.0, delta=0.1, diameter=3.0, smoothness=2.0)
    found = theory.regularised_bound(flat, rounds=5, variance=6.0, regularisation=0.5)
    assert found == pytest.approx(2 * 2.5 * 9 / 30 + 2 * 6 / (0.5 * 6) + 0.5 * 9 / 2)
    p = dataclasses.replace(flat, strong_convexity=0.5)
    # The first stage starts anywhere in the domain, the second as near as strong convexity says.
    first = 2 * 4 * 9 / 90 + 0.01 * min(19 / 24, 2 / 5)
    second = 2 * 5 * (2 * first / 0.5) / 90 + 0.01 * min(19 / 36, 2 / 5)
    stages = ((9, 4.0), (9, 5.0))
    assert 2 * first / 0.5 < 9 < 2 * p.gap / 0.5
    assert theory.multi_stage_bound(p, stages, variance=0.01) == pytest.approx(second)


@given(problem=PROBLEMS, k=st.integers(1, 20), std=st.floats(0, 100))
def test_a_stage_is_the_print_with_the_product_in_the_numerator(
    problem: ConvexProblem, k: int, std: float
) -> None:
    if not problem.is_strongly_convex:
        return
    kappa, mu, delta = problem.condition_number, problem.strong_convexity, problem.gap
    length = theory.stage_rounds(problem, stage=k, variance=std**2)
    assert length == pytest.approx(max(4 * math.sqrt(2 * kappa), 128 * std**2 / (3 * mu * delta * 2 ** -(k + 1))))
    r = math.ceil(length)
    root = math.sqrt(mu * std**2 / (3 * delta * 2 ** -(k - 1)) * r * (r + 1) * (r + 2))
    scale = theory.stage_curvature(problem, stage=k, rounds=r, variance=std**2)
    assert scale == pytest.approx(max(2 * problem.smooth, root))


@given(problem=PROBLEMS, std=st.floats(0, 100), stages=st.integers(1, 30))
def test_every_stage_halves_the_risk(problem: ConvexProblem, std: float, stages: int) -> None:
    if not problem.is_strongly_convex:
        return
    variance = std**2
    made = []
    for k in range(1, stages + 1):
        r = math.ceil(theory.stage_rounds(problem, stage=k, variance=variance))
        made.append((r, theory.stage_curvature(problem, stage=k, rounds=r, variance=variance)))
        risk = theory.multi_stage_bound(problem, made, variance=variance)
        assert risk <= problem.gap * 2.0**-k * (1 + 1e-9)
    total = sum(length for length, _ in made)
    fitted = theory.fit_stages(problem, rounds=total, variance=variance)
    assert fitted == tuple(made)
    longer = theory.fit_stages(problem, rounds=total + 3, variance=variance)
    assert sum(length for length, _ in longer) == total + 3


def test_with_the_product_in_the_denominator_stages_do_not_halve() -> None:
    p = ConvexProblem(
        clients=1, records=9, dim=1, epsilon=1.0, delta=0.1, smoothness=1.0, strong_convexity=0.02, loss_gap=1.0
    )
    r = math.ceil(theory.stage_rounds(p, stage=1, variance=1.0))
    printed = max(2.0, math.sqrt(0.02 / (3 * r * (r + 1) * (r + 2))))
    assert printed == 2.0
    noise = _bound(
        rounds=r,
        curvature=printed,
        smoothness=1.0,
        strong_convexity=0.0,
        variance=1.0,
        distance_squared=0.0,
    )
    assert noise > 100 * p.gap


@given(problem=PROBLEMS, rounds=st.integers(1, 10**6), std=st.floats(0, 10))
def test_less_noise_and_more_rounds_never_promise_less(problem: ConvexProblem, rounds: int, std: float) -> None:
    if not problem.is_strongly_convex:
        return
    stages = theory.fit_stages(problem, rounds=rounds, variance=std**2)
    assert sum(length for length, _ in stages) == rounds
    noisy = theory.multi_stage_bound(problem, stages, variance=2 * std**2)
    assert theory.multi_stage_bound(problem, stages, variance=std**2) <= noisy


def test_stages_need_strong_convexity_and_rounds(mnist: ConvexProblem) -> None:
    with pytest.raises(RequestError, match="strong_convexity"):
        theory.fit_stages(mnist, rounds=10, variance=0.0)
    with pytest.raises(RequestError, match="at least one stage"):
        theory.accelerated_terms(mnist, [], variance={})


def _run(stages: Stages, *, mu: float, strength: float, noise_std: float, seed: int) -> float:
    """Algorithm 1 on F(w) = sum_k b_k (sqrt(1 + (w_k - 1)^2) - 1) + mu/2 ||w - 1||^2 over a ball; F(1) = 0."""
    draw = Randomness(seed).generator(Purpose.NOISE)
    slopes, radius, start = np.array([1.0, 0.3, 0.1, 0.03]), 3.0, np.zeros(4)
    held = mu + strength
    out = start
    for length, curvature in stages:
        point = ag = out
        for r in range(1, length + 1):
            alpha, eta = 2 / (r + 1), 4 * curvature / (r * (r + 1))
            scale = eta + (1 - alpha**2) * held
            old, new = (1 - alpha) * (held + eta) / scale, alpha * ((1 - alpha) * held + eta) / scale
            middle = old * ag + new * point
            gradient = slopes * (middle - 1) / np.sqrt(1 + (middle - 1) ** 2) + mu * (middle - 1)
            gradient = gradient + strength * (middle - start) + noise_std * draw.normal(size=4)
            stay = (1 - alpha) * held + eta
            point = (alpha * held * middle + stay * point - alpha * gradient) / (held + eta)
            point = point * min(1.0, radius / max(1e-12, float(np.linalg.norm(point))))
            ag = alpha * point + (1 - alpha) * ag
        out = ag
    gaps = out - 1
    return float((slopes * (np.sqrt(1 + gaps**2) - 1)).sum() + mu / 2 * np.sum(gaps**2))


RUN = ConvexProblem(
    clients=1, records=10**6, dim=4, epsilon=1.0, delta=0.1, lipschitz=5.0, diameter=6.0, smoothness=1.05
)


@pytest.mark.parametrize("noise_std", [0.0, 0.3])
def test_the_regularised_bound_holds_for_a_run_and_with_noise_is_not_idle(noise_std: float) -> None:
    variance = 4 * noise_std**2
    strength = theory.best_regularisation(RUN, rounds=60, variance=variance)
    stages = ((60, RUN.smooth + strength),)
    risks = [_run(stages, mu=0.0, strength=strength, noise_std=noise_std, seed=s) for s in range(10)]
    bound = theory.regularised_bound(RUN, rounds=60, variance=variance, regularisation=strength)
    assert np.mean(risks) < bound
    assert noise_std == 0 or bound / 100 < np.mean(risks)


@pytest.mark.parametrize("noise_std", [0.0, 0.3])
def test_the_multi_stage_bound_holds_for_a_run(noise_std: float) -> None:
    curved = ConvexProblem(
        clients=1,
        records=10**6,
        dim=4,
        epsilon=1.0,
        delta=0.1,
        lipschitz=5.0,
        diameter=6.0,
        smoothness=1.05,
        strong_convexity=0.05,
        loss_gap=3.0,
    )
    variance = 4 * noise_std**2
    stages = theory.fit_stages(curved, rounds=4000, variance=variance)
    assert len(stages) > 1
    risks = [_run(stages, mu=0.05, strength=0.0, noise_std=noise_std, seed=s) for s in range(3)]
    assert np.mean(risks) < theory.multi_stage_bound(curved, stages, variance=variance)


@given(problem=PROBLEMS, std=st.floats(0, 10), strength=st.floats(0, 1), rounds=st.integers(1, 1000))
def test_the_terms_share_out_the_bound_and_each_grows_with_its_cause(
    problem: ConvexProblem, std: float, strength: float, rounds: int
) -> None:
    stages = [(rounds, 2 * (problem.smooth + strength)), (rounds, 3 * (problem.smooth + strength))]

    def terms(privacy: float, sampling: float) -> dict[str, float]:
        variance = {"privacy": privacy, "sampling": sampling}
        return theory.accelerated_terms(problem, stages, variance=variance, regularisation=strength)

    found = terms(std**2, 1.0)
    together = theory.accelerated_terms(problem, stages, variance={"noise": std**2 + 1}, regularisation=strength)
    assert sum(found.values()) == pytest.approx(sum(together.values()))
    assert found["privacy"] == pytest.approx(std**2 * found["sampling"])
    assert sum(terms(2 * std**2, 1.0).values()) >= sum(found.values()) * (1 - 1e-12)
