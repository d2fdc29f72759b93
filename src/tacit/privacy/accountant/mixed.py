"""The privacy gain of a shuffler for Gaussian releases, round by round.

Guarantee. Every other client's message R is a mixture of Gaussians at a distance of at most s from either of the
two laws P0, P1 of the client's, s = 2 batch/z, whatever the others' data. Two bounds follow; the better is used.

- Swaps: the theorem of `swaps`. It moves a mass of tau in every round.
- Clones: R >= e^-e (P0 + P1)/2 up to a mass of at most e^-e delta_Gauss(s; e). Moving that mass among n clients
  costs (n - 1) e^-e delta_Gauss(s; e), for any e. What is left has clones at the rate e^-e: the pair of `clones`.

A mass of slip that is moved in every one of T rounds changes the run in total variation by at most T slip, and
delta by (1 + e^epsilon) T slip, which is paid from a part of delta.

Batches. If the record is drawn with probability q only, tell the adversary the rest of the batch, and which other
record stands in where this one is not drawn. Let O be the law of the message without the record, I and I' those
with it. The round is (1-q) O + q I against (1-q) O + q I', so that with e^x' = 1 + q (e^x - 1) its delta(x') is q
times the largest delta(x) of the pairs (I, I'), (I, O) and (I', O), all at the distance of one record (Balle,
Barthe & Gaboardi 2018, Theorem 2): `ClonePair.drawn`. What swaps move does not depend on the client's law, so it
is the same for all three. With clones, one R must serve all three pairs: the mass to move is then at most 3/2 of
the above, and there is room for it if e^-e <= 2/3.

The local bound holds with or without a shuffler, so the smaller of the two bounds holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent

from tacit._deferred import optimize
from tacit.privacy import events
from tacit.privacy.accountant import gaussian
from tacit.privacy.accountant.clones import ClonePair, GaussianScores, clone_pair
from tacit.privacy.accountant.composition import CannotAnswerError, ComposedLoss
from tacit.privacy.accountant.dominate import Direction, dominate, leaves
from tacit.privacy.accountant.grids import EpsilonAt, LogDeltaAt, Question, worst
from tacit.privacy.accountant.pairs import Pair
from tacit.privacy.accountant.swaps import hiding_clients, swap_pair
from tacit.privacy.events.crowds import ShuffledDpEvent
from tacit.privacy.promises.terms import Adjacency

SAFE_SIDE = 1e-7
"""Relative allowance for floating point."""

_SLIP_SHARE = 0.25
"""The part of delta that pays for messages that are not exactly clones. Any value is valid, some are tighter."""

_PASSES, _SETTLED = 3, 2e-3
_LOG_NEGLIGIBLE = -9.0
_DRAWN_SLIP, _DRAWN_CLONES = 1.5, math.log(1.5)
"""With batches: the factor on the slip, and the least e."""

_BELOW_SLIP = 6.0
"""log of how many times less than the slip the far ends of swapped messages may cost."""

_FEW_CLONES = 3.0
"""Fewer than exp(-3) clones are expected, which is too few to hide among."""


def is_mixed(event: DpEvent) -> bool:
    """Whether a shuffler mixes any part of the event with other clients' messages."""
    return any(isinstance(leaf, ShuffledDpEvent) and leaf.clients > 1 for leaf, _ in leaves(event))


def mixed_epsilon(event: DpEvent, delta: float, adjacency: Adjacency, *, local: float) -> float:
    """The epsilon behind an honest shuffler; never above `local`, the epsilon without a shuffler."""
    best = local
    for _ in range(_PASSES if 0 < local < math.inf else 0):
        # An epsilon is valid if it is at most the cap that was used to charge for the slip.
        answer = EpsilonAtAtoms((1 - _SLIP_SHARE) * delta)
        found = _answer(event, adjacency, best, delta, answer) * (1 + SAFE_SIDE)
        settled = found > (1 - _SETTLED) * best
        best = min(best, found)
        if settled:
            break
    return best


def mixed_log_delta(
    event: DpEvent, epsilon: float, adjacency: Adjacency, *, log_floor: float, local: float, rough: bool
) -> float:
    """log(delta) behind an honest shuffler, tight above `log_floor`; never above `local`, the one without it."""
    floor = math.exp(log_floor)
    found = _answer(event, adjacency, epsilon, floor, LogDeltaAt(epsilon), rough=rough)
    return min(local, float(np.logaddexp(found, math.log(_SLIP_SHARE) + log_floor)) + SAFE_SIDE)


