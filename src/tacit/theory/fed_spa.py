"""What is proved about Fed-SPA (Hu et al. 2021): Theorem 2 with the gaps of its proof closed.

Letters: n `agents` of a round, T `rounds`, tau `local_steps`, d `dim`, p the share of active coordinates, G the
bound on a record's gradient and g that on one of its coordinates, L `smoothness`, h `local_step`, h_g
`server_step`, kappa and beta_2 of the adaptive server, F_0 `loss_gap`, s `noise_std` on each active coordinate
of a local gradient before the 1/p.

The paper's proof does not hold. Its Lemma 9 omits the 1/p from the noise, and treats masked gradients as unbiased
in every local step, but they are so only in the first, because a round has one mask; Lemmas 10 and 11 drop
products of steps that share it; and the step limit does not imply the inequality derived from it. Nor does the
theorem hold: with 50 coordinates, one of them active, and much noise, the mean of ||grad f||^2 is more than
twice its bound. What holds: let every f_i be L-smooth, batches of a fixed size, beta_1 = 0, steps constant, and
agents drawn without replacement (or all of them). If 8 h tau (V + kappa) A <= kappa^2, the mean over rounds of
E||grad f||^2 is at most

    4 (V + kappa) { F_0/(h h_g tau T) + L^2 W/(2 p kappa tau)
                    + (2 h A/(p kappa^2)) [(tau G^2 + d s^2)/n + L^2 W] } + G^2/T

    A = sqrt(1 - beta_2) g + h_g L/2,
    W = (2 h^2/p) (G^2 tau (tau-1)(2 tau-1)/6 + d s^2 tau (tau-1)/2),
    V = sqrt(beta_2) max{kappa, (h/p) (tau g + s sqrt(2 (tau/n) ln(2 d T^2)))}.

Proof. Fix a round, and let x_k be how far an agent has moved after k local steps. It is -(h/p) times the k
masked noisy gradients, whose gradients have a square of at most k^2 p G^2 and whose noise has one of k p d s^2
on average, so E||x_k||^2 <= (2 h^2/p)(k^2 G^2 + k d s^2) and the sum over k < tau is at most W.

Let u be the mean message of the round and e = E u + h tau grad f. The masked gradient at the round's point is
unbiased because the mask is fresh there, so e only has differences of gradients: e = -(h/n) sum_i sum_k E[M
X_ik]/p with M the mask and ||X_ik|| <= L ||x_k||. By Cauchy-Schwarz (E[m x]/p)^2 <= E[m x^2]/p for each
coordinate, so ||e||^2 <= (h^2 tau L^2/p) W. Agents are independent, and one agent's message has a square of
at most (2 h^2/p)(tau^2 G^2 + tau d s^2), so E||u||^2 <= 2 h^2 tau^2 ||grad f||^2 + 2 ||e||^2 + (2 h^2/(n
p))(tau^2 G^2 + tau d s^2); sampling agents without replacement only changes what n is.

With D = sqrt(beta_2 v_{t-1}) + kappa, known when the round begins, smoothness of f and |sqrt(v_t) - sqrt(beta_2
v_{t-1})| <= sqrt(1 - beta_2) |u| give, coordinate by coordinate,

    E f(next) - f <= h_g <grad f / D, E u> + (h_g A/kappa^2) E||u||^2
                  <= -(h_g h tau/2) sum (grad f)^2/D + h_g ||e||^2/(2 h tau kappa) + (h_g A/kappa^2) E||u||^2.

Where D <= V + kappa the condition on h makes the part of E||u||^2 with the gradient at most half of the first
term. That is so in all rounds with probability 1 - 1/T: the noise in a coordinate of u has a standard deviation
of at most (h/p) s sqrt(tau/n), and d T such coordinates stay below sqrt(2 ln(2 d T^2)) of them. Whether it has
been so is known when a round begins, so the inequality can be summed over the rounds in which it has, f - f*
being at least 0; in the others ||grad f||^2 is at most G^2, on average G^2/T. QED

At a given privacy s is proportional to sqrt(p), so the noise in a message, d s^2/p, does not depend on p:
sparsification makes every term worse, and gains nothing but the bits it saves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tacit.errors import RequestError, count, positive, probability
from tacit.theory.asked import PlannedRun, Theory
from tacit.theory.checks import ROUND_OFF, not_negative
from tacit.theory.known import bound_gaps, crowd_gaps, known
from tacit.theory.utility import UtilityBound, with_compression


@dataclass(frozen=True, kw_only=True)
class Training:
    """One setting of Algorithm 1 with beta_1 = 0."""

    agents: int
    dim: int
    rounds: int
    local_steps: int
    ratio: float
    local_step: float
    server_step: float
    kappa: float
    beta_2: float
    noise_std: float
    smoothness: float
    gradient_bound: float
    coordinate_bound: float
    loss_gap: float

    def __post_init__(self) -> None:
        for setting in ("agents", "dim", "rounds", "local_steps"):
            count(setting, getattr(self, setting))
        for setting in ("local_step", "server_step", "kappa", "smoothness", "gradient_bound", "coordinate_bound"):
            positive(setting, getattr(self, setting))
        for setting in ("noise_std", "loss_gap"):
            not_negative(setting, getattr(self, setting))
        probability("ratio", self.ratio)
        if not 0 <= self.beta_2 < 1:
            raise RequestError(f"beta_2 must be at least 0 and below 1, not {self.beta_2!r}")

    @property
    def drive(self) -> float:
        """A: the weight of a message's square, from the change of v and from the curvature."""
        return math.sqrt(1 - self.beta_2) * self.coordinate_bound + self.server_step * self.smoothness / 2

    @property
    def largest_root(self) -> float:
        """V: a bound on sqrt(beta_2 v) in all rounds and coordinates, with probability 1 - 1/T."""
        tau = self.local_steps
        tail = math.sqrt(2 * tau / self.agents * math.log(2 * self.dim * self.rounds**2))
        message = self.local_step / self.ratio * (tau * self.coordinate_bound + self.noise_std * tail)
        return math.sqrt(self.beta_2) * max(self.kappa, message)

    @property
    def step_excess(self) -> float:
        """8 h tau (V + kappa) A / kappa^2, which must be at most 1. It grows with h."""
        reach = self.local_step * self.local_steps
        return 8 * reach * (self.largest_root + self.kappa) * self.drive / self.kappa**2


