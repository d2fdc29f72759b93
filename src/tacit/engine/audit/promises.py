"""Every promise that a run prints, as a game: who attacks it, what they see, and what must stay hidden."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from dp_accounting import ComposedDpEvent, DpEvent

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.trust import Travel
from tacit.client.work import sizes_are_public
from tacit.engine.audit.game import Game, with_game
from tacit.engine.audit.joint import JointStage
from tacit.engine.audit.model import clients_with
from tacit.engine.audit.pooled import MOST_ROUNDS, MOST_TRIALS, PooledGame, adds_up_unwritten
from tacit.engine.audit.seats import MixedSeat, OneClient, Seat, Sums, small_crowd
from tacit.engine.audit.side import SideStage
from tacit.engine.audit.stage import AuditStage
from tacit.engine.plan import plan
from tacit.errors import RequestError, count
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Adjacency, Adversary, Guarantee, Target, Unit, calibrate_noise
from tacit.privacy.accountant import accounting
from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.groups import group_epsilon
from tacit.privacy.audit import ClaimedPoint, promised_shifts
from tacit.privacy.events import composed
from tacit.server.participation import Everyone

_CURVE = (0.01, 0.125, 0.25, 0.5, 0.75, 1.0)
"""The points of the claimed curve that may be tested, as fractions of the claimed epsilon."""

_DELTAS = (1e-3, 0.01, 0.05, 0.1, 0.2, 0.4)
"""The points as deltas, for curves where epsilon is computed from delta."""

RECORDS_OF_A_CLIENT = 8
"""Most records per client in games about whole clients, whose bound does not depend on the number."""

MESSAGES = 300_000
"""Approximate limit on the messages of a thousand trials; beyond it, fewer rounds are played than promised."""


@dataclass(frozen=True)
class Promise:
    """An audited stage, and what is claimed about it."""

    stage: AuditStage
    claim: ClaimedPoint
    curve: tuple[ClaimedPoint, ...]
    make_event: Callable[[float], DpEvent] | None = None
    """the event as a function of the noise, where it is known"""
    notes: tuple[str, ...] = ()
    most_trials: int | None = None
    """limit on the trials, for stages that take long"""

    def equivalent(self, epsilon: float, delta: float) -> float | None:
        """The epsilon that a run would promise with noise that gives away exactly this delta at this epsilon."""
        if self.make_event is None:
            return None
        if delta <= 0:
            return 0.0
        adjacency = self.stage.adjacency
        try:
            multiplier = calibrate_noise(self.make_event, epsilon=epsilon, delta=delta, adjacency=adjacency)
            return accounting.epsilon(self.make_event(multiplier), self.claim.delta, adjacency)
        except RequestError:
            return None


def promises_of(
    algorithm: Algorithm,
    *,
    records: int,
    clients: int,
    rounds: int,
    privacy: Target,
    whole_clients: Target | None,
    dim: int,
    seed: int,
    sides: tuple[SideStage, ...] = (),
    pooled: bool = False,
) -> list[Promise]:
    """The main promise, then those beside it. As in a run, the noise is calibrated to the first.

    With `pooled`, the main promise is also played as the simulator keeps it: with the noise of a sum drawn at
    once. Each promise covers what clients release besides their messages (`sides`), too; these alone come last.
    """
    unwritten = adds_up_unwritten(algorithm)
    if not isinstance(privacy, Target):
        raise RequestError(
            f"privacy must be a Target(epsilon, delta), not {privacy!r}: there is nothing to audit"
        )
    algorithm = with_game(algorithm, dim)
    travel = algorithm.travel
    if not algorithm.trust.charges_everyone:
        # Who takes part is public, so play a client that does so in every round, among those mixed with it.
        clients = (
            1 if travel is Travel.ALONE else len(algorithm.participation.cohort(clients, 0, Randomness(seed)))
        )
        algorithm = replace(algorithm, participation=Everyone())
    crowd = _blank(clients, records if sizes_are_public(algorithm.work) else 1, dim)
    also = composed([side.event for side in sides]) if sides else None
    shown = tuple(side.shown for side in sides)
    exposed = composed([side.event for side in shown]) if sides else None
    planned = plan(algorithm, crowd, rounds=rounds, privacy=privacy, seed=seed, also=also, exposed=exposed)
    noise, algorithm = float(planned.calibration.noise_multipliers[0]), planned.algorithm
    guarantee = planned.guarantee
    assert guarantee is not None, "a target gives a guarantee"

    few, number = small_crowd(algorithm, clients) if travel is Travel.SUMMED else (algorithm, clients)
    rate = min(1.0, algorithm.participation.divisor(clients) / clients)
    seat: Seat
    match travel:
        case Travel.SUMMED:
            seat = Sums(number, guarantee.adversary, rate)
        case Travel.COUNTED:
            seat = Sums(clients, guarantee.adversary)
        case Travel.SHUFFLED:
            seat = MixedSeat(clients)
        case Travel.ALONE:
            seat = OneClient()
    game = partial(
        Game, unit=algorithm.work.unit, adjacency=privacy.adjacency, records=records, randomness=Randomness(seed)
    )

    def make_event(noise_multiplier: float) -> DpEvent:
        own = algorithm.trust.event(algorithm.work, clients, records, noise_multiplier, releases=rounds)
        return own if also is None else composed([own, also])

    promised = partial(_promise, rounds=rounds, sides=sides)
    found = [replace(promised(guarantee, partial(game, few, seat, noise)), make_event=make_event)]
    for other in planned.calibration.beside:
        if math.isinf(other.epsilon):
            continue
        if other.adversary is Adversary.COHORT:
            known = Sums(number, other.adversary, rate, known=True)
            found.append(promised(other, partial(game, few, known, noise)))
        elif other.adversary is Adversary.SERVER:
            crowded = clients if travel is Travel.SUMMED else 1
            one = OneClient(crowd=crowded, rate=rate if crowded > 1 else 1.0)
            found.append(promised(other, partial(game, algorithm, one, noise), sides=shown))
    if whole_clients is not None:
        whole = partial(game, algorithm, OneClient(), noise, unit=Unit.CLIENT)
        found.append(_to_whole_clients(guarantee, whole, whole_clients, records, rounds))
    if pooled:
        at_once = partial(PooledGame, few, seat, noise, **game.keywords, linear=unwritten)
        found.append(promised(guarantee, at_once))
    return found + [alone(side, privacy.delta) for side in sides]


def alone(side: SideStage, delta: float) -> Promise:
    """What releases besides the messages cost on their own."""
    claim = ClaimedPoint(accounting.epsilon(side.event, delta, side.adjacency), delta)
    return Promise(side, claim, curve_of(side.event, claim, side.adjacency), side.make_event)


def _promise(
    guarantee: Guarantee, make_game: Callable[..., Game], *, rounds: int, sides: tuple[SideStage, ...]
) -> Promise:
    """One line of what a run prints."""
    event = guarantee.events[0]
    claim = ClaimedPoint(guarantee.epsilon, guarantee.delta)
    curve = curve_of(event, claim, guarantee.adjacency)
    # A calibration puts the messages first, then all else.
    messages = event.events[0] if sides and isinstance(event, ComposedDpEvent) else event
    promise = _played(messages, make_game, rounds, curve)
    game = promise.stage
    if not sides or not isinstance(game, Game):
        return promise
    if game.seat.mixed:
        return replace(promise, notes=(*promise.notes, "mixed messages were attacked without what else is seen"))
    releases = ", ".join(f"{side.rounds} of {side.name}" for side in sides)
    notes = (*promise.notes, f"{game.rounds} rounds, and releases besides them: {releases}")
    return replace(promise, stage=JointStage(game, sides), notes=notes)


def _to_whole_clients(
    guarantee: Guarantee, make_game: Callable[..., Game], target: Target, records: int, rounds: int
) -> Promise:
    """A promise about all records of a client at once, in addition to the promise about each of them."""
    event = guarantee.events[0]
    deltas = sorted({target.delta, *(delta for delta in _DELTAS if delta > target.delta)})
    points = [ClaimedPoint(group_epsilon(event, records, delta, guarantee.adjacency), delta) for delta in deltas]
    return _played(event, make_game, rounds, tuple(points))


def _played(
    event: DpEvent, make_game: Callable[..., Game], rounds: int, curve: tuple[ClaimedPoint, ...]
) -> Promise:
    """A promise whose claim is the first point of its curve, with as many rounds as an audit can play."""
    game = make_game(shifts=promised_shifts(event), rounds=rounds)
    if game.algorithm.work.unit is Unit.CLIENT:
        game = replace(game, records=min(game.records, RECORDS_OF_A_CLIENT))
    pooled = isinstance(game, PooledGame)
    played = max(1, min(rounds, MOST_ROUNDS if pooled else int(MESSAGES / 1000 / game.messages)))
    notes = () if played == rounds else (f"the first {played} of {rounds} rounds were played",)
    if pooled:
        notes = ("sums as the simulator makes them, with all shares of their noise drawn at once", *notes)
    most_trials = MOST_TRIALS if pooled else None
    return Promise(replace(game, rounds=played).placed(), curve[0], curve, notes=notes, most_trials=most_trials)


def curve_of(event: DpEvent, claim: ClaimedPoint, adjacency: Adjacency) -> tuple[ClaimedPoint, ...]:
    """Some points of the accountant's curve for this noise, including the claim."""
    points = [claim]
    for epsilon in (part * claim.epsilon for part in _CURVE):
        try:
            delta = accounting.delta(event, epsilon, adjacency)
        except CannotAnswerError:
            continue
        if delta < 1:
            points.append(ClaimedPoint(epsilon, delta))
    return tuple(points)


def _blank(clients: int, records: int, dim: int) -> Federation:
    return clients_with(torch.zeros(clients * count("records", records), dim), torch.arange(clients))
