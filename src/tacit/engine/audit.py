"""Auditing an algorithm: how well can an adversary with every message tell which record a client held?

What is audited is `client_round`, the function that every engine calls: sampling, bound, estimator, noise, shift,
compression and wire format. Only model and data are the auditor's, because the promise is made for all of them: a
game in which records are gradients, and the worst ones that the bound lets through. The server of the game is not
honest either. It sends points that turn all gradients around, against whatever clients may remember.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Calibration, calibrate, releases
from tacit.client.cohort import Cohort
from tacit.client.estimators import Saga, Svrg
from tacit.compress import Packets, Shifted
from tacit.compress.sparse import SparsePackets
from tacit.engine.round import client_round, client_start
from tacit.engine.simulate import simulate
from tacit.errors import RequestError, count
from tacit.federation import Batch, Federation
from tacit.models.gradients import WrittenGradients
from tacit.models.penalty import Penalty
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency, Guarantee, Target, accounting
from tacit.privacy.audit import (
    Attack,
    AuditResult,
    ClaimedPoint,
    Rehearsal,
    Rule,
    best_rule,
    one_run_finding,
    rehearsed_attacks,
)

Array = NDArray[np.float64]
Coins = NDArray[np.bool_]

TRIALS, CANARIES, DIM = 4000, 1000, 4

CANARY_NORM = 1e3
"""In units of the bound, so that nothing but the bound keeps a canary small."""

CURVE_CONFIDENCE = 0.999
"""At which a point of the claimed curve is tested."""

_CURVE = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)
"""The points of the claimed curve that may be tested, as parts of the claimed epsilon."""

_PRACTICE = 0.2
"""The part of the trials that is used for rehearsals, and again for choosing what to guess."""

_NUMBERS_AT_A_TIME = 2**24


@dataclass(frozen=True)
class GradientGame:
    """A model in which a record is its own gradient: f_j(x) = s(x) <record_j, x>, s(x) the sign of sum(x).

    Whoever chooses the point chooses the sign of all gradients.
    """

    dim: int
    penalty: Penalty | None = None
    metric_name: str = "loss"

    def init(self, generator: np.random.Generator) -> Tensor:
        """Where the sign is -1."""
        return -torch.ones(self.dim)

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        """s(x) <record_j, x>."""
        return self._signs(point, batch) * (batch.features * self._points(point, batch)).sum(1)

    def gradients(self, point: Tensor, batch: Batch) -> WrittenGradients:
        """s(x) record_j."""
        return WrittenGradients(self._signs(point, batch)[:, None] * batch.features, batch.counts)

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        """Nothing to predict: the loss of every record."""
        records = len(features)
        return self.losses(point, Batch(features, torch.zeros(records), torch.tensor([records])))

    def metric(self, point: Tensor, batch: Batch) -> float:
        """The mean loss."""
        return float(self.losses(point, batch).double().mean())

    def _points(self, point: Tensor, batch: Batch) -> Tensor:
        return point.expand(batch.records, -1) if point.dim() == 1 else point[batch.owners()]

    def _signs(self, point: Tensor, batch: Batch) -> Tensor:
        signs = torch.where(point.sum(-1) >= 0, 1.0, -1.0)
        return signs.expand(batch.records) if point.dim() == 1 else signs[batch.owners()]


@dataclass(frozen=True)
class _Game:
    """An algorithm with its noise, and a server that knows how to play against it."""

    algorithm: Algorithm
    calibration: Calibration
    records: int
    rounds: int
    adjacency: Adjacency
    dim: int
    randomness: Randomness

    @classmethod
    def of(
        cls, algorithm: Algorithm, records: int, rounds: int, privacy: Target, dim: int, seed: int
    ) -> _Game:
        if not isinstance(privacy, Target):
            raise RequestError(f"privacy must be a Target(epsilon, delta), not {privacy!r}: nothing else can be audited")
        count("rounds", rounds)
        # A promise is made to records of any model; everything else of the algorithm stays as it is.
        work: Any = algorithm.work
        algorithm = replace(algorithm, work=replace(work, model=GradientGame(count("dim", dim))))
        client = _federation(torch.zeros(count("records", records), dim), clients=1, first=0)
        calibration = calibrate(algorithm, client, releases=rounds, privacy=privacy)
        return cls(algorithm, calibration, records, rounds, privacy.adjacency, dim, Randomness(seed))

    @property
    def guarantee(self) -> Guarantee:
        assert self.calibration.guarantee is not None, "the game is calibrated to a target"
        return self.calibration.guarantee

    @property
    def claim(self) -> ClaimedPoint:
        return ClaimedPoint(self.guarantee.epsilon, self.guarantee.delta)

    @property
    def canary_length(self) -> float:
        return CANARY_NORM * self.algorithm.work.bound.norm(self.dim)

    def curve(self) -> list[ClaimedPoint]:
        """Some points of what the accountant promises for this noise."""
        event, points = self.guarantee.events[0], [part * self.claim.epsilon for part in _CURVE]
        return [ClaimedPoint(e, accounting.delta(event, e, self.adjacency)) for e in points]

    def coins(self, number: int, first: int) -> Coins:
        """Fair and independent."""
        return self.randomness.generator(Purpose.DATA, client=first).random(number) < 0.5

    def messages(self, federation: Federation) -> Array:
        """What the adversary sees of every client's private vectors: (clients, rounds, dim), nan where nothing."""
        algorithm, clients = self.algorithm, federation.clients
        state = client_start(algorithm, self._point(-1.0), federation)
        multipliers = self.calibration.noise_multipliers.expand(clients)
        seen = np.empty((clients, self.rounds, self.dim))
        shift = torch.zeros(clients, self.dim)
        for cohort, point in self._play(federation):
            packets, state = client_round(algorithm, point, cohort, state, multipliers)
            received = algorithm.uplink.compressor.decode(packets.encode(), self.dim)
            values, known = _read(received)
            known = known.to(torch.bool)
            seen[:, cohort.round] = torch.where(known, values + shift, torch.nan).double().numpy()
            if isinstance(algorithm.uplink, Shifted):
                received.add_to(shift, algorithm.uplink.gamma(self.dim))
        return seen

    def signals(self, federation: Federation) -> Array:
        """The same clients' vectors without noise: (clients, rounds, dim)."""
        work = self.algorithm.work
        state = work.init(self._point(-1.0), federation)
        silence = torch.zeros(federation.clients, dtype=torch.float64)
        vectors = np.empty((federation.clients, self.rounds, self.dim))
        for cohort, point in self._play(federation):
            rows, state = work.run(point, cohort, state, silence)
            vectors[:, cohort.round] = rows.double().numpy()
        return vectors

    def _play(self, federation: Federation) -> Iterator[tuple[Cohort, Tensor]]:
        """The rounds, with the point that moves gradients furthest from those that clients remember.

        The first point is also the one that memories begin with. SVRG's snapshot is public; of SAGA's table the
        server knows how likely an entry is to be old. Where there is no memory, signs alternate.
        """
        estimator = getattr(self.algorithm.work, "estimator", None)
        sign = remembered = -1.0
        for t in range(self.rounds):
            cohort = Cohort(federation, torch.arange(federation.clients), t, self.randomness)
            if t > 0:
                sign = -1.0 if remembered > 0 else 1.0
            yield cohort, self._point(sign)
            if isinstance(estimator, Svrg):
                moves = cohort.public_coin(Purpose.SNAPSHOT, estimator.snapshot_probability)
                remembered = sign if moves else remembered
            elif isinstance(estimator, Saga):
                remembered += estimator.sampling.rate(self.records) * (sign - remembered)
            else:
                remembered = sign

    def _point(self, sign: float) -> Tensor:
        return torch.full((self.dim,), sign)


