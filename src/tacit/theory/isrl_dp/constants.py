"""L, beta and mu, derived from a model and stated bounds on the data, never from the records.

ISRL-DP (Lowy & Razaviyayn 2023), appendix I.1, computed L = 2 max ||x|| from the training data. Here the bound on
the features is public because of how they were made (scaled, clipped), or it was released privately and charged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import RequestError, positive
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.models.model import Model
from tacit.models.penalty import Ridge
from tacit.theory.checks import not_negative
from tacit.theory.isrl_dp.problem import ConvexProblem


@dataclass(frozen=True)
class Constants:
    """The constants of a loss on a ball of the given diameter around the origin."""

    lipschitz: float
    """L of the whole loss, which the risk bounds use"""
    record_lipschitz: float
    """L of the part that records influence: the least clip norm that changes no gradient, and the noise scale"""
    smoothness: float | None
    """beta, including the penalty"""
    strong_convexity: float
    """mu: the strength of the ridge penalty"""


def model_constants(
    model: Model, *, feature_norm: float, diameter: float, target_bound: float | None = None
) -> Constants:
    """The constants of a linear model on ||w|| <= diameter/2, for features of norm at most `feature_norm`.

    With r^2 = feature_norm^2 (+ 1 for an intercept): record L = (slope bound) r, beta = (curvature) r^2 + ridge,
    mu = ridge, L = record L + ridge diameter/2. The slope of the squared loss has no bound by itself; on the
    ball it is at most r diameter/2 + `target_bound`, the largest absolute target.

    The logistic loss has slope 1 and the softmax loss sqrt(2): the paper's L, 2 max ||x||, is larger than either
    needs.

    >>> from tacit.models import logistic_regression
    >>> model = logistic_regression(features=3, intercept=False, ridge=0.1)
    >>> model_constants(model, feature_norm=2.0, diameter=10.0)
    Constants(lipschitz=2.5, record_lipschitz=2.0, smoothness=1.1, strong_convexity=0.1)
    """
    radius = positive("diameter", diameter) / 2
    if not isinstance(model, LinearModel):
        raise RequestError(
            f"model must be a linear model, not {type(model).__name__}: no constants are known for it; "
            "state lipschitz and smoothness yourself"
        )
    if model.penalty is not None and not isinstance(model.penalty, Ridge):
        raise RequestError(
            f"model must have a convex penalty (ridge) or none, not {type(model.penalty).__name__}: "
            "ISRL-DP is about convex losses"
        )
    ridge = 0.0 if model.penalty is None else model.penalty.strength
    by_records = model.lipschitz(feature_norm)
    if by_records is None:
        if target_bound is None:
            raise RequestError(
                "target_bound must be given for the squared loss: a public bound on the absolute target"
            )
        reach = math.sqrt(feature_norm**2 + model.intercept)
        by_records = reach * (model.loss.curvature * reach * radius + not_negative("target_bound", target_bound))
    return Constants(by_records + ridge * radius, by_records, model.smoothness(feature_norm), ridge)


def problem_of(
    model: Model,
    federation: Federation,
    *,
    epsilon: float,
    delta: float,
    feature_norm: float,
    diameter: float,
    target_bound: float | None = None,
    cohort: float | None = None,
) -> ConvexProblem:
    """The problem that a model poses to a federation, from public numbers: sizes, and stated bounds.

    Silos of different sizes are all treated as the smallest.

    >>> from tacit.models import logistic_regression
    >>> federation = Federation.from_clients([([[0.0], [1.0]], [0, 1]), ([[2.0], [1.0], [0.0]], [1, 1, 0])])
    >>> p = problem_of(
    ...     logistic_regression(features=1), federation, epsilon=1.0, delta=0.1, feature_norm=2.0, diameter=4.0)
    >>> p.clients, p.records, p.dim, p.smoothness
    (2, 2, 2, 1.25)
    """
    constants = model_constants(model, feature_norm=feature_norm, diameter=diameter, target_bound=target_bound)
    return ConvexProblem(
        clients=federation.clients,
        records=int(federation.sizes.min()),
        dim=model.dim,
        epsilon=epsilon,
        delta=delta,
        lipschitz=constants.lipschitz,
        diameter=diameter,
        smoothness=constants.smoothness,
        strong_convexity=constants.strong_convexity,
        cohort=cohort,
    )
