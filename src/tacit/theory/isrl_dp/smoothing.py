"""Smoothing a loss by its Moreau envelope: Lemma D.7, and its use in Theorems D.2 and F.2.

f_beta(w) = min_v f(v) + (beta/2) ||w - v||^2, in ISRL-DP (Lowy & Razaviyayn 2023). The letters of the formulas
are those of `tacit.theory.isrl_dp`.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, positive, unknown_name
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.theory.isrl_dp.constants import problem_of
from tacit.theory.isrl_dp.problem import ConvexProblem


def smoothing(problem: ConvexProblem, setting: str) -> float:
    """The beta of the envelope: in setting "iid" that of Theorem D.2, in setting "erm" that of Theorem F.2.

    D.2: L sqrt(M) / (D (1/sqrt(n) + p)) convex, mu M / (1/n + p^2) strongly, with p = sqrt(d ln1d)/(epsilon n).
    F.2: L sqrt(M) epsilon n/(D sqrt(d)) convex, mu M (epsilon n)^2/d strongly. Section 3 has no such result.

    >>> p = ConvexProblem(clients=4, records=10, dim=25, epsilon=1.0, delta=0.1)
    >>> smoothing(p, "erm")
    4.0
    """
    if setting not in ("iid", "erm"):
        raise unknown_name("setting with a result for losses that are not smooth", setting, ("iid", "erm"))
    n, m = problem.records, problem.reporting
    if setting == "erm":
        private, statistical = math.sqrt(problem.dim) / (problem.epsilon * n), 0.0
    else:
        private, statistical = problem.privacy_cost, 1 / math.sqrt(n)
    if problem.is_strongly_convex:
        return problem.strong_convexity * m / (statistical**2 + private**2)
    return problem.lipschitz * math.sqrt(m) / (problem.diameter * (statistical + private))


def model_smoothing(
    model: Model,
    federation: Federation,
    *,
    setting: str,
    epsilon: float,
    delta: float,
    feature_norm: float,
    diameter: float,
    cohort: float | None = None,
) -> float:
    """The beta (`smoothing`) for a model whose loss is not smooth, from public numbers (`problem_of`).

    A model made with `smoothing=beta` is then a smooth problem: settings should be prescribed for its
    `problem_of`, and `smoothing_loss` must be added to a bound on its risk. The model smooths only the records'
    loss. A ridge penalty stays outside, so the smoothness is beta + ridge and mu = ridge is kept in full, unlike
    in `smoothed`, which takes the envelope of everything.

    >>> from tacit.models import build_model
    >>> federation = Federation.from_clients([([[0.0], [0.6]], [0, 1]), ([[0.3], [0.1]], [1, 0])])
    >>> numbers = {"epsilon": 1.0, "delta": 0.1, "feature_norm": 1.0, "diameter": 2.0}
    >>> beta = model_smoothing(build_model("svm", federation), federation, setting="erm", **numbers)
    >>> round(beta, 3)
    1.414
    >>> problem_of(build_model("svm", federation, {"smoothing": beta}), federation, **numbers).smoothness == beta
    True
    """
    problem = problem_of(
        model,
        federation,
        epsilon=epsilon,
        delta=delta,
        feature_norm=feature_norm,
        diameter=diameter,
        cohort=cohort,
    )
    if problem.smoothness is not None:
        raise RequestError("model must have a loss with a kink: this one is smooth; leave smoothing as it is")
    return smoothing(problem, setting)


def smoothing_loss(problem: ConvexProblem, beta: float) -> float:
    """The largest error caused by the envelope (Lemma D.7): L^2/(2 beta).

    >>> smoothing_loss(ConvexProblem(clients=4, records=10, dim=25, epsilon=1.0, delta=0.1), 4.0)
    0.125
    """
    return problem.lipschitz**2 / (2 * positive("beta", beta))
