"""Theorems 6 and 7 of DP-NormFedAvg (Das et al.): what clipping and normalising promise, for any noise.

The letters of the formulas are those of `tacit.theory.normfedavg`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import RequestError, count, positive
from tacit.theory.normfedavg.theorem_3 import participation_rate
from tacit.theory.soteriafl.checks import ROUND_OFF, not_negative


def sampling_factor(clients: int, participants: float) -> float:
    """c = 1 + 1/r - 1/n: how far a sampled mean's square may exceed the mean of squares.

    It is one if everybody takes part. E ||(1/r) sum_{i in S} x_i||^2 <= c (1/n) sum_i ||x_i||^2 when each i is
    in S with a coin of r/n, with equality for equal x_i. Eq. 12 of the paper has 1 for c, which needs |S| = r:
    its sampling makes |S| random. With r = 1/5, one coordinate and no noise a run exceeds the printed bound of
    Theorem 7 nearly three times; with r of 1 and more only its proof is known to fail.

    >>> sampling_factor(2, 1)  # equal x: |S| is 0, 1 or 2, and the mean of |S|^2 is 1.5
    1.5
    """
    participation_rate(clients, participants)
    return 1 + 1 / participants - 1 / clients


@dataclass(frozen=True, kw_only=True)
class LocalRuns:
    """One setting of Algorithm 1: the same step h for clients and server, full local gradients.

    `noise_std` is that on a coordinate of the mean (s), `distance` is ||w_0 - w*|| or more.
    """

    clients: int
    participants: float
    dim: int
    rounds: int
    local_steps: int
    step: float
    clip_norm: float
    noise_std: float
    smoothness: float
    distance: float

    def __post_init__(self) -> None:
        participation_rate(self.clients, self.participants)
        for setting in ("dim", "rounds", "local_steps"):
            count(setting, getattr(self, setting))
        for setting in ("step", "clip_norm", "smoothness"):
            positive(setting, getattr(self, setting))
        for setting in ("noise_std", "distance"):
            not_negative(setting, getattr(self, setting))
        limit = 1 / (4 * self.smoothness * self.local_steps)
        if self.step > limit * (1 + ROUND_OFF):
            raise RequestError(
                f"step must be at most 1/(4 smoothness local_steps) = {limit:.6g} for Theorems 4, 6 and 7, not "
                f"{self.step!r}: lower it, or take fewer local steps"
            )

    @property
    def travel(self) -> float:
        """h L E: how far a round carries a client, in units of the curvature; at most 1/4."""
        return self.step * self.smoothness * self.local_steps

    @property
    def start_and_noise(self) -> float:
        """D^2/(h E K) + h d s^2/E, the term A of Theorem 4 before its choices are put in (eq. 36)."""
        start = self.distance**2 / (self.step * self.local_steps * self.rounds)
        return start + self.step * self.dim * self.noise_std**2 / self.local_steps


@dataclass(frozen=True)
class Inequality:
    """What is proved: the mean over rounds and clients of `near` g_i or `far` ||u_i|| is at most `right`.

    g_i is f_i(w) - f_i(w*) for clipping, and (C/||u_i||) (f_i(w) - f_i(w*)) for normalising, of a client whose
    update u_i is no longer than C; the others count by the length of their update. `far` is negative, and the
    inequality weak, when few clients take long steps.
    """

    near: float
    far: float
    right: float


def clipping_inequality(runs: LocalRuns, *, mean_gap: float = 0.0, largest_gap: float = 0.0) -> Inequality:
    """Theorem 6, DP-FedAvg with clipping. The gaps are the mean and the largest Delta_i = f_i(w*) - min f_i.

    With a = h L E and c = `sampling_factor`:
    near = 2 - 2 c a - 4 a^2, far = (3 - 8 (c-1) a) C / (8 L E^2), right = D^2/(h E K) + h d s^2/E
    + 2 a (c + 2 a) mean_gap. The paper has c = 1, which its proof has only if everybody takes part (or r clients
    exactly). It needs C >= 4 E sqrt(L largest_gap), less is refused.

    >>> runs = LocalRuns(clients=10, participants=10, dim=4, rounds=100, local_steps=2, step=0.125, clip_norm=2.0,
    ...                  noise_std=0.1, smoothness=1.0, distance=1.0)
    >>> found = clipping_inequality(runs)
    >>> found.near, found.far, round(found.right, 6)
    (1.25, 0.1875, 0.0425)
    """
    _check_clip_norm(runs, largest_gap)
    a, c = runs.travel, sampling_factor(runs.clients, runs.participants)
    right = runs.start_and_noise + 2 * a * (c + 2 * a) * not_negative("mean_gap", mean_gap)
    near = 2 - 2 * c * a - 4 * a**2
    if near <= 0:
        raise RequestError(
            f"participants = {runs.participants!r} are too few for step = {runs.step!r}: the bound is empty; "
            "lower the step or expect more clients"
        )
    return Inequality(near, _far(runs, c), right)


def normalising_inequality(
    runs: LocalRuns, *, mean_weighted_gap: float = 0.0, largest_gap: float = 0.0
) -> Inequality:
    """Theorem 7, DP-NormFedAvg; `mean_weighted_gap` is E mean_i (C/||u_i||) Delta_i where ||u_i|| <= C.

    With a and c as in `clipping_inequality`:
    near = 2 - 4 a^2, far the same, right = D^2/(h E K) + h d s^2/E + c h C^2/E + 4 a^2 mean_weighted_gap.
    A client with u_i = 0 sends zero; it stands at its own optimum, and counts with weight 0 in both means.

    g_i is negative where f_i(w) < f_i(w*): the mean of g_i bounds f(w) - f(w*) only if all Delta_i are 0, when
    g_i >= f_i(w) - f_i(w*) >= 0. Otherwise normalising need not find w* however small noise and step are: with
    three clients at 0, 0 and 1 and f_i = sqrt(1 + (w - a_i)^2), it settles at 0, the median, while w* = 0.30.

    >>> runs = LocalRuns(clients=10, participants=10, dim=4, rounds=100, local_steps=2, step=0.125, clip_norm=2.0,
    ...                  noise_std=0.1, smoothness=1.0, distance=1.0)
    >>> found = normalising_inequality(runs)
    >>> found.near, found.far, round(found.right, 6)
    (1.75, 0.1875, 0.2925)
    """
    _check_clip_norm(runs, largest_gap)
    a, c = runs.travel, sampling_factor(runs.clients, runs.participants)
    right = runs.start_and_noise + c * runs.step * runs.clip_norm**2 / runs.local_steps
    right += 4 * a**2 * not_negative("mean_weighted_gap", mean_weighted_gap)
    return Inequality(2 - 4 * a**2, _far(runs, c), right)


def _far(runs: LocalRuns, c: float) -> float:
    # A long update has ||u|| > C, so the (c - 1) h^2 C^2 that eq. 21 lacks is at most (c - 1) h^2 C ||u||.
    per_length = runs.clip_norm / (8 * runs.smoothness * runs.local_steps**2)
    return (3 - 8 * (c - 1) * runs.travel) * per_length


def _check_clip_norm(runs: LocalRuns, largest_gap: float) -> None:
    least = 4 * runs.local_steps * math.sqrt(runs.smoothness * not_negative("largest_gap", largest_gap))
    if runs.clip_norm < least * (1 - ROUND_OFF):
        raise RequestError(
            f"clip_norm must be at least 4 local_steps sqrt(smoothness largest_gap) = {least:.6g} for Theorems 6 "
            f"and 7, not {runs.clip_norm!r}"
        )