@dataclass(frozen=True)
class EpsilonAtAtoms(EpsilonAt):
    """For laws with atoms: if the largest loss alone has more mass than delta, the usual tilt sees only that."""

    def answer(self, composed: ComposedLoss, tilt: float) -> tuple[float, float]:
        found, resolution = super().answer(composed, tilt)
        wider = composed.near(composed.tilt_towards(0.9 * found))
        return min(found, wider.epsilon(self._log_target(composed))), resolution


def composed_answer(
    pairs: Sequence[tuple[Pair, int]],
    delta: float,
    question: Question,
    *,
    beside: Sequence[Direction] = (Direction(0.0, ()),),
    rough: bool = False,
) -> float:
    """The answer for pairs that are the same in both directions, composed with `beside`; infinite if none."""
    revealed = sum(times * pair.revealed for pair, times in pairs if isinstance(pair, ClonePair))
    if delta <= 2 * revealed:
        return math.inf
    directions = [Direction(one.shift, (*one.pairs, *pairs)) for one in beside]
    try:
        return worst(directions, math.log(delta) + _LOG_NEGLIGIBLE, question, rough=rough)
    except CannotAnswerError:
        # The bound without the shuffler still holds.
        return math.inf


def _answer(
    event: DpEvent, adjacency: Adjacency, cap: float, delta: float, question: Question, *, rough: bool = False
) -> float:
    """The better answer of both bounds, charging slips for epsilons up to `cap`; infinite if there is none."""
    shuffled: dict[ShuffledDpEvent, int] = {}
    others: list[DpEvent] = []
    for leaf, times in leaves(event):
        if isinstance(leaf, ShuffledDpEvent) and leaf.clients > 1:
            shuffled[leaf] = shuffled.get(leaf, 0) + times
        else:
            others.append(events.repeated(leaf, times))
    log_slip = math.log(_SLIP_SHARE * delta / len(shuffled)) - float(np.logaddexp(0.0, cap))
    log_tail = math.log(delta) + _LOG_NEGLIGIBLE
    found = math.inf
    for bound in (_swapped, _cloned):
        pairs: list[tuple[Pair, int]] = []
        unmixed = list(others)
        for leaf, times in shuffled.items():
            pair = bound(leaf, adjacency, log_slip - math.log(times))
            if pair is None:
                unmixed.append(events.repeated(leaf, times))
            else:
                drawn = leaf.batch < leaf.records
                pairs.append((pair.drawn(leaf.batch / leaf.records) if drawn else pair, times))
        if pairs:
            beside = dominate(events.composed(unmixed), adjacency, log_tail=log_tail)
            given = (1 - _SLIP_SHARE) * delta
            found = min(found, composed_answer(pairs, given, question, beside=beside, rough=rough))
    return found


def _shifts(leaf: ShuffledDpEvent, adjacency: Adjacency) -> tuple[float, float]:
    """How far the record moves a message, and how far apart any two clients' messages may be."""
    # `dominate` has already refused fixed-size batches for anything but replace-one.
    sides = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    # Whatever the adjacency, other clients' records may differ entirely.
    return sides / leaf.noise_multiplier, 2 * leaf.batch / leaf.noise_multiplier


def _swapped(leaf: ShuffledDpEvent, adjacency: Adjacency, log_slip: float) -> ClonePair | None:
    """The pair of a round with a slip of at most exp(`log_slip`); None if there are too few clients for swaps."""
    shift, client_shift = _shifts(leaf, adjacency)
    hiding = hiding_clients(leaf.clients - 1, client_shift, log_slip)
    # Rounded down, so that passes that differ little in their slip share a pair.
    return swap_pair(hiding, shift, client_shift, math.floor(log_slip) - _BELOW_SLIP) if hiding > 1 else None


def _cloned(leaf: ShuffledDpEvent, adjacency: Adjacency, log_slip: float) -> ClonePair | None:
    """The same with clones; None if too few clones are expected."""
    shift, client_shift = _shifts(leaf, adjacency)
    others = leaf.clients - 1
    per_message = log_slip - math.log(others)
    if leaf.batch < leaf.records:
        clone_epsilon = max(_DRAWN_CLONES, _clone_epsilon(client_shift, per_message - math.log(_DRAWN_SLIP)))
    else:
        clone_epsilon = _clone_epsilon(client_shift, per_message)
    if clone_epsilon > math.log(others) + _FEW_CLONES:
        return None
    return clone_pair(GaussianScores(shift), others, math.exp(-clone_epsilon))


def _clone_epsilon(shift: float, log_slip: float) -> float:
    """The least e with e^-e delta_Gauss(shift; e) at most exp(`log_slip`), rounded up."""

    def excess(e: float) -> float:
        return gaussian.log_delta([shift], [1.0], e) - e - log_slip

    if excess(0.0) <= 0:
        return 0.0
    high = shift * (1 + shift)
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-9)) * (1 + SAFE_SIDE) + 1e-8
