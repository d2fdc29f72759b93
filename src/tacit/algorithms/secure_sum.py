"""Trust in no single party: a protocol lets the server open nothing but the sum of a round (`tacit.sums`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.trust import CommonTrust, Exposure, Travel
from tacit.client.work import Work
from tacit.compress import SharedCoordinates
from tacit.compress.uplink import Uplink
from tacit.errors import RequestError, count
from tacit.federation import Federation
from tacit.privacy.promises.terms import Adversary, Unit
from tacit.server.participation import Attendance, Participation
from tacit.sums.encoding import Encoding


@dataclass(frozen=True)
class SecureSum(CommonTrust):
    """The server opens one sum a round, over at least `quorum` of `cohort` clients, and nothing else.

    Guarantee: any opened sum has the noise of at least `quorum - colluding` honest clients. Each of them adds a
    share of variance 1/(quorum - colluding) of what the promise needs, so the sum of their messages is the
    Gaussian mechanism with all of it (docs/privacy.md, Theorem M). What else arrives only adds noise.
    Who takes part in a round is public, so choosing some of the clients does not amplify privacy.

    Assumptions: at most `colluding` clients help the server. If all others do, a client has its own share.
    """

    cohort: int
    """the clients of a round"""
    quorum: int
    """the fewest clients whose sum can be opened"""
    colluding: int
    """the most clients that may help the server"""
    adversary: Adversary = Adversary.SECURE_SUM
    charges_everyone: bool = False

    def __post_init__(self) -> None:
        count("cohort", self.cohort)
        count("colluding", self.colluding, at_least=0)
        if count("quorum", self.quorum) > self.cohort:
            raise RequestError(f"quorum = {self.quorum} is more than the {self.cohort} clients of a round")
        if self.honest < 2:
            raise RequestError(
                f"quorum = {self.quorum} with colluding = {self.colluding} leaves {max(0, self.honest)} honest "
                "clients in a sum, and a sum hides nobody with fewer than 2: raise quorum, or lower colluding"
            )
        if self.threshold > self.quorum:
            raise RequestError(
                f"quorum = {self.quorum} must be above half of clients + colluding = {self.cohort} + "
                f"{self.colluding}: otherwise two groups could open two sums of the same round"
            )

    @classmethod
    def of(cls, cohort: int, quorum: int | None = None, colluding: int | None = None) -> SecureSum:
        """The trust for a round of `cohort` clients. By default a fifth may vanish and a fifth may collude.

        >>> SecureSum.of(100), SecureSum.of(5).honest, SecureSum.of(3).honest
        (SecureSum(cohort=100, quorum=80, colluding=20, ...), 3, 3)
        """
        if count("clients", cohort) < 2:
            raise RequestError("trust = 'sum' needs at least 2 clients in a round: a sum over one is its message")
        quorum = cohort - cohort // 5 if quorum is None else quorum
        colluding = max(0, min(cohort // 5, quorum - 2)) if colluding is None else colluding
        return cls(cohort, quorum, colluding)

    @property
    def honest(self) -> int:
        """The fewest honest clients in a sum that the server can open."""
        return self.quorum - self.colluding

    @property
    def threshold(self) -> int:
        """How many clients must answer before a sum opens: more than half of cohort + colluding."""
        return (self.cohort + self.colluding) // 2 + 1

    def travel(self, work: Work) -> Travel:
        """Messages are summed."""
        return Travel.SUMMED

    def check(self, work: Work, uplink: Uplink, participation: Participation, federation: Federation) -> None:
        """Requires one release a round, coordinates that all clients share, and rounds of `cohort` clients."""
        if not work.adds_up:
            raise RequestError(
                f"{type(work).__name__} has no proof under trust = 'sum': the noise of one local step goes "
                "through the next gradient, or is not Gaussian, so shares of it do not add up to what is needed; "
                "use noisy-mb-sgd, accelerated-mb-sgd or an algorithm of the SoteriaFL family"
            )
        if not uplink.shared:
            raise RequestError("under trust = 'sum' all clients must send the same coordinates: use secured(...)")
        if participation.number_of(federation.clients) != self.cohort or participation.secret:
            raise RequestError(
                f"a sum over {self.cohort} clients needs as many in every round: give cohort as a fixed number, "
                f"not {participation}"
            )

    def levelled(self, noise_multipliers: Tensor, stds: Tensor) -> Tensor:
        """All clients add the same noise to the sum, as much as the one that needs the most; others get more."""
        return noise_multipliers * (stds.max() / stds)

    def event(
        self, work: Work, clients: int, records: int, noise_multiplier: float, releases: int
    ) -> dp_event.DpEvent:
        """The event of the client's work, with the noise of all honest shares."""
        event = work.event(records, noise_multiplier, releases)
        # Everyone's noise has to be right. One share more pays for what rounding adds: a total variation of at
        # most 4 h exp(-(5 pi)^2) per coordinate, far below the mass of a share's missing tails.
        return work.noise.charged(event, work.model.dim, releases * self.cohort)

    def share(self, noise_multipliers: Tensor, cohort: int) -> Tensor:
        """z / sqrt(honest clients of the smallest sum)."""
        return noise_multipliers / math.sqrt(self.honest)

    def exposures(
        self, work: Work, clients: int, records: int, noise_multiplier: float, attendance: Attendance
    ) -> tuple[Exposure, ...]:
        """If all others help the server, a client has only its own share of the noise."""
        own = noise_multiplier / math.sqrt(self.honest)
        return (Exposure(Adversary.SERVER, work.event(records, own, max(1, attendance.most))),)


