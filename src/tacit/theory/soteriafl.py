"""What the theorems of SoteriaFL (Li et al. 2022, papers/000) prescribe and promise.

Letters of the formulas below: n `clients`, m `records` of each client, d `dim`, w `omega`, L `smoothness`,
G `gradient_bound`, T `rounds`, b `batch`, q = b/m, s `noise_std` of a coordinate of a client's message,
D `loss_gap` = f(x^0) - f*, ln1d = ln(1/delta). A utility is E||grad f(x^t)||^2, averaged over the rounds.

Nothing here makes a run private. The paper's noise is kept for comparison; the bounds of Theorems 1 and 3
take the standard deviation that is really used, so that they hold for noise calibrated exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tacit.errors import RequestError, count, positive, probability, unknown_name

_ROUND_OFF = 1e-9  # how far floating point may carry a value over a limit that it meets on paper


def _not_negative(setting: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise RequestError(f"{setting} must be a finite number of at least 0, not {value!r}")
    return value


def _below_one(setting: str, value: float) -> float:
    if not 0 < value < 1:
        raise RequestError(f"{setting} must be strictly between 0 and 1, not {value!r}")
    return value


def _batch(batch: int, records: int) -> int:
    if count("batch", batch) > count("records", records):
        raise RequestError(f"batch must be at most the {records} records of a client, not {batch!r}")
    return int(batch)


# Compression (section 2)


def rand_k_omega(dim: int, k: int) -> float:
    """The compression parameter of random-k sparsification (Example 1): omega = d/k - 1.

    Definition 1: C is an omega-compressor if E C(x) = x and E||C(x) - x||^2 <= omega ||x||^2 for every x.
    Zero is no compression at all; a message shrinks by about 1 + omega.

    >>> rand_k_omega(100, 5)
    19.0
    """
    if count("k", k) > count("dim", dim):
        raise RequestError(f"k must be at most dim = {dim}, not {k!r}: no more coordinates than there are")
    return dim / k - 1


def shift_step(omega: float) -> float:
    """The rate at which a client's shift learns (gamma of Theorem 3): sqrt((1 + 2w) / (2 (1 + w)^3)).

    >>> round(shift_step(19.0), 4)
    0.0494
    """
    _not_negative("omega", omega)
    return math.sqrt((1 + 2 * omega) / (2 * (1 + omega) ** 3))


def compression_load(clients: int, omega: float) -> float:
    """How heavily compression weighs on this many clients (tau of Corollary 1): (1 + w)^(3/2) / sqrt(n).

    Below 1 compression costs no extra rounds, up to constants.

    >>> compression_load(16, 3.0)
    2.0
    """
    return float((1 + _not_negative("omega", omega)) ** 1.5 / math.sqrt(count("clients", clients)))


# Local gradient estimators (Assumption 3, Lemma 1)


@dataclass(frozen=True)
class EstimatorConstants:
    """What Assumption 3 asks of a local gradient estimator, g = A + B.

    A averages over the batch terms of norm at most `g_a`, B averages over all records terms of norm at most
    `g_b`, the variance is at most C_1 Delta^t + C_2, and
    E Delta^{t+1} <= (1 - theta) Delta^t + C_3 ||grad f||^2 + C_4 E||x^{t+1} - x^t||^2.
    In Lemma 1 C_3 is proportional to the squared step; `c_3_per_step_squared` is the factor.
    """

    g_a: float
    g_b: float
    c_1: float
    c_2: float
    c_3_per_step_squared: float
    c_4: float
    theta: float

    @property
    def noise_gain(self) -> float:
        """The factor G_A^2/4 + G_B^2 of the noise variance in Theorem 2."""
        return self.g_a**2 / 4 + self.g_b**2

    def c_3(self, step: float) -> float:
        """C_3 at a step."""
        return self.c_3_per_step_squared * positive("step", step) ** 2


def sgd_constants(*, records: int, batch: int, gradient_bound: float) -> EstimatorConstants:
    """Lemma 1 for the minibatch gradient: G_A = G, C_2 = (m - b) G^2 / (m b), theta = 1, the rest zero.

    >>> sgd_constants(records=100, batch=20, gradient_bound=1.0).c_2
    0.04
    """
    b, g = _batch(batch, records), positive("gradient_bound", gradient_bound)
    return EstimatorConstants(g, 0.0, 0.0, (records - b) * g**2 / (records * b), 0.0, 0.0, 1.0)


def gd_constants(*, gradient_bound: float) -> EstimatorConstants:
    """Lemma 1 for the full local gradient: the minibatch gradient with b = m, which has no variance."""
    return sgd_constants(records=1, batch=1, gradient_bound=gradient_bound)


def svrg_constants(
    *, batch: int, snapshot_probability: float, smoothness: float, gradient_bound: float
) -> EstimatorConstants:
    """Lemma 1 for SVRG with snapshot probability p, where Delta^t = ||x^t - w^t||^2.

    G_A = 2G, G_B = G, C_1 = L^2/b, C_2 = 0, C_3 = 2 (1-p) step^2 / p, C_4 = 1, theta = p/2.

    >>> c = svrg_constants(batch=4, snapshot_probability=0.5, smoothness=2.0, gradient_bound=1.0)
    >>> c.c_1, c.c_3(0.5), c.theta, c.noise_gain
    (1.0, 0.5, 0.25, 2.0)
    """
    g = positive("gradient_bound", gradient_bound)
    p = probability("snapshot_probability", snapshot_probability)
    c_1 = positive("smoothness", smoothness) ** 2 / count("batch", batch)
    return EstimatorConstants(2 * g, g, c_1, 0.0, 2 * (1 - p) / p, 1.0, p / 2)


def saga_constants(*, records: int, batch: int, smoothness: float, gradient_bound: float) -> EstimatorConstants:
    """Lemma 1 for SAGA, where Delta^t is the mean of ||x^t - w_ij^t||^2: SVRG's constants with p = b/m.

    C_3 = 2 (m-b) step^2 / b, theta = b/(2m).

    >>> saga_constants(records=8, batch=4, smoothness=2.0, gradient_bound=1.0).theta
    0.25
    """
    q = _batch(batch, records) / records
    return svrg_constants(
        batch=batch, snapshot_probability=q, smoothness=smoothness, gradient_bound=gradient_bound
    )


# The noise of the paper (Theorems 2 and 4): for comparison only

_AS_PUBLISHED = {  # the open constant c as the authors' experiments set it, and noise_gain / G^2
    "cdp-sgd": (8.0, 1.0),
    "ldp-sgd": (8.0, 1.0),
    "soteriafl-gd": (48.0, 0.25),
    "soteriafl-sgd": (48.0, 0.25),
    "soteriafl-svrg": (48.0, 2.0),
    "soteriafl-saga": (48.0, 2.0),
    "ldp-svrg": (48.0, 2.0),
}


def published_noise_std(
    algorithm: str,
    *,
    gradient_bound: float,
    records: int,
    rounds: int,
    epsilon: float,
    delta: float,
    noise_constant: float | None = None,
) -> float:
    """The noise of Theorems 2 and 4 as published, NOT private as labelled: for comparison only.

    s^2 = c g T ln1d / (m epsilon)^2 with g = G^2 for CDP-SGD and LDP-SGD (Theorem 4) and g = G_A^2/4 + G_B^2
    for the others (Theorem 2, eq. 4). The paper leaves c open (`noise_constant`); without one it is that of
    the authors' experiments, 8 and 48: s^2 is 8, 12 (SoteriaFL-SGD) or 96 (the SVRG kind) times
    G^2 T ln1d / (m epsilon)^2. This is what the proofs give with lambda (lambda + 1) <= 2 lambda^2 and every
    higher-order term dropped, which needs `amplification_excess` below 1; the experiments had 15 to 4,000.

    >>> s = published_noise_std(
    ...     "soteriafl-sgd", gradient_bound=1.0, records=10, rounds=1, epsilon=1.0, delta=math.exp(-1))
    >>> round(s**2, 6)
    0.12
    """
    if algorithm not in _AS_PUBLISHED:
        raise unknown_name("algorithm", algorithm, _AS_PUBLISHED)
    constant, gain = _AS_PUBLISHED[algorithm]
    if noise_constant is not None:
        constant = positive("noise_constant", noise_constant)
    log_term = -math.log(_below_one("delta", delta))
    scale = positive("gradient_bound", gradient_bound) / (
        count("records", records) * positive("epsilon", epsilon)
    )
    return scale * math.sqrt(constant * gain * count("rounds", rounds) * log_term)


def amplification_excess(
    epsilon: float, *, batch: int, records: int, rounds: int, condition_constant: float = 1.0
) -> float:
    """By which factor a setting breaks the condition of Theorems 2 and 4, epsilon < c' q^2 T.

    At 1 and above the theorems promise nothing. c' is open in the paper; this uses 1 unless told otherwise.

    >>> round(amplification_excess(1.0, batch=10, records=3256, rounds=25))  # the paper's a9a, epsilon 1
    4241
    """
    q = _batch(batch, records) / records
    budget = positive("condition_constant", condition_constant) * q**2 * count("rounds", rounds)
    return positive("epsilon", epsilon) / budget


# SoteriaFL in general (Theorem 3)


def variance_weight(constants: EstimatorConstants, *, beta: float, omega: float, smoothness: float) -> float:
    """The weight alpha of the estimator's variance in the potential: 3 beta C_1 / (2 (1+w) theta L^2).

    >>> variance_weight(gd_constants(gradient_bound=1.0), beta=1.0, omega=0.0, smoothness=1.0)
    0.0
    """
    scale = 2 * (1 + _not_negative("omega", omega)) * constants.theta * positive("smoothness", smoothness) ** 2
    return 3 * positive("beta", beta) * constants.c_1 / scale


def largest_step(
    constants: EstimatorConstants, *, beta: float, clients: int, omega: float, smoothness: float
) -> float:
    """The largest step that Theorem 3 allows.

    With S = 1 + 2 alpha C_4 + 4 beta (1+w):
    min{ 1 / ((S + 2 alpha C_3/step^2) L), sqrt(beta n) / (sqrt(S) (1+w) L) }.
    The step on the right is no circle: in Lemma 1 C_3/step^2 does not depend on it.

    >>> largest_step(gd_constants(gradient_bound=1.0), beta=0.25, clients=4, omega=0.0, smoothness=1.0)
    0.5
    """
    alpha = variance_weight(constants, beta=beta, omega=omega, smoothness=smoothness)
    base = 1 + 2 * alpha * constants.c_4 + 4 * beta * (1 + omega)
    descent = 1 / (base + 2 * alpha * constants.c_3_per_step_squared)
    contraction = math.sqrt(beta * count("clients", clients) / base) / (1 + omega)
    return min(descent, contraction) / smoothness


def initial_potential(
    loss_gap: float,
    *,
    beta: float,
    smoothness: float,
    shift_gap_squared: float,
    alpha: float = 0.0,
    delta_0: float = 0.0,
) -> float:
    """Phi_0 of Theorem 3: D + alpha L Delta^0 + (beta/L) mean_i ||grad f_i(x^0) - s_i^0||^2.

    `shift_gap_squared` is that mean: at most G^2 when the shifts start at zero. Delta^0 is zero for all four
    estimators, whose snapshots start at x^0.

    >>> initial_potential(1.0, beta=0.5, smoothness=2.0, shift_gap_squared=4.0)
    2.0
    """
    start = positive("smoothness", smoothness) * _not_negative("alpha", alpha) * _not_negative("delta_0", delta_0)
    shift = positive("beta", beta) / smoothness * _not_negative("shift_gap_squared", shift_gap_squared)
    return _not_negative("loss_gap", loss_gap) + start + shift


def utility_bound(
    constants: EstimatorConstants,
    *,
    step: float,
    rounds: int,
    noise_std: float,
    potential: float,
    beta: float,
    clients: int,
    dim: int,
    omega: float,
    smoothness: float,
) -> float:
    """What Theorem 3 promises for the noise that is really added.

    2 Phi_0 / (step T) + 3 beta / ((1+w) L step) (C_2 + d s^2): eq. 26 before the paper's s^2 is put into it.
    It needs the shift step `shift_step(omega)` and a step up to `largest_step`; a longer one is refused.

    >>> utility_bound(gd_constants(gradient_bound=1.0), step=0.5, rounds=100, noise_std=0.5, potential=1.0,
    ...               beta=0.25, clients=4, dim=4, omega=0.0, smoothness=1.0)
    1.54
    """
    limit = largest_step(constants, beta=beta, clients=clients, omega=omega, smoothness=smoothness)
    if positive("step", step) > limit * (1 + _ROUND_OFF):
        raise RequestError(
            f"step must be at most {limit:.6g} for Theorem 3 to hold, not {step!r}: lower it or change beta"
        )
    noise = count("dim", dim) * _not_negative("noise_std", noise_std) ** 2
    optimisation = 2 * _not_negative("potential", potential) / (step * count("rounds", rounds))
    return optimisation + 3 * beta / ((1 + omega) * smoothness * step) * (constants.c_2 + noise)


def balancing_rounds(
    constants: EstimatorConstants,
    *,
    noise_rate: float,
    potential: float,
    beta: float,
    dim: int,
    omega: float,
    smoothness: float,
) -> float:
    """The rounds after which more noise outweighs more descent (eq. 5), as a real number.

    With r = s^2/T (`noise_rate`: private noise needs a variance proportional to T, exactly so in eq. 4):
    max{ sqrt(2 (1+w) L Phi_0 / (3 beta d r)), C_2 / (d r) }.

    >>> balancing_rounds(gd_constants(gradient_bound=1.0), noise_rate=0.01, potential=6.0, beta=1.0, dim=4,
    ...                  omega=0.0, smoothness=1.0)
    10.0
    """
    rate = count("dim", dim) * positive("noise_rate", noise_rate)
    gain = 2 * (1 + _not_negative("omega", omega)) * positive("smoothness", smoothness)
    return max(
        math.sqrt(gain * _not_negative("potential", potential) / (3 * positive("beta", beta) * rate)),
        constants.c_2 / rate,
    )


# The setting, and what the corollaries make of it


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The numbers that the paper's results depend on."""

    clients: int
    records: int
    dim: int
    omega: float
    epsilon: float
    delta: float
    smoothness: float = 1.0
    gradient_bound: float = 1.0
    loss_gap: float = 1.0

    def __post_init__(self) -> None:
        for setting in ("clients", "records", "dim"):
            count(setting, getattr(self, setting))
        for setting in ("epsilon", "smoothness", "gradient_bound", "loss_gap"):
            positive(setting, getattr(self, setting))
        _not_negative("omega", self.omega)
        _below_one("delta", self.delta)

    @property
    def tau(self) -> float:
        """The load of compression, `compression_load`."""
        return compression_load(self.clients, self.omega)

    @property
    def privacy_cost(self) -> float:
        """sqrt(d ln1d) / (m epsilon): the utility of one private client alone, with G = L = 1."""
        return math.sqrt(-self.dim * math.log(self.delta)) / (self.records * self.epsilon)

    @property
    def rounds_scale(self) -> float:
        """K of Table 2: sqrt(n L) m epsilon / (G sqrt((1+w) d ln1d)). L/K is the utility of Corollary 2."""
        noise = self.gradient_bound * self.privacy_cost * math.sqrt(1 + self.omega)
        return math.sqrt(self.clients * self.smoothness) / noise


