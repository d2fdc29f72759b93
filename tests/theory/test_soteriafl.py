"""The formulas of SoteriaFL, checked against its proofs, its tables and small runs."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness
from tacit.theory import soteriafl as theory
from tacit.theory.soteriafl import EstimatorConstants, Problem

ALGORITHMS = (
    "cdp-sgd",
    "ldp-sgd",
    "ldp-svrg",
    "soteriafl-gd",
    "soteriafl-sgd",
    "soteriafl-svrg",
    "soteriafl-saga",
)
OMEGAS = st.floats(0, 1e4)
CLIENTS = st.integers(1, 10**6)
PROBLEMS = st.builds(
    Problem,
    clients=CLIENTS,
    records=st.integers(27, 10**6),
    dim=st.integers(1, 10**6),
    omega=OMEGAS,
    epsilon=st.floats(0.01, 100),
    delta=st.floats(1e-12, 0.5),
    smoothness=st.floats(1e-3, 1e3),
    gradient_bound=st.floats(1e-3, 1e3),
    loss_gap=st.floats(1e-3, 1e3),
)
A9A = Problem(
    clients=10,
    records=3256,
    dim=124,
    omega=theory.rand_k_omega(124, 6),
    epsilon=1.0,
    delta=1e-3,
    gradient_bound=0.5,
)


@st.composite
def estimators(draw: st.DrawFn) -> EstimatorConstants:
    records = draw(st.integers(1, 10**5))
    batch = draw(st.integers(1, records))
    kind = draw(st.sampled_from(["sgd", "svrg", "saga"]))
    if kind == "sgd":
        return theory.sgd_constants(records=records, batch=batch, gradient_bound=1.0)
    if kind == "saga":
        return theory.saga_constants(records=records, batch=batch, smoothness=1.0, gradient_bound=1.0)
    p = draw(st.floats(1e-4, 1))
    return theory.svrg_constants(batch=batch, snapshot_probability=p, smoothness=1.0, gradient_bound=1.0)


@pytest.mark.parametrize(("dim", "k"), [(5, 2), (4, 1), (3, 3)])
def test_rand_k_meets_definition_1_with_equality(dim: int, k: int) -> None:
    x = np.arange(1.0, dim + 1)
    outcomes = []
    for kept in itertools.combinations(range(dim), k):
        y = np.zeros(dim)
        y[list(kept)] = x[list(kept)] * dim / k
        outcomes.append(y)
    assert np.allclose(np.mean(outcomes, axis=0), x)
    error = np.mean([np.sum((y - x) ** 2) for y in outcomes])
    assert error == pytest.approx(theory.rand_k_omega(dim, k) * np.sum(x**2))


@given(omega=st.floats(0, 1e6))
def test_shift_step_gives_the_contraction_of_lemma_7(omega: float) -> None:
    gamma, young = theory.shift_step(omega), 1 / (1 + 2 * omega)
    assert (1 + young) * gamma**2 * (1 + omega) == pytest.approx(1 / (1 + omega))
    kept = (1 + young) * (1 - 2 * gamma + gamma**2 * (1 + omega))
    assert kept <= 1 - 1 / (2 * (1 + omega)) + 1e-12


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_sgd_variance_of_lemma_1_is_that_of_poisson_sampling(batch: int) -> None:
    records, q = 5, batch / 5
    signs = np.array([1.0, -1.0, 1.0, 1.0, -1.0])  # gradients of norm G = 1 in one dimension
    variance = 0.0
    for coins in itertools.product([0, 1], repeat=records):
        weight = math.prod(q if coin else 1 - q for coin in coins)
        variance += weight * (np.dot(coins, signs) / batch - signs.mean()) ** 2
    c_2 = theory.sgd_constants(records=records, batch=batch, gradient_bound=1.0).c_2
    assert variance == pytest.approx(c_2, abs=1e-12)


def test_gd_is_sgd_with_every_record() -> None:
    full = theory.sgd_constants(records=40, batch=40, gradient_bound=3.0)
    assert theory.gd_constants(gradient_bound=3.0) == full
    assert full.c_2 == 0


@given(
    point=st.floats(-10, 10),
    snapshot=st.floats(-10, 10),
    gradient=st.floats(-10, 10),
    deviation=st.floats(0, 10),
    step=st.floats(0.01, 2),
    p=st.floats(0.01, 1),
)
def test_svrg_memory_shrinks_as_lemma_1_says(
    point: float, snapshot: float, gradient: float, deviation: float, step: float, p: float
) -> None:
    c = theory.svrg_constants(batch=1, snapshot_probability=p, smoothness=1.0, gradient_bound=1.0)
    moves = [-step * (gradient + deviation), -step * (gradient - deviation)]  # unbiased, each with chance 1/2
    squared_move = np.mean([move**2 for move in moves])
    kept = np.mean([(point + move - snapshot) ** 2 for move in moves])
    after = p * squared_move + (1 - p) * kept
    allowed = (1 - c.theta) * (point - snapshot) ** 2 + c.c_3(step) * gradient**2 + c.c_4 * squared_move
    assert after <= allowed + 1e-7 * (1 + allowed)


@given(constants=estimators(), beta=st.floats(1e-6, 1e3), clients=CLIENTS, omega=st.floats(0, 1e3))
def test_largest_step_is_exactly_what_the_proof_of_lemma_8_needs(
    constants: EstimatorConstants, beta: float, clients: int, omega: float
) -> None:
    alpha = theory.variance_weight(constants, beta=beta, omega=omega, smoothness=1.0)

    def proof_holds(step: float) -> bool:
        half = 0.5 + alpha * constants.c_4 + 2 * beta * (1 + omega)
        eq_40 = half * (1 + omega) * step**2 / clients <= beta / (2 * (1 + omega)) * (1 + 1e-6)
        descent = step - alpha * constants.c_3(step) - half * step**2 >= step / 2 * (1 - 1e-6)
        return eq_40 and descent

    limit = theory.largest_step(constants, beta=beta, clients=clients, omega=omega, smoothness=1.0)
    assert proof_holds(limit)
    assert not proof_holds(1.01 * limit)
    longer = theory.largest_step(constants, beta=beta, clients=clients, omega=omega, smoothness=0.5)
    c_1_unchanged = constants.c_1 == 0
    assert not c_1_unchanged or longer == pytest.approx(2 * limit)


# The corollaries against the theorem


def _limit(problem: Problem, constants: EstimatorConstants, beta: float) -> float:
    return theory.largest_step(
        constants,
        beta=beta,
        clients=problem.clients,
        omega=problem.omega,
        smoothness=problem.smoothness,
    )


def _limit_of_corollary_2(problem: Problem) -> float:
    printed = theory.corollary_2(problem)
    # the printed batch is a real number, and only C_1 = L^2/b depends on it
    unit = theory.svrg_constants(
        batch=1,
        snapshot_probability=printed.snapshot_probability,
        smoothness=problem.smoothness,
        gradient_bound=problem.gradient_bound,
    )
    return _limit(problem, dataclasses.replace(unit, c_1=unit.c_1 / printed.batch), printed.beta)


@given(problem=PROBLEMS)
def test_the_step_of_corollary_1_is_allowed(problem: Problem) -> None:
    printed = theory.corollary_1(problem)
    constants = theory.gd_constants(gradient_bound=problem.gradient_bound)
    assert printed.step <= _limit(problem, constants, printed.beta) * (1 + 1e-9)


@given(problem=PROBLEMS)
def test_the_step_of_corollary_2_is_allowed_with_more_clients_or_more_compression(problem: Problem) -> None:
    assume(problem.clients > 18 or problem.omega > 1.65)
    assert theory.corollary_2(problem).step <= _limit_of_corollary_2(problem) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("clients", "omega", "factor"), [(1, 0.0, 6.081), (6, 0.0, 1.118), (7, 0.0, 0.976), (10, 1.0, 1.335)]
)
def test_the_step_of_corollary_2_is_too_long_for_few_clients(clients: int, omega: float, factor: float) -> None:
    problem = Problem(clients=clients, records=1000, dim=10, omega=omega, epsilon=1.0, delta=1e-5)
    excess = theory.corollary_2(problem).step / _limit_of_corollary_2(problem)
    assert excess == pytest.approx(factor, abs=1e-3)


@given(problem=PROBLEMS)
def test_the_step_of_corollary_3_is_allowed_where_the_batch_fits(problem: Problem) -> None:
    printed = theory.corollary_3(problem)
    batch = min(math.ceil(printed.batch), problem.records)
    constants = theory.saga_constants(
        records=problem.records,
        batch=batch,
        smoothness=problem.smoothness,
        gradient_bound=problem.gradient_bound,
    )
    assert printed.step <= _limit(problem, constants, printed.beta) * (1 + 1e-9)


def _plugged_in(problem: Problem, constants: EstimatorConstants, beta: float, step: float) -> tuple[float, float]:
    """Rounds and utility of Theorem 3 with c = 1 and Phi_0 = 1, over K and L/K."""
    noise_rate = constants.noise_gain * problem.privacy_cost**2 / problem.dim
    rounds = theory.balancing_rounds(
        constants,
        noise_rate=noise_rate,
        potential=1.0,
        beta=beta,
        dim=problem.dim,
        omega=problem.omega,
        smoothness=problem.smoothness,
    )
    utility = 2 * 2 / (step * rounds)  # both terms of the bound are equal after these rounds
    return rounds / problem.rounds_scale, utility * problem.rounds_scale / problem.smoothness


@given(problem=PROBLEMS)
def test_theorem_3_gives_rounds_and_utility_of_corollaries_2_and_3(problem: Problem) -> None:
    svrg, saga = theory.corollary_2(problem), theory.corollary_3(problem)
    constants = theory.saga_constants(
        records=problem.records,
        batch=1,
        smoothness=problem.smoothness,
        gradient_bound=problem.gradient_bound,
    )
    load = max(1.0, problem.tau)
    assert svrg.rounds / problem.rounds_scale == pytest.approx(load)
    assert _plugged_in(problem, constants, svrg.beta, svrg.step) == pytest.approx(
        (4 / math.sqrt(3) * load, 8 * math.sqrt(3))
    )
    assert _plugged_in(problem, constants, saga.beta, saga.step) == pytest.approx((load, 12.0))


@given(problem=PROBLEMS)
def test_balanced_beta_proves_corollary_1(problem: Problem) -> None:
    constants = theory.gd_constants(gradient_bound=problem.gradient_bound)
    beta = theory.balanced_beta(problem.clients, problem.omega)
    load = 4 * beta * (1 + problem.omega)
    step = _limit(problem, constants, beta)
    assert step == pytest.approx(1 / ((1 + load) * problem.smoothness))
    growth = math.sqrt(1 + load)
    assert growth <= 1 + math.sqrt(2 * problem.tau)
    rounds, utility = _plugged_in(problem, constants, beta, step)
    assert rounds == pytest.approx(math.sqrt(8 / 3) * growth)
    assert utility == pytest.approx(math.sqrt(6) * growth)


@given(problem=PROBLEMS)
def test_the_printed_beta_of_corollary_1_misses_its_utility(problem: Problem) -> None:
    constants = theory.gd_constants(gradient_bound=problem.gradient_bound)
    printed, tau = theory.corollary_1(problem), problem.tau
    rounds, utility = _plugged_in(problem, constants, printed.beta, printed.step)
    assert rounds == pytest.approx(4 / math.sqrt(3) * math.sqrt(tau))
    assert utility == pytest.approx(math.sqrt(3) * (1 + 2 * tau) / math.sqrt(tau))


@pytest.mark.parametrize(("epsilon", "batch"), [(1.0, 10), (5.0, 51), (10.0, 103)])
def test_corollary_1_sets_the_batches_of_the_experiments(epsilon: float, batch: int) -> None:
    assert int(theory.corollary_1(dataclasses.replace(A9A, epsilon=epsilon)).batch) == batch


def test_svrg_refuses_a_snapshot_probability_outside_corollary_2() -> None:
    with pytest.raises(RequestError, match=r"at most 0\.0625 for a batch of 4"):
        theory.svrg_beta_and_step(clients=5, omega=1.0, smoothness=1.0, batch=4, snapshot_probability=0.07)


# The noise of the paper


@pytest.mark.parametrize(
    ("algorithm", "factor"),
    [
        ("cdp-sgd", 8),
        ("ldp-sgd", 8),
        ("soteriafl-gd", 12),
        ("soteriafl-sgd", 12),
        ("soteriafl-svrg", 96),
        ("soteriafl-saga", 96),
        ("ldp-svrg", 96),
    ],
)
def test_published_noise_has_the_constants_of_the_experiments(algorithm: str, factor: float) -> None:
    std = theory.published_noise_std(
        algorithm, gradient_bound=0.5, records=3256, rounds=25, epsilon=2.0, delta=1e-3
    )
    assert std**2 == pytest.approx(factor * 0.25 * 25 * math.log(1000) / (3256 * 2) ** 2)


def test_published_noise_is_eq_4_with_any_constant() -> None:
    constants = theory.svrg_constants(batch=1, snapshot_probability=0.5, smoothness=1.0, gradient_bound=3.0)
    std = theory.published_noise_std(
        "soteriafl-svrg", gradient_bound=3.0, records=7, rounds=5, epsilon=0.5, delta=0.01, noise_constant=2.5
    )
    assert std**2 == pytest.approx(2.5 * constants.noise_gain * 5 * math.log(100) / (7 * 0.5) ** 2)


@pytest.mark.parametrize(
    ("epsilon", "batch", "records", "rounds", "factor"),
    [(1.0, 10, 3256, 25, 4241), (10.0, 103, 3256, 150, 66.6), (1.0, 128, 6000, 150, 14.6)],
)
def test_the_experiments_break_the_condition_of_theorem_2(
    epsilon: float, batch: int, records: int, rounds: int, factor: float
) -> None:
    excess = theory.amplification_excess(epsilon, batch=batch, records=records, rounds=rounds)
    assert excess == pytest.approx(factor, rel=5e-3)


# Theorems 1 and 3, in numbers worked by hand and on a real run


def test_the_bounds_and_rounds_are_those_worked_by_hand() -> None:
    constants = theory.sgd_constants(records=10, batch=5, gradient_bound=2.0)
    assert constants.c_2 == pytest.approx(0.4)
    bound = theory.utility_bound(
        constants,
        step=0.05,
        rounds=50,
        noise_std=0.3,
        potential=3.0,
        beta=0.5,
        clients=8,
        dim=4,
        omega=1.0,
        smoothness=2.0,
    )
    assert bound == pytest.approx(2 * 3 / 2.5 + 3 * 0.5 / (2 * 2 * 0.05) * (0.4 + 4 * 0.09))
    for noise_rate, expected in [(0.001, 0.4 / 0.004), (0.1, math.sqrt(2 * 2 * 2 * 3 / (3 * 0.5 * 0.4)))]:
        rounds = theory.balancing_rounds(
            constants, noise_rate=noise_rate, potential=3.0, beta=0.5, dim=4, omega=1.0, smoothness=2.0
        )
        assert rounds == pytest.approx(expected)
    problem = Problem(
        clients=8, records=10, dim=4, omega=1.0, epsilon=1.0, delta=0.1, smoothness=2.0, gradient_bound=2.0
    )
    direct = theory.cdp_utility_bound(problem, step=0.05, rounds=50, batch=5, noise_std=0.3)
    assert direct == pytest.approx(2 / 2.5 + 2 * 0.05 / 8 * (4 + 2 * (0.5 * 4 / 5 + 4 * 0.09)))
    assert theory.initial_potential(
        3.0, beta=0.5, smoothness=2.0, shift_gap_squared=4.0, alpha=0.1, delta_0=5.0
    ) == pytest.approx(3 + 0.1 * 2 * 5 + 0.25 * 4)


def _run(problem: Problem, *, shifted: bool, step: float, rounds: int, batch: int, noise_std: float) -> float:
    """The average ||grad f||^2 for f_ij(x) = sum_k sqrt(1 + (x_k - a_ijk)^2): L is 1 and G is sqrt(d)."""
    rng = Randomness(5).generator(Purpose.NOISE)
    n, m, d = problem.clients, problem.records, problem.dim
    k = round(d / (1 + problem.omega))
    anchors = rng.normal(size=(n, m, d)) + 2 * rng.normal(size=(n, 1, d))
    assert np.sqrt(1 + anchors**2).sum(axis=2).mean() - d <= problem.loss_gap
    gamma = theory.shift_step(problem.omega) if shifted else 0.0
    x, shift, total = np.zeros(d), np.zeros((n, d)), 0.0
    for _ in range(rounds):
        gaps = x - anchors
        gradients = gaps / np.sqrt(1 + gaps**2)
        total += float(np.sum(gradients.mean(axis=(0, 1)) ** 2))
        coins = rng.random((n, m, 1)) < batch / m
        private = (coins * gradients).sum(axis=1) / batch + noise_std * rng.normal(size=(n, d))
        kept = np.argsort(rng.random((n, d)), axis=1) < k
        sent = np.where(kept, (private - shift) * d / k, 0.0)
        x = x - step * (shift + sent).mean(axis=0)
        shift = shift + gamma * sent
    return total / rounds


RUN = Problem(
    clients=8,
    records=20,
    dim=12,
    omega=2.0,
    epsilon=1.0,
    delta=1e-3,
    gradient_bound=math.sqrt(12),
    loss_gap=12 * 2.0,
)


def test_the_bound_of_theorem_3_holds_for_a_run_and_is_not_idle() -> None:
    constants = theory.sgd_constants(records=20, batch=5, gradient_bound=RUN.gradient_bound)
    beta = theory.balanced_beta(RUN.clients, RUN.omega)
    step = _limit(RUN, constants, beta)
    potential = theory.initial_potential(
        RUN.loss_gap, beta=beta, smoothness=1.0, shift_gap_squared=RUN.gradient_bound**2
    )
    measured = _run(RUN, shifted=True, step=step, rounds=300, batch=5, noise_std=0.5)
    bound = theory.utility_bound(
        constants,
        step=step,
        rounds=300,
        noise_std=0.5,
        potential=potential,
        beta=beta,
        clients=RUN.clients,
        dim=RUN.dim,
        omega=RUN.omega,
        smoothness=1.0,
    )
    assert bound / 100 < measured < bound


def test_the_bound_of_theorem_1_holds_for_a_run_and_is_not_idle() -> None:
    measured = _run(RUN, shifted=False, step=0.2, rounds=300, batch=5, noise_std=0.5)
    bound = theory.cdp_utility_bound(RUN, step=0.2, rounds=300, batch=5, noise_std=0.5)
    assert bound / 100 < measured < bound


@given(problem=PROBLEMS, noise_constant=st.floats(0.1, 100))
def test_theorem_1_reaches_its_published_utility(problem: Problem, noise_constant: float) -> None:
    noise_rate = noise_constant * (problem.gradient_bound * problem.privacy_cost) ** 2 / problem.dim
    rounds = theory.cdp_rounds(problem, noise_rate=noise_rate)
    step = theory.cdp_step(problem, noise_rate=noise_rate)
    reach = math.sqrt(problem.loss_gap / noise_constant) * problem.rounds_scale / problem.smoothness
    assert step * rounds == pytest.approx(reach)
    assume(rounds > 100)  # so that rounding up costs less than one part in a hundred
    whole = math.ceil(rounds)
    bound = theory.cdp_utility_bound(
        problem, step=step, rounds=whole, batch=1, noise_std=math.sqrt(noise_rate * whole)
    )
    assert bound <= 5 * problem.loss_gap / reach * 1.01


# Tables 1 and 2


def _printed_table_1(p: Problem) -> dict[str, tuple[float, float]]:
    """Utility and communication as the paper prints them, with Q-DPSGD-1's missing factor d put back."""
    n, m, d, e, w, log = p.clients, p.records, p.dim, p.epsilon, 1 + p.omega, -math.log(p.delta)
    root, tau = math.sqrt(d * log), w**1.5 / n**0.5
    shared = math.sqrt(w) * root / (math.sqrt(n) * m * e)
    plain = n**1.5 * m * e * math.sqrt(d) / math.sqrt(log)
    shifted = plain / w**1.5
    square = n * m**2 * e**2 / (w * log)
    q_utility = (w / n + 1 / m) ** (2 / 3) * (d * log) ** (1 / 3) / (m * e) ** (2 / 3)
    return {
        "distributed-dp-srm": (root / (n * m * e), n**2 * m * e * math.sqrt(d) / math.sqrt(log)),
        "ldp-svrg": (root / (math.sqrt(n) * m * e), plain),
        "ldp-spider": (root / (math.sqrt(n) * m * e), plain),
        "q-dpsgd-1": (q_utility, (1 + n / (m * w)) * m**2 * e**2 / (d * log) * d),
        "sdm-dsgd": (root / (math.sqrt(n) * m * e), n**2 * shifted + square),
        "cdp-sgd": (shared, shifted + square),
        "soteriafl-sgd": (shared * (1 + math.sqrt(tau)), shifted * (1 + math.sqrt(tau))),
        "soteriafl-gd": (shared * (1 + math.sqrt(tau)), shifted * (1 + math.sqrt(tau))),
        "soteriafl-svrg": (shared, shifted * (1 + tau)),
        "soteriafl-saga": (shared, shifted * (1 + tau)),
    }


