"""What the theorems of DP-NormFedAvg (Das et al., papers/004) prescribe and promise, one file an idea.

Letters of the formulas: n `clients`, r the expected number of `participants` of a round (each client joins with a
coin of r/n), d `dim`, K `rounds`, E `local_steps`, h `step` of clients and server, C `clip_norm` (the paper's
clipping threshold or scaling factor), L `smoothness`, G `gradient_bound`, D `distance` = ||w_0 - w*||, u_i a
client's update, Delta_i = f_i(w*) - min f_i its gap, z `noise_multiplier` (on the sum of a round, in C), s
`noise_std` of a coordinate of the mean of a round, s = z C / r, ln1d = ln(1/delta). Losses are convex.

Nothing here makes a run private but `exact_noise_multiplier`, and that only for sums whose participants are
secret. Bounds take the noise that is really used. Where the paper's proof has a gap (`sampling_factor`) they
have it closed.
"""

from __future__ import annotations

from tacit.theory.normfedavg.recursion import (
    Inequality,
    LocalRuns,
    clipping_inequality,
    normalising_inequality,
    sampling_factor,
)
from tacit.theory.normfedavg.signal import expected_signal_to_noise, signal_to_noise
from tacit.theory.normfedavg.theorem_3 import (
    condition_excess,
    exact_noise_multiplier,
    participation_rate,
    rho,
    rho_of_noise,
    theorem_3_constant,
    theorem_3_noise_std,
)
from tacit.theory.normfedavg.theorem_4 import (
    Choices,
    Prescription,
    Problem,
    asymptotic_gap_bound,
    clipping_gap_bound,
    normalising_gap_bound,
    prescribe,
    theorem_4_choices,
)

__all__ = [
    "Choices",
    "Inequality",
    "LocalRuns",
    "Prescription",
    "Problem",
    "asymptotic_gap_bound",
    "clipping_gap_bound",
    "clipping_inequality",
    "condition_excess",
    "exact_noise_multiplier",
    "expected_signal_to_noise",
    "normalising_gap_bound",
    "normalising_inequality",
    "participation_rate",
    "prescribe",
    "rho",
    "rho_of_noise",
    "sampling_factor",
    "signal_to_noise",
    "theorem_3_constant",
    "theorem_3_noise_std",
    "theorem_4_choices",
]
