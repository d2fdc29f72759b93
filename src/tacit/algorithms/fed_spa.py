"""Fed-SPA (Hu et al. 2021) and the baselines of its paper.

    fed-spa   NoisyLocalSteps on k coordinates   Direct(RandK)       Adaptive   Algorithm 1
    dp-fed    NoisyLocalSteps on all of them     Direct(Identity)    Descent    section 5: DP-SGD inside FedAvg
    cpsgd     BinomialGradient                   Direct(WholeSteps)  Descent    section 5; Agarwal et al. 2018

Every record of every client is protected against a server that sees all messages. The server knows which clients
take part in a round and which coordinates a client works on, so neither choice amplifies privacy.
"""

from __future__ import annotations

from tacit.algorithms.algorithm import Algorithm
from tacit.client.binomial_gradient import BinomialGradient
from tacit.client.bounds import Bound, ClipNorm
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.sampling import Poisson, Sampling
from tacit.compress import Direct, Identity, RandK
from tacit.compress.compressor import Compressor
from tacit.compress.grid import WholeSteps
from tacit.compress.rotation import RotatedBack, Rotation
from tacit.compress.support import MessageSupport
from tacit.errors import RequestError
from tacit.models.model import Model
from tacit.noise.binomial import Binomial
from tacit.schedules import Constant, Schedule
from tacit.server.adaptive import Adaptive
from tacit.server.self_tuned import SelfTuned, descent
from tacit.server.update import Descent
from tacit.side.release import SideRelease


def fed_spa(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    compressor: Compressor = RandK(fraction=0.05),
    local_steps: int = 10,
    local_step: float | None = None,
    step: float | None = None,
    schedule: Schedule = Constant(),
    beta_1: float = 0.9,
    beta_2: float = 0.99,
    kappa: float = 1e-3,
    before: SideRelease[float] | None = None,
) -> Algorithm:
    """Fed-SPA: noisy local steps on the k coordinates of a rand-k message, and an adaptive server (Algorithm 1).

    The defaults of beta_1, beta_2, kappa and the schedule are those of the paper's appendix A.1.

    Args:
        model: the loss that is trained.
        bound: the bound on a whole gradient; `Bound.on_share` derives the bound for p = k/d of it. The paper uses
            `ClipEachCoordinate(G / sqrt(d))`.
        sampling: how a client draws the records of a batch.
        compressor: rand-k, alone or with a quantiser; local steps work only on the coordinates it keeps.
        local_steps: steps that a client takes in a round.
        local_step: length of a local step; by default that of `step`.
        step: length of the server's steps. Without one, the server is not the paper's: its steps follow from the
            messages and their noise, one length for all coordinates (`SelfTuned`).
        schedule: how both steps change from round to round.
        beta_1: decay rate of the adaptive server's first moment, see `Adaptive`. Needs a `step`.
        beta_2: decay rate of its second moment.
        kappa: the size above which a coordinate is scaled.
        before: the private statistic that the bound was derived from, if any; it is charged together with
            training.
    """
    support = MessageSupport.of(compressor)
    share = support.kept(model.dim) / model.dim
    work = NoisyLocalSteps(
        model,
        sampling,
        bound.on_share(share),
        local_steps,
        step if local_step is None else local_step,
        support,
        schedule,
        before=before,
    )
    if step is None and Adaptive(1.0, beta_1, beta_2, kappa) != Adaptive(1.0):
        raise RequestError("beta_1, beta_2 and kappa belong to the adaptive server, which needs a `step`")
    server = SelfTuned() if step is None else Adaptive(step, beta_1, beta_2, kappa, schedule)
    return Algorithm("fed-spa", work, Direct(compressor), server)


def dp_fed(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    local_steps: int = 10,
    local_step: float | None = None,
    step: float | None = None,
    schedule: Schedule = Constant(),
    before: SideRelease[float] | None = None,
) -> Algorithm:
    """DP-Fed: FedAvg with per-record clipping and noise on local gradients (section 5).

    With `step` 1 the server averages the clients' models in every round, equation (3).

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        local_steps: steps that a client takes in a round.
        local_step: length of a local step; by default that of `step`.
        step: length of the server's steps.
        schedule: how the local step changes from round to round.
        before: the private statistic that the bound was derived from, if any; it is charged together with
            training.
    """
    work = NoisyLocalSteps(
        model,
        sampling,
        bound,
        local_steps,
        step if local_step is None else local_step,
        schedule=schedule,
        before=before,
    )
    return Algorithm("dp-fed", work, Direct(Identity()), descent(step))


def cpsgd(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    bits: int = 16,
    rotate: bool = False,
    step: float | None = None,
    schedule: Schedule = Constant(),
) -> Algorithm:
    """cpSGD: one gradient per round, rounded at random to a grid, with binomial noise (section 5).

    With few bits, a grid that spans the bound is too coarse for little noise, and more noise is added than
    needed. The paper's promise is about sums over clients; here every message carries all the noise it needs on
    its own.

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        bits: bits per coordinate on the wire, log2(levels + coins); the noise determines how many are levels.
        rotate: first spread gradients evenly over their coordinates, so that the grid can be narrower (Agarwal et
            al. 2018, section 4).
        step: length of the server's steps.
        schedule: how steps change from round to round.
    """
    rotation = Rotation(model.dim) if rotate else None
    work = BinomialGradient(model, sampling, bound, Binomial(bits), rotation)
    compressor = WholeSteps(bits)
    uplink = Direct(compressor) if rotation is None else RotatedBack(compressor, rotation)
    server = SelfTuned() if step is None else Descent(step, schedule=schedule)
    return Algorithm("cpsgd", work, uplink, server)