@given(problem=PROBLEMS)
def test_table_1_is_the_printed_one(problem: Problem) -> None:
    for algorithm, (utility, communication) in _printed_table_1(problem).items():
        assert theory.utility(algorithm, problem) == pytest.approx(utility)
        assert theory.communication_complexity(algorithm, problem) == pytest.approx(communication)
    alone = math.sqrt(-problem.dim * math.log(problem.delta)) / (problem.records * problem.epsilon)
    assert theory.utility("dp-sgd", problem) == theory.utility("dp-srm", problem) == pytest.approx(alone)
    logs = math.log(problem.records / problem.delta)
    assert theory.utility("rppsgd", problem) == pytest.approx(alone * math.sqrt(logs))


@given(problem=PROBLEMS)
def test_table_1_agrees_with_the_corollaries(problem: Problem) -> None:
    plain = dataclasses.replace(problem, smoothness=1.0, gradient_bound=1.0)
    rows = {row.algorithm: row for row in theory.table_1(problem)}
    sgd, svrg = theory.corollary_1(plain), theory.corollary_2(plain)
    assert (rows["soteriafl-sgd"].utility, rows["soteriafl-sgd"].rounds) == pytest.approx(
        (sgd.utility, sgd.rounds)
    )
    assert rows["soteriafl-svrg"].utility == pytest.approx(svrg.utility)
    rounds = rows["soteriafl-svrg"].rounds
    assert rounds is not None
    assert svrg.rounds <= rounds * (1 + 1e-9) <= 2.001 * svrg.rounds  # max{1, tau} against 1 + tau