@dataclass(frozen=True)
class Corollary:
    """What a corollary prescribes, in real numbers as printed; `batch` may fall outside [1, records].

    `rounds` and `utility` stand under an O() in the paper, which hides the loss gap too: its constant is 1.
    """

    beta: float
    step: float
    batch: float
    snapshot_probability: float
    rounds: float
    utility: float


def corollary_1(problem: Problem) -> Corollary:
    """Corollary 1, SoteriaFL-SGD (SoteriaFL-GD is the same with batch = records).

    beta = tau / (2 (1+w)), step = 1 / ((1 + 2 tau) L), b = min{m epsilon G sqrt(beta / ((1+w) L d ln1d)), m},
    T = K (1 + sqrt(tau)), utility = (L/K) (1 + sqrt(tau)).

    The utility does not follow from this beta when tau is small: put into Theorem 3 it gives the order
    (L/K) (1 + 2 tau) / sqrt(2 tau), which grows without limit as tau falls. `balanced_beta` proves the claim.

    >>> a9a = Problem(clients=10, records=3256, dim=124, omega=rand_k_omega(124, 6), epsilon=1.0, delta=1e-3,
    ...               gradient_bound=0.5)
    >>> int(corollary_1(a9a).batch)  # the batch of the paper's experiment
    10
    """
    tau, scale = problem.tau, problem.rounds_scale
    beta = tau / (2 * (1 + problem.omega))
    growth = 1 + math.sqrt(tau)
    return Corollary(
        beta=beta,
        step=1 / ((1 + 2 * tau) * problem.smoothness),
        batch=_sgd_batch(problem, beta),
        snapshot_probability=1.0,
        rounds=scale * growth,
        utility=problem.smoothness / scale * growth,
    )


