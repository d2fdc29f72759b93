"""Theorem 2 and Lemma 3 of Fed-SPA (Hu et al.) as printed, with the constants of the proof: for comparison only.

The letters of the formulas are those of `tacit.theory.fed_spa`. The proof does not hold, in these places (each is
computed in the tests; `tacit.theory.fed_spa.corrected` has a bound that does):

- Lemma 9 leaves the factor 1/p off the noise in S(b) = [b]_w / p, whose energy is d sigma^2/p and not p d
sigma^2. - Lemma 9 takes S(g) for unbiased at every local step. From the second step on, the model depends on
the support w,
  which is drawn once a round: for f = theta^2/2, two steps of size h and p < 1, the mean of the second message is
  (1 - h/p) theta while the mean gradient is (1 - h) theta.
- Lemmas 10 and 11 drop the products of different local steps, which share w: the variance of tau messages of one
  gradient g is tau^2 (1/p - 1) ||g||^2, above the tau ||g||^2/p of Lemma 11 once tau > 1/(1 - p).
- sqrt(beta_2 v) <= sqrt(beta_2) h tau G/sqrt(d) ignores the 1/p and the noise in u, and that v starts at kappa^2.
- Eq. 13 absorbs the gradient's part of Lemma 10 into half of the descent, for which h <= 1/(8 L tau) is enough
only
  if sqrt(beta_2 v) <= kappa/15, below where v starts.
- The limit on h does not give the inequality that the proof takes from it (`proof_excess`).

Nor does the theorem: with 50 coordinates, one of them active, much noise and a start at the optimum, the mean of
||grad f||^2 over 4,000 rounds is more than twice `printed_bound`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tacit.errors import RequestError, count, positive, probability
from tacit.theory.soteriafl.checks import ROUND_OFF, not_negative


@dataclass(frozen=True, kw_only=True)
class Training:
    """One setting of Algorithm 1 with beta_1 = 0.

    `agents` take part in every round, `noise_std` is the paper's sigma (on an active coordinate, before the 1/p),
    `initial_second_moment` the largest coordinate of v_{-1}, kappa^2 unless told otherwise. The two spreads are
    zeta_l and zeta_g of Assumption 2.
    """

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
    loss_gap: float
    local_spread: float = 0.0
    global_spread: float = 0.0
    initial_second_moment: float | None = None

    def __post_init__(self) -> None:
        for setting in ("agents", "dim", "rounds", "local_steps"):
            count(setting, getattr(self, setting))
        for setting in ("local_step", "server_step", "kappa", "smoothness", "gradient_bound"):
            positive(setting, getattr(self, setting))
        for setting in ("noise_std", "loss_gap", "local_spread", "global_spread"):
            not_negative(setting, getattr(self, setting))
        probability("ratio", self.ratio)
        if not 0 <= self.beta_2 < 1:
            raise RequestError(f"beta_2 must be at least 0 and below 1, not {self.beta_2!r}")
        if self.initial_second_moment is not None and self.initial_second_moment < self.kappa**2:
            raise RequestError(
                f"initial_second_moment must be at least kappa^2 = {self.kappa**2:.6g} (Algorithm 1), not "
                f"{self.initial_second_moment!r}"
            )

    @property
    def coordinate_bound(self) -> float:
        """G/sqrt(d), the bound on a coordinate of every gradient (Assumption 3)."""
        return self.gradient_bound / math.sqrt(self.dim)


def printed_message_energy(training: Training) -> float:
    """zeta_dp^2 of Theorem 2 (Lemma 9): (G^2 + zeta_l^2)/p + p d sigma^2, too small by d sigma^2 (1/p - p)."""
    signal = (training.gradient_bound**2 + training.local_spread**2) / training.ratio
    return signal + training.ratio * training.dim * training.noise_std**2


def message_energy(training: Training) -> float:
    """Lemma 9 with the noise scaled too, true of a round's first step: (G^2 + zeta_l^2 + d sigma^2)/p."""
    signal = training.gradient_bound**2 + training.local_spread**2
    return (signal + training.dim * training.noise_std**2) / training.ratio


def noise_energy(noise_multiplier: float, *, gradient_bound: float, batch: int, dim: int) -> float:
    """The noise in a message at a given privacy: d z^2 G^2/B^2, whatever p.

    sigma = z G sqrt(p)/B on p d coordinates, scaled by 1/p: p d (z G/(sqrt(p) B))^2. So sparsifying does not let
    privacy be had with less noise, as section 4.2 and the abstract say; it only adds the 1/p to the gradient's
    own part. It does save 1 - p of the bits. The paper's p d sigma^2 would be p^2 times this.

    >>> noise_energy(10.0, gradient_bound=1.0, batch=10, dim=4)
    4.0
    """
    scale = positive("noise_multiplier", noise_multiplier) * positive("gradient_bound", gradient_bound)
    return count("dim", dim) * (scale / count("batch", batch)) ** 2


def printed_best_ratio(
    noise_multiplier: float, *, gradient_bound: float, batch: int, dim: int, local_spread: float = 0.0
) -> float:
    """The p at which the printed zeta_dp^2 is smallest at a given privacy: ((G^2 + zeta_l^2)/(2 N))^(1/3).

    At most 1. N is `noise_energy`: the printed energy is (G^2 + zeta_l^2)/p + p^2 N. With the true one, (G^2 +
    zeta_l^2)/p + N, the best p is 1 always.

    >>> round(printed_best_ratio(10.0, gradient_bound=1.0, batch=10, dim=4), 6)
    0.5
    """
    noise = noise_energy(noise_multiplier, gradient_bound=gradient_bound, batch=batch, dim=dim)
    signal = gradient_bound**2 + not_negative("local_spread", local_spread) ** 2
    return min(1.0, math.cbrt(signal / (2 * noise)))


