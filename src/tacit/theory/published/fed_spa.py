"""Fed-SPA (Hu et al. 2021): Theorem 1 as printed, and with the sensitivity that is really attained.

With z the noise on the sum over the bound G sqrt(p) of one masked record, q = B/m, I participations of tau steps:

    epsilon = 7 q^2 I tau alpha / z^2 + ln(1/delta) / (alpha - 1)
    alpha <= 1 + (2/3) S ln(1 / (q alpha (1 + S)))

The compression ratio p drops out. As printed, the squared sensitivity is 2 p G^2/B^2, so S = z^2/2. But each of
p d coordinates may move by 2 G/(sqrt(d) B) when a record is replaced, which makes it 4 p G^2/B^2, S = z^2/4 and
14 for 7. (The printed condition has sigma^2 for S in one place.) At the best alpha the condition does not hold in
the paper's own settings; the noise is nevertheless more than enough.
"""

from __future__ import annotations

import math

from tacit.errors import count, positive
from tacit.privacy import calibrate_noise
from tacit.privacy.accountant.accounting import check_delta
from tacit.privacy.events import repeated, without_replacement
from tacit.theory.published import schemes
from tacit.theory.published.row import Row

PAPER = "Fed-SPA (Hu et al.), Theorem 1 at its best alpha, delta = 1e-3"

NOISE = "noise over what is needed"
WANTED, ALLOWED = "alpha that is used", "largest alpha allowed"

PRINTED, CORRECTED = 7.0, 14.0

EXPERIMENTS = (("MNIST", 600, 10, 5, 300), ("CIFAR-10", 500, 50, 20, 50))
"""Name, records of an agent, batch, rounds in which it takes part (a tenth of 45 and of 200), local steps."""


def theorem_1_noise_multiplier(
    *, epsilon: float, delta: float, records: int, batch: int, steps: int, constant: float = PRINTED
) -> float:
    """The noise that Theorem 1 picks at its best alpha: z = q sqrt(c I tau) / (sqrt(L + epsilon) - sqrt(L)).

    L = ln(1/delta), and c is 7 as printed or 14 with the true sensitivity. This solves a + 2 sqrt(a L) = epsilon,
    which is the theorem at alpha = 1 + sqrt(L/a), with a = c q^2 I tau / z^2.

    >>> round(theorem_1_noise_multiplier(epsilon=1.0, delta=1e-3, records=600, batch=10, steps=1500), 2)
    9.29
    """
    log_term = -math.log(check_delta(delta))
    root = math.sqrt(log_term + positive("epsilon", epsilon)) - math.sqrt(log_term)
    return batch / count("records", records) * math.sqrt(constant * count("steps", steps)) / root


def best_alpha(*, epsilon: float, delta: float) -> float:
    """The order at which Theorem 1 is used: 1 + sqrt(L/a) with sqrt(a) = sqrt(L + epsilon) - sqrt(L).

    >>> round(best_alpha(epsilon=1.0, delta=1e-3), 1)
    15.3
    """
    log_term = -math.log(delta)
    return 1 + math.sqrt(log_term) / (math.sqrt(log_term + epsilon) - math.sqrt(log_term))


def largest_alpha(noise_multiplier: float, rate: float, *, constant: float = PRINTED) -> float:
    """The largest order that the condition of Theorem 1 allows, or 1 if there is none above 1.

    >>> largest_alpha(9.29, 10 / 600) < 2
    True
    """
    spread = noise_multiplier**2 * (7 / (2 * constant))

    def allowed(alpha: float) -> bool:
        return alpha <= 1 + 2 / 3 * spread * math.log(1 / (rate * alpha * (1 + spread)))

    low, high = 1.0, 1e6
    if not allowed(low):
        return 1.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


def row(
    setting: str,
    *,
    epsilon: float,
    delta: float,
    records: int,
    batch: int,
    rounds: int,
    local_steps: int = 1,
    constant: float = PRINTED,
) -> Row:
    """What the noise of Theorem 1 gives for an agent that takes part in this many rounds."""
    steps = rounds * local_steps
    noise_multiplier = theorem_1_noise_multiplier(
        epsilon=epsilon, delta=delta, records=records, batch=batch, steps=steps, constant=constant
    )
    needed = calibrate_noise(
        lambda z: repeated(without_replacement(records, batch, z), steps), epsilon=epsilon, delta=delta
    )
    return Row(
        setting=setting,
        label=epsilon,
        delta=delta,
        records=records,
        batch=batch,
        rounds=steps,
        noise_multiplier=noise_multiplier,
        true=schemes.true_epsilons(
            records=records, batch=batch, rounds=steps, noise_multiplier=noise_multiplier, delta=delta
        ),
        factors={
            NOISE: noise_multiplier / needed,
            WANTED: best_alpha(epsilon=epsilon, delta=delta),
            ALLOWED: largest_alpha(noise_multiplier, batch / records, constant=constant),
        },
        remark="as printed" if constant == PRINTED else "true sensitivity",
    )


def table() -> tuple[Row, ...]:
    """The label of the paper's Tables 1 and 2, as printed and with the true sensitivity."""
    return tuple(
        row(
            name, epsilon=1.0, delta=1e-3, records=records, batch=batch, rounds=rounds, local_steps=local_steps,
            constant=constant,
        )
        for name, records, batch, rounds, local_steps in EXPERIMENTS
        for constant in (PRINTED, CORRECTED)
    )  # fmt: skip
