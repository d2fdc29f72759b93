"""EF21-SGDM: clients send a few large coordinates and remember the others (Fatkhullin et al. 2023).

    ef21-sgdm   PrivateGradient(Minibatch)   ErrorFeedback(TopK)   Descent   Algorithm 1

Noise is added to every gradient first. Averaging, choosing the largest coordinates and remembering the rest are
post-processing: they cost no privacy, and the server may see all of it.
"""

from __future__ import annotations

from tacit.algorithms.algorithm import Algorithm
from tacit.client.bounds import Bound, ClipNorm
from tacit.client.estimators import Minibatch
from tacit.client.private_gradient import PrivateGradient
from tacit.client.sampling import Poisson, Sampling
from tacit.compress import ErrorFeedback, TopK
from tacit.compress.compressor import Compressor
from tacit.models.model import Model
from tacit.schedules import Constant, Schedule
from tacit.server.self_tuned import SelfTuned
from tacit.server.update import Descent


def ef21_sgdm(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    compressor: Compressor = TopK(fraction=0.05),
    momentum: float = 0.1,
    step: float | None = None,
    schedule: Schedule = Constant(),
) -> Algorithm:
    """EF21-SGDM on private gradients (Fatkhullin, Tyurin & Richtarik 2023, Algorithm 1).

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how each round draws its batch.
        compressor: how messages are compressed; biased (`top-k:0.05`) or unbiased (`rand-k:0.05`).
        momentum: weight of a new gradient in a client's moving average; 1 is plain EF21, which suits low noise.
        step: length of the server's steps; by default derived from the messages and their noise.
        schedule: how the step changes from round to round.
    """
    work = PrivateGradient(model, Minibatch(sampling), bound)
    uplink = ErrorFeedback(compressor, momentum=momentum)
    server = SelfTuned() if step is None else Descent(step, schedule=schedule)
    return Algorithm("ef21-sgdm", work, uplink, server)
