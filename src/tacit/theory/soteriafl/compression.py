"""The cost of compression in SoteriaFL (Li et al. 2022): section 2, and its part in Theorem 3 and Corollary 1.

The letters of the formulas are those of `tacit.theory.soteriafl`.
"""

from __future__ import annotations

import math

from tacit.errors import count
from tacit.theory.checks import not_negative


def shift_step(omega: float) -> float:
    """The rate at which a client's shift moves (gamma of Theorem 3): sqrt((1 + 2w) / (2 (1 + w)^3)).

    >>> round(shift_step(19.0), 4)
    0.0494
    """
    not_negative("omega", omega)
    return math.sqrt((1 + 2 * omega) / (2 * (1 + omega) ** 3))


def compression_load(clients: int, omega: float) -> float:
    """How heavily compression weighs on this many clients (tau of Corollary 1): (1 + w)^(3/2) / sqrt(n).

    Below 1 compression costs no extra rounds, up to constants.

    >>> compression_load(16, 3.0)
    2.0
    """
    return float((1 + not_negative("omega", omega)) ** 1.5 / math.sqrt(count("clients", clients)))