def _sgd_batch(problem: Problem, beta: float) -> float:
    scale = problem.privacy_cost * math.sqrt((1 + problem.omega) * problem.smoothness)
    return min(problem.gradient_bound * math.sqrt(beta) / scale, float(problem.records))


def balanced_beta(clients: int, omega: float) -> float:
    """The beta with which Corollary 1 holds for every tau: (sqrt(1 + 16 tau^2) - 1) / (8 (1+w)).

    tacit's own; Theorem 3 allows any beta. For an estimator without memory both limits of `largest_step` meet
    there. Up to constants, rounds and utility are K and L/K times
    sqrt((1 + sqrt(1 + 16 tau^2)) / 2) <= 1 + sqrt(2 tau).

    >>> round(balanced_beta(10_000, 0.0), 6), corollary_1(
    ...     Problem(clients=10_000, records=9, dim=9, omega=0, epsilon=1, delta=0.1)).beta
    (0.0001, 0.005)
    """
    square = 16 * compression_load(clients, omega) ** 2
    # (sqrt(1 + x) - 1) = x / (sqrt(1 + x) + 1), without the cancellation for small x
    return square / (math.sqrt(1 + square) + 1) / (8 * (1 + omega))


def svrg_beta_and_step(
    *, clients: int, omega: float, smoothness: float, batch: float, snapshot_probability: float
) -> tuple[float, float]:
    """The beta and step of Corollary 2 for a batch b and snapshot probability p.

    With u = p^(2/3) b^(1/3), which like p must be at most 1/4:
    beta = u^2 (1+w)^2 min{1, 1/tau^2} / n and step = u min{1, 1/tau} / (2L).

    The step is longer than Theorem 3 allows when 1 + omega < 2.65 and clients <= 18, by a factor of up to 6.2
    (one client, no compression): take the smaller of it and `largest_step`.

    >>> svrg_beta_and_step(clients=100, omega=0.0, smoothness=1.0, batch=1, snapshot_probability=0.125)
    (0.000625, 0.125)
    """
    p = probability("snapshot_probability", snapshot_probability)
    u = p ** (2 / 3) * positive("batch", batch) ** (1 / 3)
    if p > 0.25 or u > 0.25 * (1 + _ROUND_OFF):
        raise RequestError(
            f"snapshot_probability must be at most {min(0.25, 1 / (8 * math.sqrt(batch))):.6g} for a batch of"
            f" {batch!r} (Corollary 2), not {snapshot_probability!r}"
        )
    relief = min(1.0, 1 / compression_load(clients, omega))
    return (u * relief * (1 + omega)) ** 2 / clients, u * relief / (2 * positive("smoothness", smoothness))


