"""Private federated models with the scikit-learn interface.

    FederatedLogisticRegression   two classes or many, linear
    FederatedRidge                linear regression
    FederatedEstimator            any named algorithm and model, with the settings of a recipe

`fit(X, y, clients=...)` takes one label per record that says who holds it; with `clients=None` one silo holds
all. After fitting, `guarantee_` says what was promised to whom, against whom (None if `privacy="none"`).

What costs privacy and what does not:

- The guarantee comes from bounding and noising every record's gradient. It holds for any records. One thing is
  learnt from them before: how large features are, privately and charged to the same guarantee, unless a
  `feature_norm`, `clip_norm` or schema says it. With few records noise hides it, so scale features by public
  facts (`X / 16` for pixels), or record by record (`sklearn.preprocessing.Normalizer`). A `StandardScaler` in
  front looks at all records, outside the guarantee.
- Every `fit` is a separate release. A grid search with k fits costs up to k times as much as one, and the
  scores that it selects by use the records directly: tune on public data.
- Predictions of a fitted model cost no privacy. `history_`, `run_` and `score` on training records are not
  private: they are for the researcher who simulates. A pickled estimator therefore omits `history_` and `run_`.
- `random_state=None` draws the noise from the operating system's entropy. With a number, anyone who knows it
  can subtract the noise: use one only for experiments that must be repeatable.
"""

from __future__ import annotations

from tacit.sklearn.estimator import FederatedEstimator
from tacit.sklearn.linear import FederatedLogisticRegression, FederatedRidge

__all__ = ["FederatedEstimator", "FederatedLogisticRegression", "FederatedRidge"]
