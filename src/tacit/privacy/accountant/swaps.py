"""Gaussian messages behind a shuffler: a client's message could be that of any other client.

Units are standard deviations of the noise. One client's message is p0 = N(a) or p1 = N(b), |a - b| <= r =
`shift`; the others' are R_k = N(u_k). All of a, b and the u_k lie in a ball of diameter c = `client_shift`, in
any dimension.

**Swaps.** Of the N others, set N' aside. Draw k at random among the K others that are left. The adversary sees
who sent what among these K, except that the client's message stands in place of k's; and k's own message,
mixed with those of the N' who were set aside. That tells more than all messages mixed. Let f_k be the law of the
mixed part and f the mean of the f_k. Relative to R_1 x ... x R_K x f, the densities are

    P: mean over k of Omega_k p0/R_k,   Q: mean over k of Omega_k p1/R_k,   with Omega_k = f_k/f.

Cut every Omega_k off at a level M, and give what is cut off to others that are below M. That moves P and Q in
total variation by at most tau(M), the mean over k of H_M(f_k || f).

**Theorem.** For what is left, and n = floor(K/M),

    H_g <= h_n(g) = E (mean of n independent copies of X_g)_+   for every g > 0.

X_g is this variable, with w(s) = exp(s y - s^2/2) for the density of N(s) over N(0) at y: for x >= 0, X_g > x has
the chance of 1 - g w(-r) > x w(-c) under y ~ N(-c), and X_g < -x that of w(r) + x w(c) < g under y ~ N(c).

*Proof.* Given the mixed part, H_g of what is left is E (sum_k c_k L_k)_+. Here L_k = (p0 - g p1)/R_k, independent
under the R_k, and the c_k add up to one and are at most M/K <= 1/n. E (L_k - x)_+ is the integral of
(p0 - g p1 - x R_k)_+. By Lemma A of docs/privacy.md, around a if x >= 0 and around b if not, it is largest for
N(0), N(-r), N(-c) or for N(r), N(0), N(c) on a line, and that is E (X_g - x)_+. So X_g is above every L_k in the
convex order, and may stand in its place. E (sum_k c_k X_k)_+ is convex and symmetric in the c_k, hence largest
where n of them are 1/n. QED

h_n is the profile of a pair: h_n(g) = 1 - g + g h_n(1/g), because X_g and -g X_(1/g) have the same law; and it
is convex. (E (X_g - x)_+ is convex in g and x together, as the largest of integrals that are. So X_g, at a mean
of two g, is below the same mean of the two X_g, taken as increasing functions of one variable. By induction, so
are the sums of n of them.)

**The level.** Two bounds on tau(M), for nobody set aside and for N':

- The mean of the R_k is at least e^(-V/2) N(u), where u is the mean of the u_k and V that of |u_k - u|^2,
  because the logarithm of a mean is at least the mean of logarithms. If u is at a distance of t from the middle
  of the ball, then V <= c^2/4 - t^2 and |u_k - u| <= c/2 + t. So tau(M) is at most the largest over t of (c^2/4
  - t^2) times the largest over s <= c/2 + t of delta_Gauss(s; log M - V/2)/s^2.
- H_M(f_k || f) is at most the largest H_M(f_k || f_j). That is the same question again, for N' others, a client
  at a distance of c, and M in place of g. So tau(M) <= h_n'(M) + (1 + M) tau'(M') for any split of the N'.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from tacit._deferred import fft
from tacit.privacy.accountant import gaussian
from tacit.privacy.accountant.clones import ClonePair
from tacit.privacy.accountant.pairs import Array

_PARTS, _DEPTH = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2), 3
"""Which fractions of the others may be set aside, and how deep this is repeated among those set aside."""

_LEVEL_PRECISION = 0.02
"""Relative precision of the logarithm of a level. It affects how tight the bound is, not whether it holds."""

_NODES = 160
"""Cells of each side of X_g; the mass of each goes to its ends, such that it and the mean are kept."""

_PER_DEVIATION = 10
"""Lattice points per standard deviation of X_g, on which sums are taken."""

_LOSSES_PER_DEVIATION, _LEAST_GROWTH = 6, 1.015
"""Points of the profile per standard deviation of the loss, and how the steps between them grow."""

_CELLS = 32

_MOST_POINTS, _FAR = 2**20, 24.0
"""About the most points of a lattice, and how many deviations of a sum it spans."""


def hiding_clients(others: int, client_shift: float, log_slip: float) -> int:
    """The theorem's n for a tau of at most exp(`log_slip`) and the best number to set aside; 0 for nobody."""
    slips, nobody = [log_slip], [_log_level_of_nobody(client_shift, log_slip)]
    for _ in range(_DEPTH - 1):
        # Half of a slip is for h_n' of those set aside, half for (1 + M) times what they cut off in turn.
        slips.append(slips[-1] - math.log(2) - float(np.logaddexp(0.0, nobody[-1])))
        nobody.append(_log_level_of_nobody(client_shift, slips[-1]))
    parts = np.unique((others * np.array(_PARTS)).astype(int))
    levels: dict[int, float] = {}
    for slip, most in zip(reversed(slips), reversed(nobody), strict=True):
        inner, levels = levels, {0: most}
        for aside in parts[parts > 0].tolist():
            levels[aside] = _log_level(aside, client_shift, slip - math.log(2), inner, most)
    return max(math.floor((others - aside) * math.exp(-level)) for aside, level in levels.items())


