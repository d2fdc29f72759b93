"""What a shuffler is worth to Gaussian releases: clones in the place of senders, round by round.

Guarantee. Every other client's message R is a mixture of Gaussians at a distance of at most s from either of the
two laws P0, P1 of the client's, s = 2 batch/z: whoever the others are. So R >= e^-e (P0 + P1)/2 but for a mass
of at most e^-e delta_Gauss(s; e). Moving that mass changes T rounds among n clients in total variation by at
most slip = T (n - 1) e^-e delta_Gauss(s; e), and delta by (1 + e^epsilon) slip, for any e; a part of delta pays.
What is left has clones at the rate e^-e: the pair of `clones`.

Batches. If the record is drawn with probability q only, tell the adversary the rest of the batch, and which other
record stands in where this one is not drawn. Let O be the law of the message without the record, I and I' those
with it. The round is (1-q) O + q I against (1-q) O + q I', so that with e^x' = 1 + q (e^x - 1) its delta(x') is q
times the largest delta(x) of the pairs (I, I'), (I, O) and (I', O), all at the distance of one record (Balle,
Barthe & Gaboardi 2018, Theorem 2): `ClonePair.drawn`. One R must serve all three pairs. The mass to move is then
at most 3/2 of the above, and there is room for it if e^-e <= 2/3.

Without a shuffler the releases are what they are, so the smaller of this and of the local bound holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent
from scipy import optimize

from tacit.privacy import events, gaussian
from tacit.privacy.clones import ClonePair, GaussianScores, clone_pair
from tacit.privacy.composition import CannotAnswerError, ComposedLoss
from tacit.privacy.crowd_events import ShuffledDpEvent
from tacit.privacy.dominate import Direction, dominate, leaves
from tacit.privacy.pairs import Pair
from tacit.privacy.refine import EpsilonAt, LogDeltaAt, Question, worst
from tacit.privacy.terms import Adjacency

SAFE_SIDE = 1e-7
"""Relative allowance for floating point."""

_SLIP_SHARE = 0.25
"""The part of delta that pays for messages that are not quite clones. It decides how tight, not whether."""

_PASSES = 3
_LOG_NEGLIGIBLE = -9.0
_DRAWN_SLIP, _DRAWN_CLONES = 1.5, math.log(1.5)
"""With batches: what the slip is multiplied with, and the least e."""

_FEW_CLONES = 3.0
"""Less than exp(-3) clones are expected: nobody hides among them."""


def is_mixed(event: DpEvent) -> bool:
    """Whether a shuffler mixes any part of the event with other clients' messages."""
    return any(isinstance(leaf, ShuffledDpEvent) and leaf.clients > 1 for leaf, _ in leaves(event))


def mixed_epsilon(event: DpEvent, delta: float, adjacency: Adjacency, *, local: float) -> float:
    """The epsilon behind an honest shuffler; `local` is what holds without one, and never exceeded."""
    best = local
    for _ in range(_PASSES if 0 < local < math.inf else 0):
        # An epsilon holds if it is not above the cap that its slip is weighed with.
        answer = EpsilonAtAtoms((1 - _SLIP_SHARE) * delta)
        found = _answer(event, adjacency, best, delta, answer) * (1 + SAFE_SIDE)
        if found >= best:
            break
        best = found
    return best


def mixed_log_delta(
    event: DpEvent, epsilon: float, adjacency: Adjacency, *, log_floor: float, local: float, rough: bool
) -> float:
    """log(delta) behind an honest shuffler, tight above `log_floor`; never above the `local` one."""
    floor = math.exp(log_floor)
    found = _answer(event, adjacency, epsilon, floor, LogDeltaAt(epsilon), rough=rough)
    return min(local, float(np.logaddexp(found, math.log(_SLIP_SHARE) + log_floor)) + SAFE_SIDE)


@dataclass(frozen=True)
class EpsilonAtAtoms(EpsilonAt):
    """For laws with atoms: where the largest loss alone has more than delta, the usual aim sees nothing else."""

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
        # There is still what holds without the shuffler.
        return math.inf


def _answer(
    event: DpEvent, adjacency: Adjacency, cap: float, delta: float, question: Question, *, rough: bool = False
) -> float:
    """The answer if slips are weighed with epsilons of at most `cap`; infinite if there are no clones."""
    shuffled: dict[ShuffledDpEvent, int] = {}
    others: list[DpEvent] = []
    for leaf, times in leaves(event):
        if isinstance(leaf, ShuffledDpEvent) and leaf.clients > 1:
            shuffled[leaf] = shuffled.get(leaf, 0) + times
        else:
            others.append(events.repeated(leaf, times))
    log_slip = math.log(_SLIP_SHARE * delta / len(shuffled)) - float(np.logaddexp(0.0, cap))
    pairs: list[tuple[Pair, int]] = []
    for leaf, times in shuffled.items():
        pair = _pair(leaf, adjacency, log_slip - math.log(times * (leaf.clients - 1)))
        if pair is not None:
            pairs.append((pair, times))
        else:
            others.append(events.repeated(leaf, times))
    if not pairs:
        return math.inf
    log_tail = math.log(delta) + _LOG_NEGLIGIBLE
    beside = dominate(events.composed(others), adjacency, log_tail=log_tail)
    return composed_answer(pairs, (1 - _SLIP_SHARE) * delta, question, beside=beside, rough=rough)


def _pair(leaf: ShuffledDpEvent, adjacency: Adjacency, log_slip: float) -> ClonePair | None:
    """The pair of a round with a slip of at most exp(`log_slip`) a message; None for hardly any clones."""
    drawn = leaf.batch < leaf.records
    # However the differing record is adjacent, other clients may differ in everything.
    client_shift = 2 * leaf.batch / leaf.noise_multiplier
    if drawn:
        clone_epsilon = max(_DRAWN_CLONES, _clone_epsilon(client_shift, log_slip - math.log(_DRAWN_SLIP)))
    else:
        clone_epsilon = _clone_epsilon(client_shift, log_slip)
    others = leaf.clients - 1
    if clone_epsilon > math.log(others) + _FEW_CLONES:
        return None
    # Batches of fixed size are known to the accountant for replace-one only, which `dominate` has seen to.
    sides = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    pair = clone_pair(GaussianScores(sides / leaf.noise_multiplier), others, math.exp(-clone_epsilon))
    return pair.drawn(leaf.batch / leaf.records) if drawn else pair


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
