"""DP-SCAFFOLD: noisy local steps for silos whose records differ (Noble, Bellet & Dieuleveut 2022).

Where clients' records differ, local steps drift towards each client's own optimum. SCAFFOLD steers every local
step by c - c_i: the mean of all clients' gradients less the client's own, as of their last messages.
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
    """Noisy local steps along g^s + noise + penalty + c - c_i; sent is the mean of g^s + noise + penalty.

    Guarantee: that of `NoisyLocalSteps`, K releases a round, and nothing else is charged: c_i follows from the
    client's own messages, c is the server's to choose, and the mean is post-processing (docs/privacy.md, Fact F).
    """

    @property
    def pace(self) -> tuple[float, float]:
        """A mean of noisy gradients."""
        return 1.0, self.steps**-0.5

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        """The way that was walked, divided by its length in steps, less what steered it."""
        way, state = super().run(point, cohort, state, noise_multipliers)
        mean = way / (self.steps * known_step(self.step_size) * self.schedule.factor(cohort.round))
        correction = self.correction(cohort)
        return mean if correction is None else mean - correction, state

    def correction(self, cohort: Cohort) -> Tensor | None:
        """c - c_i; messages, and so control variates, are those of gradients times the client's weight."""
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
        compressor: of the messages, unbiased; the paper has none.
        local_steps: local steps in a round, each a release of its own.
        local_step: length of a local step, multiplied by `schedule` of the round; left out, it suits the noise,
            or is 0.1 where a step is given.
        step: the server's, in local steps; with 1 it averages the clients' models. Left out, it follows from the
            messages and their noise.
        schedule: how the local step changes from round to round.
        before: what the same records released before the first round, if the bound came from it.
    """
    if step is not None and local_step is None:
        local_step = 0.1
    work = ControlledSteps(model, sampling, bound, local_steps, local_step, schedule=schedule, before=before)
    # Messages are mean gradients: the mean of the clients' walks is so many local steps along theirs.
    server: ServerUpdate = SelfTuned()
    if step is not None and local_step is not None:
        server = Descent(step * local_step * local_steps, schedule=schedule)
    return Algorithm("dp-scaffold", work, ControlVariates(compressor), server)
