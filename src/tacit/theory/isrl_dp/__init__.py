"""What the theorems of ISRL-DP (Lowy & Razaviyayn 2023) prescribe and promise, with one file per idea.

Letters of the formulas: N `clients`, M of them `reporting` in a round (1/M is the mean of 1/M_r), n `records` of
each client, d `dim`, L `lipschitz`, D `diameter` of the domain, beta `smoothness`, mu `strong_convexity`,
kappa = beta/mu, phi `gradient_spread` and v `heterogeneity` (root mean square distances of gradients, within and
between silos), Delta `loss_gap` = F(w_0) - F*, R `rounds`, K `batch`, s `noise_std` of a coordinate of a client's
message, V^2 `variance` of a round's averaged gradient, ln1d = ln(1/delta). A risk is an expected excess loss,
F(w) - F*.

Nothing here makes a run private. The paper's noise is kept for comparison; `mb_sgd_bound`, `regularised_bound`
and `multi_stage_bound` take the noise that is really used, with all constants proved, so they hold for exactly
calibrated noise. The orders of Figure 3 have constant 1.
"""

from __future__ import annotations

from tacit.theory.isrl_dp.accelerated import (
    accelerated_terms,
    best_regularisation,
    fit_stages,
    gradient_variance,
    multi_stage_bound,
    regularised_bound,
    stage_curvature,
    stage_rounds,
    stage_weights,
    variance_terms,
)
from tacit.theory.isrl_dp.constants import Constants, model_constants, problem_of
from tacit.theory.isrl_dp.figure_3 import Figure3Row, figure_3, lower_bound, unmet_conditions, upper_bound
from tacit.theory.isrl_dp.mb_sgd import (
    longest_step,
    mb_sgd_bound,
    mb_sgd_step,
    mb_sgd_terms,
    second_moment,
    stability,
)
from tacit.theory.isrl_dp.problem import SETTINGS, ConvexProblem
from tacit.theory.isrl_dp.published_noise import (
    experiment_batch,
    experiment_noise_std,
    resampled_noise_std,
    smallest_batch,
)
from tacit.theory.isrl_dp.smoothing import model_smoothing, smoothing, smoothing_loss

__all__ = [
    "SETTINGS",
    "Constants",
    "ConvexProblem",
    "Figure3Row",
    "accelerated_terms",
    "best_regularisation",
    "experiment_batch",
    "experiment_noise_std",
    "figure_3",
    "fit_stages",
    "gradient_variance",
    "longest_step",
    "lower_bound",
    "mb_sgd_bound",
    "mb_sgd_step",
    "mb_sgd_terms",
    "model_constants",
    "model_smoothing",
    "multi_stage_bound",
    "problem_of",
    "regularised_bound",
    "resampled_noise_std",
    "second_moment",
    "smallest_batch",
    "smoothing",
    "smoothing_loss",
    "stability",
    "stage_curvature",
    "stage_rounds",
    "stage_weights",
    "unmet_conditions",
    "upper_bound",
    "variance_terms",
]
