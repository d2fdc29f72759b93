"""Losses with a kink, and the Moreau envelope that smooths it: ISRL-DP (Lowy & Razaviyayn 2023), D.2 and F.

The envelope of a record's loss f(w) = phi(a^T w), a its features (and a 1 for the intercept), is
f_beta(w) = min_v f(v) + (beta/2) ||w - v||^2. The best v differs from w only along a, so a minimum over the score
is enough: with s = a^T w and the step t = ||a||^2/beta,

    f_beta(w) = min_u phi(u) + (u - s)^2/(2t) = phi(s - t g) + t g^2/2,   gradient g a,

where g is the slope of phi at the minimising u = s - t g. Since g is a slope of phi, the gradient has the same
norm bound as that of f. It is beta-Lipschitz, and f_beta <= f <= f_beta + L^2/(2 beta) (Lemma D.7, whose minimum
is over the domain; a loss of a score is defined everywhere, and the lemma holds here as well).
"""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tacit.errors import RequestError
from tacit.models.losses import ScoreLoss

HALVINGS = {torch.float32: 30, torch.float64: 60}
"""The number of bisection steps: a few more than a number has bits."""


@runtime_checkable
class Proximable(Protocol):
    """A loss whose proximal point is known in closed form."""

    def proximal_slopes(self, scores: Tensor, targets: Tensor, steps: Tensor) -> Tensor:
        """For each record, the slope g of the loss at u = score - step g: (records,)."""
        ...


