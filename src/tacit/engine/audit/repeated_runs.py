"""The audit by repeated runs: one canary, one coin, many independent clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from tacit.algorithms.algorithm import Algorithm
from tacit.engine.audit.game import Array, Coins, Game, clients_with
from tacit.engine.threads import suitable_threads
from tacit.errors import count
from tacit.federation import Federation
from tacit.privacy import Target, accounting, calibrate_noise
from tacit.privacy.audit import Attack, AuditResult, ClaimedPoint, Rehearsal, best_rule, rehearsed_attacks

TRIALS, DIM = 4000, 4

CURVE_CONFIDENCE = 0.999
"""At which a point of the claimed curve is tested."""

_CURVE = (0.01, 0.125, 0.25, 0.5, 0.75, 1.0)
"""The points of the claimed curve that may be tested, as parts of the claimed epsilon."""

FEWEST_TRIALS = 500

_REHEARSED, _PRACTISED, _FEWEST_REHEARSED = 0.15, 0.2, 100
"""The parts of the trials that go to each of two rehearsals, and to choosing what to guess."""

_NUMBERS_AT_A_TIME = 2**24


@dataclass(frozen=True)
class _Trials:
    """Independent clients with one canary each; `others` is how far every other record pulls, in canaries."""

    game: Game
    others: float

    @property
    def direction(self) -> Array:
        """All coordinates alike: no compressor misses the canary, and bounds on coordinates let it through."""
        return np.full(self.game.dim, self.game.dim**-0.5)

    def play(self, number: int, first: int) -> tuple[Array, Coins]:
        """What is seen in trials, and whether the canary was in."""
        present = self.game.coins(number, first)
        return self._run(self.game.messages, present, first), present

    def rehearse(self, number: int, first: int) -> Rehearsal:
        """Trials in which everything is known."""
        views, present = self.play(number, first)
        return Rehearsal(views, self._run(self.game.signals, present, first), present)

    def _run(self, run: Callable[[Federation], Array], present: Coins, first: int) -> Array:
        numbers = self.game.records * self.game.dim
        step = max(1, _NUMBERS_AT_A_TIME // numbers)
        starts = range(0, len(present), step)
        with suitable_threads(min(step, len(present)) * numbers):
            return np.concatenate([run(self._clients(present[i : i + step], first + i)) for i in starts])

    def _clients(self, present: Coins, first: int) -> Federation:
        canaries = self.game.pulls(present)
        pulls = self.others * self.game.pulls(np.ones_like(present))[:, None].repeat(1, self.game.records)
        pulls[:, 0] = canaries
        records = pulls.reshape(-1, 1) * torch.from_numpy(self.direction)
        return clients_with(records.float(), clients=len(present), first=first)


def audit(
    algorithm: Algorithm,
    *,
    records: int,
    rounds: int,
    privacy: Target,
    trials: int = TRIALS,
    confidence: float = 0.95,
    seed: int = 0,
    dim: int = DIM,
) -> AuditResult:
    """A lower bound on the epsilon of a client with so many records over so many rounds, by repeated runs.

    In every trial a coin decides whether the client holds the canary or its replacement (for add/remove: a
    record that adds nothing). The adversary has all of the client's messages and knows everything else. Other
    records add nothing, or pull against the canary, which is the worst case where batches have a fixed size:
    rehearsals tell. About half of the trials go to rehearsing and to choosing what to guess; the others are
    used once.

    Guarantee: for an algorithm that keeps its promise, `lower_bound` exceeds the promised epsilon with
    probability at most 1 - `confidence`, and `on_curve` is violated with probability at most 0.001. Coins that
    are public in the algorithm (SVRG's snapshots) are the same in all trials: the promise is made for every
    outcome of them.
    """
    game = Game.of(algorithm, records=records, rounds=rounds, privacy=privacy, dim=dim, seed=seed)
    count("trials", trials, at_least=FEWEST_TRIALS)
    rehearsed, practised = max(_FEWEST_REHEARSED, int(_REHEARSED * trials)), int(_PRACTISED * trials)
    curve = _curve(game)

    first = 0
    found: list[tuple[float, _Trials, dict[str, Attack]]] = []
    for others in (0.0, -1.0) if records > 1 else (0.0,):
        playing = _Trials(game, others)
        rehearsal = playing.rehearse(rehearsed, first)
        attacks = rehearsed_attacks(rehearsal, playing.direction)
        scores = _scores(attacks, rehearsal.views)
        rule = best_rule(scores, rehearsal.present, curve, confidence=confidence)
        found.append((rule.margin, playing, attacks))
        first += rehearsed
    _, playing, attacks = max(found, key=lambda one: one[0])

    views, present = playing.play(practised, first)
    scores = _scores(attacks, views)
    on_curve = best_rule(scores, present, curve, confidence=CURVE_CONFIDENCE)
    at_claim = best_rule(scores, present, [game.claim], confidence=CURVE_CONFIDENCE)

    first += practised
    views, present = playing.play(trials - first, first)
    scores = _scores({name: attacks[name] for name in {on_curve.attack, at_claim.attack}}, views)
    guesses = on_curve.guess(scores, present)
    return AuditResult(
        method="repeated runs",
        algorithm=algorithm.name,
        data="gradient game",
        adjacency=game.adjacency,
        rounds=rounds,
        records=records,
        noise_multiplier=game.noise_multiplier,
        at_claim=at_claim.finding(at_claim.guess(scores, present), confidence=confidence),
        on_curve=on_curve.finding(guesses, confidence=CURVE_CONFIDENCE),
        equivalent_epsilon=_equivalent(
            game, on_curve.claim.epsilon, guesses.delta(on_curve.claim.epsilon, confidence)
        ),
    )


def _scores(attacks: dict[str, Attack], views: Array) -> dict[str, Array]:
    return {name: attack(views) for name, attack in attacks.items()}


def _curve(game: Game) -> list[ClaimedPoint]:
    """Some points of what the accountant promises for this noise."""
    event, epsilons = game.guarantee.events[0], [part * game.claim.epsilon for part in _CURVE]
    return [ClaimedPoint(e, accounting.delta(event, e, game.adjacency)) for e in epsilons]


def _equivalent(game: Game, epsilon: float, delta: float) -> float:
    """The promise that noise would have kept which gives away so much delta at this epsilon, and no more."""
    if delta <= 0:
        return 0.0
    event = partial(game.algorithm.work.event, game.records, rounds=game.rounds)
    multiplier = calibrate_noise(event, epsilon=epsilon, delta=delta, adjacency=game.adjacency)
    return accounting.epsilon(event(multiplier), game.claim.delta, game.adjacency)