def corollary_2(problem: Problem) -> Corollary:
    """Corollary 2, SoteriaFL-SVRG: b = m^(2/3)/4, p = b/m, T = K max{1, tau}, utility = L/K.

    Beta and step, and where the step is too long, are those of `svrg_beta_and_step`.

    >>> c = corollary_2(Problem(clients=100, records=1000, dim=10, omega=0.0, epsilon=1.0, delta=1e-5))
    >>> round(c.batch, 6), round(c.snapshot_probability, 6), round(c.step, 6)
    (25.0, 0.025, 0.125)
    """
    batch = problem.records ** (2 / 3) / 4
    p = batch / problem.records
    beta, step = svrg_beta_and_step(
        clients=problem.clients,
        omega=problem.omega,
        smoothness=problem.smoothness,
        batch=batch,
        snapshot_probability=p,
    )
    scale = problem.rounds_scale
    return Corollary(beta, step, batch, p, scale * max(1.0, problem.tau), problem.smoothness / scale)


def corollary_3(problem: Problem) -> Corollary:
    """Corollary 3, SoteriaFL-SAGA: b = 3 m^(2/3), T = K max{1, tau}, utility = L/K.

    beta = (1+w)^2 min{1, 1/tau^2} / (3n), step = min{1, 1/tau} / (3L). Theorem 3 allows it wherever the batch
    fits, from 27 records on.

    >>> round(corollary_3(Problem(clients=9, records=27, dim=9, omega=0.0, epsilon=1.0, delta=0.1)).batch, 6)
    27.0
    """
    relief, scale = min(1.0, 1 / problem.tau), problem.rounds_scale
    return Corollary(
        beta=((1 + problem.omega) * relief) ** 2 / (3 * problem.clients),
        step=relief / (3 * problem.smoothness),
        batch=3 * problem.records ** (2 / 3),
        snapshot_probability=1.0,
        rounds=scale * max(1.0, problem.tau),
        utility=problem.smoothness / scale,
    )


