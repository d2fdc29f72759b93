"""What all estimators share: fitting, and what is left of it."""

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
"""Attributes that were computed from records without noise, or hold them."""


class Federated(BaseEstimator):  # type: ignore[misc]
    """An estimator whose records lie with several clients. Subclasses say how they are trained."""

    epsilon: float | Mapping[Any, float] | None
    delta: float | None
    privacy: str
    random_state: int | np.random.RandomState | None

    @abstractmethod
    def _train(self, federation: Federation) -> Run:
        """Train on these records."""

    @abstractmethod
    def _keep(self, run: Run) -> None:
        """Keep what predictions need."""

    def fit(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Train; `clients` has one label a record that says who holds it, None if one silo holds all of them.

        The number of records of every client (unless whole clients are protected), and which class labels occur,
        are taken as public.
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
        """Records to predict for: as many features as at fitting, by the same names."""
        check_is_fitted(self)
        rows: AnyArray = validate_data(self, X, dtype=np.float64, reset=False)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: everything but what the guarantee does not cover."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in UNPROTECTED}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    @property
    def _poor_score(self) -> bool:
        """Whether accuracy on a handful of records is beyond it: noise that hides one of ten hides them all."""
        return self.privacy != "none"
