"""How much of a round's direction is signal: appendix F of DP-NormFedAvg (Das et al.).

The letters of the formulas are those of `tacit.theory.normfedavg`. Both ratios look at the mean update before the
noise. They are for the eyes of whoever runs a simulation: to publish one is a release that no guarantee here
covers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from tacit.errors import RequestError
from tacit.theory.soteriafl.checks import not_negative


def signal_to_noise(update_mean: ArrayLike, noise_mean: ArrayLike) -> float:
    """Appendix F, Figure 3: ||(1/r) sum g_i|| / ||(1/r) sum zeta_i||, the noise as it was drawn.

    Infinite where there is no noise, zero where there is no signal. Normalising has the higher ratio when updates
    point the same way. "Never lower than that of clipping" (Figure 3) is an observation and no theorem: updates
    of 1 and -0.1 with C = 1 have mean 0.45 clipped and 0 normalised.

    >>> signal_to_noise([3.0, 4.0], [0.0, 2.0])
    2.5
    """
    signal, noise = _vector("update_mean", update_mean), _vector("noise_mean", noise_mean)
    if signal.shape != noise.shape:
        raise RequestError(
            f"noise_mean must have the {signal.size} coordinates of update_mean, not {noise.size}: "
            "give both for the same round"
        )
    return _ratio(float(np.linalg.norm(signal)), float(np.linalg.norm(noise)))


def expected_signal_to_noise(update_mean: ArrayLike, noise_std: float) -> float:
    """The same with the noise's root mean square s sqrt(d) for the noise drawn: ||(1/r) sum g_i|| / (s sqrt(d)).

    For when only the standard deviation on the mean is known. The mean of the ratio itself over the noise is
    larger by Gamma((d-1)/2) sqrt(d/2) / Gamma(d/2), less than 1 + 1/d from d = 5 on.

    >>> expected_signal_to_noise([3.0, 4.0, 0.0, 0.0], 0.5)
    5.0
    """
    signal = _vector("update_mean", update_mean)
    return _ratio(float(np.linalg.norm(signal)), not_negative("noise_std", noise_std) * math.sqrt(signal.size))


def _ratio(signal: float, noise: float) -> float:
    if signal == 0:
        return 0.0
    return signal / noise if noise > 0 else math.inf


def _vector(setting: str, values: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
        raise RequestError(
            f"{setting} must be one vector of finite numbers, not an array of shape {vector.shape}"
        )
    return vector