# CDP-SGD (Theorem 1)


def cdp_rounds(problem: Problem, *, noise_rate: float) -> float:
    """The rounds of CDP-SGD (eq. 47), as a real number.

    max{ sqrt(n L D / ((1+w) d r)), G^2 / (d r) } with r = s^2/T, in the paper c G^2 ln1d / (m epsilon)^2.

    >>> cdp_rounds(Problem(clients=9, records=10, dim=4, omega=0.0, epsilon=1.0, delta=0.1), noise_rate=0.01)
    25.0
    """
    rate = problem.dim * positive("noise_rate", noise_rate)
    descent = problem.clients * problem.smoothness * problem.loss_gap / ((1 + problem.omega) * rate)
    return max(math.sqrt(descent), problem.gradient_bound**2 / rate)


def cdp_step(problem: Problem, *, noise_rate: float) -> float:
    """The step of CDP-SGD (after eq. 47): min{ 1/L, sqrt(n D d r / ((1+w) L)) / G^2 } with r = s^2/T.

    >>> cdp_step(Problem(clients=9, records=10, dim=4, omega=0.0, epsilon=1.0, delta=0.1), noise_rate=0.01)
    0.6
    """
    noise = problem.clients * problem.loss_gap * problem.dim * positive("noise_rate", noise_rate)
    bound = math.sqrt(noise / ((1 + problem.omega) * problem.smoothness)) / problem.gradient_bound**2
    return min(1 / problem.smoothness, bound)


