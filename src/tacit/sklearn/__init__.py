"""Private federated models with scikit-learn's manners.

    FederatedLogisticRegression   two classes or many, linear
    FederatedRidge                linear regression
    FederatedEstimator            any algorithm and any model that has a name, with the settings of a recipe

`fit(X, y, clients=...)` takes one label a record that says who holds it; with `clients=None` one silo holds all.
After fitting, `guarantee_` says what was promised to whom, against whom (None if `privacy="none"`).

What costs privacy and what does not:

- The guarantee comes from bounding and noising every record's gradient. It holds whatever the records are, and
  nothing is learnt from them on the way: features are not standardised, the step is not measured. Scale them by
  what is public about them (`X / 16` for pixels), or record by record (`sklearn.preprocessing.Normalizer`). A
  `StandardScaler` in front looks at all records, outside of the guarantee.
- Every `fit` is a release of its own. A grid search with k fits costs up to k times as much as one, and the
  scores that it chooses by look at records directly: tune on public data.
- Predictions of a fitted model are free. `history_`, `run_` and `score` on training records are not private: they
  are for the researcher who simulates. A pickled estimator therefore leaves `history_` and `run_` behind.
- `random_state=None` draws the noise from the operating system's entropy. With a number, whoever knows it can
  subtract the noise: that is for experiments that must be repeatable.
"""

from __future__ import annotations

from tacit.sklearn.estimator import FederatedEstimator
from tacit.sklearn.linear import FederatedLogisticRegression, FederatedRidge

__all__ = ["FederatedEstimator", "FederatedLogisticRegression", "FederatedRidge"]
