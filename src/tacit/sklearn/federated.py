"""The common base of all estimators: fitting, and what it keeps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from tacit.engine.run import Run
from tacit.errors import DataError
from tacit.federation import Federation
from tacit.sklearn.requests import AnyArray, federate, group

UNPROTECTED = ("run_", "history_")
"""Attributes that contain records, or were computed from them without noise."""


class Federated(BaseEstimator):  # type: ignore[misc]
    """An estimator whose records are held by several clients. Subclasses define how it is trained."""

    epsilon: float | Mapping[Any, float] | None
    delta: float | None
    privacy: str
    random_state: int | np.random.RandomState | None

    @abstractmethod
    def _train(self, federation: Federation) -> Run:
        """Trains on these records."""

    @abstractmethod
    def _keep(self, run: Run) -> None:
        """Stores what predictions need."""

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Trains. `clients` has one label per record that says who holds it; None if one silo holds all.

        The number of records of every client (unless whole clients are protected), and which class labels occur,
        are treated as public.
        """
        classifies = is_classifier(self)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=not classifies)
        if classifies:
            check_classification_targets(y)
            self.classes_, y = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise DataError(f"y must hold at least two classes, not one class: {self.classes_[0]!r}")
        self.clients_, positions = group(clients, len(X))
        classes = len(self.classes_) if classifies else None
        run = self._train(federate(X, y, self.clients_, positions, classes=classes))
        self.run_, self.history_, self.guarantee_ = run, run.history.frame, run.guarantee
        self.n_iter_ = run.rounds
        self._keep(run)
        return self

    def _checked(self, X: Any) -> AnyArray:
        """Checks that records to predict for have the same features, with the same names, as those at fitting."""
        check_is_fitted(self)
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