@given(problem=PROBLEMS)
def test_table_2_is_rounds_times_batch(problem: Problem) -> None:
    rows = {row.algorithm: row.gradient_complexity for row in theory.table_2(problem)}
    sgd, svrg, saga = theory.corollary_1(problem), theory.corollary_2(problem), theory.corollary_3(problem)
    assert rows["soteriafl-gd"] == pytest.approx(sgd.rounds * problem.records)
    assert rows["soteriafl-sgd"] == pytest.approx(sgd.rounds * sgd.batch)
    assert 1 - 1e-9 <= rows["soteriafl-svrg"] / (svrg.rounds * svrg.batch * 4) <= 2 + 1e-9
    assert 1 - 1e-9 <= rows["soteriafl-saga"] / (saga.rounds * saga.batch / 3) <= 2 + 1e-9
    assert theory.gradient_complexity("soteriafl-sgd", problem) == rows["soteriafl-sgd"]


def test_tables_name_what_they_do_not_hold() -> None:
    with pytest.raises(RequestError, match="did you mean 'soteriafl-svrg'"):
        theory.utility("soteria-svrg", A9A)
    with pytest.raises(RequestError, match="single node"):
        theory.communication_complexity("dp-sgd", A9A)
    with pytest.raises(RequestError, match="Table 2"):
        theory.gradient_complexity("cdp-sgd", A9A)


