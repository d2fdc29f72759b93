"""Fed-SPA and what it is compared with: papers/002 (Hu, Gong & Guo 2021).

    fed-spa   SparseLocalSteps on k coordinates   Direct(RandK)       Adaptive   Algorithm 1
    dp-fed    SparseLocalSteps on all of them     Direct(Identity)    Descent    section 5: DP-SGD inside FedAvg
    cpsgd     BinomialGradient                    Direct(WholeSteps)  Descent    section 5; Agarwal et al. 2018

Every record of every client is protected against a server that sees all messages. Which clients take part in a
round is no secret from it, so choosing some of them earns nothing; nor is which coordinates a client works on.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tacit.algorithms.algorithm import Algorithm
from tacit.client.binomial_gradient import BinomialGradient
from tacit.client.bounds import Bound, ClipNorm, Normalise
from tacit.client.sampling import Poisson, Sampling
from tacit.client.sparse_steps import Everything, SparseLocalSteps
from tacit.compress import Direct, Identity, RandK
from tacit.compress.compressor import Compressor
from tacit.compress.grid import WholeSteps
from tacit.compress.rotation import RotatedBack, Rotation
from tacit.compress.support import MessageSupport
from tacit.models.model import Model
from tacit.noise.binomial import Binomial
from tacit.privacy.side.release import SideRelease
from tacit.schedules import Constant, Schedule
from tacit.server.adaptive import Adaptive
from tacit.server.self_tuned import SelfTuned, descent
from tacit.server.update import Descent


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

    `bound` is that of a whole gradient, and is put in proportion to p = k/d of it: see `on_share`. The paper has
    `ClipEachCoordinate(G / sqrt(d))`. `compressor` is rand-k, alone or with a quantiser. The paper's betas, kappa
    and a schedule of 1/sqrt(t) for both steps are from its appendix A.1. Local steps are as long as `step` unless
    `local_step` says otherwise. Where the bound came out of a private
    statistic, that release is `before`: it is charged together with training.
    """
    support = MessageSupport.of(compressor)
    share = support.kept(model.dim) / model.dim
    work = SparseLocalSteps(
        model,
        sampling,
        on_share(bound, share),
        support,
        local_steps,
        step if local_step is None else local_step,
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

    With `step` 1 the server averages the clients' models, equation (3), in every round alike: `schedule` is that
    of the local step.
    """
    work = SparseLocalSteps(
        model,
        sampling,
        bound,
        Everything(),
        local_steps,
        step if local_step is None else local_step,
        schedule,
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

    `bits` are those of a coordinate on the wire, log2(levels + coins). How many are levels and how many are coins
    follows from the noise. With few bits, levels that reach as far as the bound are too coarse for little noise,
    and more is added than is needed; `rotate` spreads gradients over their coordinates, so that levels need not
    go as far (the cited paper's section 4). That paper's promise is about sums of clients; here every message
    carries the noise that it needs on its own.
    """
    rotation = Rotation(model.dim) if rotate else None
    work = BinomialGradient(model, sampling, bound, Binomial(bits), rotation)
    compressor = WholeSteps(bits)
    uplink = Direct(compressor) if rotation is None else RotatedBack(compressor, rotation)
    server = SelfTuned() if step is None else Descent(step, schedule=schedule)
    return Algorithm("cpsgd", work, uplink, server)