def fed_spa_terms(training: Training) -> dict[str, float]:
    """The bound by cause; the drift of local steps counts as heterogeneity. Refuses a `step_excess` above 1.

    >>> plain = Training(
    ...     agents=100, dim=4, rounds=10**8, local_steps=4, ratio=1.0, local_step=2.5e-5, server_step=20.0,
    ...     kappa=0.5, beta_2=0.99, noise_std=0.1, smoothness=1.0, gradient_bound=1.0, coordinate_bound=0.5,
    ...     loss_gap=1.0)
    >>> round(sum(fed_spa_terms(plain).values()), 4)
    0.0003
    """
    if training.step_excess > 1 + ROUND_OFF:
        raise RequestError(
            f"local_step = {training.local_step!r} is too long for the bound by a factor of about "
            f"{training.step_excess:.3g}: lower it or step, or raise kappa"
        )
    h, tau, p, kappa = training.local_step, training.local_steps, training.ratio, training.kappa
    g_squared, noise = training.gradient_bound**2, training.dim * training.noise_std**2
    outside = 4 * (training.largest_root + kappa)
    square = 2 * h * training.drive / (p * kappa**2)
    # of a step's squared drift, W, and of one agent's squared message
    drift = training.smoothness**2 * 2 * h**2 / p * (1 / (2 * p * kappa * tau) + square)
    quadratic, linear = tau * (tau - 1) * (2 * tau - 1) / 6, tau * (tau - 1) / 2
    start = training.loss_gap / (h * training.server_step * tau * training.rounds)
    return {
        "optimisation": outside * start + g_squared / training.rounds,
        "sampling": outside * square * tau * g_squared / training.agents,
        "privacy": outside * noise * (square / training.agents + drift * linear),
        "heterogeneity": outside * drift * quadratic * g_squared,
    }