# Prescriptions


def _prescribe(algorithm: str, problem: Problem, noise_constant: float = 1.0) -> theory.Prescription:
    return theory.prescribe(algorithm, **dataclasses.asdict(problem), noise_constant=noise_constant)


@given(
    algorithm=st.sampled_from(ALGORITHMS),
    problem=PROBLEMS,
    records=st.integers(1, 60),
    small=st.booleans(),
    few=st.booleans(),
)
def test_prescriptions_can_be_run_and_proved(
    algorithm: str, problem: Problem, records: int, small: bool, few: bool
) -> None:
    problem = dataclasses.replace(
        problem,
        records=records if small else problem.records,
        clients=1 + problem.clients % 20 if few else problem.clients,
    )
    p = _prescribe(algorithm, problem)  # utility_bound refuses a step that Theorem 3 does not allow
    assert isinstance(p.batch, int)
    assert 1 <= p.batch <= problem.records
    assert isinstance(p.rounds, int)
    assert p.rounds >= 1
    assert 0 < p.probability <= 1
    assert 0 < p.step <= 1 / problem.smoothness * (1 + 1e-9)
    assert (p.shift_step > 0) == algorithm.startswith("soteriafl")
    assert math.isfinite(p.utility_bound)
    assert p.utility_bound > 0
    if algorithm.endswith("svrg"):
        assert p.probability <= 0.125
        assert p.probability ** (2 / 3) * p.batch ** (1 / 3) <= 0.25 * (1 + 1e-9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("records", [1, 2, 3, 7, 8, 9, 26, 27, 28])
def test_clients_with_few_records_get_a_prescription(algorithm: str, records: int) -> None:
    for clients, omega in [(1, 0.0), (3, 1.0), (500, 0.0), (500, 40.0)]:
        p = _prescribe(algorithm, dataclasses.replace(A9A, records=records, clients=clients, omega=omega))
        assert 1 <= p.batch <= records


@pytest.mark.parametrize(
    ("algorithm", "records", "batch", "p"),
    [
        ("soteriafl-svrg", 1000, 25, 0.025),
        ("soteriafl-svrg", 999, 24, 24 / 999),
        ("soteriafl-svrg", 2, 1, 0.125),
        ("soteriafl-saga", 1000, 300, 1.0),
        ("soteriafl-saga", 1001, 301, 1.0),
        ("soteriafl-saga", 9, 9, 1.0),
        ("soteriafl-gd", 77, 77, 1.0),
    ],
)
def test_batches_are_rounded_to_the_safe_side(algorithm: str, records: int, batch: int, p: float) -> None:
    prescription = _prescribe(algorithm, dataclasses.replace(A9A, records=records))
    assert (prescription.batch, prescription.probability) == pytest.approx((batch, p))


@given(problem=PROBLEMS)
def test_without_a_compressor_omega_counts_as_zero(problem: Problem) -> None:
    dense = dataclasses.replace(problem, omega=0.0)
    assert _prescribe("ldp-sgd", problem) == _prescribe("cdp-sgd", dense)
    svrg = _prescribe("soteriafl-svrg", dense)
    assert _prescribe("ldp-svrg", problem) == dataclasses.replace(svrg, shift_step=0.0)


@given(problem=PROBLEMS)
def test_sgd_is_gd_when_the_batch_is_everything(problem: Problem) -> None:
    loose = dataclasses.replace(problem, epsilon=1e9 * problem.epsilon)
    assume(theory.corollary_1(loose).batch == loose.records)
    sgd, gd = _prescribe("soteriafl-sgd", loose), _prescribe("soteriafl-gd", loose)
    assert sgd.step == gd.step
    assert sgd.batch <= gd.batch == loose.records
    assert sgd.batch < loose.records or sgd == gd


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_more_noise_or_less_privacy_budget_never_helps(algorithm: str) -> None:
    base = _prescribe(algorithm, A9A)
    strict = _prescribe(algorithm, dataclasses.replace(A9A, epsilon=0.5))
    noisy = _prescribe(algorithm, A9A, noise_constant=4.0)
    assert base.utility_bound < strict.utility_bound
    assert base.utility_bound < noisy.utility_bound
    assert strict.rounds < base.rounds
    assert noisy.rounds < base.rounds


def test_svrg_lowers_the_step_of_corollary_2_where_it_is_too_long() -> None:
    lone = Problem(clients=1, records=1000, dim=10, omega=0.0, epsilon=1.0, delta=1e-5)
    assert theory.corollary_2(lone).step / _prescribe("ldp-svrg", lone).step == pytest.approx(6.081, abs=1e-3)
    many = dataclasses.replace(lone, clients=100)
    assert _prescribe("ldp-svrg", many).step == pytest.approx(theory.corollary_2(many).step)


def test_direct_compression_keeps_the_condition_of_theorem_4_if_a_batch_can() -> None:
    problem = Problem(clients=100, records=5000, dim=50, omega=9.0, epsilon=1.0, delta=1e-5)
    p = _prescribe("cdp-sgd", problem)
    assert theory.amplification_excess(1.0, batch=p.batch, records=5000, rounds=p.rounds) < 1
    assert theory.amplification_excess(1.0, batch=p.batch - 1, records=5000, rounds=p.rounds) >= 1


# What is refused


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("clients", 0),
        ("records", 2.5),
        ("dim", -1),
        ("omega", -0.1),
        ("omega", math.nan),
        ("epsilon", 0.0),
        ("epsilon", math.inf),
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", math.nan),
        ("smoothness", -1.0),
        ("gradient_bound", math.nan),
        ("loss_gap", 0.0),
        ("noise_constant", 0.0),
    ],
)
def test_prescribe_names_the_setting_that_is_wrong(setting: str, value: float) -> None:
    settings = {**dataclasses.asdict(A9A), setting: value}
    with pytest.raises(RequestError, match=setting):
        theory.prescribe("soteriafl-sgd", **settings)


