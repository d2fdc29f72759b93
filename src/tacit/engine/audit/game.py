"""The game that an auditor plays against a client: records are gradients, and the server is not honest.

What is audited is `client_round`, the function that every engine calls: sampling, bound, estimator, noise,
shift, compression and wire format. Only model and data are the auditor's, because the promise is made for all
of them: the worst records that the bound lets through, and points that turn all gradients around, against
whatever clients may remember.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Calibration
from tacit.client.cohort import Cohort
from tacit.client.estimators import Saga, Svrg
from tacit.compress import Packets, Shifted
from tacit.compress.sparse import SparsePackets
from tacit.engine.plan import plan
from tacit.engine.round import client_round, client_start
from tacit.errors import RequestError, count
from tacit.federation import Batch, Federation
from tacit.models.gradients import WrittenGradients
from tacit.models.penalty import Penalty
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency, Guarantee, Target
from tacit.privacy.audit import ClaimedPoint
from tacit.server.participation import Everyone

Array = NDArray[np.float64]
Coins = NDArray[np.bool_]

CANARY_NORM = 1e3
"""In units of the bound, so that nothing but the bound keeps a canary small."""

FAR = 1e3
"""How far from zero points are: no local step of a client may cross it and turn its gradients."""


@dataclass(frozen=True)
class GradientGame:
    """A model in which a record is its own gradient: f_j(x) = s(x) <record_j, x>, with s(x) the sign of sum(x).

    Whoever chooses the point chooses the sign of all gradients.
    """

    dim: int
    penalty: Penalty | None = None
    metric_name: str = "loss"

    def init(self, generator: np.random.Generator) -> Tensor:
        """Where the sign is -1."""
        return torch.full((self.dim,), -FAR)

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        """s(x) <record_j, x>."""
        points = point.expand(batch.records, -1) if point.dim() == 1 else point[batch.owners()]
        return self._signs(point, batch) * (batch.features * points).sum(1)

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

    def _signs(self, point: Tensor, batch: Batch) -> Tensor:
        signs = torch.where(point.sum(-1) >= 0, 1.0, -1.0)
        return signs.expand(batch.records) if point.dim() == 1 else signs[batch.owners()]


@dataclass(frozen=True)
class Game:
    """An algorithm with the noise of its promise, and a server that plays against it."""

    algorithm: Algorithm
    calibration: Calibration
    records: int
    rounds: int
    adjacency: Adjacency
    dim: int
    randomness: Randomness

    @classmethod
    def of(cls, algorithm: Algorithm, *, records: int, rounds: int, privacy: Target, dim: int, seed: int) -> Game:
        """The algorithm as it is, but for its model, calibrated for a client with so many records."""
        if not isinstance(privacy, Target):
            raise RequestError(
                f"privacy must be a Target(epsilon, delta), not {privacy!r}: there is nothing to audit"
            )
        work: Any = algorithm.work
        algorithm = replace(algorithm, work=replace(work, model=GradientGame(count("dim", dim))))
        # The client that is played against takes part in every round.
        algorithm = replace(algorithm, participation=Everyone())
        client = clients_with(torch.zeros(count("records", records), dim), clients=1, first=0)
        planned = plan(algorithm, client, rounds=rounds, privacy=privacy, seed=seed)
        calibration = planned.calibration
        return cls(planned.algorithm, calibration, records, rounds, privacy.adjacency, dim, Randomness(seed))

    @property
    def guarantee(self) -> Guarantee:
        """What the accountant promises for this noise."""
        assert self.calibration.guarantee is not None, "the game is calibrated to a target"
        return self.calibration.guarantee

    @property
    def claim(self) -> ClaimedPoint:
        """The promised epsilon at the promised delta."""
        return ClaimedPoint(self.guarantee.epsilon, self.guarantee.delta)

    @property
    def noise_multiplier(self) -> float:
        """The client's."""
        return float(self.calibration.noise_multipliers[0])

    def pulls(self, present: Coins) -> Tensor:
        """How far every canary pulls along its direction: beyond the bound, or its neighbour's way."""
        absent = -1.0 if self.adjacency is Adjacency.REPLACE_ONE else 0.0
        length = CANARY_NORM * self.algorithm.work.bound.norm(self.dim)
        return torch.from_numpy(np.where(present, 1.0, absent) * length)

    def coins(self, number: int, first: int) -> Coins:
        """Fair and independent, for canaries numbered from `first`."""
        return self.randomness.generator(Purpose.DATA, client=first).random(number) < 0.5

    def messages(self, federation: Federation) -> Array:
        """What the adversary sees of every client's private vectors: (clients, rounds, dim), nan where nothing.

        It reads bytes. Shifts follow from earlier messages, so it adds them back.
        """
        algorithm, clients = self.algorithm, federation.clients
        state = client_start(algorithm, self._point(-1.0), federation)
        multipliers = self.calibration.noise_multipliers.expand(clients)
        seen = np.empty((clients, self.rounds, self.dim))
        shifts = torch.zeros(clients, self.dim)
        for cohort, point in self._play(federation):
            packets, state = client_round(algorithm, point, cohort, state, multipliers)
            received = algorithm.uplink.compressor.decode(packets.encode(), self.dim)
            seen[:, cohort.round] = (_values(received) + shifts).numpy()
            if isinstance(algorithm.uplink, Shifted):
                received.add_to(shifts, algorithm.uplink.gamma(self.dim))
        return seen

    def signals(self, federation: Federation) -> Array:
        """The same clients' vectors without noise and compression: (clients, rounds, dim)."""
        work = self.algorithm.work
        state = work.init(self._point(-1.0), federation)
        silence = torch.zeros(federation.clients, dtype=torch.float64)
        vectors = np.empty((federation.clients, self.rounds, self.dim))
        for cohort, point in self._play(federation):
            rows, state = work.run(point, cohort, state, silence)
            vectors[:, cohort.round] = rows.numpy()
        return vectors

    def _play(self, federation: Federation) -> Iterator[tuple[Cohort, Tensor]]:
        """The rounds, each with the sign that is furthest from what clients remember.

        Memories begin with the first point. SVRG's snapshot is public; of an entry in SAGA's table the server
        knows how likely it is to be old. Where there is no memory, signs alternate.
        """
        estimator = getattr(self.algorithm.work, "estimator", None)
        sign = remembered = -1.0
        for t in range(self.rounds):
            cohort = Cohort(federation, torch.arange(federation.clients), t, self.randomness)
            if t > 0:
                sign = -1.0 if remembered > 0 else 1.0
            yield cohort, self._point(sign)
            if isinstance(estimator, Svrg):
                if cohort.public_coin(Purpose.SNAPSHOT, estimator.snapshot_probability):
                    remembered = sign
            elif isinstance(estimator, Saga):
                remembered += estimator.sampling.rate(self.records) * (sign - remembered)
            else:
                remembered = sign

    def _point(self, sign: float) -> Tensor:
        return torch.full((self.dim,), FAR * sign)


def clients_with(records: Tensor, *, clients: int, first: int) -> Federation:
    """Clients with equally many of these records; their ids, and so their randomness, begin at `first`."""
    return Federation(
        features=records,
        targets=torch.zeros(len(records)),
        sizes=torch.full((clients,), len(records) // clients),
        ids=torch.arange(first, first + clients),
        name="gradient game",
    )


def _values(packets: Packets) -> Tensor:
    """What messages say about the vectors that they were made of; nan about coordinates that they leave out."""
    if not isinstance(packets, SparsePackets):
        return packets.dense()
    # Sparse messages are scaled up to be right on average; the adversary knows by how much.
    indices = packets.choice.indices
    scaled = packets.quantised.values * (indices.shape[1] / packets.dim)
    return torch.full((packets.clients, packets.dim), torch.nan).scatter_(1, indices, scaled)
