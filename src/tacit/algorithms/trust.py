"""Whom a promise trusts. This decides how messages travel and how clients share the noise.

The engine and the deployment work with any `Trust` and never check which one it is. To support another kind (say,
masked sums that only the server can open), add a class here and a reader of its messages in the deployment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.client.bounded_update import BoundedUpdate
from tacit.client.work import Work
from tacit.compress import Direct, Identity
from tacit.compress.uplink import Uplink
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.gaussian import gaussian_rows
from tacit.noise.randomness import Generators, Purpose, Randomness
from tacit.privacy import Target, events
from tacit.privacy.promises.terms import Adversary
from tacit.server.participation import Attendance, Participation, PoissonClients


class Travel(StrEnum):
    """How the messages of a round reach the server."""

    ALONE = "alone"
    """each on its own, with its sender's name"""
    SHUFFLED = "shuffled"
    """all messages of a round in random order"""
    COUNTED = "counted"
    """only the number of ones at every position, over all bits of a round"""
    SUMMED = "summed"
    """only the sum over the round"""


@dataclass(frozen=True)
class Exposure:
    """The event of a client's whole run, as seen by an adversary who sees more than the promise assumes."""

    adversary: Adversary
    event: dp_event.DpEvent


class Trust(Protocol):
    """Who sees what: this determines what a noise multiplier is worth and how clients share the noise.

    Guarantee: `event` dominates what `adversary` sees of a client with `records` records over `releases`
    releases, if in every round clients add the noise given by `share` and `top_up` is applied to their sum.
    """

    @property
    def adversary(self) -> Adversary:
        """The adversary against whom the promise holds."""
        ...

    @property
    def charges_everyone(self) -> bool:
        """Whether every client is charged for every round, because who took part is secret."""
        ...

    @property
    def colluding(self) -> int:
        """How many clients may help the adversary, where the promise relies on the others."""
        ...

    @property
    def quorum(self) -> int:
        """How many messages of a round must arrive before the server can read any of them."""
        ...

    def travel(self, work: Work) -> Travel:
        """How messages of this work reach the server."""
        ...

    def check(self, work: Work, uplink: Uplink, participation: Participation, federation: Federation) -> None:
        """Refuses settings for which the promise cannot be derived."""
        ...

    def check_target(self, work: Work, privacy: Target | Sequence[Target] | str) -> None:
        """Refuses budgets for which the promise cannot be derived."""
        ...

    def levelled(self, noise_multipliers: Tensor, stds: Tensor) -> Tensor:
        """Every client's noise multiplier, if `noise_multipliers` are what each of them needs on its own.

        `stds` are the standard deviations that these give to a coordinate of what the client sends.
        """
        ...

    def event(
        self, work: Work, clients: int, records: int, noise_multiplier: float, releases: int
    ) -> dp_event.DpEvent:
        """The event of one client's whole run, as the adversary sees it."""
        ...

    def share(self, noise_multipliers: Tensor, cohort: int) -> Tensor:
        """The noise that each of `cohort` clients adds, in units of the bound."""
        ...

    def top_up(
        self,
        total: Tensor,
        noise_multiplier: float,
        bound: float,
        cohort: int,
        round: int,
        randomness: Randomness,
    ) -> Tensor:
        """The sum of all messages plus the noise that is still missing."""
        ...

    def exposures(
        self, work: Work, clients: int, records: int, noise_multiplier: float, attendance: Attendance
    ) -> tuple[Exposure, ...]:
        """What remains of the promise against adversaries who see more; never computed from secret coins."""
        ...


class CommonTrust:
    """What most kinds of trust answer: clients add all noise themselves, each what it needs."""

    def check_target(self, work: Work, privacy: Target | Sequence[Target] | str) -> None:
        """Accepts any budgets: every client may have its own."""

    def levelled(self, noise_multipliers: Tensor, stds: Tensor) -> Tensor:
        """What each needs."""
        return noise_multipliers

    def share(self, noise_multipliers: Tensor, cohort: int) -> Tensor:
        """Every client adds the full noise."""
        return noise_multipliers

    def top_up(
        self,
        total: Tensor,
        noise_multiplier: float,
        bound: float,
        cohort: int,
        round: int,
        randomness: Randomness,
    ) -> Tensor:
        """The total as it is: no noise is missing, or there is no party that could add it."""
        return total