def cdp_utility_bound(problem: Problem, *, step: float, rounds: int, batch: int, noise_std: float) -> float:
    """What CDP-SGD's analysis promises (eq. 46, first line) for the noise that is really added; step <= 1/L.

    2D / (step T) + (L step / n) [w G^2 + (1+w) ((1-q) G^2/b + d s^2)].

    >>> p = Problem(clients=10, records=10, dim=4, omega=0.0, epsilon=1.0, delta=0.1)
    >>> cdp_utility_bound(p, step=1.0, rounds=20, batch=10, noise_std=0.5)
    0.2
    """
    if positive("step", step) * problem.smoothness > 1 + _ROUND_OFF:
        raise RequestError(f"step must be at most 1/smoothness = {1 / problem.smoothness:.6g}, not {step!r}")
    g_squared = problem.gradient_bound**2
    q = _batch(batch, problem.records) / problem.records
    spread = (1 - q) * g_squared / batch + problem.dim * _not_negative("noise_std", noise_std) ** 2
    second_moment = problem.omega * g_squared + (1 + problem.omega) * spread
    descent = 2 * problem.loss_gap / (step * count("rounds", rounds))
    return descent + problem.smoothness * step / problem.clients * second_moment


# Tables 1 and 2


@dataclass(frozen=True)
class Table1Row:
    """One line of Table 1; `rounds` and `communication` are None where the paper has a single node."""

    algorithm: str
    privacy: str
    remark: str
    utility: float
    rounds: float | None
    communication: float | None


def table_1(problem: Problem) -> list[Table1Row]:
    """Table 1 in numbers: orders, with constant 1 and, as in the table, G = L = 1.

    Communication is n d T / (1+w), with w = 0 for algorithms that do not compress. For Q-DPSGD-1 the paper's
    sigma~^2 is read as 1 + w; its printed communication lacks the factor d that the table's own formula gives
    and that stands here.

    >>> p = Problem(clients=100, records=1000, dim=10, omega=1.0, epsilon=1.0, delta=1e-5)
    >>> [row.algorithm for row in table_1(p) if row.communication is None]
    ['rppsgd', 'dp-sgd', 'dp-srm']
    """
    n, tau, alone = problem.clients, problem.tau, problem.privacy_cost
    uncompressed = alone / math.sqrt(n)
    shared = uncompressed * math.sqrt(1 + problem.omega)
    q_spread = (1 + problem.omega) / n + 1 / problem.records
    one, many = "single node", "n nodes, no compression"
    direct, shifted = "n nodes, direct compression", "n nodes, shifted compression"
    orders: list[tuple[str, str, str, float, float | None]] = [
        ("rppsgd", "DP", one, alone * math.sqrt(math.log(problem.records / problem.delta)), None),
        ("dp-sgd", "DP", one, alone, None),
        ("dp-srm", "DP", one, alone, None),
        ("distributed-dp-srm", "DP", many, alone / n, n / alone),
        ("ldp-svrg", "LDP", many, uncompressed, 1 / uncompressed),
        ("ldp-spider", "LDP", many, uncompressed, 1 / uncompressed),
        ("q-dpsgd-1", "LDP", direct, (q_spread * alone) ** (2 / 3), q_spread / alone**2),
        ("sdm-dsgd", "LDP", direct, uncompressed, n**2 / shared + 1 / alone**2),
        ("cdp-sgd", "LDP", direct, shared, 1 / shared + 1 / alone**2),
        ("soteriafl-sgd", "LDP", shifted, shared * (1 + math.sqrt(tau)), (1 + math.sqrt(tau)) / shared),
        ("soteriafl-gd", "LDP", shifted, shared * (1 + math.sqrt(tau)), (1 + math.sqrt(tau)) / shared),
        ("soteriafl-svrg", "LDP", shifted, shared, (1 + tau) / shared),
        ("soteriafl-saga", "LDP", shifted, shared, (1 + tau) / shared),
    ]

    def communication(remark: str, rounds: float | None) -> float | None:
        message = problem.dim if remark == many else problem.dim / (1 + problem.omega)
        return None if rounds is None else n * message * rounds

    return [
        Table1Row(name, privacy, remark, order, rounds, communication(remark, rounds))
        for name, privacy, remark, order, rounds in orders
    ]