def _log_level(aside: int, client_shift: float, log_slip: float, inner: dict[int, float], most: float) -> float:
    """The least level, up to `most`, at which h_n of those set aside, split at best, is below the slip."""
    hiding = max((math.floor((aside - few) * math.exp(-level)) for few, level in inner.items()), default=0)
    if hiding < 1 or not _is_below(log_slip, hiding, most, client_shift):
        return most
    low, high = 0.0, most
    while high - low > _LEVEL_PRECISION * high:
        middle = (low + high) / 2
        enough = _is_below(log_slip, hiding, middle, client_shift)
        low, high = (low, middle) if enough else (middle, high)
    return high


def _log_level_of_nobody(client_shift: float, log_slip: float) -> float:
    """The least log(M) with tau(M) at most the slip, where nobody is set aside."""
    low, high = 0.0, gaussian.epsilon([client_shift], [1.0], log_slip)
    while high - low > _LEVEL_PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _log_excess(client_shift, middle) > log_slip else (low, middle)
    return high


def _log_excess(client_shift: float, log_level: float) -> float:
    """log of the bound on tau with nobody set aside; cells of rho and of s are taken at their worse ends."""
    radius = client_shift / 2
    edges = np.linspace(0.0, radius, _CELLS + 1)
    variances, farthest = radius**2 - edges[:-1] ** 2, radius + edges[1:]
    levels = log_level - variances / 2
    if levels.min() <= 0:
        return 0.0
    # delta_Gauss(s; e) is the integral of phi(e/s - s/2) over s, and phi grows at least like s up to here.
    nearest = np.minimum(np.minimum(levels / 2, 3.0), farthest)
    distances = nearest * (farthest / nearest) ** np.linspace(0.0, 1.0, _CELLS + 1)[:, None]
    logs = _log_gaussian_delta(distances, levels)
    ratios = np.maximum(logs[1:] - 2 * np.log(distances[:-1]), logs[0] - 2 * np.log(distances[0]))
    return float((np.log(variances) + ratios).max())


def _log_gaussian_delta(shifts: Array, levels: Array) -> Array:
    upper, lower = log_ndtr(shifts / 2 - levels / shifts), levels + log_ndtr(-shifts / 2 - levels / shifts)
    return np.asarray(upper + np.log(-np.expm1(np.minimum(lower - upper, -1e-300))))


