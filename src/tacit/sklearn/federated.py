"""The common base of all estimators: fitting, and what it keeps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from tacit.data.encode import Vector, as_labels
from tacit.data.one_kind import refuse_gaps
from tacit.data.schema import Schema
from tacit.data.schema.encode import encode
from tacit.data.schema.records import Learned
from tacit.data.schema.values import table_values
from tacit.engine.middle import with_middle
from tacit.engine.ranges import learner
from tacit.engine.recipe import Recipe
from tacit.engine.run import Run
from tacit.engine.sizes import with_sizes
from tacit.errors import DataError, RequestError
from tacit.federation import Federation
from tacit.sklearn.requests import (
    AnyArray,
    classes_as,
    described,
    federate,
    federate_table,
    group,
    seed_and_noise,
)

UNPROTECTED = ("run_", "history_")
"""Attributes that contain records, or were computed from them without noise."""


class Federated(BaseEstimator):  # type: ignore[misc]
    """An estimator whose records are held by several clients. Subclasses define how it is trained."""

    epsilon: float | Mapping[Any, float] | None
    delta: float | None
    privacy: str
    random_state: int | np.random.RandomState | None
    schema: Schema | Path | str | None

    @abstractmethod
    def _recipe(self, labels: AnyArray, sizes: Sequence[int], seed: int, noise: str) -> Recipe:
        """What is run, and the promise: for clients with these labels and numbers of records."""

    @abstractmethod
    def _train(self, federation: Federation, recipe: Recipe) -> Run:
        """Trains on these records."""

    @abstractmethod
    def _keep(self, run: Run) -> None:
        """Stores what predictions need."""

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Trains. `clients` has one label per record that says who holds it; None if one silo holds all.

        The number of records of every client (unless whole clients are protected), and which class labels occur,
        are treated as public.
        """
        for name in ("schema_", "classes_"):
            # Not every fit sets them anew.
            if hasattr(self, name):
                delattr(self, name)
        if self.schema is not None:
            return self._fit_table(described(self.schema), X, y, clients)
        classifies = is_classifier(self)
        if classifies and y is not None:
            y = as_labels(y, "y")
            if y.dtype == object:
                refuse_gaps(y, "label")
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=not classifies)
        if classifies:
            check_classification_targets(y)
            self.classes_, y = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise DataError(f"y must hold at least two classes, not one class: {str(self.classes_[0])!r}")
        self.clients_, positions = group(clients, len(X))
        classes = len(self.classes_) if classifies else None
        drawn = seed_and_noise(self.random_state, self.privacy != "none")
        return self._fitted(federate(X, y, self.clients_, positions, classes=classes), *drawn)

    def _fit_table(self, schema: Schema, X: Any, y: Any, clients: Any) -> Self:
        """Trains on a pandas frame that the schema describes; it may have a column for `clients`."""
        if schema.target.classed != is_classifier(self):
            raise RequestError(f"the schema's target is for task = {schema.target.task!r}; use another estimator")
        seed, noise = seed_and_noise(self.random_state, self.privacy != "none")
        if schema.target.classed:
            y = as_labels(y, "y", numbers_alike=True)
        else:
            # A list is read cell by cell, like a column.
            y = np.asarray(y, dtype=object if isinstance(y, list | tuple) else None)
        if y.shape != (len(X),):
            raise DataError(f"y must hold {len(X)} values, one for each row of X, but its shape is {y.shape}")

        def learn(who: Federation, numbers: Vector, schema: Schema) -> Learned:
            promised = self._recipe(np.array(who.names), who.sizes.tolist(), seed, noise)
            return learner(promised, once=True)(who, numbers, schema)

        federation = federate_table(X, y, clients, schema, learn)
        assert federation.schema is not None, "records of a table have its schema"
        self.schema_ = federation.schema
        self.clients_ = np.array(federation.names)
        if schema.target.classed:
            self.classes_ = classes_as(schema.target.classes, y)
        self.n_features_in_, self.feature_names_in_ = X.shape[1], np.array(X.columns, dtype=object)
        return self._fitted(federation, seed, noise)

    def _fitted(self, federation: Federation, seed: int, noise: str) -> Self:
        recipe = self._recipe(self.clients_, federation.sizes.tolist(), seed, noise)
        recipe, federation = with_middle(*with_sizes(recipe, federation, once=True), once=True)
        run = self._train(federation, recipe)
        self.run_, self.history_, self.guarantee_ = run, run.history.frame, run.guarantee
        self.guarantee_without_trust_ = run.calibration.without_trust
        self.n_iter_ = run.rounds
        self._keep(run)
        return self

    def _checked(self, X: Any) -> AnyArray:
        """Checks that records to predict for have the same features, with the same names, as those at fitting."""
        check_is_fitted(self)
        if self.schema is not None:
            return encode(table_values(X, self.schema_, strict=False), self.schema_, np.float64)
        rows: AnyArray = validate_data(self, X, dtype=np.float64, reset=False)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """The pickled state: everything except attributes that the guarantee does not cover."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in UNPROTECTED}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    @property
    def _poor_score(self) -> bool:
        """Whether a few records are too few for accuracy: noise that hides one of ten hides them all."""
        return self.privacy != "none"