def test_unknown_algorithms_are_named() -> None:
    with pytest.raises(RequestError, match="did you mean 'soteriafl-sgd'"):
        _prescribe("soteriafl-sdg", A9A)
    with pytest.raises(RequestError, match="unknown algorithm 'spider'"):
        theory.published_noise_std("spider", gradient_bound=1.0, records=1, rounds=1, epsilon=1.0, delta=0.1)


def test_steps_beyond_the_theorems_are_refused() -> None:
    constants = theory.gd_constants(gradient_bound=1.0)
    with pytest.raises(RequestError, match=r"at most 0\.5 for Theorem 3"):
        theory.utility_bound(
            constants,
            step=0.51,
            rounds=10,
            noise_std=1.0,
            potential=1.0,
            beta=0.25,
            clients=4,
            dim=2,
            omega=0.0,
            smoothness=1.0,
        )
    with pytest.raises(RequestError, match="1/smoothness"):
        theory.cdp_utility_bound(RUN, step=1.1, rounds=10, batch=1, noise_std=0.0)


def test_batches_and_coordinates_must_fit() -> None:
    with pytest.raises(RequestError, match="batch must be at most the 4 records"):
        theory.sgd_constants(records=4, batch=5, gradient_bound=1.0)
    with pytest.raises(RequestError, match="k must be at most dim = 3"):
        theory.rand_k_omega(3, 4)
