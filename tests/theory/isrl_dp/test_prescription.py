"""Prescriptions can be run, are proved, and refuse what makes no sense."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.theory import isrl_dp as theory
from tacit.theory.isrl_dp import Problem

PROBLEMS = st.from_type(Problem)
ALGORITHMS = st.sampled_from(sorted(theory.HOME_SETTINGS))
SETTINGS = st.sampled_from(theory.SETTINGS)


@given(algorithm=ALGORITHMS, problem=PROBLEMS, setting=SETTINGS, rough=st.booleans())
def test_prescriptions_can_be_run_and_proved(algorithm: str, problem: Problem, setting: str, rough: bool) -> None:
    if rough and not (algorithm == "accelerated-mb-sgd" and setting != "erm"):
        problem = dataclasses.replace(problem, smoothness=None)
    p = theory.prescribe(algorithm, problem, setting)
    assert isinstance(p.rounds, int)
    assert isinstance(p.batch, int)
    assert 1 <= p.batch <= problem.records
    assert p.rounds >= 1
    assert math.isfinite(p.excess_risk_bound)
    assert p.excess_risk_bound > 0
    if p.sampling == "one-pass":
        assert p.rounds * p.batch <= problem.records
        std = theory.one_pass_noise_std(
            lipschitz=problem.lipschitz, batch=p.batch, epsilon=problem.epsilon, delta=problem.delta
        )
    else:
        settings: dict[str, Any] = {
            "records": problem.records,
            "rounds": p.rounds,
            "epsilon": problem.epsilon,
            "delta": problem.delta,
        }
        assert p.batch >= theory.smallest_batch(**settings) * (1 - 1e-9)
        std = theory.resampled_noise_std(lipschitz=problem.lipschitz, **settings)
    assert p.noise_std == pytest.approx(std)
    if algorithm == "noisy-mb-sgd":
        assert p.step > 0
        assert (p.growth > 1) == problem.is_strongly_convex
        assert (p.stages, p.regularisation) == ((), 0.0)
        assert (p.smoothing > 0) == (problem.smoothness is None and setting == "iid")
    else:
        assert sum(stage.rounds for stage in p.stages) == p.rounds
        assert (p.regularisation > 0) != problem.is_strongly_convex
        assert (p.step, p.growth) == (0.0, 0.0)
        assert (p.smoothing > 0) == (problem.smoothness is None)


@given(problem=PROBLEMS)
def test_the_bounds_are_those_of_the_lemmas_at_these_values(problem: Problem) -> None:
    p = theory.prescribe("noisy-mb-sgd", problem)
    assert p.excess_risk_bound == theory.mb_sgd_bound(
        problem, rounds=p.rounds, step=p.step, noise_std=p.noise_std
    )
    for setting in ("non-iid", "erm"):
        p = theory.prescribe("accelerated-mb-sgd", problem, setting)
        variance = theory.gradient_variance(
            problem, batch=p.batch, noise_std=p.noise_std, empirical=setting == "erm"
        )
        if problem.is_strongly_convex:
            bound = theory.multi_stage_bound(problem, p.stages, variance=variance)
        else:
            bound = theory.regularised_bound(
                problem, rounds=p.rounds, variance=variance, regularisation=p.regularisation
            )
        assert p.excess_risk_bound == bound


@given(algorithm=ALGORITHMS, problem=PROBLEMS, setting=SETTINGS)
def test_a_stricter_epsilon_never_promises_more(algorithm: str, problem: Problem, setting: str) -> None:
    """Up to rounding of rounds and batches to whole numbers, which can favour either."""
    base = theory.prescribe(algorithm, problem, setting)
    strict = theory.prescribe(algorithm, dataclasses.replace(problem, epsilon=problem.epsilon / 8), setting)
    if base.excess_risk_bound < problem.trivial_risk:
        assert base.excess_risk_bound < strict.excess_risk_bound * 2


def _private_side(**change: float) -> Problem:
    settings: dict[str, Any] = {"clients": 100, "records": 10**8, "dim": 1000, "epsilon": 1.0, "delta": 1e-6}
    return Problem(smoothness=1.0, gradient_spread=0.0, **{**settings, **change})


@pytest.mark.parametrize(
    ("mu", "setting", "order"),
    [(0.0, "erm", 1.0), (0.2, "erm", 2.0), (0.0, "non-iid", 0.8), (0.2, "non-iid", 2.0)],
)
def test_the_proved_bounds_have_the_orders_of_figure_3(mu: float, setting: str, order: float) -> None:
    """In epsilon, up to logarithms of it, which cost up to a fifth of the exponent over this range."""
    risks = [
        theory.prescribe("accelerated-mb-sgd", _private_side(epsilon=e, strong_convexity=mu), setting)
        for e in (0.001, 0.1)
    ]
    gain = risks[0].excess_risk_bound / risks[1].excess_risk_bound
    assert math.log(gain, 100) == pytest.approx(order, abs=0.2 * order)


@pytest.mark.parametrize("mu", [0.0, 0.2])
def test_the_proved_bound_stays_within_logarithms_of_theorem_2_1(mu: float) -> None:
    for records, dim, epsilon in [(10**3, 10, 1.0), (10**5, 10, 0.1), (10**5, 10**4, 1.0), (10**7, 100, 0.01)]:
        problem = Problem(
            clients=50,
            records=records,
            dim=dim,
            epsilon=epsilon,
            delta=1e-6,
            smoothness=2.0,
            strong_convexity=mu,
        )
        p = theory.prescribe("noisy-mb-sgd", problem)
        logs = 256 * math.log(2.5 * p.rounds / 1e-6)
        room = 8 * logs * math.log(p.rounds) if mu else 4 * math.sqrt(logs)
        order = theory.upper_bound("iid", problem)
        assert order / 2 < p.excess_risk_bound < room * order


def test_exact_noise_can_take_the_place_of_the_published_one(mnist: Problem) -> None:
    calls = []

    def exact(rounds: int, batch: int) -> float:
        calls.append((rounds, batch))
        return math.sqrt(rounds) * 1e-3

    published = theory.prescribe("accelerated-mb-sgd", mnist, "erm")
    found = theory.prescribe("accelerated-mb-sgd", mnist, "erm", noise_std_at=exact)
    assert calls == [(found.rounds, found.batch)] == [(published.rounds, published.batch)]
    assert found.noise_std == math.sqrt(found.rounds) * 1e-3 < published.noise_std
    assert found.excess_risk_bound < published.excess_risk_bound
    large = dataclasses.replace(mnist, epsilon=100.0)
    with pytest.raises(RequestError, match=r"Theorem D\.1"):
        theory.prescribe("noisy-mb-sgd", large)
    assert theory.prescribe("noisy-mb-sgd", large, noise_std_at=exact).rounds >= 1


@pytest.mark.parametrize(("algorithm", "setting"), [("noisy-mb-sgd", "iid"), ("accelerated-mb-sgd", "erm")])
@pytest.mark.parametrize("mu", [0.0, 0.05])
def test_rough_losses_run_on_their_envelope_and_pay_for_it(
    algorithm: str, setting: str, mu: float, mnist: Problem
) -> None:
    rough = dataclasses.replace(mnist, smoothness=None, strong_convexity=mu)
    found = theory.prescribe(algorithm, rough, setting)
    assert found.smoothing == theory.smoothing(rough, setting)
    smooth = theory.prescribe(algorithm, theory.smoothed(rough, found.smoothing), setting)
    assert found.excess_risk_bound == smooth.excess_risk_bound + 4 / (2 * found.smoothing)
    assert (found.rounds, found.batch, found.stages) == (smooth.rounds, smooth.batch, smooth.stages)


def test_rounds_are_enough_for_a_private_batch(mnist: Problem) -> None:
    loose = dataclasses.replace(mnist, smoothness=1e-6, epsilon=100.0, delta=1e-3)
    p = theory.prescribe("accelerated-mb-sgd", loose, "erm", noise_std_at=lambda rounds, batch: 1.0)
    assert p.rounds == math.ceil(100**2 / (32 * math.log(2000)))
    assert theory.smallest_batch(records=1238, rounds=p.rounds, epsilon=100.0, delta=1e-3) <= p.batch == 1238


def test_full_batches_where_sampling_would_cost_rounds(mnist: Problem) -> None:
    loose = dataclasses.replace(mnist, records=100, epsilon=20.0)
    p = theory.prescribe("accelerated-mb-sgd", loose, "erm")
    assert (p.batch, p.sampling) == (100, "full")
    assert theory.prescribe("accelerated-mb-sgd", mnist, "erm").sampling == "with-replacement"


def test_like_silos_cost_nothing_when_they_stay_away(mnist: Problem) -> None:
    some = dataclasses.replace(mnist, cohort=5)
    like = theory.prescribe("accelerated-mb-sgd", some, "iid").excess_risk_bound
    assert like < theory.prescribe("accelerated-mb-sgd", some, "non-iid").excess_risk_bound
    told = dataclasses.replace(some, heterogeneity=0.0)
    assert like == theory.prescribe("accelerated-mb-sgd", told, "non-iid").excess_risk_bound


def test_each_algorithm_is_at_home_somewhere(mnist: Problem) -> None:
    noisy, fast = theory.prescribe("noisy-mb-sgd", mnist), theory.prescribe("accelerated-mb-sgd", mnist)
    assert noisy == theory.prescribe("noisy-mb-sgd", mnist, "iid")
    assert fast == theory.prescribe("accelerated-mb-sgd", mnist, "non-iid")
    assert (noisy.sampling, fast.sampling) == ("with-replacement", "one-pass")


def test_unknown_names_are_refused(mnist: Problem) -> None:
    with pytest.raises(RequestError, match="did you mean 'noisy-mb-sgd'"):
        theory.prescribe("noisy-sgd", mnist)
    with pytest.raises(RequestError, match="unknown setting 'sco'"):
        theory.prescribe("noisy-mb-sgd", mnist, "sco")