@dataclass(frozen=True)
class Nobody(CommonTrust):
    """Every message is protected by its own noise against a server that sees the message and its sender."""

    adversary: Adversary = Adversary.SERVER
    charges_everyone: bool = False
    colluding: int = 0
    quorum: int = 1

    def travel(self, work: Work) -> Travel:
        """Messages travel one by one."""
        return Travel.ALONE

    def check(self, work: Work, uplink: Uplink, participation: Participation, federation: Federation) -> None:
        """Refuses secret coins: the accountant needs to know how often a client takes part."""
        if participation.secret:
            raise RequestError(
                "a server that sees every message also sees who takes part: give cohort as a number of clients, "
                "not as secret coins"
            )

    def event(
        self, work: Work, clients: int, records: int, noise_multiplier: float, releases: int
    ) -> dp_event.DpEvent:
        """The event of the client's work."""
        return work.event(records, noise_multiplier, releases)

    def exposures(
        self, work: Work, clients: int, records: int, noise_multiplier: float, attendance: Attendance
    ) -> tuple[Exposure, ...]:
        """None: the server already sees every message."""
        return ()


@dataclass(frozen=True)
class Aggregator(CommonTrust):
    """A trusted party or secure aggregation shows only sums, and not who took part.

    Guarantee: the noise on every round's sum is z bounds, whoever takes part. With `expected` clients each adds
    z/sqrt(expected); if fewer come the aggregator adds the rest, and if more come each adds less. So the noise
    does not reveal how many took part, and a round is the Poisson-sampled Gaussian mechanism on whole clients:
    DP-NormFedAvg (Das et al. 2022), Algorithm 1, line 12, and Theorem 3, except that the number of participants
    stays hidden. An empty round is pure noise.
    """

    expected: float
    adversary: Adversary = Adversary.SUM
    charges_everyone: bool = True
    colluding: int = 0
    quorum: int = 0
    """a round without clients is pure noise and looks like any other"""

    def travel(self, work: Work) -> Travel:
        """Messages are summed."""
        return Travel.SUMMED

    def check(self, work: Work, uplink: Uplink, participation: Participation, federation: Federation) -> None:
        """Requires uncompressed whole updates, secret coins, plain floating-point noise and equal weights."""
        if not isinstance(work, BoundedUpdate) or uplink != Direct(Identity()):
            raise RequestError(
                "a promise about sums is proved for bounded, uncompressed updates of whole clients: messages "
                "that were compressed one by one are not a function of the noisy sum"
            )
        if not isinstance(participation, PoissonClients) or participation.expected != self.expected:
            raise RequestError(
                f"a promise about sums needs clients that take part by secret coins, not {participation}"
            )
        participation.rate(federation.clients)
        if work.noise.secret:
            raise RequestError(
                "noise = 'lattice' is proved for single messages; a sum of rounded shares has no proof: "
                "use noise = 'gaussian', or adversary = 'server'"
            )
        if federation.weights is not None:
            raise RequestError(
                "weights need a promise about single messages, and this one is about sums: leave weights out, or "
                "set adversary = 'server'"
            )

    def check_target(self, work: Work, privacy: Target | Sequence[Target] | str) -> None:
        """Refuses budgets that differ: a sum has one noise for all."""
        if not isinstance(privacy, Target | str) and len(set(privacy)) > 1:
            raise RequestError(
                "this promise is about all clients together: clients cannot have budgets of their own"
            )

    def event(
        self, work: Work, clients: int, records: int, noise_multiplier: float, releases: int
    ) -> dp_event.DpEvent:
        """In every round, every client takes part by a coin."""
        return events.repeated(events.poisson(min(1.0, self.expected / clients), noise_multiplier), releases)

    def share(self, noise_multipliers: Tensor, cohort: int) -> Tensor:
        """z / sqrt(number of clients, or the expected number if that is larger)."""
        return noise_multipliers / math.sqrt(max(cohort, self.expected))

    def top_up(
        self,
        total: Tensor,
        noise_multiplier: float,
        bound: float,
        cohort: int,
        round: int,
        randomness: Randomness,
    ) -> Tensor:
        """Adds the shares of the expected clients that did not take part."""
        missing = 1 - cohort / max(cohort, self.expected)
        if missing <= 0 or noise_multiplier == 0:
            return total
        std = torch.tensor([noise_multiplier * bound * math.sqrt(missing)], dtype=torch.float64)
        noise = gaussian_rows(std, len(total), Generators(randomness, Purpose.AGGREGATE, round=round))
        return total + noise[0].to(total.device)

    def exposures(
        self, work: Work, clients: int, records: int, noise_multiplier: float, attendance: Attendance
    ) -> tuple[Exposure, ...]:
        """Known participants get no credit for secret coins; a visible message has only its client's own share.

        Both use the distribution of the coins, never the coins of this run: they are printed beside a promise
        that holds only if nobody knows those coins.
        """
        rounds, expected = attendance.rounds, min(self.expected, clients)
        known = events.revealed_batches(rounds, expected / clients, noise_multiplier, 1.0, 0.0)
        alone = events.repeated(events.shared_noise(clients, expected, noise_multiplier), rounds)
        return Exposure(Adversary.COHORT, known), Exposure(Adversary.SERVER, alone)