def utility_of(run: PlannedRun) -> UtilityBound:
    """The bound for the run's actual noise; if its local step is too long, at the longest one allowed."""
    asked, constants = run.asked, known(run, "lipschitz", "loss_gap", "smoothness")
    ratio = 1 / (1 + asked.omega)
    gaps, assumptions = bound_gaps(run, constants.lipschitz, ratio)
    gaps = (*constants.missing("smoothness", "loss_gap"), *_differences(run), *gaps)
    gaps += crowd_gaps(run, everyone=False)
    if asked.model.penalty is not None:
        assumptions += ("with the penalty's gradient, no gradient exceeds the longest of a record",)
    answer = UtilityBound(
        theorem="Fed-SPA (Hu, Gong & Guo 2021), Theorem 2 with its proof corrected",
        quantity="mean squared gradient norm over the rounds",
        assumptions=(*constants.sources, *assumptions),
        gaps=gaps,
    )
    if constants.smoothness is None or constants.loss_gap is None:
        return answer
    step, local = asked.value("step"), asked.value("local_step")
    if step is None:
        gap = "no step is given, so steps are derived from the messages, but the theorem assumes constant ones"
        return replace(answer, gaps=(*gaps, gap))
    steepest = math.inf if constants.lipschitz is None else constants.lipschitz
    size = asked.value("clip_norm") * (math.sqrt(ratio) if asked.value("bound") == "clip-norm" else 1.0)
    training = Training(
        agents=max(1, int(run.participants)),
        dim=asked.model.dim,
        rounds=run.rounds,
        local_steps=asked.value("local_steps"),
        ratio=ratio,
        local_step=step if local is None else local,
        server_step=step,
        kappa=asked.value("kappa"),
        beta_2=asked.value("beta_2"),
        noise_std=run.noise_std,
        smoothness=constants.smoothness,
        # p of the coordinates hold at most G sqrt(p): by the bound, or because no gradient is longer.
        gradient_bound=min(asked.gradient_bound, steepest / math.sqrt(ratio)),
        coordinate_bound=min(size, steepest),
        loss_gap=constants.loss_gap,
    )
    if training.step_excess > 1:
        allowed = longest_local_step(training)
        gaps += (
            f"local_step = {training.local_step:g} is longer than the theorem allows; the terms are for "
            f"{allowed:.3g}, the longest",
        )
        training = replace(training, local_step=allowed)
    # The same privacy with every coordinate needs 1/sqrt(p) times the noise on each.
    longest = min(asked.gradient_bound, steepest)
    whole = replace(training, ratio=1.0, noise_std=training.noise_std / math.sqrt(ratio), gradient_bound=longest)
    return replace(
        answer,
        terms=with_compression(fed_spa_terms(whole), fed_spa_terms(training)),
        gaps=gaps,
        trivial=longest**2 if asked.model.penalty is None else None,
        statistical=longest**2 / int(asked.federation.sizes.sum()),
    )


def longest_local_step(training: Training) -> float:
    """The longest local step with a `step_excess` of at most 1, to within a millionth."""
    low, high = 0.0, training.local_step
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if replace(training, local_step=middle).step_excess <= 1 else (low, middle)
    return low


def _differences(run: PlannedRun) -> tuple[str, ...]:
    """How the run differs from the assumptions of the theorem."""
    asked, gaps = run.asked, []
    if asked.value("beta_1") and asked.value("step") is not None:
        gaps.append(f"beta_1 = {asked.value('beta_1'):g}, but the theorem assumes beta_1 = 0, no momentum")
    if asked.value("schedule") != "constant":
        gaps.append(f"schedule = {asked.value('schedule')!r}, but the theorem assumes constant steps")
    if asked.value("sampling") == "poisson":
        gaps.append("Poisson batches vary in size, but the theorem assumes batches of a fixed size")
    if asked.value("compressor") and "+" in asked.value("compressor"):
        gaps.append("messages are also quantised, but the theorem covers only rand-k")
    return tuple(gaps)


FED_SPA = Theory(utility_of)
