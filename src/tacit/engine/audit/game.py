"""The game that an auditor plays against the code, with worst-case records and a dishonest server.

The game runs `client_round`, the function that every engine calls: sampling, bound, estimator, noise, shift,
compression and wire format. For a promise about a crowd, it also covers how the crowd shares the noise and what a
trusted party adds. Only the model and the data are the auditor's, because the promise holds for all models and
data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.client.cohort import Cohort
from tacit.client.work import sizes_are_public
from tacit.compress import ControlVariates, Direct, Identity, Packets, RandK, Shifted
from tacit.compress.rotation import Rotation
from tacit.compress.sparse import SparsePackets, Sparsifier
from tacit.compress.uplink import Uplink
from tacit.engine.audit.model import BEYOND, GradientGame, clients_with
from tacit.engine.audit.seats import OneClient, Seat, mixing, randomness_of
from tacit.engine.audit.stage import Draws, Tactic
from tacit.engine.round import POINT, client_round, client_start
from tacit.engine.threads import suitable_threads
from tacit.errors import count
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Adjacency, Adversary, Unit
from tacit.privacy.accountant.pairs import Array
from tacit.privacy.audit import Attack, Rehearsal, Shifts, mixed_attacks, rehearsed_attacks
from tacit.privacy.audit.checks import Counts

_NUMBERS_AT_A_TIME = 2**24
_DEVIATIONS = 6.0


@dataclass(frozen=True)
class Game:
    """An algorithm with its noise, the adversary's seat, and the unit whose data are guessed."""

    algorithm: Algorithm
    seat: Seat
    noise: float
    """the noise that a client adds if it adds all of it, in units of the bound"""
    shifts: Shifts
    """how far the promise lets one unit move a release"""
    unit: Unit
    adjacency: Adjacency
    records: int
    rounds: int
    randomness: Randomness

    def placed(self) -> Game:
        """The same game at points so far out that local steps cannot change a client's level."""
        return replace(self, algorithm=with_game(self.algorithm, self.dim, self._walk()))

    @property
    def name(self) -> str:
        return self.algorithm.name

    @property
    def adversary(self) -> Adversary:
        return self.seat.adversary

    @property
    def clients(self) -> int:
        return self.seat.clients

    @property
    def messages(self) -> float:
        """Approximate number of clients of a trial that send a message in a round."""
        return self.seat.messages

    @property
    def dim(self) -> int:
        """Dimension of the game's vectors."""
        return self.algorithm.work.model.dim

    @property
    def model(self) -> GradientGame:
        """The auditor's model."""
        model = self.algorithm.work.model
        assert isinstance(model, GradientGame), "a game is played with the auditor's model"
        return model

    @property
    def direction(self) -> Array:
        """Direction of the canary in messages; some clients rotate theirs."""
        rotation = getattr(self.algorithm.work, "rotation", None)
        alike = self._alike
        own = alike if rotation is None else rotation.forward(torch.from_numpy(alike)[None])[0].numpy()
        return np.pad(own, (0, self.algorithm.length - self.dim))

    @property
    def _alike(self) -> Array:
        """A direction of equal coordinates: no compressor misses it, and limits per coordinate let it through."""
        return np.full(self.dim, self.dim**-0.5)

    @property
    def tactics(self) -> tuple[Tactic, ...]:
        """The tactics worth rehearsing; which one is best depends on the algorithm."""
        tactics, work = [Tactic()], self.algorithm.work
        estimator = getattr(work, "estimator", None)
        reach = None if estimator is None else estimator.reach(work.sampling.rate(self.records))
        if reach is not None and reach.always:
            # Where differences are cut to r bounds, a record that is drawn moves the sum most if its old gradient
            # is 1 - r times its new one; a record that is not drawn moves it most if both are the same.
            memories = {1.0, max(-1.0, 1 - reach.drawn)} - {-1.0}
            tactics += [Tactic(memory=memory) for memory in sorted(memories)]
        if self.records > 1 or self.clients > 1:
            tactics.append(Tactic(others=-1.0))
        return tuple(tactics)

    def views(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """What the adversary sees of the trials: (trials, rounds, dim), with nan where nothing is sent.

        Mixed messages have an axis for clients before the last, with the canary's client first; `hidden` shuffles
        it.
        """
        return self._in_parts(pulls, first, tactic, self.noise, self.algorithm.uplink)

    def hidden(self, views: Array, first: int) -> Array:
        """Views without what the adversary must not know."""
        return self.seat.hide(views, mixing(self.randomness, first))

    def bare(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        return self._in_parts(pulls, first, tactic, self.noise, _lossless(self.algorithm.uplink, self.dim))

    def signals(self, pulls: Array, first: int, tactic: Tactic) -> Array:
        """The same trials without noise and compression."""
        return self._in_parts(pulls, first, tactic, 0.0, Direct(Identity()))

    @property
    def followed(self) -> Game:
        """The same trials for someone who can pick out the canary's messages where they are only mixed."""
        if not self.seat.mixed:
            return self
        return replace(self, seat=OneClient(stride=self.clients))

    def draws(self, trials: int, first: int) -> Counts:
        """How often the canary was drawn for every message: (trials, rounds)."""
        work, seat = self.algorithm.work, self.seat
        federation = self._federation(np.ones(trials), first, Tactic())
        sources = self._sources(trials, first)
        mine = torch.arange(trials) * seat.clients
        starts = federation.offsets[mine]
        canaries = 1 if self.unit is Unit.RECORD else self.records
        drawn = np.zeros((trials, self.rounds), dtype=np.int64)
        for t in range(self.rounds):
            if work.unit is Unit.CLIENT:
                drawn[:, t] = seat.present(self.algorithm, 0.0, t, sources).canary
                continue
            for k in range(work.batches_per_round):
                cohort = Cohort(federation, mine, t, self.randomness, step=k, steps=work.batches_per_round)
                got = work.sampling.draw(cohort)
                inside = got.rows - starts[got.batch.owners().cpu()] < canaries
                drawn[:, t] += np.bincount(got.batch.owners().cpu().numpy()[inside.numpy()], minlength=trials)
        return drawn

    def allowed(self, draws: Counts, first: int) -> Array:
        """How far canaries drawn this often may move messages, in standard deviations of the noise."""
        work = self.algorithm.work
        sides = 2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0
        if work.unit is Unit.CLIENT:
            sources = self._sources(len(draws), first)
            weights = [self.seat.present(self.algorithm, 0.0, t, sources).weights for t in range(self.rounds)]
            return sides * self.shifts.drawn * np.stack(weights, axis=1) * draws
        # Each of several local steps is a release of its own, and the message is their sum.
        steps = work.batches_per_round
        chances = steps * (1 if self.unit is Unit.RECORD else self.records)
        moved = self.shifts.drawn * draws + self.shifts.not_drawn * np.maximum(chances - draws, 0)
        return np.asarray(sides * moved / math.sqrt(steps))

    @property
    def expected_draws(self) -> Draws | None:
        """The expected draws, from the sampling's own rate or from the coins of whole clients."""
        work = self.algorithm.work
        if work.unit is Unit.CLIENT:
            return Draws(self.seat.chance)
        if self.unit is Unit.CLIENT:
            return None
        rate = work.sampling.rate(self.records)
        once = work.sampling.name == "one-pass"
        return Draws(1 - (1 - rate) ** work.batches_per_round, 1 if once else None)

    @property
    def independent_draws(self) -> bool:
        """Whether every unit is drawn by a coin of its own."""
        work = self.algorithm.work
        if work.unit is Unit.CLIENT:
            return self.seat.chance < 1 and self.clients > 1
        return work.sampling.name == "poisson" and self.records > 1 and self.unit is Unit.RECORD

    def attacks(self, rehearsal: Rehearsal) -> dict[str, Attack]:
        if self.seat.mixed:
            return mixed_attacks(rehearsal)
        return rehearsed_attacks(rehearsal, self.direction)

    def play(self, federation: Federation, first: int, tactic: Tactic, noise: float, uplink: Uplink) -> Array:
        """All rounds of the trials that these clients belong to."""
        algorithm = replace(self.algorithm, uplink=uplink)
        seat, trials = self.seat, federation.clients // self.seat.clients
        sources = self._sources(trials, first)
        length = algorithm.length
        shifts = torch.zeros(federation.clients, length)
        # The server may choose whatever else it tells its clients; the same in every round is enough.
        broadcast = uplink.broadcast(uplink.server_init(length))
        rounds = self._points(federation, tactic)
        _, point = next(rounds)
        state = client_start(algorithm, point, federation)
        seen = []
        for t, point in rounds:
            who = seat.present(algorithm, noise, t, sources)
            cohort = Cohort(federation, who.positions, t, self.randomness)
            packets, state = client_round(algorithm, {POINT: point, **broadcast}, cohort, state, who.multipliers)
            # What is summed under masks has no bytes of its own.
            summed = uplink.shared or not noise
            received = packets if summed else algorithm.uplink.compressor.decode(packets.encode(), length)
            rows = _values(received) + shifts[who.positions]
            if isinstance(uplink, Shifted):
                # Shifts follow from earlier messages, so the adversary adds them back.
                received.add_to(shifts, uplink.gamma(length), who.positions)
            seen.append(seat.see(algorithm, rows, who, noise, t, sources).numpy().astype(np.float64))
        return np.stack(seen, axis=1)

    def _sources(self, trials: int, first: int) -> list[Randomness]:
        return [randomness_of(first + n, self.randomness) for n in range(trials)]

    def _in_parts(self, pulls: Array, first: int, tactic: Tactic, noise: float, uplink: Uplink) -> Array:
        numbers = self.seat.clients * self.records * self.dim
        step = max(1, _NUMBERS_AT_A_TIME // numbers)
        with suitable_threads(min(step, len(pulls)) * numbers):
            parts = [
                self.play(
                    self._federation(pulls[i : i + step], first + i, tactic), first + i, tactic, noise, uplink
                )
                for i in range(0, len(pulls), step)
            ]
        return np.concatenate(parts)

    def _federation(self, pulls: Array, first: int, tactic: Tactic) -> Federation:
        """The clients of the trials. The first of each trial holds the canary, or is the canary.

        If numbers of records are protected too, a client's neighbour has only one record.
        """
        work, clients = self.algorithm.work, self.seat.clients
        each = np.full((len(pulls), clients, self.records), tactic.others)
        canaries = 1 if self.unit is Unit.RECORD else self.records
        each[:, 0, :canaries] = pulls[:, None] * tactic.size
        there = np.ones(each.shape, dtype=bool)
        if not sizes_are_public(work):
            there[pulls <= 0, 0, 1:] = False
        length = work.bound.norm(self.dim)
        rows = torch.from_numpy(each[there][:, None] * (length * self._alike)).float()
        trials = torch.arange(first, first + len(pulls))[:, None]
        ids = (trials * self.seat.stride + torch.arange(clients)).reshape(-1)
        return clients_with(rows, ids, torch.from_numpy(there.sum(2)).reshape(-1))

    def _points(self, federation: Federation, tactic: Tactic) -> Iterator[tuple[int, Tensor]]:
        """Where clients start, and the point of every round.

        SVRG's snapshot is public. For an entry of SAGA's table, the server knows how likely it is to be old.
        """
        estimator = getattr(self.algorithm.work, "estimator", None)
        remembered = tactic.memory
        yield -1, self.model.point(tactic.memory)
        for t in range(self.rounds):
            cohort = Cohort(federation, torch.arange(1), t, self.randomness)
            renewed = 1.0 if estimator is None else estimator.renewed(cohort)
            if tactic.memory > -1:
                level = tactic.memory if renewed == 1 else 1.0
            else:
                level = -1.0 if remembered > 0 else 1.0
            yield t, self.model.point(level)
            remembered += renewed * (level - remembered)

    def _walk(self) -> float:
        """A distance that clients cannot cover in a round: the longest bounded steps, with their noise."""
        work: Any = self.algorithm.work
        step = getattr(work, "step_size", None)
        if step is None:
            return 1.0
        sizes = torch.tensor([self.records])
        spread = float(sizes[0] / work.sampling.batch_sizes(sizes)[0])
        bound = work.bound.norm(self.dim)
        if work.unit is Unit.CLIENT:
            longest = BEYOND * bound * spread
        else:
            noise = float(work.noise_stds(sizes, torch.tensor([self.noise], dtype=torch.float64))[0])
            longest = bound * spread + _DEVIATIONS * noise
        return float(4 * step * work.batches_per_round * longest)


def with_game(algorithm: Algorithm, dim: int, far: float = 1.0) -> Algorithm:
    """The algorithm with the auditor's model in place of its own."""
    work: Any = replace(algorithm.work, model=GradientGame(count("dim", dim), far))  # type: ignore[type-var]
    if getattr(work, "rotation", None) is not None:
        work = replace(work, rotation=Rotation(dim))
    return replace(algorithm, work=work)


def _lossless(uplink: Uplink, dim: int) -> Uplink:
    """An uplink that keeps the same coordinates without rounding, and steers clients as before."""
    compressor = uplink.compressor
    exact = RandK(count=compressor.kept(dim)) if isinstance(compressor, Sparsifier) else Identity()
    return ControlVariates(exact) if isinstance(uplink, ControlVariates) else Direct(exact)


def _values(packets: Packets) -> Tensor:
    """The vectors that messages describe, with nan for coordinates that they leave out."""
    if not isinstance(packets, SparsePackets):
        return packets.dense()
    # Sparse messages are scaled up to be right on average; the adversary knows by how much.
    indices = packets.choice.indices
    scaled = packets.quantised.values / packets.choice.scale
    return torch.full((packets.clients, packets.dim), torch.nan).scatter_(1, indices, scaled)
