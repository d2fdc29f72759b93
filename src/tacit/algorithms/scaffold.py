"""DP-SCAFFOLD: noisy local steps for silos whose records differ (Noble, Bellet & Dieuleveut 2022).

Where clients' records differ, local steps drift towards each client's own optimum. SCAFFOLD corrects every local
step by c - c_i: the mean of all clients' gradients minus the client's own, both taken from their last messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.client.bounds import Bound, ClipNorm
from tacit.client.cohort import Cohort
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.sampling import Poisson, Sampling
from tacit.compress import ControlVariates, Identity
from tacit.compress.compressor import Compressor
from tacit.compress.uplink import CONTROL, OWN_CONTROL
from tacit.errors import known_step
from tacit.models.model import Model
from tacit.schedules import Constant, Schedule
from tacit.server.self_tuned import SelfTuned
from tacit.server.update import Descent, ServerUpdate
from tacit.side.release import SideRelease
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


def dp_scaffold(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    compressor: Compressor = Identity(),
    local_steps: int = 10,
    local_step: float | None = None,
    step: float | None = None,
    schedule: Schedule = Constant(),
    before: SideRelease[float] | None = None,
) -> Algorithm:
    """DP-SCAFFOLD: noisy local steps steered by control variates (Noble, Bellet & Dieuleveut 2022, Algorithm 1).

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how each local step draws its batch.
        compressor: how messages are compressed; must be unbiased (the paper uses none).
        local_steps: local steps per round; each is a release of its own.
        local_step: length of a local step, multiplied by the round's `schedule`; by default derived from the
            noise, or 0.1 if `step` is given.
        step: length of the server's steps, in local steps; 1 averages the clients' models. By default derived
            from the messages and their noise.
        schedule: how the local step changes from round to round.
        before: the earlier release on the same records that the bound was derived from, if any.
    """
    if step is not None and local_step is None:
        local_step = 0.1
    work = ControlledSteps(model, sampling, bound, local_steps, local_step, schedule=schedule, before=before)
    # Messages are mean gradients, so the mean of the clients' walks is `local_steps` local steps along them.
    server: ServerUpdate = SelfTuned()
    if step is not None and local_step is not None:
        server = Descent(step * local_step * local_steps, schedule=schedule)
    return Algorithm("dp-scaffold", work, ControlVariates(compressor), server)
