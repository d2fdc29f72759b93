"""DP-SCAFFOLD: noisy local steps for silos whose records differ (Noble, Bellet & Dieuleveut 2022).

    dp-scaffold   ControlledSteps   ControlVariates(Identity)   Descent   Algorithm 1

Where clients' records differ, local steps drift towards each client's own optimum. SCAFFOLD corrects every local
step by c - c_i: the mean of all clients' gradients minus the client's own, both taken from their last messages.
"""

from __future__ import annotations

from tacit.algorithms.algorithm import Algorithm
from tacit.client.bounds import Bound, ClipNorm
from tacit.client.controlled_steps import ControlledSteps
from tacit.client.sampling import Poisson, Sampling
from tacit.compress import ControlVariates, Identity
from tacit.compress.compressor import Compressor
from tacit.models.model import Model
from tacit.schedules import Constant, Schedule
from tacit.server.self_tuned import SelfTuned
from tacit.server.update import Descent, ServerUpdate
from tacit.side.release import SideRelease


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
    server: ServerUpdate = SelfTuned()
    if step is not None:
        local_step = 0.1 if local_step is None else local_step
        # Messages are mean gradients, so the mean of the clients' walks is `local_steps` local steps along them.
        server = Descent(step * local_step * local_steps, schedule=schedule)
    work = ControlledSteps(model, sampling, bound, local_steps, local_step, schedule=schedule, before=before)
    return Algorithm("dp-scaffold", work, ControlVariates(compressor), server)