def _table_1_row(algorithm: str, problem: Problem) -> Table1Row:
    rows = {row.algorithm: row for row in table_1(problem)}
    if algorithm not in rows:
        raise unknown_name("algorithm of Table 1", algorithm, rows)
    return rows[algorithm]


def utility(algorithm: str, problem: Problem) -> float:
    """The utility of an algorithm in Table 1, with the conventions of `table_1`.

    >>> p = Problem(clients=100, records=1000, dim=10, omega=0.0, epsilon=1.0, delta=math.exp(-10))
    >>> round(utility("dp-sgd", p), 6), round(utility("soteriafl-svrg", p), 6)
    (0.01, 0.001)
    """
    return _table_1_row(algorithm, problem).utility


def communication_complexity(algorithm: str, problem: Problem) -> float:
    """The coordinates that all clients send in all rounds in Table 1, with the conventions of `table_1`.

    >>> p = Problem(clients=100, records=1000, dim=10, omega=1.0, epsilon=1.0, delta=math.exp(-10))
    >>> round(communication_complexity("ldp-svrg", p)), round(communication_complexity("cdp-sgd", p))
    (1000000, 5353553)
    """
    communication = _table_1_row(algorithm, problem).communication
    if communication is None:
        raise RequestError(f"algorithm {algorithm!r} runs on a single node: it has no communication complexity")
    return communication


@dataclass(frozen=True)
class Table2Row:
    """One entry of Table 2."""

    algorithm: str
    gradient_complexity: float


def table_2(problem: Problem) -> list[Table2Row]:
    """Table 2 in numbers: the gradients that a client computes in all rounds, T b, as orders with constant 1.

    GD K (1 + sqrt(tau)) m, SGD K (1 + sqrt(tau)) b, SVRG and SAGA K (1 + tau) m^(2/3).

    >>> p = Problem(clients=100, records=1000, dim=10, omega=0.0, epsilon=1.0, delta=math.exp(-10))
    >>> [(row.algorithm, round(row.gradient_complexity)) for row in table_2(p)][::3]
    [('soteriafl-gd', 1316228), ('soteriafl-saga', 110000)]
    """
    plain = problem.rounds_scale * (1 + math.sqrt(problem.tau))
    reduced = problem.rounds_scale * (1 + problem.tau) * problem.records ** (2 / 3)
    return [
        Table2Row("soteriafl-gd", plain * problem.records),
        Table2Row("soteriafl-sgd", plain * corollary_1(problem).batch),
        Table2Row("soteriafl-svrg", reduced),
        Table2Row("soteriafl-saga", reduced),
    ]


def gradient_complexity(algorithm: str, problem: Problem) -> float:
    """The entry of an algorithm in Table 2, with the conventions of `table_2`.

    >>> p = Problem(clients=100, records=1000, dim=10, omega=0.0, epsilon=1.0, delta=math.exp(-10))
    >>> round(gradient_complexity("soteriafl-svrg", p))
    110000
    """
    entries = {row.algorithm: row.gradient_complexity for row in table_2(problem)}
    if algorithm not in entries:
        raise unknown_name("algorithm of Table 2", algorithm, entries)
    return entries[algorithm]


# One call for a run


@dataclass(frozen=True)
class Prescription:
    """Parameters that the theory backs, and the utility that it promises for them.

    `shift_step` is 0 where there is no shift, `probability` 1 where there is no snapshot to take.
    """

    step: float
    shift_step: float
    batch: int
    probability: float
    rounds: int
    utility_bound: float


def _prescribe_direct(problem: Problem, noise_constant: float) -> Prescription:
    noise_rate = noise_constant * (problem.gradient_bound * problem.privacy_cost) ** 2 / problem.dim
    rounds = math.ceil(cdp_rounds(problem, noise_rate=noise_rate))
    step = cdp_step(problem, noise_rate=noise_rate)
    # Theorem 1 leaves the batch open: the smallest that keeps Theorem 4's condition with c' = 1, if any does.
    batch = min(problem.records, math.floor(problem.records * math.sqrt(problem.epsilon / rounds)) + 1)
    noise_std = math.sqrt(noise_rate * rounds)
    bound = cdp_utility_bound(problem, step=step, rounds=rounds, batch=batch, noise_std=noise_std)
    return Prescription(step, 0.0, batch, 1.0, rounds, bound)


