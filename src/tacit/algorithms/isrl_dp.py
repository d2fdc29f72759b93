"""ISRL-DP: convex learning without a trusted server (Lowy & Razaviyayn 2023).

    noisy-mb-sgd         Minibatch        Direct(Identity)   Averaged(Descent in W)     Algorithms 2 and 7
    accelerated-mb-sgd   Minibatch        Direct(Identity)   Accelerated, one stage or several   Algorithm 1
    noisy-local-sgd      NoisyLocalSteps  Direct(Identity)   Descent(1): average the clients' models
    mb-sgd, accelerated, local-sgd       the same without bound and noise: not private

Each works in two data regimes. With `OnePass` sampling every record is used once (stochastic optimisation, one
Gaussian release per record); with any other sampling, records are drawn anew in every round (empirical risk).
Choosing some of the silos in a round does not amplify privacy against the server, which sees who answers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tacit.algorithms.algorithm import Algorithm
from tacit.client.bounds import Bound, ClipNorm, Unbounded
from tacit.client.estimators import Minibatch
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.private_gradient import PrivateGradient
from tacit.client.sampling import Poisson, Sampling
from tacit.compress import Direct, Identity
from tacit.errors import RequestError
from tacit.models.model import Model
from tacit.models.penalty import Ridge
from tacit.server.accelerated import Accelerated, Stage
from tacit.server.projection import Everywhere, Projection
from tacit.server.self_tuned import SelfTuned
from tacit.server.update import Averaged, Descent


def noisy_mb_sgd(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    step: float | None = None,
    projection: Projection = Everywhere(),
    strong_convexity: float | None = None,
) -> Algorithm:
    """Noisy minibatch SGD with projection and averaged output (Algorithms 2 and 7; Theorem 2.1, Lemma D.6).

    In the average, each point weighs 1/(1 - mu step) times as much as the one before.

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        step: length of the server's steps.
        projection: the set that points are projected onto.
        strong_convexity: strong convexity mu of the loss; by default the strength of the model's ridge penalty.
    """
    work = PrivateGradient(model, Minibatch(sampling), bound)
    mu = known_strong_convexity(model, strong_convexity)
    if step is None:
        return Algorithm("noisy-mb-sgd", work, Direct(Identity()), SelfTuned(projection))
    if mu * step >= 1:
        raise RequestError(
            f"step = {step:g} is too long for strong_convexity = {mu:g}: it must be below 1 / strong_convexity"
        )
    return Algorithm(
        "noisy-mb-sgd", work, Direct(Identity()), Averaged(Descent(step, projection), 1 / (1 - mu * step))
    )


def known_strong_convexity(model: Model, given: float | None) -> float:
    """`given`, or else the strength of the model's ridge penalty."""
    if given is None:
        return model.penalty.strength if isinstance(model.penalty, Ridge) else 0.0
    if not 0 <= given < math.inf:
        raise RequestError(f"strong_convexity must be a finite number of at least 0, not {given!r}")
    return given


def accelerated_mb_sgd(
    model: Model,
    *,
    stages: tuple[Stage, ...] = (Stage(),),
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    strong_convexity: float | None = None,
    projection: Projection = Everywhere(),
    regularisation: float = 0.0,
) -> Algorithm:
    """Accelerated noisy minibatch SGD (Algorithm 1; Theorems 3.1 and 4.1); multi-stage as in appendix E.1.

    Args:
        model: the loss that is trained.
        stages: rounds and curvature of every stage; by default one stage of all rounds that suits the noise.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        strong_convexity: strong convexity mu of the loss; by default the strength of the model's ridge penalty.
        projection: the set that points are projected onto.
        regularisation: strength of a ridge around the start, for losses that are only convex.
    """
    work = PrivateGradient(model, Minibatch(sampling), bound)
    mu = known_strong_convexity(model, strong_convexity)
    server = Accelerated(stages, mu, projection, regularisation)
    return Algorithm("accelerated-mb-sgd", work, Direct(Identity()), server)


def noisy_local_sgd(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    local_steps: int = 10,
    step: float | None = None,
) -> Algorithm:
    """Noisy Local SGD: every silo takes several noisy steps and the server averages the models (appendix I).

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        local_steps: steps that a client takes in a round.
        step: length of a local step.
    """
    work = NoisyLocalSteps(model, sampling, bound, local_steps, step)
    server = SelfTuned() if step is None else Descent(1.0)
    return Algorithm("noisy-local-sgd", work, Direct(Identity()), server)


def mb_sgd(
    model: Model,
    *,
    sampling: Sampling = Poisson(0.1),
    step: float | None = None,
    projection: Projection = Everywhere(),
    strong_convexity: float | None = None,
) -> Algorithm:
    """Minibatch SGD: `noisy_mb_sgd` with no bound and no noise. Not private.

    Args:
        model: the loss that is trained.
        sampling: how a client draws the records of a batch.
        step: length of the server's steps.
        projection: the set that points are projected onto.
        strong_convexity: strong convexity mu of the loss; by default the strength of the model's ridge penalty.
    """
    parts = noisy_mb_sgd(
        model,
        bound=Unbounded(),
        sampling=sampling,
        step=step,
        projection=projection,
        strong_convexity=strong_convexity,
    )
    return replace(parts, name="mb-sgd")


def accelerated(
    model: Model,
    *,
    stages: tuple[Stage, ...] = (Stage(),),
    sampling: Sampling = Poisson(0.1),
    strong_convexity: float | None = None,
    projection: Projection = Everywhere(),
    regularisation: float = 0.0,
) -> Algorithm:
    """Accelerated minibatch SGD: `accelerated_mb_sgd` with no bound and no noise. Not private.

    Args:
        model: the loss that is trained.
        stages: rounds and curvature of every stage; by default one stage of all rounds that suits the noise.
        sampling: how a client draws the records of a batch.
        strong_convexity: strong convexity mu of the loss; by default the strength of the model's ridge penalty.
        projection: the set that points are projected onto.
        regularisation: strength of a ridge around the start, for losses that are only convex.
    """
    parts = accelerated_mb_sgd(
        model,
        bound=Unbounded(),
        sampling=sampling,
        stages=stages,
        strong_convexity=strong_convexity,
        projection=projection,
        regularisation=regularisation,
    )
    return replace(parts, name="accelerated")


def local_sgd(
    model: Model, *, sampling: Sampling = Poisson(0.1), local_steps: int = 10, step: float | None = None
) -> Algorithm:
    """Local SGD: `noisy_local_sgd` with no bound and no noise. Not private.

    Args:
        model: the loss that is trained.
        sampling: how a client draws the records of a batch.
        local_steps: steps that a client takes in a round.
        step: length of a local step.
    """
    parts = noisy_local_sgd(model, bound=Unbounded(), sampling=sampling, local_steps=local_steps, step=step)
    return replace(parts, name="local-sgd")