def encoding_of(
    algorithm: Algorithm, federation: Federation, noise_stds: Tensor, noise_multipliers: Tensor, rounds: int
) -> Encoding:
    """How messages become integers, from public numbers alone.

    `noise_stds` are the clients' shares on a coordinate before weights, and `noise_multipliers` what all honest
    shares together are in bounds.
    """
    trust, uplink, work = algorithm.trust, algorithm.uplink, algorithm.work
    assert isinstance(trust, SecureSum), "only sums are encoded"
    weights = torch.ones(federation.clients) if federation.weights is None else federation.weights
    return Encoding.of(
        silos=trust.cohort,
        # A client with many records has a large weight and short vectors, one with few records the opposite.
        longest=float((weights.double() * longest_vectors(work, federation, rounds)).max()),
        noise_std=float((noise_stds * weights.double()).max()),
        noise_multiplier=float(trust.share(noise_multipliers, 0).max()),
        slack=work.noise.slack,
        dim=uplink.compressor.kept(algorithm.length),
        rotated=uplink.compressor.lossless,
        rounds=rounds,
    )


def longest_vectors(work: Any, federation: Federation, rounds: int) -> Tensor:
    """For every client, a norm of its vectors before noise.

    That any of them is longer in a run has a probability of at most 1e-10.
    """
    bound: float = work.bound.norm(work.model.dim)
    if work.unit is Unit.CLIENT:
        return torch.full((federation.clients,), bound, dtype=torch.float64)
    sizes, batches = federation.sizes.double(), work.sampling.batch_sizes(federation.sizes).double()
    # Bernstein's inequality for the records of a random batch, over all clients and rounds.
    rare = math.log(rounds * federation.clients / 1e-10)
    drawn = torch.minimum(sizes, batches + (2 * batches * rare).sqrt() + rare)
    reach = work.estimator.reach(float((batches / sizes).max()))
    longest: Tensor = bound * (reach.always * sizes / batches + reach.drawn * drawn / batches)
    return longest


def secured(algorithm: Algorithm, trust: SecureSum) -> Algorithm:
    """The same algorithm when the server opens only sums: its messages are made ones that add up."""
    if algorithm.travel not in (Travel.ALONE, Travel.SUMMED):
        raise RequestError(
            f"{algorithm.name!r} relies on a shuffler, and trust = 'sum' on none: choose one, or use noisy-mb-sgd"
        )
    return replace(algorithm, uplink=SharedCoordinates.like(algorithm.uplink), trust=trust)