def _contrast(log_g: float, shift: float, client_shift: float, log_tail: float) -> tuple[Array, Array]:
    """X_g, spread out to points: values and masses. On the far right, exp(`log_tail`) of its mean is left out."""
    g, r, c, far = math.exp(log_g), shift, client_shift, -float(ndtri_exp(log_tail))
    steps = np.linspace(0.0, 1.0, _NODES + 1)
    # Positive under N(-c), where p0 = N(0) and p1 = N(-r): the mean of a cell is what it has of p0 - g p1.
    start = log_g / r - r / 2
    y = start + max(far - start, 0.0) * steps
    above = np.exp(c * y + c**2 / 2) * -np.expm1(np.minimum(r * (start - y), 0.0))
    mass, mean = -np.diff(ndtr(-y - c)), -np.diff(ndtr(-y) - g * ndtr(-y - r))
    right = _to_ends(above, mass, mean)
    # Negative under N(c), where p0 = N(r) and p1 = N(0). Everything further left counts as the last point.
    start = log_g / r + r / 2
    y = start - max(far + start, 1.0) * steps[::-1]
    below = g * np.exp(-c * y + c**2 / 2) * np.expm1(np.minimum(r * (y - start), 0.0))
    mass, mean = np.diff(ndtr(y - c)), np.diff(ndtr(y - r) - g * ndtr(y))
    left = _to_ends(below, mass, mean)
    left[0] += ndtr(y[0] - c)
    values, masses = np.append(below, above), np.append(left, right)
    masses[len(below)] += max(0.0, 1.0 - float(masses.sum()))
    return values, masses


def _to_ends(values: Array, mass: Array, mean: Array) -> Array:
    """Move the mass of every cell to its two ends, keeping its mean."""
    width = np.diff(values)
    upper = np.divide(mean - values[:-1] * mass, width, out=np.zeros_like(mass), where=width > 0)
    upper = np.clip(upper, 0.0, mass)
    return np.asarray(np.append(mass - upper, 0.0) + np.append(0.0, upper))


def _is_below(log_height: float, hiding: int, log_g: float, client_shift: float) -> bool:
    """Whether h_n(g), at a `shift` of c, is shown to be at most exp(`log_height`).

    First by x_+ <= exp(t x - 1)/t for many t, which works for heights of any size; else by the profile itself.
    """
    log_tail = log_height - math.log(8)
    values, masses = _contrast(log_g, client_shift, client_shift, log_tail)
    tilts = np.exp(np.linspace(math.log(1e-3), math.log(200.0), 64)) / max(float(values[-1]), 1e-9)
    exponents = tilts[:, None] * values
    top = exponents.max(axis=1)
    log_moments = top + np.log((masses * np.exp(exponents - top[:, None])).sum(axis=1))
    if float((hiding * log_moments - 1 - np.log(hiding * tilts)).min()) <= log_height + math.log(7 / 8):
        return True
    return math.log(_profile(hiding, log_g, client_shift, client_shift, log_height - 6)) <= log_height


@lru_cache(maxsize=64)
def swap_pair(hiding: int, shift: float, client_shift: float, log_tail: float) -> ClonePair:
    """The pair with the profile h_n, up to a few times exp(`log_tail`).

    The profile is computed at some g >= 1, and each value is increased by the possible arithmetic error. The
    greatest convex function below these points is still above the profile, and it is the profile of a pair with
    these losses.
    """
    losses, heights = _heights(hiding, shift, client_shift, log_tail)
    levels = np.exp(losses)
    kept = _convex(levels, heights)
    levels, heights, losses = levels[kept], heights[kept], losses[kept]
    slopes = np.append(np.diff(heights) / np.diff(levels), 0.0)
    scores, masses = np.tanh(losses[1:] / 2), np.maximum(np.diff(slopes), 0.0) * (1 + levels[1:]) / 2
    # Mass above the last level is charged as if it revealed everything. By symmetry, the rest has loss zero.
    unbounded = float(heights[-1])
    atom = max(0.0, 1.0 - unbounded - 2 * float(masses.sum()))
    return ClonePair(np.append(-scores[::-1], scores), np.append(masses[::-1], masses), unbounded, atom)