class Kinked(ABC):
    """A loss of one score made of two straight lines that meet at the kink, where the loss is 0.

    phi(s) = max(low x, high x) of the excess x = s - kink, with low <= 0 <= high. The slope at the proximal point
    is x/t, limited to [low, high]; if x/t lies between them, the proximal point is the kink itself. At the kink,
    the slope is taken to be 0.
    """

    curvature = math.inf

    @abstractmethod
    def lines(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each record, the excess x of the score over the kink, and the slopes low and high."""

    def values(self, scores: Tensor, targets: Tensor) -> Tensor:
        """max(low x, high x)."""
        excess, low, high = self.lines(scores, targets)
        return torch.maximum(low * excess, high * excess)

    def slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        """low before the kink, high after it, 0 at the kink."""
        return self.proximal_slopes(scores, targets, torch.zeros_like(scores[:, 0]))[:, None]

    def proximal_slopes(self, scores: Tensor, targets: Tensor, steps: Tensor) -> Tensor:
        """x/t, but at least low and at most high."""
        excess, low, high = self.lines(scores, targets)
        # Dividing by the smallest number instead of by 0 keeps zero as zero and sends all else out of bounds.
        pull = excess / steps.clamp(min=torch.finfo(excess.dtype).tiny)
        return pull.clamp(min=low, max=high)


@dataclass(frozen=True)
class Hinge(Kinked):
    """max(0, 1 - b score) with b = -1 for target 0 and +1 for target 1.

    >>> Hinge().values(torch.tensor([[0.0], [3.0], [3.0]]), torch.tensor([1, 1, 0]))
    tensor([1., 0., 4.])
    """

    metric_name: str = "accuracy"
    slope_bound: float | None = 1.0

    def lines(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Kink at b; slopes -1 and 0 for target 1, 0 and 1 for target 0."""
        ones = targets.to(scores.dtype)
        return scores[:, 0] - (2 * ones - 1), -ones, 1 - ones

    def predict(self, scores: Tensor) -> Tensor:
        """1 if the score is positive, otherwise 0."""
        return (scores[:, 0] > 0).long()

    def metric(self, scores: Tensor, targets: Tensor) -> Tensor:
        return (self.predict(scores) == targets).double().mean()


@dataclass(frozen=True)
class Absolute(Kinked):
    """|score - target|, whose best constant is the median.

    >>> Absolute().slopes(torch.tensor([[0.0], [1.0], [5.0]]), torch.ones(3))
    tensor([[-1.], [ 0.], [ 1.]])
    """

    metric_name: str = "mae"
    slope_bound: float | None = 1.0

    def lines(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Kink at the target; slopes -1 and 1."""
        excess = scores[:, 0] - targets.to(scores.dtype)
        return excess, excess.new_tensor(-1.0), excess.new_tensor(1.0)

    def predict(self, scores: Tensor) -> Tensor:
        return scores[:, 0]

    def metric(self, scores: Tensor, targets: Tensor) -> Tensor:
        return self.values(scores.double(), targets.double()).mean()


@dataclass(frozen=True)
class Pinball(Kinked):
    """max(q (target - score), (1 - q) (score - target)), whose best constant is the q-quantile.

    >>> Pinball(0.9).values(torch.tensor([[0.0], [2.0]]), torch.ones(2))
    tensor([0.9000, 0.1000])
    """

    quantile: float = 0.5
    metric_name: str = "pinball loss"

    def __post_init__(self) -> None:
        is_number = isinstance(self.quantile, numbers.Real) and not isinstance(self.quantile, bool)
        if not (is_number and 0 < self.quantile < 1):
            raise RequestError(f"quantile must be strictly between 0 and 1, not {self.quantile!r}")

    @property
    def slope_bound(self) -> float | None:
        return max(self.quantile, 1 - self.quantile)

    def lines(self, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Kink at the target; slopes -q and 1 - q."""
        excess = scores[:, 0] - targets.to(scores.dtype)
        return excess, excess.new_tensor(-self.quantile), excess.new_tensor(1 - self.quantile)

    def predict(self, scores: Tensor) -> Tensor:
        return scores[:, 0]

    def metric(self, scores: Tensor, targets: Tensor) -> Tensor:
        return self.values(scores.double(), targets.double()).mean()


@dataclass(frozen=True, eq=False)
class Envelope:
    """The Moreau envelope of a convex loss of one score, record by record.

    The slopes are exact up to rounding. For a `Proximable` loss, automatic differentiation of `values` gives the
    same slopes and correct second derivatives. For other losses it gives the slopes if there is no kink, but the
    second derivatives of the loss itself, which are larger.

    >>> envelope = Envelope(Absolute(), steps=torch.tensor([0.0, 2.0, 2.0]))
    >>> scores, targets = torch.tensor([[1.0], [1.0], [5.0]]), torch.zeros(3)
    >>> envelope.values(scores, targets), envelope.slopes(scores, targets).flatten()
    (tensor([1.0000, 0.2500, 4.0000]), tensor([1.0000, 0.5000, 1.0000]))
    """

    loss: ScoreLoss
    steps: Tensor
    """(records,): t = ||a||^2/beta; larger is smoother, and 0 means no smoothing"""

    def values(self, scores: Tensor, targets: Tensor) -> Tensor:
        """phi(s - t g) + t g^2/2."""
        slopes = self._proximal_slopes(scores, targets)
        proximal = scores[:, 0] - self.steps * slopes
        return self.loss.values(proximal[:, None], targets) + self.steps * slopes.square() / 2

    def slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        """g, the slope of the loss at the proximal point."""
        return self._proximal_slopes(scores, targets)[:, None]

    def _proximal_slopes(self, scores: Tensor, targets: Tensor) -> Tensor:
        if isinstance(self.loss, Proximable):
            return self.loss.proximal_slopes(scores, targets, self.steps)
        return solve_proximal_slopes(self.loss, scores, targets, self.steps)


@torch.no_grad()
def solve_proximal_slopes(loss: ScoreLoss, scores: Tensor, targets: Tensor, steps: Tensor) -> Tensor:
    """The slope at the proximal point of any convex loss of one score, by bisection: (records,).

    g - phi'(s - t g) increases with g and changes sign between 0 and phi'(s), because the proximal point lies
    downhill of s, where the slope is smaller. So no bound on the slopes is needed.
    """
    here = loss.slopes(scores, targets)[:, 0]
    low, high = here.clamp(max=0), here.clamp(min=0)
    for _ in range(HALVINGS[scores.dtype]):
        middle = (low + high) / 2
        slopes = loss.slopes(scores - (steps * middle)[:, None], targets)[:, 0]
        low, high = torch.where(middle <= slopes, middle, low), torch.where(middle >= slopes, middle, high)
    return (low + high) / 2
