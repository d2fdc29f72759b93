"""The extra privacy cost of noise that a computer draws inexactly, on top of the cost of ideal noise.

Let w be the factor by which the probability of all draws of a run may differ from the ideal one, and c the mass
that is never drawn. For neighbours x and y, M the ideal mechanism and M' the real one,

    P(M'(x) in S) <= w P(M(x) in S) <= w (e^eps P(M(y) in S) + delta) <= w (e^eps (w P(M'(y) in S) + c) + delta),

so (eps, delta) becomes (eps + 2 ln w, w (delta + e^eps c)).

The last term grows with eps. If it is too large, take noise with a smaller epsilon at the same delta; it also
meets the larger epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting import DpEvent

from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.dominate import leaves
from tacit.privacy.events import InexactNoiseDpEvent

_SHARE = 1e-3
"""The part of delta that is set aside for outcomes that are never drawn."""


@dataclass(frozen=True)
class Surcharge:
    """2 ln w and c, added up over all parts of an event that declare inexact noise."""

    epsilon: float
    cut_mass: float

    @classmethod
    def of(cls, event: DpEvent) -> Surcharge:
        """The sum of the surcharges of all parts of an event."""
        parts = [(leaf, times) for leaf, times in leaves(event) if isinstance(leaf, InexactNoiseDpEvent)]
        epsilon = sum(times * leaf.epsilon for leaf, times in parts)
        return cls(epsilon, sum(times * leaf.cut_mass for leaf, times in parts))

    def ideal_delta(self, delta: float) -> float:
        """The delta at which the ideal noise is to be accounted for, so that `delta` holds for the real one."""
        return delta * math.exp(-self.epsilon / 2) * (1 - _SHARE) if self.epsilon else delta

    def real_epsilon(self, ideal: float, delta: float) -> float:
        """The epsilon of the real noise, if that of the ideal one at `ideal_delta(delta)` is `ideal`."""
        if not self.epsilon or math.isinf(ideal):
            return ideal
        if ideal + self.epsilon > self.largest_epsilon(math.log(delta)):
            raise CannotAnswerError(f"epsilon {ideal:.3g} is too large for noise with truncated tails")
        return ideal + self.epsilon

    def largest_epsilon(self, log_delta: float) -> float:
        """The largest epsilon at which outcomes that are never drawn cost no more than their part of delta."""
        if not self.epsilon:
            return math.inf
        return math.log(_SHARE) + log_delta + self.epsilon / 2 - math.log(self.cut_mass)

    def real_log_delta(self, ideal: float, epsilon: float) -> float:
        """log(delta) of the real noise at `epsilon`, from that of the ideal noise at `epsilon - self.epsilon`."""
        if not self.epsilon:
            return ideal
        cut = epsilon - self.epsilon + math.log(self.cut_mass)
        high, low = max(ideal, cut), min(ideal, cut)
        return min(0.0, self.epsilon / 2 + high + math.log1p(math.exp(low - high)))
