"""What the theorems of SoteriaFL (Li et al. 2022) prescribe and promise, with one file per idea.

Letters of the formulas: n `clients`, m `records` of each client, d `dim`, w `omega`, L `smoothness`,
G `gradient_bound`, T `rounds`, b `batch`, q = b/m, s `noise_std` of a coordinate of a client's message,
D `loss_gap` = f(x^0) - f*, ln1d = ln(1/delta). A utility is E||grad f(x^t)||^2, averaged over the rounds.

Nothing here makes a run private. The paper's noise is kept for comparison; the bounds of Theorems 1 and 3 take
the standard deviation that is really used, so they hold for exactly calibrated noise.
"""

from __future__ import annotations

from tacit.theory.soteriafl.cdp_sgd import cdp_rounds, cdp_step, cdp_terms
from tacit.theory.soteriafl.compression import compression_load, shift_step
from tacit.theory.soteriafl.corollaries import (
    balanced_beta,
    saga_beta_and_step,
    sgd_batch,
    svrg_beta_and_step,
)
from tacit.theory.soteriafl.estimators import EstimatorConstants, saga_constants, sgd_constants, svrg_constants
from tacit.theory.soteriafl.prescription import Prescription, exact_noise_constant, prescribe
from tacit.theory.soteriafl.problem import Problem
from tacit.theory.soteriafl.published_noise import AS_PUBLISHED, amplification_excess, published_noise_std
from tacit.theory.soteriafl.tables import Table1Row, Table2Row, table_1, table_2
from tacit.theory.soteriafl.theorem_3 import (
    balancing_rounds,
    initial_potential,
    largest_step,
    longest_step,
    smallest_beta,
    theorem_3_terms,
    variance_weight,
)

__all__ = [
    "AS_PUBLISHED",
    "EstimatorConstants",
    "Prescription",
    "Problem",
    "Table1Row",
    "Table2Row",
    "amplification_excess",
    "balanced_beta",
    "balancing_rounds",
    "cdp_rounds",
    "cdp_step",
    "cdp_terms",
    "compression_load",
    "exact_noise_constant",
    "initial_potential",
    "largest_step",
    "longest_step",
    "prescribe",
    "published_noise_std",
    "saga_beta_and_step",
    "saga_constants",
    "sgd_batch",
    "sgd_constants",
    "shift_step",
    "smallest_beta",
    "svrg_beta_and_step",
    "svrg_constants",
    "table_1",
    "table_2",
    "theorem_3_terms",
    "variance_weight",
]