def _read(packets: Packets) -> tuple[Tensor, Tensor]:
    """What messages say about the vectors that they were made of, and about which coordinates."""
    if not isinstance(packets, SparsePackets):
        return packets.dense(), torch.ones(packets.clients, packets.dim)
    # Sparse messages are scaled up to be right on average; the adversary knows by how much.
    share = packets.choice.indices.shape[1] / packets.dim
    return packets.dense() * share, torch.zeros(packets.clients, packets.dim).scatter_(1, packets.choice.indices, 1.0)


def _federation(records: Tensor, *, clients: int, first: int) -> Federation:
    """Clients with equally many of these records; their ids, and so their randomness, begin at `first`."""
    return Federation(
        features=records,
        targets=torch.zeros(len(records)),
        sizes=torch.full((clients,), len(records) // clients),
        ids=torch.arange(first, first + clients),
        name="gradient game",
    )


@dataclass(frozen=True)
class _Trials:
    """Independent clients, each with one canary and one coin; `others` is what all other records pull.

    Where batches have a fixed size, the worst case is others that pull against the canary.
    """

    game: _Game
    others: float

    @property
    def direction(self) -> Array:
        """All coordinates alike, so that no compressor can miss the canary."""
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
        at_a_time = max(1, _NUMBERS_AT_A_TIME // (self.game.records * self.game.dim))
        parts = []
        for start in range(0, len(present), at_a_time):
            federation = self._clients(present[start : start + at_a_time], first + start)
            parts.append(run(federation))
        return np.concatenate(parts)

    def _clients(self, present: Coins, first: int) -> Federation:
        absent = -1.0 if self.game.adjacency is Adjacency.REPLACE_ONE else 0.0
        pulls = torch.full((len(present), self.game.records), self.others)
        pulls[:, 0] = torch.from_numpy(np.where(present, 1.0, absent))
        step = torch.from_numpy(self.game.canary_length * self.direction)
        records = (pulls.double().reshape(-1, 1) * step).float()
        return _federation(records, clients=len(present), first=first)


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
    """A lower bound on the epsilon of one client with so many records over so many rounds, by repeated runs.

    In every trial a coin decides whether the client holds the canary or its replacement (for add/remove: a record that
    adds nothing). The adversary sees all of the client's messages and knows everything else. A fifth of the
    trials, for each of two choices of the other records, is for rehearsing, another for choosing what to guess;
    the rest is used once.

    Guarantee: for an algorithm that keeps its promise, `lower_bound` exceeds the promised epsilon with probability at
    most 1 - `confidence`, and `on_curve` is violated with probability at most 0.001. Coins that are public in the
    algorithm (SVRG's snapshots) are the same in all trials: the promise is made for every outcome of them.
    """
    game = _Game.of(algorithm, records, rounds, privacy, dim, seed)
    practice = int(_PRACTICE * count("trials", trials, at_least=100))
    final, curve = trials - 2 * practice, game.curve()
    plans: list[tuple[Rule, _Trials, dict[str, Attack], dict[str, Array], Coins]] = []
    first = 0
    for others in (0.0, -1.0) if records > 1 else (0.0,):
        playing = _Trials(game, others)
        attacks = rehearsed_attacks(playing.rehearse(practice, first), playing.direction)
        views, present = playing.play(practice, first + practice)
        scores = {name: attack(views) for name, attack in attacks.items()}
        rule = best_rule(scores, present, curve, trials=final, confidence=CURVE_CONFIDENCE)
        plans.append((rule, playing, attacks, scores, present))
        first += 2 * practice
    rule, playing, attacks, scores, present = max(plans, key=lambda plan: plan[0].margin)
    claim_rule = best_rule(scores, present, [game.claim], trials=final, confidence=confidence)
    views, present = playing.play(final, first)
    scores = {name: attacks[name](views) for name in {rule.attack, claim_rule.attack}}
    return _result(
        game,
        "repeated runs",
        at_claim=claim_rule.finding(scores, present, confidence=confidence),
        on_curve=rule.finding(scores, present, confidence=CURVE_CONFIDENCE),
    )
