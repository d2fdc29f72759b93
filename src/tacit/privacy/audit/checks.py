"""Direct measurements: does the noise have the size and the law that the promise relies on?

Guesses only bound epsilon from below, and are weak where the bound is loose or a record is seldom drawn. But
someone who has the code can run it with and without noise, and with either of two neighbouring records, using the
same random numbers. That shows how far one record moves a message and its noise, to within about a percent.

Every check is a statistical test. For code that keeps its promise it fails with probability at most `LEVEL`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tacit.privacy.accountant.pairs import Array
from tacit.privacy.audit.guesses import clopper_pearson_lower

Counts = NDArray[np.int64]

LEVEL = 1e-3
"""The chance of a false alarm in each check."""

_ROUNDING = 1e-3
"""Relative allowance for sums in single precision."""

_NEARLY = 0.9
"""Rounds whose ratio of movement to noise is at least this fraction of the largest are checked together."""

_FEWEST_NUMBERS = 30
"""The noise of a group of messages is not estimated from fewer numbers than this."""

_FINE, _COARSE = 1e-5, 0.5
"""Relative rounding of numbers on a grid, and the share of all numbers that may be distinct there."""


@dataclass(frozen=True)
class Check:
    """One thing that was measured and compared with the promise."""

    name: str
    measured: float
    promised: float
    violated: bool
    finding: str
    """the result in words"""


def noise_check(movements: Array, allowed: Array, noise: Array, groups: Counts, *, unit: str = "record") -> Check:
    """Whether one record moves a message by no more of the noise's standard deviations than the promise allows.

    Args:
        movements: (some trials, rounds), how far the canary moved messages, everything else being equal.
        allowed: (the same trials, rounds), how far it may have, in standard deviations.
        noise: (trials, rounds, numbers), the noise of the messages; nan where nothing was sent.
        groups: (trials, rounds), messages whose noise is checked separately, since it must not depend on data.
        unit: what moves (a record or a client), for the sentence.

    Movement divided by allowance is the noise that a round must have. Half of the trials find the rounds where
    the noise comes closest to that limit. The other half are compared with it in these rounds, in the group with
    the least noise, at the upper confidence limit of its standard deviation (chi-square).
    """
    rounding = _ROUNDING * float(movements.max())
    if ((allowed == 0) & (movements > rounding)).any():
        return Check("noise", math.inf, 0.0, True, f"a {unit} moves messages for which it was not drawn")
    if not float(movements.max()):
        return Check("noise", 0.0, 0.0, False, f"no {unit} was drawn for a message: nothing was moved")
    needed = np.divide(movements, allowed, out=np.zeros_like(movements), where=allowed > 0).max(0)
    half = len(noise) // 2
    # Rounds without any noise are the worst of all.
    with np.errstate(over="ignore"):
        tightness = needed / np.maximum(_deviations(noise[:half]), np.finfo(float).tiny)
    worst = tightness >= _NEARLY * tightness.max()
    scaled, kinds = noise[half:, worst] / needed[worst, None], groups[half:, worst]
    present = np.unique(kinds)
    limits, estimates = [], []
    for kind in present:
        numbers = scaled[kinds == kind]
        numbers = numbers[np.isfinite(numbers)]
        if len(numbers) >= _FEWEST_NUMBERS:
            total, free = float(((numbers - numbers.mean()) ** 2).sum()), len(numbers) - 1
            limits.append(math.sqrt(total / stats.chi2.ppf(LEVEL / len(present), free)))
            estimates.append(math.sqrt(total / free))
    if not limits:
        return Check("noise", math.nan, math.nan, False, "too few numbers were released to measure their noise")
    may = float(allowed[:, worst].max())
    most = may / min(estimates) if min(estimates) else math.inf
    surely = may / min(limits) if min(limits) else math.inf
    words = (
        f"one {unit} moves a message by about {most:.3g} standard deviations of its noise, surely by "
        f"{surely:.3g}; {may:.3g} allowed"
    )
    return Check("noise", most, may, min(limits) < 1 - _ROUNDING, words)


def _deviations(noise: Array) -> Array:
    """The root mean square of each round's noise where it was seen; one where it was not."""
    seen = np.isfinite(noise)
    squares = np.where(seen, noise, 0.0) ** 2
    axes = tuple(axis for axis in range(noise.ndim) if axis != 1)
    number = seen.sum(axes)
    return np.asarray(np.where(number > 0, np.sqrt(squares.sum(axes) / np.maximum(number, 1)), 1.0))


def _in_deviations(noise: Array) -> Array:
    """The noise of each round divided by its own standard deviation, because step sizes may change by round."""
    return noise / np.maximum(_deviations(noise), np.finfo(float).tiny).reshape(1, -1, *[1] * (noise.ndim - 2))


