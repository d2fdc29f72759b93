"""The common base of the linear models: accelerated descent with a step derived from public numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.algorithms.calibrate import Privacy
from tacit.algorithms.isrl_dp import accelerated_mb_sgd
from tacit.algorithms.secure_sum import SecureSum, secured
from tacit.client.bounds import ClipNorm, Unbounded
from tacit.client.sampling import Full
from tacit.engine.plan import plan
from tacit.engine.run import Run
from tacit.engine.simulate import simulate
from tacit.errors import count, positive, unknown_name
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.models.registry import build_model, default_model
from tacit.noise.additive import build_noise
from tacit.privacy import Target
from tacit.server.accelerated import Accelerated, Stage
from tacit.sklearn.federated import Federated
from tacit.sklearn.requests import AnyArray, budgets, default_delta, seed_and_noise


class FederatedLinear(Federated):
    """Accelerated descent on full batches (ISRL-DP, Algorithm 1), with per-record clipping and noise.

    Full batches need the least noise for a promise, and acceleration the fewest rounds. The step is 1/v with the
    v that minimises the bound of `tacit.theory.isrl_dp.stage_weights`,

        v = beta + (V/D) sqrt(R (R+1) (2R+1) / 24),

    where beta is the curvature of the loss for records of norm `feature_norm`, V^2 the variance of the noise on a
    round's mean gradient, R the rounds and D the `model_norm`: more noise means shorter steps. All of these are
    public numbers; wrong ones harm the model, never the promise.
    """

    usual_model_norm: float

    def __init__(
        self,
        epsilon: float | Mapping[Any, float] | None = 1.0,
        *,
        delta: float | None = None,
        privacy: str = "record",
        alpha: float = 1e-3,
        fit_intercept: bool = True,
        clip_norm: float = 1.0,
        feature_norm: float | None = None,
        model_norm: float | None = None,
        rounds: int = 100,
        weights: str | Sequence[float] = "records",
        trust: str | None = None,
        quorum: int | None = None,
        colluding: int | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.privacy = privacy
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.clip_norm = clip_norm
        self.feature_norm = feature_norm
        self.model_norm = model_norm
        self.rounds = rounds
        self.weights = weights
        self.trust = trust
        self.quorum = quorum
        self.colluding = colluding
        self.random_state = random_state

    def _train(self, federation: Federation) -> Run:
        federation, rounds = federation.weighted(self.weights), count("rounds", self.rounds)
        promise = self._promise(federation)
        settings = {"ridge": self.alpha, "intercept": bool(self.fit_intercept)}
        model = build_model(default_model(federation), federation, settings)
        assert isinstance(model, LinearModel)
        seed, noise = seed_and_noise(self.random_state, promise != "none")
        curvature = self._smoothness(model, federation)
        algorithm = accelerated_mb_sgd(
            model,
            stages=(Stage(rounds, curvature),),
            bound=Unbounded() if promise == "none" else ClipNorm(self.clip_norm),
            sampling=Full(),
            strong_convexity=float(self.alpha),
        )
        algorithm = dataclasses.replace(algorithm, work=algorithm.work.with_noise(build_noise(noise)))
        if self.trust not in (None, "sum"):
            raise unknown_name("trust", str(self.trust), ["sum"])
        if self.trust is not None and promise != "none":
            algorithm = secured(algorithm, SecureSum.of(federation.clients, self.quorum, self.colluding))
        planned = plan(algorithm, federation, rounds=rounds, privacy=promise, seed=seed)
        if promise != "none":
            # The noise that the promise needs does not depend on the step, but the step depends on the noise.
            curvature += self._caution(planned.calibration.noise_stds, model.dim, federation)
            planned = planned.with_server(Accelerated((Stage(rounds, curvature),), float(self.alpha)))
        return simulate(planned)

    def _promise(self, federation: Federation) -> Privacy:
        if self.privacy == "none":
            return "none"
        if self.privacy != "record":
            raise unknown_name("privacy", str(self.privacy), ["record", "none"])
        delta = default_delta(self.delta, federation.sizes.tolist())
        epsilon = budgets(self.epsilon, self.clients_)
        if isinstance(epsilon, float):
            return Target(epsilon, delta)
        return tuple(Target(own, delta) for own in epsilon)

    def _smoothness(self, model: LinearModel, federation: Federation) -> float:
        """beta, the curvature of the loss."""
        if self.feature_norm is not None:
            norm = self.feature_norm
        elif self.privacy != "none":
            norm = math.sqrt(model.features / 3)
        else:
            # Nothing is promised, so the records may be used.
            norm = max(float(torch.linalg.vector_norm(federation.features, dim=1).max()), 1e-6)
        smoothness = model.smoothness(norm)
        assert smoothness is not None, "logistic, softmax and squared losses are smooth"
        return smoothness

    def _caution(self, noise_stds: Tensor, dim: int, federation: Federation) -> float:
        """v - beta, the part of the curvature that is due to noise."""
        diameter = positive("model_norm", self.usual_model_norm if self.model_norm is None else self.model_norm)
        shares = 1.0 if federation.weights is None else federation.weights
        deviation = math.sqrt(dim) * float(torch.linalg.vector_norm(shares * noise_stds)) / federation.clients
        rounds = self.rounds
        return deviation / diameter * math.sqrt(rounds * (rounds + 1) * (2 * rounds + 1) / 24)

    def _keep(self, run: Run) -> None:
        model = run.algorithm.work.model
        assert isinstance(model, LinearModel)
        point: AnyArray = run.parameters.double().numpy()
        rows = point.reshape(-1, model.outputs)
        self.coef_: AnyArray = rows[: model.features].T.copy()
        self.intercept_: Any = rows[model.features].copy() if model.intercept else np.zeros(model.outputs)

    def _scores(self, X: Any) -> AnyArray:
        rows = self._checked(X)
        scores: AnyArray = rows @ self.coef_.T + self.intercept_
        return scores
