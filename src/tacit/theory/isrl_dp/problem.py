"""The setting of ISRL-DP (Lowy & Razaviyayn 2023): the numbers that its theorems depend on.

The letters of the formulas are those of `tacit.theory.isrl_dp`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import RequestError, count, positive, unknown_name
from tacit.theory.checks import ROUND_OFF, below_one, not_negative

SETTINGS = ("iid", "non-iid", "erm")
"""The paper's three problems: population risk with like silos (section 2), with unlike silos (section 3), and
empirical risk (section 4)."""


@dataclass(frozen=True, kw_only=True)
class ConvexProblem:
    """The numbers that the paper's results depend on (Assumption 1); all of them are public.

    Open values get the worst value that the others allow: phi = v = L, Delta = L D, M = N. A loss without
    `smoothness` is not smooth. The Lipschitz constant is that of the whole loss, including the penalty.
    """

    clients: int
    records: int
    dim: int
    epsilon: float
    delta: float
    lipschitz: float = 1.0
    diameter: float = 1.0
    smoothness: float | None = None
    strong_convexity: float = 0.0
    cohort: float | None = None
    gradient_spread: float | None = None
    heterogeneity: float | None = None
    loss_gap: float | None = None

    def __post_init__(self) -> None:
        for setting in ("clients", "records", "dim"):
            count(setting, getattr(self, setting))
        for setting in ("epsilon", "lipschitz", "diameter"):
            positive(setting, getattr(self, setting))
        below_one("delta", self.delta)
        not_negative("strong_convexity", self.strong_convexity)
        if self.strong_convexity * self.diameter > 2 * self.lipschitz * (1 + ROUND_OFF):
            limit = 2 * self.lipschitz / self.diameter
            raise RequestError(
                f"strong_convexity must be at most 2 lipschitz / diameter = {limit:.6g}, not"
                f" {self.strong_convexity!r}: no loss with slopes of at most lipschitz bends more"
            )
        if self.smoothness is not None:
            positive("smoothness", self.smoothness)
            if self.smoothness < self.strong_convexity:
                raise RequestError(
                    f"smoothness must be at least strong_convexity = {self.strong_convexity!r},"
                    f" not {self.smoothness!r}"
                )
        if self.cohort is not None and not 1 <= self.cohort <= self.clients:
            raise RequestError(f"cohort must be in [1, clients = {self.clients}], not {self.cohort!r}")
        for setting in ("gradient_spread", "heterogeneity"):
            value = getattr(self, setting)
            if value is not None and not_negative(setting, value) > self.lipschitz * (1 + ROUND_OFF):
                raise RequestError(
                    f"{setting} must be at most lipschitz = {self.lipschitz!r}, the bound on gradients,"
                    f" not {value!r}"
                )
        if self.loss_gap is not None:
            positive("loss_gap", self.loss_gap)

    @property
    def is_strongly_convex(self) -> bool:
        """Whether mu > 0, which selects the second half of every theorem."""
        return self.strong_convexity > 0

    @property
    def reporting(self) -> float:
        """M: 1/M is the mean of 1/M_r, where M_r silos report in a round."""
        return float(self.clients if self.cohort is None else self.cohort)

    @property
    def phi(self) -> float:
        """phi: root mean square distance of a record's gradient from its silo's."""
        return self.lipschitz if self.gradient_spread is None else self.gradient_spread

    @property
    def upsilon(self) -> float:
        """v of eq. 29: root mean square distance of a silo's gradient from the mean over all silos."""
        return self.lipschitz if self.heterogeneity is None else self.heterogeneity

    @property
    def gap(self) -> float:
        """Delta: the largest possible difference between the loss at the start and the least loss."""
        return self.trivial_risk if self.loss_gap is None else self.loss_gap

    @property
    def trivial_risk(self) -> float:
        """L D: a bound on the excess risk of any point. A larger bound says nothing."""
        return self.lipschitz * self.diameter

    @property
    def absence(self) -> float:
        """(N - M) / (N - 1): the share of the silos' heterogeneity that a cohort does not average out."""
        return 0.0 if self.clients == 1 else (self.clients - self.reporting) / (self.clients - 1)

    @property
    def privacy_cost(self) -> float:
        """sqrt(d ln1d) / (n epsilon): the excess risk of a single private silo, with L = D = 1."""
        return math.sqrt(-self.dim * math.log(self.delta)) / (self.records * self.epsilon)

    @property
    def smooth(self) -> float:
        """beta, for theorems that need a smooth loss."""
        if self.smoothness is None:
            raise RequestError(
                "smoothness must be given here: this result is for smooth losses (or smooth the loss)"
            )
        return self.smoothness

    @property
    def condition_number(self) -> float:
        """kappa = beta / mu."""
        return self.smooth / positive("strong_convexity", self.strong_convexity)


def check_setting(setting: str) -> str:
    """Checks that the paper covers the setting."""
    if setting not in SETTINGS:
        raise unknown_name("setting", setting, SETTINGS)
    return setting
