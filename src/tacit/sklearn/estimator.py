"""Any named algorithm and model as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, Tags
from sklearn.utils.metaestimators import available_if

from tacit.data.schema import Schema
from tacit.engine.execute import run_plan
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.run import Run
from tacit.engine.watch import Watcher
from tacit.errors import RequestError, unknown_name
from tacit.federation import Batch, Federation
from tacit.sklearn.federated import Federated
from tacit.sklearn.requests import AnyArray, budgets, default_delta

TASKS = ("classification", "regression")

DECIDED_ELSEWHERE = frozenset(
    ["algorithm", "model", "data", "clients", "partition", "privacy", "epsilon", "delta", "seed", "noise"]
)
"""Settings of a recipe that are arguments of the estimator or of `fit`."""

NO_PROBABILITIES = frozenset(["svm"])
"""Classifiers whose loss is not the negative logarithm of a probability."""


def _has_probabilities(estimator: FederatedEstimator) -> bool:
    return estimator.task == "classification" and estimator.model not in NO_PROBABILITIES


class FederatedEstimator(Federated):
    """Runs a recipe on your own arrays, as `tacit run` does.

    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = FederatedEstimator(
    ...     algorithm="soteriafl-gd", epsilon=8, random_state=0,
    ...     settings={"algorithm.compressor": "rand-k:0.2", "algorithm.step": 2.0, "algorithm.clip_norm": 0.5,
    ...               "model.intercept": False})
    >>> model.fit(X / 16, y, clients=np.arange(len(y)) % 5).score(X / 16, y) > 0.6
    True

    Guarantee: that of the algorithm; `guarantee_` states it, derived from what was done.

    Parameters
    ----------
    task : "classification" or "regression".
    model : a model's name (see `tacit list models`), or "module:package:factory"; by default the linear one.
    algorithm : an algorithm's name (see `tacit list algorithms`).
    epsilon, delta, random_state, schema, watchers : as in `FederatedLogisticRegression`.
    privacy : unit of privacy, "record" or "client", as the algorithm defines it; "none" turns privacy off.
    settings : any other settings of a recipe, such as "rounds". "algorithm.step", "algorithm.batch" and so on
        belong to the algorithm, "model.ridge" to the model, "data.features" to the data. Open settings are
        chosen as in `tacit run`.

    Attributes
    ----------
    model_ : the trained model (`tacit.engine.trained.Trained`); others as in `FederatedLogisticRegression`.
    """

    def __init__(
        self,
        task: str = "classification",
        *,
        model: str | None = None,
        algorithm: str = "noisy-mb-sgd",
        epsilon: float | Mapping[Any, float] | None = 1.0,
        delta: float | None = None,
        privacy: str = "record",
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
        schema: Schema | Path | str | None = None,
        watchers: Sequence[Watcher] | None = None,
    ) -> None:
        self.task = task
        self.model = model
        self.algorithm = algorithm
        self.epsilon = epsilon
        self.delta = delta
        self.privacy = privacy
        self.settings = settings
        self.random_state = random_state
        self.schema = schema
        self.watchers = watchers

    def _recipe(self, labels: AnyArray, sizes: Sequence[int], seed: int, noise: str) -> Recipe:
        if self.task not in TASKS:
            raise unknown_name("task", str(self.task), TASKS)
        private = self.privacy != "none"
        # A promise to whole clients also protects how many records a client has.
        protected = [len(labels)] if self.privacy == "client" else sizes
        recipe = Recipe(
            algorithm=self.algorithm,
            data="custom",
            model=self.model,
            privacy=self.privacy,
            epsilon=budgets(self.epsilon, labels) if private else None,
            delta=default_delta(self.delta, protected) if private else None,
            noise=noise,
            seed=seed,
        )
        settings = dict(self.settings or {})
        for name in settings:
            elsewhere = name.startswith("data") and name != "data.features"
            if name.replace("-", "_") in DECIDED_ELSEWHERE or elsewhere:
                raise RequestError(f"settings holds {name!r}, which is an argument of the estimator or of fit")
        return recipe.with_settings(settings)

    def _train(self, federation: Federation, recipe: Recipe) -> Run:
        return run_plan(make_plan(recipe, federation=federation), watchers=self.watchers or ())

    def _keep(self, run: Run) -> None:
        self.model_ = replace(run.model, parameters=run.parameters.double())

    def predict(self, X: Any) -> AnyArray:
        """The predicted target of every record."""
        rows = self._checked(X)
        predicted: AnyArray = self.model_.predict(rows).numpy()
        if self.task == "classification":
            return self.classes_[predicted]
        if self.schema is None:
            return predicted
        return np.asarray(self.schema_.target.centre + self.schema_.target.half * predicted)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> AnyArray:
        """The probability of every class, (records, classes): the loss of a class is its negative logarithm."""
        rows = torch.from_numpy(self._checked(X))  # refuses before a fit
        rows = self.model_.mapped(rows)
        counts = torch.tensor([len(rows)])
        losses = [
            self.model_.model.losses(self.model_.parameters, Batch(rows, torch.full((len(rows),), k), counts))
            for k in range(len(self.classes_))
        ]
        return np.asarray(torch.exp(-torch.stack(losses, dim=1)).numpy())

    def score(self, X: Any, y: Any) -> float:
        """Accuracy, or R^2 for regression."""
        measure = accuracy_score if self.task == "classification" else r2_score
        return float(measure(y, self.predict(X)))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        if self.task == "classification":
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(poor_score=self._poor_score)
        elif self.task == "regression":
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags(poor_score=self._poor_score)
        return tags
