"""What a shuffler is worth to Gaussian releases: others in the place of senders, round by round.

Guarantee. Every other client's message R is a mixture of Gaussians at a distance of at most s from either of the
two laws P0, P1 of the client's, s = 2 batch/z: whoever the others are. Two bounds follow; the better one counts.

- Swaps: the theorem of `swaps`. It moves a mass of tau in every round.
- Clones: R >= e^-e (P0 + P1)/2 but for a mass of at most e^-e delta_Gauss(s; e). Moving that mass among n clients
  costs (n - 1) e^-e delta_Gauss(s; e), for any e. What is left has clones at the rate e^-e: the pair of `clones`.

A mass of slip that is moved in every one of T rounds changes the run in total variation by at most T slip, and
delta by (1 + e^epsilon) T slip; a part of delta pays.

Batches. If the record is drawn with probability q only, tell the adversary the rest of the batch, and which other
record stands in where this one is not drawn. Let O be the law of the message without the record, I and I' those
with it. The round is (1-q) O + q I against (1-q) O + q I', so that with e^x' = 1 + q (e^x - 1) its delta(x') is q
times the largest delta(x) of the pairs (I, I'), (I, O) and (I', O), all at the distance of one record (Balle,
Barthe & Gaboardi 2018, Theorem 2): `ClonePair.drawn`. What swaps move does not depend on the client's law, so it
is the same for all three. With clones, one R must serve all three pairs: the mass to move is then at most 3/2 of
the above, and there is room for it if e^-e <= 2/3.

Without a shuffler the releases are what they are, so the smaller of this and of the local bound holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import DpEvent
from scipy import optimize

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
"""The part of delta that pays for messages that are not quite clones. It decides how tight, not whether."""

_PASSES, _SETTLED = 3, 2e-3
_LOG_NEGLIGIBLE = -9.0
_DRAWN_SLIP, _DRAWN_CLONES = 1.5, math.log(1.5)
"""With batches: what the slip is multiplied with, and the least e."""

_BELOW_SLIP = 6.0
"""log of how many times less than the slip the far ends of swapped messages may cost."""

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
        settled = found > (1 - _SETTLED) * best
        best = min(best, found)
        if settled:
            break
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
    """The better answer of both bounds, if slips are weighed with epsilons of at most `cap`; infinite if none."""
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
    # Batches of fixed size are known to the accountant for replace-one only, which `dominate` has seen to.
    sides = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    # However the differing record is adjacent, other clients may differ in everything.
    return sides / leaf.noise_multiplier, 2 * leaf.batch / leaf.noise_multiplier


def _swapped(leaf: ShuffledDpEvent, adjacency: Adjacency, log_slip: float) -> ClonePair | None:
    """The pair of a round with a slip of at most exp(`log_slip`); None if there are too few for swaps."""
    shift, client_shift = _shifts(leaf, adjacency)
    hiding = hiding_clients(leaf.clients - 1, client_shift, log_slip)
    # Rounded down, so that passes that differ little in their slip share a pair.
    return swap_pair(hiding, shift, client_shift, math.floor(log_slip) - _BELOW_SLIP) if hiding > 1 else None


def _cloned(leaf: ShuffledDpEvent, adjacency: Adjacency, log_slip: float) -> ClonePair | None:
    """The same with clones; None for hardly any."""
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