def printed_step_limit(training: Training) -> float:
    """Theorem 2's limit on the local step: min{1/(8 L tau), min{kappa/g, sqrt(kappa^2/(g h_g L))}/(8 tau)}.

    g is G/sqrt(d). It does not look at the local step of `training`.
    """
    g, kappa = training.coordinate_bound, training.kappa
    adaptive = min(kappa / g, kappa / math.sqrt(g * training.server_step * training.smoothness))
    return min(1 / training.smoothness, adaptive) / (8 * training.local_steps)


def proof_excess(training: Training) -> float:
    """By which factor the inequality that appendix F takes from the step limit is broken; above 1, it is.

    The inequality: 32 h tau (sqrt(1 - beta_2) g + h_g L/2) (sqrt(beta_2) h tau g + kappa) <= kappa^2. At the
    limit of Theorem 2 the factor reaches 4 for beta_2 = 0 however short the server's step, and grows without
    end with it.
    """
    reach = training.local_step * training.local_steps
    g, beta_2 = training.coordinate_bound, training.beta_2
    drift = math.sqrt(1 - beta_2) * g + training.server_step * training.smoothness / 2
    return 32 * reach * drift * (math.sqrt(beta_2) * reach * g + training.kappa) / training.kappa**2


def printed_bound(training: Training) -> float:
    """Theorem 2 with its constant, the 8 of the last display of appendix F: a claim on the mean of E||grad f||^2.

    8 (sqrt(beta_2) h tau G/sqrt(d) + kappa) (Xi + Xi') with Xi = F_0/(h h_g tau T) + (5 h^2 tau L^2/(2 kappa))
    W and Xi' = (h_g L/2 + G/sqrt(d)) (4 h zeta_dp^2/(n kappa^2) + 20 h^3 tau^2 L^2 W/kappa^2), W = zeta_dp^2 +
    6 tau zeta_g^2. A step beyond `printed_step_limit` is refused.
    """
    limit = printed_step_limit(training)
    if training.local_step > limit * (1 + ROUND_OFF):
        raise RequestError(f"local_step must be at most {limit:.6g} for Theorem 2, not {training.local_step!r}")
    h, tau, kappa, smoothness = training.local_step, training.local_steps, training.kappa, training.smoothness
    energy = printed_message_energy(training)
    drift = energy + 6 * tau * training.global_spread**2
    xi = training.loss_gap / (h * training.server_step * tau * training.rounds)
    xi += 5 * h**2 * tau * smoothness**2 / (2 * kappa) * drift
    spread = 4 * h * energy / (training.agents * kappa**2)
    spread += 20 * h**3 * tau**2 * smoothness**2 * drift / kappa**2
    prefactor = math.sqrt(training.beta_2) * h * tau * training.coordinate_bound + kappa
    return 8 * prefactor * (xi + (training.server_step * smoothness / 2 + training.coordinate_bound) * spread)


def lemma_3_choices(training: Training) -> Training:
    """`training` with the choices of Lemma 3: h = 1/(L tau sqrt(T)), h_g = sqrt(n tau), kappa = G/(sqrt(d) L).

    Constants 1 where the lemma has Theta. Theorem 2's limit on h then is T >= `lemma_3_least_rounds`.
    """
    tau, smoothness = training.local_steps, training.smoothness
    return replace(
        training,
        local_step=1 / (smoothness * tau * math.sqrt(training.rounds)),
        server_step=math.sqrt(training.agents * tau),
        kappa=training.coordinate_bound / smoothness,
        initial_second_moment=None,
    )


def lemma_3_least_rounds(training: Training) -> float:
    """From which T on Lemma 3's local step is within Theorem 2's limit: 64 max{1, L sqrt(n tau d)/G}.

    "Sufficiently large" in the paper. With 100,000 weights, 10 agents of 300 steps and L = G it is 1.1 million.
    """
    ratio = training.smoothness * math.sqrt(training.agents * training.local_steps) / training.coordinate_bound
    return 64 * max(1.0, ratio)


def lemma_3_order(training: Training) -> float:
    """The right side of Lemma 3 as printed, its O() with constant 1.

    Theorem 2 at these choices has F_0 G/sqrt(d), zeta_dp^2 L sqrt(d)/G, 1 and L sqrt(d)/G in place of F_0,
    zeta_dp^2 L/G^2, 1/G and L/G^2 before the four rates: what the lemma drops depends on d, and its powers of G
    do not have one unit.
    """
    tau, agents, rounds = training.local_steps, training.agents, training.rounds
    bound, smoothness, energy = training.gradient_bound, training.smoothness, printed_message_energy(training)
    drift = energy + 6 * tau * training.global_spread**2
    leading = (training.loss_gap + 2 * energy * smoothness / bound**2) / math.sqrt(agents * tau * rounds)
    last = drift * smoothness * math.sqrt(agents) / (bound**2 * math.sqrt(tau) * rounds * math.sqrt(rounds))
    return leading + drift / (bound * tau * rounds) + last
