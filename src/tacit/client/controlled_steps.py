"""Noisy local steps that are corrected by control variates (SCAFFOLD, Karimireddy et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tacit.client.cohort import Cohort
from tacit.client.local_steps import NoisyLocalSteps
from tacit.compress.uplink import CONTROL, OWN_CONTROL
from tacit.errors import known_step
from tacit.state import State


@dataclass(frozen=True)
class ControlledSteps(NoisyLocalSteps):
    """Noisy local steps along g^s + noise + penalty + c - c_i; the mean of g^s + noise + penalty is sent.

    Guarantee: that of `NoisyLocalSteps`, K releases per round, with no further charge: c_i follows from the
    client's own messages, c is chosen by the server, and the mean is post-processing (docs/privacy.md, Fact F).
    """

    @property
    def pace(self) -> tuple[float, float]:
        """The pace of a mean of noisy gradients."""
        return 1.0, self.steps**-0.5

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """The distance walked, divided by the number and length of local steps, minus the correction."""
        way, state = super().run(point, cohort, state, noise_multipliers)
        mean = way / (self.steps * known_step(self.step_size) * self.schedule.factor(cohort.round))
        correction = self.correction(cohort)
        return mean if correction is None else mean - correction, state

    def correction(self, cohort: Cohort) -> Tensor | None:
        """c - c_i. Messages, and so control variates, are gradients times the client's weight."""
        if CONTROL not in cohort.told:
            return None
        c, own, weights = cohort.told[CONTROL], cohort.told[OWN_CONTROL], cohort.weights
        return c - own if weights is None else c - own / weights.to(own.device, own.dtype)[:, None]
