"""ISRL-DP: convex learning without a trusted server: papers/001 (Lowy & Razaviyayn 2023).

    noisy-mb-sgd         Minibatch        Direct(Identity)   Averaged(Descent in W)     Algorithms 2 and 7
    accelerated-mb-sgd   Minibatch        Direct(Identity)   Accelerated, one stage or several   Algorithm 1
    noisy-local-sgd      NoisyLocalSteps  Direct(Identity)   Descent(1): the mean of the clients' models
    mb-sgd, accelerated, local-sgd       the same with no bound and no noise: not private

Each in two data regimes: with `OnePass` sampling every record is looked at once (stochastic optimisation, one
Gaussian release for each record); with any other sampling records are drawn anew in every round (empirical risk).
Choosing some of the silos in a round earns nothing against the server, which sees who answers.
"""

from __future__ import annotations

from dataclasses import replace

from tacit.algorithms.algorithm import Algorithm
from tacit.client.bounds import Bound, Unbounded
from tacit.client.estimators import Minibatch
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.sampling import Sampling
from tacit.client.work import PrivateGradient
from tacit.compress import Direct, Identity
from tacit.models.model import Model
from tacit.server.accelerated import Accelerated, Stage
from tacit.server.projection import Projection
from tacit.server.update import Averaged, Descent


def noisy_mb_sgd(
    model: Model, *, bound: Bound, sampling: Sampling, step: float, projection: Projection, growth: float = 1.0
) -> Algorithm:
    """Noisy minibatch SGD with projection and averaged output (Algorithms 2 and 7; Theorem 2.1, Lemma D.6)."""
    work = PrivateGradient(model, Minibatch(sampling), bound)
    return Algorithm("noisy-mb-sgd", work, Direct(Identity()), Averaged(Descent(step, projection), growth))


def accelerated_mb_sgd(
    model: Model,
    *,
    bound: Bound,
    sampling: Sampling,
    stages: tuple[Stage, ...],
    strong_convexity: float,
    projection: Projection,
    regularisation: float = 0.0,
) -> Algorithm:
    """Accelerated noisy minibatch SGD (Algorithm 1; Theorems 3.1 and 4.1); several stages: appendix E.1."""
    work = PrivateGradient(model, Minibatch(sampling), bound)
    server = Accelerated(stages, strong_convexity, projection, regularisation)
    return Algorithm("accelerated-mb-sgd", work, Direct(Identity()), server)


def noisy_local_sgd(
    model: Model, *, bound: Bound, sampling: Sampling, local_steps: int, step: float
) -> Algorithm:
    """Noisy Local SGD: every silo takes several noisy steps, the server averages the models (appendix I)."""
    work = NoisyLocalSteps(model, sampling, bound, local_steps, step)
    return Algorithm("noisy-local-sgd", work, Direct(Identity()), Descent(1.0))


def mb_sgd(
    model: Model, *, sampling: Sampling, step: float, projection: Projection, growth: float = 1.0
) -> Algorithm:
    """Minibatch SGD: `noisy_mb_sgd` with no bound and no noise. Not private."""
    parts = noisy_mb_sgd(
        model, bound=Unbounded(), sampling=sampling, step=step, projection=projection, growth=growth
    )
    return replace(parts, name="mb-sgd")


def accelerated(
    model: Model,
    *,
    sampling: Sampling,
    stages: tuple[Stage, ...],
    strong_convexity: float,
    projection: Projection,
    regularisation: float = 0.0,
) -> Algorithm:
    """Accelerated minibatch SGD: `accelerated_mb_sgd` with no bound and no noise. Not private."""
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


def local_sgd(model: Model, *, sampling: Sampling, local_steps: int, step: float) -> Algorithm:
    """Local SGD: `noisy_local_sgd` with no bound and no noise. Not private."""
    parts = noisy_local_sgd(model, bound=Unbounded(), sampling=sampling, local_steps=local_steps, step=step)
    return replace(parts, name="local-sgd")