def law_check(noise: Array, sent: Array) -> Check:
    """Whether the noise looks Gaussian (Kolmogorov-Smirnov test), whatever its standard deviation is.

    Args:
        noise: (trials, rounds, ...), what was added; nan where nothing was sent.
        sent: what was sent with it. If that lies on a grid, as with coins as noise, the distribution function
            may be off by the mass of one cell.

    With estimated standard deviations, one for every round, the test is conservative.
    """
    deviations = _deviations(noise)
    numbers = _in_deviations(noise)
    numbers = numbers[np.isfinite(numbers)]
    if not deviations.all():
        return Check("law", 0.0, LEVEL, True, "there are rounds without any noise")
    cell = _grid_step(sent[np.isfinite(sent)]) / (float(deviations.min()) * math.sqrt(2 * math.pi))
    distance = float(stats.kstest(numbers, "norm").statistic)
    p_value = float(stats.kstwobign.sf(math.sqrt(len(numbers)) * max(0.0, distance - cell)))
    words = f"{len(numbers):,} numbers, Gaussian with a p-value of {p_value:.2g}"
    return Check("law", p_value, LEVEL, p_value < LEVEL, words)


def _grid_step(numbers: Array) -> float:
    """The distance between neighbours if there are few distinct numbers up to rounding; otherwise 0."""
    unit = _FINE * float(np.abs(numbers).max(initial=0.0))
    values = np.unique(np.round(numbers / unit)) if unit else np.zeros(0)
    return unit * float(np.diff(values).min()) if 1 < len(values) <= _COARSE * len(numbers) else 0.0


def freshness_check(noise: Array) -> Check:
    """Whether every number has independent noise: no two clients, rounds or coordinates share any.

    Args:
        noise: (clients, rounds, coordinates); nan where nothing was sent.

    Along each of the three axes, squares of sums of n numbers over n times their variance have a chi-square law.
    Sums that are too large indicate noise that was used again, sums that are too small noise that cancels.
    """
    seen = np.isfinite(noise)
    numbers = np.where(seen, _in_deviations(noise), 0.0)
    variance = float((numbers**2).sum() / max(1, seen.sum()))
    least, where = 1.0, "clients"
    for axis, name in enumerate(("clients", "rounds", "coordinates")):
        there, sums = seen.sum(axis), numbers.sum(axis)
        sums, there = sums[there > 1], there[there > 1]
        if len(sums) and variance:
            squares = float((sums**2 / (there * variance)).sum())
            tails = stats.chi2.cdf(squares, len(sums)), stats.chi2.sf(squares, len(sums))
            p_value = min(1.0, 3 * 2 * float(min(tails)))
            least, where = min((least, where), (p_value, name))
    words = f"independent of each other with a p-value of {least:.2g}"
    if least < LEVEL:
        words = f"the noise of different {where} is not independent (p-value {least:.2g})"
    return Check("freshness", least, LEVEL, least < LEVEL, words)


def draws_check(draws: Counts, *, chance: float, most: int | None, unit: str = "record") -> Check:
    """Whether the canary is drawn as rarely as the promise assumes.

    Args:
        draws: (trials, rounds), how often the canary was drawn for a message.
        chance: the probability with which a message may depend on it at all.
        most: how often it may be drawn in a whole run, if there is a limit.
        unit: what is drawn (a record or a client), for the sentence.
    """
    drawn, messages = int((draws > 0).sum()), draws.size
    at_least = float(clopper_pearson_lower(drawn, messages, 1 - LEVEL))
    too_often = most is not None and int(draws.sum(1).max()) > most
    words = f"a {unit} was in {drawn / messages:.3%} of {messages:,} messages, {chance:.3%} expected"
    if too_often:
        words = f"a {unit} was drawn {int(draws.sum(1).max())} times in one run, {most} promised"
    return Check("draws", drawn / messages, chance, at_least > chance or too_often, words)


def others_check(base: Array, draws: Counts) -> Check:
    """Whether the other records' contribution is independent of the canary's coin, as Poisson sampling promises.

    Args:
        base: (trials, rounds), the noiseless message without the canary, along one direction.
        draws: (trials, rounds), how often the canary was drawn.

    The correlation of the two, round by round, is zero on average.
    """
    scores, rounds = 0.0, 0
    for t in range(base.shape[1]):
        values, coins = base[:, t] - base[:, t].mean(), draws[:, t] - draws[:, t].mean()
        scale = float(values.std() * coins.std())
        if scale > _ROUNDING * float(np.abs(base).max()) * float(coins.std()) and scale > 0:
            scores += float((values * coins).mean() / scale) * math.sqrt(len(values))
            rounds += 1
    p_value = float(2 * stats.norm.sf(abs(scores) / math.sqrt(rounds))) if rounds else 1.0
    words = f"what others add is independent of a record's coin with a p-value of {p_value:.2g}"
    return Check("others", p_value, LEVEL, p_value < LEVEL, words)