def _heights(hiding: int, shift: float, client_shift: float, log_tail: float) -> tuple[Array, Array]:
    """The profile at losses spaced evenly over a few deviations of the loss, and then in growing steps."""
    values, masses = _contrast(0.0, shift, client_shift, log_tail)
    deviation = math.sqrt(float((masses * values**2).sum()) / hiding)
    largest = gaussian.epsilon([shift], [1.0], log_tail)
    step = min(deviation, largest) / _LOSSES_PER_DEVIATION
    losses, heights = [0.0], [_profile(hiding, 0.0, shift, client_shift, log_tail)]
    while losses[-1] < largest and heights[-1] > 4 * math.exp(log_tail):
        losses.append(losses[-1] + step)
        heights.append(_profile(hiding, losses[-1], shift, client_shift, log_tail))
        step *= _LEAST_GROWTH
    return np.array(losses), np.array(heights)


def _profile(hiding: int, log_g: float, shift: float, client_shift: float, log_tail: float) -> float:
    """h_n(g), or a few times exp(`log_tail`) more, by a Fourier transform on a lattice."""
    values, masses = _contrast(log_g, shift, client_shift, log_tail)
    deviation = math.sqrt(float((masses * values**2).sum()))
    # A coarser lattice spreads X_g further, which is safe.
    widest = max(float(np.ptp(values)), _FAR * deviation * math.sqrt(hiding))
    step = max(deviation / _PER_DEVIATION, widest / _MOST_POINTS)
    place = values / step
    cells = np.floor(place).astype(int)
    first = int(cells.min())
    upper = place - cells
    width = int(cells.max()) - first + 2
    law: Array = np.bincount(cells - first, masses * (1 - upper), width).astype(float)
    law += np.bincount(cells + 1 - first, masses * upper, width)
    points: Array = step * (first + np.arange(width, dtype=float))
    low, high = _window(points, law, hiding, log_tail)
    length = fft.next_fast_len(math.ceil((high - low) / step) + 2, real=True)
    spectrum = fft.rfft(np.bincount((first + np.arange(width)) % length, law, length))
    power = np.exp(hiding * np.log(np.maximum(np.abs(spectrum), 1e-300)) + 1j * hiding * np.angle(spectrum))
    # A bound on the error of each mass: the error of the transforms, amplified by the power.
    rounding = 2.0**-52 * hiding * float(np.mean(np.abs(power))) * (4 + math.log2(length))
    start = math.floor(low / step)
    sums = np.roll(fft.irfft(power, length), -start)
    places = np.maximum(step * (start + np.arange(length)), 0.0)
    return float((np.maximum(sums, 0.0) + rounding) @ places) / hiding + 2 * math.exp(log_tail)


def _window(points: Array, law: Array, times: int, log_tail: float) -> tuple[float, float]:
    """The range of the sum of `times` draws, except for a part that adds at most exp(`log_tail`) to the mean.

    For h >= 1/t, the mean of what is above h is at most h exp(-t h) times the moment exp(t x).
    """
    low, high = times * float(points[0]), times * float(points[-1])
    deviation = math.sqrt(times * float((law * points**2).sum()))
    for sign, end in ((1, float(points[-1])), (-1, -float(points[0]))):
        # The largest exponent is at the end, and 300 at most.
        for tilt in np.geomspace(10 / max(end, deviation), min(10 / deviation, 300 / end), 5).tolist():
            log_moment = math.log(float(law @ np.exp(sign * tilt * points)))
            bound = max(times * log_moment - log_tail + math.log(max(end, deviation, 1.0)), 1.0) / tilt
            low, high = (low, min(high, bound)) if sign == 1 else (max(low, -bound), high)
    return low, high


def _convex(x: Array, y: Array) -> Array:
    """Which points the greatest convex function below all of them goes through."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return np.array(kept)
