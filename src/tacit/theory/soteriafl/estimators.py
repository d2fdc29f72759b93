"""What SoteriaFL (Li et al. 2022) requires of a local gradient estimator: Assumption 3, and Lemma 1 for each.

The letters of the formulas are those of `tacit.theory.soteriafl`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tacit.errors import count, positive, probability
from tacit.theory.checks import batch_size


@dataclass(frozen=True)
class EstimatorConstants:
    """The constants of Assumption 3 for a local gradient estimator, g = A + B.

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


def sgd_constants(*, records: int, batch: int, gradient_bound: float) -> EstimatorConstants:
    """Lemma 1 for the minibatch gradient: G_A = G, C_2 = (m - b) G^2 / (m b), theta = 1, the rest zero.

    >>> sgd_constants(records=100, batch=20, gradient_bound=1.0).c_2
    0.04
    """
    b, g = batch_size(batch, records), positive("gradient_bound", gradient_bound)
    return EstimatorConstants(g, 0.0, 0.0, (records - b) * g**2 / (records * b), 0.0, 0.0, 1.0)


def svrg_constants(
    *, batch: int, snapshot_probability: float, smoothness: float, gradient_bound: float
) -> EstimatorConstants:
    """Lemma 1 for SVRG with snapshot probability p, where Delta^t = ||x^t - w^t||^2.

    G_A = 2G, G_B = G, C_1 = L^2/b, C_2 = 0, C_3 = 2 (1-p) step^2 / p, C_4 = 1, theta = p/2.

    >>> c = svrg_constants(batch=4, snapshot_probability=0.5, smoothness=2.0, gradient_bound=1.0)
    >>> c.c_1, c.c_3_per_step_squared, c.theta, c.noise_gain
    (1.0, 2.0, 0.25, 2.0)
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
    q = batch_size(batch, records) / records
    return svrg_constants(
        batch=batch, snapshot_probability=q, smoothness=smoothness, gradient_bound=gradient_bound
    )
