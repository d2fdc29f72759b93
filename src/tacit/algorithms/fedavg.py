"""FedAvg with whole clients as the unit of privacy: DP-NormFedAvg (Das et al. 2022) and its baselines.

    fedavg          BoundedUpdate(Unbounded)   Direct(Identity)   Descent with momentum
    dp-fedavg       BoundedUpdate(ClipNorm)    Direct(Identity)   Descent with momentum     option (i)
    dp-normfedavg   BoundedUpdate(Normalise)   Direct(Identity)   Descent with momentum     option (ii)

The two private algorithms have a central guarantee: it holds if an aggregator shows only the sum of each round,
and not who took part (`Aggregator`). With `Nobody`, every message carries all the noise it needs on its own.
Everything about a client is protected, including how many records it has; `public_sizes` treats these numbers as
public, and every promise then says so. Local steps are as long as the server's unless `local_step` is given.
"""

from __future__ import annotations

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.trust import Nobody, Trust
from tacit.client.bounded_update import BoundedUpdate
from tacit.client.bounds import Bound, ClipNorm, Normalise, Unbounded
from tacit.client.quantile_update import UPDATE_WEIGHT, WEIGHT, QuantileUpdate
from tacit.client.sampling import Full, Sampling
from tacit.compress import Direct, Identity
from tacit.errors import RequestError
from tacit.models.model import Model
from tacit.schedules import Constant, Schedule
from tacit.server.quantile_clip import QuantileClip
from tacit.server.self_tuned import SelfTuned
from tacit.server.update import Descent, Output, ServerUpdate, last_point


def _server(step: float | None, schedule: Schedule, momentum: float, output: Output) -> ServerUpdate:
    """The server update of the paper, or one whose steps are derived from the updates."""
    return SelfTuned() if step is None else output(Descent(step, schedule=schedule, momentum=momentum))


def fedavg(
    model: Model,
    *,
    sampling: Sampling = Full(),
    local_steps: int = 10,
    local_step: float | None = None,
    step: float | None = None,
    schedule: Schedule = Constant(),
    momentum: float = 0.0,
    output: Output = last_point,
) -> Algorithm:
    """FedAvg: average the clients' updates. Not private.

    Args:
        model: the loss that is trained.
        sampling: how a client draws the records of a batch.
        local_steps: steps that a client takes in a round.
        local_step: length of a local step; by default that of `step`.
        step: length of the server's steps.
        schedule: how steps change from round to round.
        momentum: momentum of the server, at least 0 (none) and below 1.
        output: which point is returned as the trained model.
    """
    work = BoundedUpdate(
        model, sampling, Unbounded(), local_steps, step if local_step is None else local_step, schedule
    )
    server = _server(step, schedule, momentum, output)
    return Algorithm("fedavg", work, Direct(Identity()), server)


def dp_fedavg(
    model: Model,
    *,
    trust: Trust = Nobody(),
    clip_norm: float = 1.0,
    sampling: Sampling = Full(),
    local_steps: int = 10,
    local_step: float | None = None,
    step: float | None = None,
    schedule: Schedule = Constant(),
    momentum: float = 0.0,
    output: Output = last_point,
    public_sizes: bool = False,
    clip_quantile: float | None = None,
) -> Algorithm:
    """DP-FedAvg: every client's update is clipped (Algorithm 1, option (i)).

    Args:
        model: the loss that is trained.
        trust: `Aggregator` if messages are seen only as sums, or `Nobody`, where every message has all the noise
            it needs.
        clip_norm: the norm to which a client's update is clipped.
        sampling: how a client draws the records of a batch.
        local_steps: steps that a client takes in a round.
        local_step: length of a local step; by default that of `step`.
        step: length of the server's steps.
        schedule: how steps change from round to round.
        momentum: momentum of the server, at least 0 (none) and below 1.
        output: which point is returned as the trained model.
        public_sizes: treat record counts as public; otherwise the promise protects them too.
        clip_quantile: let the clip norm follow this quantile of the updates' norms, starting at `clip_norm`
            (Andrew et al. 2021); needs a `step`. Clients then also send, with noise, whether their update was
            shorter.
    """
    bound: Bound = ClipNorm(clip_norm if clip_quantile is None else 1.0)
    local = step if local_step is None else local_step
    make = BoundedUpdate if clip_quantile is None else QuantileUpdate
    work = make(model, sampling, bound, local_steps, local, schedule, public_sizes=public_sizes)
    server = _server(step, schedule, momentum, output)
    if clip_quantile is not None:
        if step is None:
            raise RequestError("clip_quantile needs a step: one derived from the noise assumes a fixed clip norm")
        server = QuantileClip(server, clip_quantile, clip_norm, (UPDATE_WEIGHT, WEIGHT))
    return Algorithm("dp-fedavg", work, Direct(Identity()), server, trust=trust)


def dp_normfedavg(
    model: Model,
    *,
    trust: Trust = Nobody(),
    clip_norm: float = 1.0,
    sampling: Sampling = Full(),
    local_steps: int = 10,
    local_step: float | None = None,
    step: float | None = None,
    schedule: Schedule = Constant(),
    momentum: float = 0.0,
    output: Output = last_point,
    public_sizes: bool = False,
) -> Algorithm:
    """DP-NormFedAvg: every client's update is rescaled to the norm `clip_norm` (Algorithm 1, option (ii)).

    Args:
        model: the loss that is trained.
        trust: `Aggregator` if messages are seen only as sums, or `Nobody`, where every message has all the noise
            it needs.
        clip_norm: the norm to which a client's update is rescaled.
        sampling: how a client draws the records of a batch.
        local_steps: steps that a client takes in a round.
        local_step: length of a local step; by default that of `step`.
        step: length of the server's steps.
        schedule: how steps change from round to round.
        momentum: momentum of the server, at least 0 (none) and below 1.
        output: which point is returned as the trained model.
        public_sizes: treat record counts as public; otherwise the promise protects them too.
    """
    bound: Bound = Normalise(clip_norm)
    local = step if local_step is None else local_step
    work = BoundedUpdate(model, sampling, bound, local_steps, local, schedule, public_sizes=public_sizes)
    server = _server(step, schedule, momentum, output)
    return Algorithm("dp-normfedavg", work, Direct(Identity()), server, trust=trust)
