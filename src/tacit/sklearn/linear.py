"""Linear models with defaults that need no tuning on private records: logistic regression and ridge."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import Tags

from tacit.engine.run import Run
from tacit.sklearn.federated_linear import FederatedLinear
from tacit.sklearn.requests import AnyArray


class FederatedLogisticRegression(ClassifierMixin, FederatedLinear):  # type: ignore[misc]
    """Logistic regression (softmax for more than two classes) over records held by several clients.

    A private model in three lines, here for five clients that hold 1,797 handwritten digits between them:

    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from tacit.sklearn import FederatedLogisticRegression

    >>> X, y = load_digits(return_X_y=True)
    >>> model = FederatedLogisticRegression(epsilon=4, random_state=0)
    >>> model.fit(X / 16, y, clients=np.arange(len(y)) % 5).score(X / 16, y) > 0.8
    True

    >>> print(model.guarantee_.sentence())
    From what was sent, nobody, not even the server and all other parties together, can learn more about what any
    one record contained than epsilon = 4 at delta = 7.71605e-06 allows. ...

    Guarantee: (epsilon, delta)-differential privacy of every single record, between data sets that differ in one
    record's content, against the server and all other parties together; with trust = "sum", against a server that
    can open nothing but sums over clients. `guarantee_` is derived from what was done; its epsilon is at most the
    requested one.

    Objective: sum_i p_i (1/n_i) sum_j loss(x_ij, y_ij) + alpha/2 ||(W, b)||^2 with p_i = n_i/n, that is, the mean
    over all n records. `alpha` is that of scikit-learn's SGDClassifier, and 1/(n C) with the C of its
    LogisticRegression, except that the intercept is penalised like the rest, and that features count as they are
    after division by sizes that were learned.

    Parameters
    ----------
    epsilon : one for all clients, or a mapping from client label to that client's own.
    delta : by default 1e-5, or 1/n_i^2 of the largest client if that is smaller.
    privacy : "record"; or "none" for a model without any bound, noise or promise.
    alpha : strength of the penalty.
    fit_intercept : whether to fit an intercept.
    clip_norm : the norm that a record's gradient is clipped to; a smaller bound needs less noise, a larger one
        distorts less. By default 0.3 times the norm that features are assumed to have.
    feature_norm : a public bound on the norm of a record's features. By default, the size of features is learned
        privately and charged to the promise (docs/defaults.md); with too few records, about 1/2 each is assumed.
    rounds : number of rounds; by default as many as help (100 without privacy).
    weights : "records" for p_i = n_i/n, "equal" for equal p_i, or one number per client, in order of `clients_`.
        By default "noise-aware": by records, but less for clients whose messages are mostly noise.
    trust : "sum" if the server can open only sums over clients; by default it sees every message.
    quorum, colluding : with trust = "sum", the fewest clients in a sum and the most that may help the server; by
        default four fifths and one fifth of them.
    random_state : None for noise from the operating system; a number for repeatable noise in experiments. Fits
        with the same number share their noise, including those of a grid search: together they are not private.
    schema : the public description of a table (`tacit.Schema`), or the path of one. X is then a pandas frame with
        the columns that it describes, prepared by it alone; y has the target's own values, and predictions too.
        Ranges that it leaves open (`range = "learn"`) are learned privately in `fit` and charged to the promise;
        `schema_` has them.
    watchers : logs such as `tacit.CsvLog`, or other `tacit.Watcher`s, that are told what happens in a fit.

    Attributes
    ----------
    classes_, coef_, intercept_, n_features_in_, feature_names_in_, n_iter_ : as in scikit-learn.
    clients_ : the labels of the clients, sorted; `guarantee_.epsilons` is in this order.
    guarantee_ : what was promised (`tacit.Guarantee`), or None.
    guarantee_without_trust_ : what is left if all other parties help the server; None if it relies on nobody.
    history_, run_ : for the researcher only: computed from records without noise. Not pickled.
    """

    def decision_function(self, X: Any) -> AnyArray:
        """X @ coef_.T + intercept_: (records,) for two classes, else (records, classes)."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> AnyArray:
        """The probability of every class: (records, classes)."""
        scores = self._scores(X)
        if scores.shape[1] == 1:
            return np.hstack([expit(-scores), expit(scores)])
        return np.asarray(softmax(scores, axis=1))

    def predict(self, X: Any) -> AnyArray:
        """The most probable class of every record."""
        scores = self._scores(X)
        positions = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        labels: AnyArray = self.classes_[positions]
        return labels

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = self._poor_score
        return tags


class FederatedRidge(RegressorMixin, FederatedLinear):  # type: ignore[misc]
    """Ridge regression over records held by several clients.

    Guarantee, parameters and attributes: as in `FederatedLogisticRegression`. The objective is
    sum_i p_i (1/n_i) sum_j (x_ij w + b - y_ij)^2/2 + alpha/2 ||(w, b)||^2: `alpha` is that of scikit-learn's
    SGDRegressor and 1/n of its Ridge's, except that the intercept is penalised, too: with privacy, by its
    distance from where it starts.

    Where targets lie is learned privately and charged to the promise, as the size of features is. With a
    `clip_norm`, or too few records, it is not: scale targets to about [-1, 1] by public facts then
    (`sklearn.compose.TransformedTargetRegressor`), or most of the signal is clipped away.

    >>> import numpy as np
    >>> generator = np.random.default_rng(0)
    >>> X = generator.uniform(-1, 1, (2000, 3))
    >>> y = X @ [0.5, -0.3, 0.0] + 0.2
    >>> model = FederatedRidge(epsilon=2, random_state=0).fit(X, y, clients=np.arange(2000) % 4)
    >>> model.score(X, y) > 0.9, model.guarantee_.epsilon <= 2
    (True, True)
    """

    def predict(self, X: Any) -> AnyArray:
        """X @ coef_ + intercept_."""
        predicted: AnyArray = self._checked(X) @ self.coef_ + self.intercept_
        return predicted

    def _keep(self, run: Run) -> None:
        super()._keep(run)
        self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = self._poor_score
        return tags
