"""What the theorems of Fed-SPA (Hu et al., papers/002) prescribe and promise, as printed and as corrected.

Letters of the formulas: n `agents` of a round, m `records` of each, B `batch`, q = B/m, tau `local_steps`, T
`rounds`, I the rounds in which an agent takes part, I tau its `steps`, d `dim`, k = p d the active coordinates,
p `ratio`, G/sqrt(d) the bound on a coordinate of a record's gradient, L `smoothness`, h `local_step` and h_g
`server_step`, kappa and beta_2 those of the adaptive server, F_0 `loss_gap` = f(theta_0) - f*, sigma
`noise_std` (on each active coordinate of the mean gradient), z `noise_multiplier` = sigma B/(G sqrt(p)), ln1d =
ln(1/delta).

Only `exact_noise_multiplier` and `rdp_epsilon` are about privacy that is proved, and only `corrected_bound` about
convergence that is; what is called printed is the paper's, kept for comparison. Its docstring says what is
wrong with it.
"""

from __future__ import annotations

from tacit.theory.fed_spa.corrected import corrected_bound, largest_root, local_drift, step_excess
from tacit.theory.fed_spa.lemma_5 import closed_form_rdp, rdp_epsilon, subsampled_rdp
from tacit.theory.fed_spa.theorem_1 import (
    Condition,
    condition,
    exact_noise_multiplier,
    feasible,
    noise_std,
    printed_squared_sensitivity,
    squared_sensitivity,
    theorem_1_epsilon,
)
from tacit.theory.fed_spa.theorem_2 import (
    Training,
    lemma_3_choices,
    lemma_3_least_rounds,
    lemma_3_order,
    message_energy,
    noise_energy,
    printed_best_ratio,
    printed_bound,
    printed_message_energy,
    printed_step_limit,
    proof_excess,
)
from tacit.theory.published.fed_spa import CORRECTED, PRINTED, best_alpha, theorem_1_noise_multiplier

__all__ = [
    "CORRECTED",
    "PRINTED",
    "Condition",
    "Training",
    "best_alpha",
    "closed_form_rdp",
    "condition",
    "corrected_bound",
    "exact_noise_multiplier",
    "feasible",
    "largest_root",
    "lemma_3_choices",
    "lemma_3_least_rounds",
    "lemma_3_order",
    "local_drift",
    "message_energy",
    "noise_energy",
    "noise_std",
    "printed_best_ratio",
    "printed_bound",
    "printed_message_energy",
    "printed_squared_sensitivity",
    "printed_step_limit",
    "proof_excess",
    "rdp_epsilon",
    "squared_sensitivity",
    "step_excess",
    "subsampled_rdp",
    "theorem_1_epsilon",
    "theorem_1_noise_multiplier",
]
