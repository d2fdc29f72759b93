"""EF21-SGDM: messages of a few large coordinates, and a memory of the others (Fatkhullin et al. 2023).

    ef21-sgdm   PrivateGradient(Minibatch)   ErrorFeedback(TopK)   Descent   Algorithm 1

The noise is added to every gradient before anything else happens to it. Averaging, choosing the largest
coordinates and remembering the rest are post-processing: they cost nothing, and the server may see all of it.
"""

from __future__ import annotations

from tacit.algorithms.algorithm import Algorithm
from tacit.client.bounds import Bound, ClipNorm
from tacit.client.estimators import Minibatch
from tacit.client.sampling import Poisson, Sampling
from tacit.client.work import PrivateGradient
from tacit.compress import ErrorFeedback, TopK
from tacit.compress.compressor import Compressor
from tacit.models.model import Model
from tacit.schedules import Constant, Schedule
from tacit.server.update import Descent


def ef21_sgdm(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    compressor: Compressor = TopK(fraction=0.05),
    momentum: float = 0.1,
    step: float = 0.1,
    schedule: Schedule = Constant(),
) -> Algorithm:
    """EF21-SGDM on private gradients (Fatkhullin, Tyurin & Richtarik 2023, Algorithm 1).

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how each round draws its batch.
        compressor: of the messages, biased (`top-k:0.05`) or not (`rand-k:0.05`).
        momentum: weight of a new gradient in a client's moving average; 1 is EF21 without one, for little noise.
        step: the server's.
        schedule: how the step changes from round to round.
    """
    work = PrivateGradient(model, Minibatch(sampling), bound)
    uplink = ErrorFeedback(compressor, momentum=momentum)
    return Algorithm("ef21-sgdm", work, uplink, Descent(step, schedule=schedule))
