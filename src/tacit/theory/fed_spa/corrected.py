"""A convergence bound for Fed-SPA (Hu et al.) that is proved: Theorem 2 with its gaps closed.

The letters of the formulas are those of `tacit.theory.fed_spa`. The result: let every f_i be L-smooth (gradients
Lipschitz), coordinates of every record's gradient at most g = G/sqrt(d), batches of a fixed size, beta_1 = 0,
and `agents` drawn without replacement (or everybody). If 8 h tau (V + kappa) A <= kappa^2, then the mean over
rounds of E||grad f||^2 is at most

    4 (V + kappa) { F_0/(h h_g tau T) + L^2 W/(2 p kappa tau)
                    + (2 h A/(p kappa^2)) [(tau G^2 + d s^2)/n + L^2 W] } + G^2/T

    A = sqrt(1 - beta_2) g + h_g L/2,
    W = (2 h^2/p) (G^2 tau (tau-1)(2 tau-1)/6 + d s^2 tau (tau-1)/2),
    V = sqrt(beta_2) max{sqrt(v_{-1}), (h/p) (tau g + s sqrt(2 (tau/n) ln(2 d T^2)))},  s = sigma.

Proof. Fix a round, and let x_s be how far an agent has moved after s local steps. It is -(h/p) times the s
masked noisy gradients, whose gradients have a square of at most s^2 p G^2 and whose noise has one of s p d
sigma^2 on average, so E||x_s||^2 <= (2 h^2/p)(s^2 G^2 + s d sigma^2) and the sum over s < tau is at most W.

Let u be the mean message of the round and e = E u + h tau grad f. The masked gradient at the round's point is
unbiased because the support is fresh there, so e only has differences of gradients: e = -(h/n) sum_i sum_s E[M
X_is]/p with M the mask and ||X_is|| <= L ||x_s||. By Cauchy-Schwarz (E[m x]/p)^2 <= E[m x^2]/p for each
coordinate, whence ||e||^2 <= (h^2 tau L^2/p) W. Agents are independent, and one agent's message has a square of
at most (2 h^2/p)(tau^2 G^2 + tau d sigma^2), so E||u||^2 <= 2 h^2 tau^2 ||grad f||^2 + 2 ||e||^2 + (2 h^2/(n
p))(tau^2 G^2 + tau d sigma^2); sampling agents without replacement only changes what n is.

With D = sqrt(beta_2 v_{t-1}) + kappa, known when the round begins, smoothness of f and |sqrt(v_t) - sqrt(beta_2
v_{t-1})| <= sqrt(1 - beta_2) |u| give, coordinate by coordinate,

    E f(next) - f <= h_g <grad f / D, E u> + (h_g A/kappa^2) E||u||^2
                  <= -(h_g h tau/2) sum (grad f)^2/D + h_g ||e||^2/(2 h tau kappa) + (h_g A/kappa^2) E||u||^2.

Where D <= V + kappa the condition on h makes the part of E||u||^2 with the gradient at most half of the first
term. That is so in all rounds with probability 1 - 1/T: the noise in a coordinate of u has a standard deviation
of at most (h/p) sigma sqrt(tau/n), and d T such coordinates stay below sqrt(2 ln(2 d T^2)) of them. Whether it
has been so is known when a round begins, so the inequality can be summed over the rounds in which it has, f -
f* being at least 0; in the others ||grad f||^2 is at most G^2, on average G^2/T. QED
"""

from __future__ import annotations

import math

from tacit.errors import RequestError
from tacit.theory.fed_spa.theorem_2 import Training
from tacit.theory.soteriafl.checks import ROUND_OFF


def local_drift(training: Training) -> float:
    """W: a bound on the sum over local steps of E||theta^s - theta||^2 (for Lemma 10). Zero for tau = 1."""
    tau = training.local_steps
    squares, steps = tau * (tau - 1) * (2 * tau - 1) / 6, tau * (tau - 1) / 2
    noise = training.dim * training.noise_std**2
    return 2 * training.local_step**2 / training.ratio * (training.gradient_bound**2 * squares + noise * steps)


def largest_root(training: Training) -> float:
    """V: what sqrt(beta_2 v) stays below in all rounds and coordinates, with probability 1 - 1/T."""
    tau, rounds = training.local_steps, training.rounds
    tail = math.sqrt(2 * tau / training.agents * math.log(2 * training.dim * rounds**2))
    message = training.local_step / training.ratio * (tau * training.coordinate_bound + training.noise_std * tail)
    start = (
        training.kappa if training.initial_second_moment is None else math.sqrt(training.initial_second_moment)
    )
    return math.sqrt(training.beta_2) * max(start, message)


def step_excess(training: Training) -> float:
    """8 h tau (V + kappa) A / kappa^2, which must be at most 1. It grows with h."""
    reach = training.local_step * training.local_steps
    return 8 * reach * (largest_root(training) + training.kappa) * _drive(training) / training.kappa**2


def corrected_bound(training: Training) -> float:
    """The bound on the mean of E||grad f(theta_t)||^2 over the rounds; a `step_excess` above 1 is refused.

    It is below G^2, which is trivial, only for many rounds and much smaller noise than gradients. At a given
    privacy it falls as p grows: sparsifying has a price in every term, and no gain (`noise_energy`).

    >>> from tacit.theory.fed_spa.theorem_2 import lemma_3_choices
    >>> plain = Training(
    ...     agents=100, dim=4, rounds=10**8, local_steps=4, ratio=1.0, local_step=1.0, server_step=1.0, kappa=1.0,
    ...     beta_2=0.99, noise_std=0.1, smoothness=1.0, gradient_bound=1.0, loss_gap=1.0)
    >>> round(corrected_bound(lemma_3_choices(plain)), 4)
    0.0003
    """
    excess = step_excess(training)
    if excess > 1 + ROUND_OFF:
        raise RequestError(
            f"local_step = {training.local_step!r} is too long for the bound by a factor of about {excess:.3g}: "
            "lower it or server_step, or raise kappa"
        )
    h, tau, p, kappa = training.local_step, training.local_steps, training.ratio, training.kappa
    noise = training.dim * training.noise_std**2
    drift = training.smoothness**2 * local_drift(training)
    start = training.loss_gap / (h * training.server_step * tau * training.rounds)
    spread = 2 * h * (tau * training.gradient_bound**2 + noise) / (training.agents * p) + 2 * h * drift / p
    inside = start + drift / (2 * p * kappa * tau) + _drive(training) / kappa**2 * spread
    return 4 * (largest_root(training) + kappa) * inside + training.gradient_bound**2 / training.rounds


def _drive(training: Training) -> float:
    """A: the weight of a message's square, from the change of v and from the curvature."""
    changing = math.sqrt(1 - training.beta_2) * training.coordinate_bound
    return changing + training.server_step * training.smoothness / 2
