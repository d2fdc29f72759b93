"""Fed-SPA and what it is compared with (Hu, Gong & Guo 2021).

    fed-spa   NoisyLocalSteps on k coordinates   Direct(RandK)       Adaptive   Algorithm 1
    dp-fed    NoisyLocalSteps on all of them     Direct(Identity)    Descent    section 5: DP-SGD inside FedAvg
    cpsgd     BinomialGradient                   Direct(WholeSteps)  Descent    section 5; Agarwal et al. 2018

Every record of every client is protected against a server that sees all messages. Which clients take part in a
round is no secret from it, so choosing some of them earns nothing; nor is which coordinates a client works on.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tacit.algorithms.algorithm import Algorithm
from tacit.client.binomial_gradient import BinomialGradient
from tacit.client.bounds import Bound, ClipNorm, Normalise
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.sampling import Poisson, Sampling
from tacit.compress import Direct, Identity, RandK
from tacit.compress.compressor import Compressor
from tacit.compress.grid import WholeSteps
from tacit.compress.rotation import RotatedBack, Rotation
from tacit.compress.support import MessageSupport
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

    The defaults of the betas, of kappa and of the schedule are those of the paper's appendix A.1.

    Args:
        model: the loss that is trained.
        bound: the bound on a whole gradient; for p = k/d of it see `on_share`. The paper has
            `ClipEachCoordinate(G / sqrt(d))`.
        sampling: how a client draws the records of a batch.
        compressor: rand-k, alone or with a quantiser: local steps work on the coordinates that it keeps.
        local_steps: steps that a client takes in a round.
        local_step: length of a local step; by default that of `step`.
        step: length of the server's steps.
        schedule: how both steps change from round to round.
        beta_1: how much the server's movement remembers, see `Adaptive`.
        beta_2: the same for its squares.
        kappa: the size from which on a coordinate is scaled.
        before: the private statistic that the bound came from, if it did: it is charged together with training.
    """
    support = MessageSupport.of(compressor)
    share = support.kept(model.dim) / model.dim
    work = NoisyLocalSteps(
        model,
        sampling,
        on_share(bound, share),
        local_steps,
        step if local_step is None else local_step,
        support,
        schedule,
        before=before,
    )
    server = Adaptive(step, beta_1, beta_2, kappa, schedule)
    return Algorithm("fed-spa", work, Direct(compressor), server)


def on_share(bound: Bound, share: float) -> Bound:
    """The bound for a random `share` p of the coordinates of a gradient that `bound` would bound as a whole.

    A limit for every coordinate stays as it is, and lets a norm of c sqrt(p d) through. A norm of G becomes
    G sqrt(p), which is what p of the coordinates have of it on average. Either way the noise falls with sqrt(p).
    To clip the whole gradient to G before the others are dropped would not do: all of it may lie on the p.

    >>> on_share(ClipNorm(1.0), 0.25)
    ClipNorm(clip_norm=0.5)
    """
    if isinstance(bound, ClipNorm):
        return replace(bound, clip_norm=bound.clip_norm * math.sqrt(share))
    if isinstance(bound, Normalise):
        return replace(bound, length=bound.length * math.sqrt(share))
    return bound


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
    """DP-Fed: FedAvg whose local gradients are bounded record by record and noisy (section 5).

    With `step` 1 the server averages the clients' models, equation (3), in every round alike.

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        local_steps: steps that a client takes in a round.
        local_step: length of a local step; by default that of `step`.
        step: length of the server's steps.
        schedule: how the local step changes from round to round.
        before: the private statistic that the bound came from, if it did: it is charged together with training.
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
    """cpSGD: one gradient a round, rounded at random to a grid, with coins as noise (section 5).

    With few bits, levels that reach as far as the bound are too coarse for little noise, and more is added than
    is needed. The paper's promise is about sums of clients; here every message carries the noise that it needs
    on its own.

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        bits: of a coordinate on the wire, log2(levels + coins); how many are levels follows from the noise.
        rotate: spread gradients over their coordinates first, so that levels need not go as far (Agarwal et al.
            2018, section 4).
        step: length of the server's steps.
        schedule: how steps change from round to round.
    """
    rotation = Rotation(model.dim) if rotate else None
    work = BinomialGradient(model, sampling, bound, Binomial(bits), rotation)
    compressor = WholeSteps(bits)
    uplink = Direct(compressor) if rotation is None else RotatedBack(compressor, rotation)
    server = SelfTuned() if step is None else Descent(step, schedule=schedule)
    return Algorithm("cpsgd", work, uplink, server)