def _prescribe_shifted(kind: str, problem: Problem, noise_constant: float) -> Prescription:
    records, smoothness, g = problem.records, problem.smoothness, problem.gradient_bound
    p, step = 1.0, math.inf
    if kind in ("gd", "sgd"):
        beta = balanced_beta(problem.clients, problem.omega)
        batch = records if kind == "gd" else max(1, math.ceil(_sgd_batch(problem, beta)))
        constants = sgd_constants(records=records, batch=batch, gradient_bound=g)
    elif kind == "svrg":
        batch = max(1, math.floor(records ** (2 / 3) / 4 * (1 + _ROUND_OFF)))
        p = min(batch / records, 1 / (8 * math.sqrt(batch)))
        beta, step = svrg_beta_and_step(
            clients=problem.clients,
            omega=problem.omega,
            smoothness=smoothness,
            batch=batch,
            snapshot_probability=p,
        )
        constants = svrg_constants(batch=batch, snapshot_probability=p, smoothness=smoothness, gradient_bound=g)
    else:
        printed = corollary_3(problem)
        beta, step, batch = (
            printed.beta,
            printed.step,
            min(records, math.ceil(printed.batch * (1 - _ROUND_OFF))),
        )
        constants = saga_constants(records=records, batch=batch, smoothness=smoothness, gradient_bound=g)
    limit = largest_step(
        constants, beta=beta, clients=problem.clients, omega=problem.omega, smoothness=smoothness
    )
    step = min(step, limit)
    potential = initial_potential(problem.loss_gap, beta=beta, smoothness=smoothness, shift_gap_squared=g**2)
    noise_rate = noise_constant * constants.noise_gain * problem.privacy_cost**2 / problem.dim
    rounds = math.ceil(
        balancing_rounds(
            constants,
            noise_rate=noise_rate,
            potential=potential,
            beta=beta,
            dim=problem.dim,
            omega=problem.omega,
            smoothness=smoothness,
        )
    )
    bound = utility_bound(
        constants,
        step=step,
        rounds=rounds,
        noise_std=math.sqrt(noise_rate * rounds),
        potential=potential,
        beta=beta,
        clients=problem.clients,
        dim=problem.dim,
        omega=problem.omega,
        smoothness=smoothness,
    )
    return Prescription(step, shift_step(problem.omega), batch, p, rounds, bound)


def prescribe(
    algorithm: str,
    *,
    clients: int,
    records: int,
    dim: int,
    omega: float,
    smoothness: float,
    gradient_bound: float,
    epsilon: float,
    delta: float,
    loss_gap: float = 1.0,
    noise_constant: float = 1.0,
) -> Prescription:
    """Step, batch, snapshot probability and rounds for an algorithm of the paper, in numbers that can be run.

    The step never exceeds what the theorem allows (`largest_step`, or 1/L for direct compression). Rounds
    balance noise and descent (eqs. 5 and 47); the utility bound is the theorem's own inequality (Theorem 3,
    eq. 46) at exactly these values, with shifts that start at zero. Open is the paper's noise constant c: it
    is 1 unless given, so rounds and utility are orders. For a promise about a real run put its calibrated
    noise into `utility_bound` or `cdp_utility_bound`.

    GD and SGD take `balanced_beta` in the place of Corollary 1's; Corollary 2's step is lowered where it is
    too long; batches and probability are rounded so that the corollaries' conditions still hold.
    "ldp-sgd" and "ldp-svrg" are CDP-SGD and SoteriaFL-SVRG without a compressor: omega counts as 0.

    >>> p = prescribe("soteriafl-svrg", clients=1000, records=1000, dim=100, omega=4.0, smoothness=1.0,
    ...               gradient_bound=1.0, epsilon=1.0, delta=1e-5)
    >>> p.batch, p.probability, round(p.step, 6), p.rounds
    (25, 0.025, 0.125, 964)
    """
    if algorithm not in _AS_PUBLISHED:
        raise unknown_name("algorithm", algorithm, _AS_PUBLISHED)
    positive("noise_constant", noise_constant)
    family, kind = algorithm.split("-")
    problem = Problem(
        clients=clients,
        records=records,
        dim=dim,
        omega=0.0 if family == "ldp" else omega,
        epsilon=epsilon,
        delta=delta,
        smoothness=smoothness,
        gradient_bound=gradient_bound,
        loss_gap=loss_gap,
    )
    if algorithm in ("cdp-sgd", "ldp-sgd"):
        return _prescribe_direct(problem, noise_constant)
    prescription = _prescribe_shifted(kind, problem, noise_constant)
    return replace(prescription, shift_step=0.0) if family == "ldp" else prescription
