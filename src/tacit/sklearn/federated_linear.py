"""The common base of the linear models: the defaults of `tacit run`, or an exact solution without a promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.algorithms.isrl_dp import accelerated_mb_sgd
from tacit.client.bounds import Unbounded
from tacit.client.sampling import Full
from tacit.data.schema import Schema
from tacit.engine.defaults import ROUNDS
from tacit.engine.plan import make_plan, plan
from tacit.engine.recipe import Recipe
from tacit.engine.run import Run
from tacit.engine.simulate import simulate
from tacit.engine.watch import Watcher
from tacit.engine.weights import BY_RECORDS, NOISE_AWARE
from tacit.errors import count, unknown_name
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.models.model import Model
from tacit.models.persons import model_of_rows
from tacit.models.registry import build_model, default_model
from tacit.server.accelerated import Stage
from tacit.sklearn.federated import Federated
from tacit.sklearn.requests import AnyArray, budgets, default_delta


class FederatedLinear(Federated):
    """A linear model. With a promise, it is trained by noisy gradient descent with the defaults of `tacit run`.

    Batch, rounds, clip norm and steps then follow from public numbers and from the noise (docs/defaults.md).
    Wrong public numbers harm the model, never the promise. Without a promise, accelerated descent on all records
    comes close to the minimum in few rounds.
    """

    def __init__(
        self,
        epsilon: float | Mapping[Any, float] | None = 1.0,
        *,
        delta: float | None = None,
        privacy: str = "record",
        alpha: float = 1e-3,
        fit_intercept: bool = True,
        clip_norm: float | None = None,
        feature_norm: float | None = None,
        rounds: int | None = None,
        weights: str | Sequence[float] | None = None,
        trust: str | None = None,
        quorum: int | None = None,
        colluding: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        schema: Schema | Path | str | None = None,
        watchers: Sequence[Watcher] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.privacy = privacy
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.clip_norm = clip_norm
        self.feature_norm = feature_norm
        self.rounds = rounds
        self.weights = weights
        self.trust = trust
        self.quorum = quorum
        self.colluding = colluding
        self.random_state = random_state
        self.schema = schema
        self.watchers = watchers

    def _recipe(self, labels: AnyArray, sizes: Sequence[int], seed: int, noise: str) -> Recipe:
        if self.privacy not in ("record", "none"):
            raise unknown_name("privacy", str(self.privacy), ["record", "none"])
        if self.rounds is not None:
            count("rounds", self.rounds)
        private = self.privacy == "record"
        return Recipe(
            algorithm="noisy-mb-sgd",
            data="custom",
            privacy=self.privacy,
            epsilon=budgets(self.epsilon, labels) if private else None,
            delta=default_delta(self.delta, sizes) if private else None,
            noise=noise,
            seed=seed,
            rounds=self.rounds,
            weights=self.weights if self.weights is None or isinstance(self.weights, str) else [*self.weights],
            feature_norm=self.feature_norm,
            trust=self.trust,
            quorum=self.quorum,
            colluding=self.colluding,
            model_settings={"ridge": float(self.alpha), "intercept": bool(self.fit_intercept)},
        ).with_algorithm_settings(clip_norm=self.clip_norm)

    def _train(self, federation: Federation, recipe: Recipe) -> Run:
        if recipe.privacy == "none":
            weights = BY_RECORDS if self.weights in (None, NOISE_AWARE) else self.weights
            # The minimum is the same from any start, and the penalty pulls every coordinate to 0, as documented.
            exact = replace(federation.weighted(weights), middle=None)
            return self._without_noise(exact, recipe.model_settings, recipe.seed)
        return simulate(make_plan(recipe, federation=federation), watchers=self.watchers or ())

    def _without_noise(self, federation: Federation, settings: dict[str, Any], seed: int) -> Run:
        """Accelerated descent with the step that the largest record allows: nothing is promised."""
        model = build_model(default_model(federation), federation, settings)
        largest = max(float(torch.linalg.vector_norm(federation.features.flatten(1), dim=1).max()), 1e-6)
        curvature = _of_rows(model).smoothness(largest if self.feature_norm is None else self.feature_norm)
        assert curvature is not None, "logistic, softmax and squared losses are smooth"
        rounds = ROUNDS if self.rounds is None else self.rounds
        algorithm = accelerated_mb_sgd(
            model,
            stages=(Stage(rounds, curvature),),
            bound=Unbounded(),
            sampling=Full(),
            strong_convexity=float(self.alpha),
        )
        made = plan(algorithm, federation, rounds=rounds, privacy="none", seed=seed)
        return simulate(made, watchers=self.watchers or ())

    def _keep(self, run: Run) -> None:
        model = _of_rows(run.algorithm.work.model)
        point: AnyArray = run.parameters.double().numpy()
        rows = point.reshape(-1, model.outputs)
        self.coef_: AnyArray = rows[: model.features].T.copy()
        self.intercept_: Any = rows[model.features].copy() if model.intercept else np.zeros(model.outputs)
        by = run.federation.features_by
        if by is not None and by.factors is not None:
            self.coef_ = self.coef_ * by.factors.numpy()
        if self.schema is not None and not self.schema_.target.classed:
            target = self.schema_.target
            self.coef_, self.intercept_ = self.coef_ * target.half, self.intercept_ * target.half + target.centre

    def _scores(self, X: Any) -> AnyArray:
        rows = self._checked(X)
        scores: AnyArray = rows @ self.coef_.T + self.intercept_
        return scores


def _of_rows(model: Model) -> LinearModel:
    """The linear model of a row, also where a record is a person with several."""
    linear = model_of_rows(model)
    assert isinstance(linear, LinearModel)
    return linear
