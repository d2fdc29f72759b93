"""Theorem 1 of Fed-SPA (Hu et al.): as printed, where it holds, and the noise that is really needed.

The letters of the formulas are those of `tacit.theory.fed_spa`. The theorem's own algebra (its noise at the best
alpha, its condition) is in `tacit.theory.published.fed_spa`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tacit.errors import count, positive, probability, unknown_name
from tacit.privacy import Adjacency, calibrate_noise
from tacit.privacy.accounting import check_delta
from tacit.privacy.events import poisson, repeated, without_replacement
from tacit.theory.published.fed_spa import (
    PRINTED,
    best_alpha,
    largest_alpha,
    theorem_1_noise_multiplier,
)

SamplingName = Literal["without-replacement", "poisson"]

LEAST_SPREAD = 0.7
"""What Theorem 1 wants sigma'^2 to be at least."""

_MOVES = {Adjacency.REPLACE_ONE: 2.0, Adjacency.ADD_REMOVE: 1.0}


def squared_sensitivity(
    *, gradient_bound: float, batch: int, ratio: float, adjacency: Adjacency = Adjacency.REPLACE_ONE
) -> float:
    """How far one record moves the k active coordinates of the mean gradient, squared: 4 p G^2/B^2 or p G^2/B^2.

    A coordinate of a record's gradient lies within G/sqrt(d) of zero, so replacing the record moves each of p d
    active ones by at most 2 G/(sqrt(d) B), and opposite gradients attain it; taking the record away moves them by
    half of that. The paper's 2 p G^2/B^2 (section 4.1, appendix E) is half of the first and no bound for it:
    it forgets the cross term of ||a - b||^2. The factor p is due to the bound on *coordinates*: of a gradient
    that is only known to be no longer than G, all of G may lie on the active ones.

    >>> squared_sensitivity(gradient_bound=8.0, batch=4, ratio=0.25)
    4.0
    """
    move = _MOVES[Adjacency(adjacency)] * _masked_bound(gradient_bound, batch, ratio)
    return move**2


def printed_squared_sensitivity(*, gradient_bound: float, batch: int, ratio: float) -> float:
    """The 2 p G^2/B^2 of section 4.1, which records of opposite gradients exceed: for comparison only."""
    return 2 * _masked_bound(gradient_bound, batch, ratio) ** 2


def noise_std(noise_multiplier: float, *, gradient_bound: float, batch: int, ratio: float) -> float:
    """From z to the paper's sigma: z G sqrt(p)/B, on each active coordinate of the mean, before the 1/p.

    It falls with sqrt(p) (the paper says with p, which is true of sigma^2). The message is scaled by 1/p, and the
    noise in it is z G/(sqrt(p) B) a coordinate: see `noise_energy` for what is left of the gain.

    >>> noise_std(10.0, gradient_bound=2.0, batch=10, ratio=0.25)
    1.0
    """
    return positive("noise_multiplier", noise_multiplier) * _masked_bound(gradient_bound, batch, ratio)


