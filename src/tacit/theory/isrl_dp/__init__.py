"""What the theorems of ISRL-DP (Lowy & Razaviyayn 2023, papers/001) prescribe and promise, one file an idea.

Letters of the formulas: N `clients`, M of them `reporting` in a round (1/M is the mean of 1/M_r), n `records` of
each client, d `dim`, L `lipschitz`, D `diameter` of the domain, beta `smoothness`, mu `strong_convexity`,
kappa = beta/mu, phi `gradient_spread` and v `heterogeneity` (root mean square distances of gradients, within and
between silos), Delta `loss_gap` = F(w_0) - F*, R `rounds`, K `batch`, s `noise_std` of a coordinate of a client's
message, V^2 `variance` of a round's averaged gradient, ln1d = ln(1/delta). A risk is an expected excess loss,
F(w) - F*.

Nothing here makes a run private. The paper's noise is kept for comparison; `mb_sgd_bound`, `regularised_bound`
and `multi_stage_bound` take the noise that is really used, with every constant proved, so that they hold for
noise calibrated exactly. The orders of Figure 3 have constant 1. `measured` looks at private records.
"""

from __future__ import annotations

from tacit.theory.isrl_dp.accelerated import (
    accelerated_bound,
    best_regularisation,
    mixing_weight,
    prox_weight,
    regularised_bound,
    theorem_e_1_regularisation,
)
from tacit.theory.isrl_dp.constants import Constants, model_constants, problem_of
from tacit.theory.isrl_dp.figure_3 import (
    Figure3Row,
    figure_3,
    free_epsilon,
    lower_bound,
    privacy_is_free,
    times_lower_bound,
    unmet_conditions,
    upper_bound,
)
from tacit.theory.isrl_dp.mb_sgd import (
    longest_step,
    mb_sgd_bound,
    mb_sgd_step,
    second_moment,
    stability,
    theorem_d_1_step,
    weight_growth,
)
from tacit.theory.isrl_dp.measured import (
    client_gradients,
    heterogeneity_at,
    heterogeneity_at_minimiser,
    heterogeneity_squared,
    minimiser,
)
from tacit.theory.isrl_dp.multi_stage import (
    Stage,
    fit_stages,
    halving_rounds,
    multi_stage_bound,
    stage_curvature,
    stage_rounds,
)
from tacit.theory.isrl_dp.prescription import HOME_SETTINGS, Prescription, prescribe
from tacit.theory.isrl_dp.problem import SETTINGS, Problem
from tacit.theory.isrl_dp.published_noise import (
    experiment_batch,
    experiment_noise_std,
    one_pass_noise_std,
    resampled_noise_std,
    shuffled_noise_std,
    smallest_batch,
)
from tacit.theory.isrl_dp.rounds_and_batches import (
    disjoint_batches,
    shuffled_privacy_cost,
    theorem_2_1_rounds,
    theorem_3_1_batch,
    theorem_3_1_target,
    theorem_4_1_rounds,
    theorem_4_1_target,
    theorem_5_1_rounds,
    theorem_5_2_batch,
)
from tacit.theory.isrl_dp.smoothing import model_smoothing, smoothed, smoothing, smoothing_loss
from tacit.theory.isrl_dp.unbalanced import (
    Silo,
    mean_noise_load,
    noise_load,
    silo_batches,
    unbalanced_rounds,
    unbalanced_upper_bound,
)
from tacit.theory.isrl_dp.variance import gradient_variance

__all__ = [
    "HOME_SETTINGS",
    "SETTINGS",
    "Constants",
    "Figure3Row",
    "Prescription",
    "Problem",
    "Silo",
    "Stage",
    "accelerated_bound",
    "best_regularisation",
    "client_gradients",
    "disjoint_batches",
    "experiment_batch",
    "experiment_noise_std",
    "figure_3",
    "fit_stages",
    "free_epsilon",
    "gradient_variance",
    "halving_rounds",
    "heterogeneity_at",
    "heterogeneity_at_minimiser",
    "heterogeneity_squared",
    "longest_step",
    "lower_bound",
    "mb_sgd_bound",
    "mb_sgd_step",
    "mean_noise_load",
    "minimiser",
    "mixing_weight",
    "model_constants",
    "model_smoothing",
    "multi_stage_bound",
    "noise_load",
    "one_pass_noise_std",
    "prescribe",
    "privacy_is_free",
    "problem_of",
    "prox_weight",
    "regularised_bound",
    "resampled_noise_std",
    "second_moment",
    "shuffled_noise_std",
    "shuffled_privacy_cost",
    "silo_batches",
    "smallest_batch",
    "smoothed",
    "smoothing",
    "smoothing_loss",
    "stability",
    "stage_curvature",
    "stage_rounds",
    "theorem_2_1_rounds",
    "theorem_3_1_batch",
    "theorem_3_1_target",
    "theorem_4_1_rounds",
    "theorem_4_1_target",
    "theorem_5_1_rounds",
    "theorem_5_2_batch",
    "theorem_d_1_step",
    "theorem_e_1_regularisation",
    "times_lower_bound",
    "unbalanced_rounds",
    "unbalanced_upper_bound",
    "unmet_conditions",
    "upper_bound",
    "weight_growth",
]
