"""A privacy filter: which runs a policy admits when the next run may be chosen after seeing earlier results.

It is not enough to compose the past runs with the next one and compare the result with epsilon: someone who looks
at the results first can continue where chance has already revealed much, and stop elsewhere. So a run is charged
in full when it is opened, and of several runs

    the first     was chosen before anything was released, so it is composed exactly;
    every other   counts as one Gaussian release, of the least shift that dominates it except for a small chance.

Squared shifts of Gaussian releases add up, even if they are chosen adaptively (Smith & Thakurta 2022). Guarantee:
if every run is opened only while `least_epsilon` of all of them is at most epsilon, everything that they release,
in any order and wherever they stop, is (epsilon, delta)-private. Proof: Theorem L in docs/privacy.md.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from dp_accounting import DpEvent
from scipy.special import log_ndtr, ndtri

from tacit.errors import TacitError
from tacit.privacy import events
from tacit.privacy.accountant import accounting
from tacit.privacy.accountant import cache as answers
from tacit.privacy.accountant.calibrate import calibrate_noise
from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.dominate import dominate, is_private
from tacit.privacy.accountant.inexact import Surcharge
from tacit.privacy.accountant.mixed import is_mixed
from tacit.privacy.accountant.pairs import Array
from tacit.privacy.events.runs import ChosenRunsDpEvent
from tacit.privacy.promises.guarantee import Target
from tacit.privacy.promises.terms import Adjacency

SLACK = 0.05
"""The part of delta that pays for later runs not being Gaussian; a single run may use all of delta."""

MOST_RUNS, MOST_DIFFERENT_RUNS = 1000, 64
"""More runs under one policy are refused: each takes a while, and a certificate may name any number."""

_POINTS = 64
"""Points of a profile. More of them make the shift smaller, by less than 0.1%; any number is safe."""

_MOST_EPSILON = 500.0
_PRECISION, _ROUNDING = 1e-5, 1e-9


def least_epsilon(runs: Sequence[DpEvent], delta: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> float:
    """The least epsilon of a policy that admits these runs in this order; infinite if no policy does.

    It decides what a filter admits. It is not the cost of a sequence that someone stopped at will; that cost is
    the epsilon of the policy, see `chosen_epsilon`.

    runs: the whole planned event of each run, in the order in which the runs were opened.
    delta: the policy's delta. The i-th later run may differ from a Gaussian release by SLACK delta / (i (i + 1)).

    >>> from tacit.privacy.events import gaussian
    >>> [round(least_epsilon([gaussian(10.0)] * n, 1e-5), 3) for n in range(4)]
    [0.0, 0.726, 1.064, 1.331]
    """
    if not runs:
        return 0.0
    if len(runs) == 1:
        return accounting.epsilon(runs[0], delta, adjacency)
    return accounting.epsilon(_charged(runs, delta, adjacency), (1 - SLACK) * delta, adjacency)


def chosen_epsilon(event: ChosenRunsDpEvent, delta: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> float:
    """The promise about all runs together: one run has its own epsilon, several have the policy's.

    Which further runs there are, and how many, may depend on what was released. A smaller number computed from
    the runs that happened would itself depend on the results.
    """
    least = least_epsilon(event.runs, delta, adjacency)
    return least if len(event.runs) < 2 else max(least, event.epsilon)


def room(runs: Sequence[DpEvent], target: Target) -> float:
    """The epsilon, alone and at the same delta, of the largest Gaussian release that a policy still admits.

    >>> from tacit.privacy.events import gaussian
    >>> round(room([gaussian(10.0)], Target(1.0, 1e-5)), 2)
    0.64
    """
    if not runs:
        return target.epsilon
    delta = (1 - SLACK) * target.delta
    try:
        spent = _charged(runs, target.delta, target.adjacency)
        if accounting.epsilon(spent, delta, target.adjacency) >= target.epsilon:
            return 0.0
        least_noise = calibrate_noise(
            lambda z: events.composed([spent, events.gaussian(z)]),
            epsilon=target.epsilon,
            delta=delta,
            adjacency=target.adjacency,
        )
    except TacitError:
        # Nothing can be proved about these runs, so there is no room left.
        return 0.0
    return min(target.epsilon, accounting.epsilon(events.gaussian(least_noise), target.delta, target.adjacency))


def _charged(runs: Sequence[DpEvent], delta: float, adjacency: Adjacency) -> DpEvent:
    """The first run, with one Gaussian release in place of all others."""
    if len(runs) > MOST_RUNS:
        raise CannotAnswerError(f"more than {MOST_RUNS} runs")
    first, *later = runs
    charged = Counter((json.dumps(events.to_dict(run)), _chance(i) * delta) for i, run in enumerate(later, 1))
    if len({text for text, _ in charged}) > MOST_DIFFERENT_RUNS:
        raise CannotAnswerError(f"more than {MOST_DIFFERENT_RUNS} different runs")
    shift = math.hypot(
        *(
            math.sqrt(times) * dominating_shift(events.from_dict(json.loads(text)), chance, adjacency)
            for (text, chance), times in charged.items()
        )
    )
    if shift == 0:
        return first
    if math.isinf(shift):
        return events.non_private()
    sides = 2.0 if Adjacency(adjacency) is Adjacency.REPLACE_ONE else 1.0
    return events.composed([first, events.gaussian(sides / shift)])


def _chance(i: int) -> float:
    """The i-th later run's part of delta: at most SLACK / (i (i + 1)), so that all together have at most SLACK.

    Rounded down to a power of two times SLACK, so that equal runs share a few cached answers.

    >>> [_chance(i) / SLACK for i in (1, 2, 3, 100)]
    [0.5, 0.125, 0.0625, 6.103515625e-05]
    """
    return SLACK * 2.0 ** -math.ceil(math.log2(i * (i + 1)))


def dominating_shift(event: DpEvent, chance: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> float:
    """The least shift m of a Gaussian release that dominates an event except for a `chance` c; infinite if none.

        H_g(event) <= c + (1 - c) H_g(N(m) || N(0))   for all g >= 1, in both orders of the data sets.

    So the event reveals no more than a Gaussian release that reveals everything with chance c. For Gaussian
    events m is exact, and c is not used.

    >>> from tacit.privacy.events import gaussian, poisson, repeated
    >>> dominating_shift(repeated(gaussian(4.0), 4), 1e-7)
    1.0
    >>> run = repeated(poisson(0.05, 2.819), 200)
    >>> [round(accounting.epsilon(e, 1e-5), 2) for e in (run, gaussian(2 / dominating_shift(run, 1e-7)))]
    [2.0, 2.0]
    """
    if not is_private(event):
        return math.inf
    exact = _gaussian_shift(event, Adjacency(adjacency))
    return (
        _kept_shift(json.dumps(events.to_dict(event)), chance, Adjacency(adjacency)) if exact is None else exact
    )


def _gaussian_shift(event: DpEvent, adjacency: Adjacency) -> float | None:
    """The shift of an event that consists only of Gaussian releases; None for other events."""
    coins, _ = accounting.separate(event, adjacency)
    if coins or is_mixed(event) or Surcharge.of(event) != Surcharge(0, 0):
        return None
    directions = dominate(event, adjacency, log_tail=-700.0)
    return None if any(direction.pairs for direction in directions) else directions[0].shift


@lru_cache(maxsize=256)
def _kept_shift(text: str, chance: float, adjacency: Adjacency) -> float:
    question = json.dumps(["dominating shift", text, chance, adjacency])
    found = answers.look_up(question)
    if found is None or not found.get("shift", -1.0) >= 0:
        found = {"shift": _least_shift(events.from_dict(json.loads(text)), chance, adjacency)}
        answers.keep(question, found)
    return found["shift"]


def _least_shift(event: DpEvent, chance: float, adjacency: Adjacency) -> float:
    top = accounting.epsilon(event, chance, adjacency)
    if top > _MOST_EPSILON:
        raise CannotAnswerError("it is too far from a Gaussian release to be charged as one")
    if top == 0:
        return 0.0
    # Nothing is known about inexactly drawn noise below this epsilon.
    least = min(Surcharge.of(event).epsilon, top)
    epsilons = np.unique(np.append(0.0, np.linspace(least, top, _POINTS)))
    # Every division of the noise gives an upper bound; the best one in the middle is good enough.
    log_floor = math.log(chance)
    split = accounting.best_split(event, top / 2, adjacency, log_floor=log_floor)
    log_deltas = [
        accounting.log_delta(event, float(e), adjacency, log_floor=log_floor, split=split) for e in epsilons[:-1]
    ]
    deltas = np.append(np.exp(log_deltas), chance)
    # All are upper bounds. A profile never rises, and falls by no more than g does: H_g <= H_h + h - g for g < h.
    factors = np.exp(epsilons)
    deltas = np.minimum.accumulate(deltas)
    deltas = np.minimum.accumulate((deltas + factors)[::-1])[::-1] - factors
    low, high = 0.0, 1.0
    while not _dominates(high, epsilons, deltas, chance):
        low, high = high, 2 * high
        if high > _MOST_EPSILON:
            raise CannotAnswerError("no Gaussian release could be found that dominates it")
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _dominates(middle, epsilons, deltas, chance) else (middle, high)
    return high


def _dominates(shift: float, epsilons: Array, deltas: Array, chance: float) -> bool:
    """Whether c + (1 - c) H_g(N(shift) || N(0)) is above the profile at every g >= 1, not only at the points.

    Between two points the profile is at most its chord in g = exp(epsilon), because it is convex. The other side
    is convex as well, so it comes closest to the chord at an end, or where it has the chord's slope, which is
    -(1 - c) Phi(-shift/2 - epsilon/shift). Beyond the last point the profile is at most c.
    """
    if np.any(_with_chance(shift, epsilons, chance) < deltas * (1 + _ROUNDING)):
        return False
    factors = np.exp(epsilons)
    slopes = np.diff(deltas) / np.diff(factors)
    with np.errstate(divide="ignore"):
        closest = shift * (-ndtri(np.minimum(-slopes / (1 - chance), 1.0)) - shift / 2)
    within = (closest > epsilons[:-1]) & (closest < epsilons[1:])
    chords = (deltas[:-1] + slopes * (np.exp(np.where(within, closest, 0.0)) - factors[:-1]))[within]
    return bool(np.all(_with_chance(shift, closest[within], chance) >= chords * (1 + _ROUNDING)))


def _with_chance(shift: float, epsilons: Array, chance: float) -> Array:
    upper = log_ndtr(shift / 2 - epsilons / shift)
    lower = epsilons + log_ndtr(-shift / 2 - epsilons / shift)
    return np.asarray(chance - (1 - chance) * np.exp(upper) * np.expm1(np.minimum(lower - upper, 0.0)))