def exact_noise_multiplier(
    *,
    records: int,
    batch: int,
    steps: int,
    epsilon: float,
    delta: float,
    sampling: SamplingName = "without-replacement",
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> float:
    """The least z for which an agent's I tau = `steps` noisy gradients keep (epsilon, delta) for each record.

    p drops out. Batches of exactly B records, as in the paper, have a proof for replace-one alone; Poisson
    batches (divided by the constant B) for both. Against the server, which sees all: who takes part gives no
    credit.

    >>> setting = dict(records=600, batch=10, steps=1500, epsilon=1.0, delta=1e-3)
    >>> [round(exact_noise_multiplier(**setting, sampling=s), 2) for s in ("without-replacement", "poisson")]
    [4.12, 3.32]
    """
    if sampling == "poisson":
        rate = probability("batch / records", batch / count("records", records))
        return calibrate_noise(
            lambda z: repeated(poisson(rate, z), steps), epsilon=epsilon, delta=delta, adjacency=adjacency
        )
    if sampling != "without-replacement":
        raise unknown_name("sampling", sampling, ["without-replacement", "poisson"])
    return calibrate_noise(
        lambda z: repeated(without_replacement(records, batch, z), steps),
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
    )


def theorem_1_epsilon(
    noise_multiplier: float,
    alpha: float,
    *,
    records: int,
    batch: int,
    steps: int,
    delta: float,
    constant: float = PRINTED,
) -> float:
    """Theorem 1's epsilon at an order: c q^2 I tau alpha / z^2 + ln1d / (alpha - 1).

    c is 7 as printed (7 q^2 I tau alpha p G^2/(B^2 sigma^2) at sigma = z G sqrt(p)/B) and 14 (`CORRECTED`) with
    the true sensitivity. A claim, and only where `condition` holds.

    >>> z = theorem_1_noise_multiplier(epsilon=1.0, delta=1e-3, records=600, batch=10, steps=1500)
    >>> at = best_alpha(epsilon=1.0, delta=1e-3)
    >>> round(theorem_1_epsilon(z, at, records=600, batch=10, steps=1500, delta=1e-3), 9)
    1.0
    """
    q = probability("batch / records", batch / count("records", records))
    spent = constant * q**2 * count("steps", steps) * alpha / positive("noise_multiplier", noise_multiplier) ** 2
    return spent - math.log(check_delta(delta)) / (positive("alpha - 1", alpha - 1))


@dataclass(frozen=True)
class Condition:
    """Whether Theorem 1 may be used at an order, and what it would take.

    `spread` is sigma'^2, the noise's variance over the squared sensitivity; `largest_alpha` the largest order
    that the condition allows with sigma'^2 in both places, which is what its source has.
    """

    spread: float
    alpha: float
    largest_alpha: float

    @property
    def holds(self) -> bool:
        """Enough noise, and an order that is allowed."""
        return self.spread >= LEAST_SPREAD and self.alpha <= self.largest_alpha


def condition(noise_multiplier: float, alpha: float, *, rate: float, constant: float = PRINTED) -> Condition:
    """The condition of Theorem 1: sigma'^2 >= 0.7 and alpha <= 1 + (2/3) sigma'^2 ln(1/(q alpha (1 + sigma'^2))).

    Printed with sigma^2 for the first sigma'^2, which cannot be meant: sigma has the unit of a gradient, so
    that with large enough gradients every alpha below 1/(q (1 + sigma'^2)) would do, and the theorem would be
    false. At q = 0.01 and sigma'^2 = 0.7, one step and alpha = 57, it would give epsilon 0.27 at delta 1e-6;
    the truth is 0.74.

    In the paper's own settings it does not hold at the alpha that Theorem 1's noise is chosen for. The noise
    keeps the label all the same, but Theorem 1 does not prove it (`rdp_epsilon`):

    >>> for records, batch, steps in [(600, 10, 1500), (500, 50, 1000)]:  # MNIST and CIFAR-10, epsilon 1
    ...     z = theorem_1_noise_multiplier(epsilon=1.0, delta=1e-3, records=records, batch=batch, steps=steps)
    ...     found = condition(z, best_alpha(epsilon=1.0, delta=1e-3), rate=batch / records)
    ...     print(found.holds, round(found.alpha, 1), round(found.largest_alpha, 2))
    False 15.3 1.34
    False 15.3 1.0
    """
    # 7 stands for a squared sensitivity of 2 p G^2/B^2 in the theorem, so c stands for (2 c / 7) p G^2/B^2.
    spread = positive("noise_multiplier", noise_multiplier) ** 2 * 7 / (2 * positive("constant", constant))
    most = largest_alpha(noise_multiplier, probability("rate", rate), constant=constant)
    return Condition(spread, positive("alpha", alpha), most)


def feasible(
    *, epsilon: float, delta: float, records: int, batch: int, steps: int, constant: float = PRINTED
) -> Condition:
    """The `condition` at the noise and the order that Theorem 1 picks for a target.

    >>> feasible(epsilon=1.0, delta=1e-3, records=600, batch=10, steps=1500).holds
    False
    >>> feasible(epsilon=1.0, delta=1e-3, records=100_000, batch=10, steps=20_000_000, constant=14.0).holds
    True
    """
    z = theorem_1_noise_multiplier(
        epsilon=epsilon, delta=delta, records=records, batch=batch, steps=steps, constant=constant
    )
    return condition(z, best_alpha(epsilon=epsilon, delta=delta), rate=batch / records, constant=constant)


def _masked_bound(gradient_bound: float, batch: int, ratio: float) -> float:
    """G sqrt(p)/B: the most that one record adds to the active coordinates of the mean."""
    scale = positive("gradient_bound", gradient_bound) / count("batch", batch)
    return scale * math.sqrt(probability("ratio", ratio))
