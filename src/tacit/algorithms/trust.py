"""Whom a promise trusts, and therefore how messages travel and how clients share the noise.

The engine and the deployment ask a `Trust` and never which one it is. Another way to trust (masked sums that only
the server can open, say) is another class here, and a reader of its messages in the deployment.
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
    """each by itself, with its sender's name"""
    SHUFFLED = "shuffled"
    """all of a round in random order"""
    COUNTED = "counted"
    """as the number of ones among all bits of a round, at every place"""
    SUMMED = "summed"
    """as the sum over the round"""


@dataclass(frozen=True)
class Exposure:
    """The event of a client's whole run to an adversary who sees more than the promise allows for."""

    adversary: Adversary
    event: dp_event.DpEvent


class Trust(Protocol):
    """Who sees what, and therefore what a noise multiplier is worth and how clients share the noise.

    Guarantee: `event` dominates what `adversary` sees of a client of `records` records over `releases` releases,
    if in every round the clients' noise is `share` and `top_up` is added to their sum.
    """

    @property
    def adversary(self) -> Adversary:
        """Against whom the promise holds."""
        ...

    @property
    def charges_everyone(self) -> bool:
        """Whether a round costs every client, because nobody may know who took part."""
        ...

    @property
    def quorum(self) -> int:
        """How many messages of a round must have come before the server can read any."""
        ...

    def travel(self, work: Work) -> Travel:
        """How messages of this work reach the server."""
        ...

    def check(self, work: Work, uplink: Uplink, participation: Participation, federation: Federation) -> None:
        """Refuse what the promise cannot be derived for."""
        ...

    def check_target(self, work: Work, privacy: Target | Sequence[Target] | str) -> None:
        """Refuse budgets for which the promise cannot be derived."""
        ...

    def event(
        self, work: Work, clients: int, records: int, noise_multiplier: float, releases: int
    ) -> dp_event.DpEvent:
        """What one client's whole run is to the adversary."""
        ...

    def share(self, noise_multipliers: Tensor, cohort: int) -> Tensor:
        """The noise that each of `cohort` clients adds, in bounds."""
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
        """The sum of all messages with the noise that is still missing."""
        ...

    def exposures(
        self, work: Work, clients: int, records: int, noise_multiplier: float, attendance: Attendance
    ) -> tuple[Exposure, ...]:
        """What is left of the promise against those who see more; never computed from secret coins."""
        ...


@dataclass(frozen=True)
class Nobody:
    """Every message is protected by its own noise, against a server that sees it and who sent it."""

    adversary: Adversary = Adversary.SERVER
    charges_everyone: bool = False
    quorum: int = 1

    def travel(self, work: Work) -> Travel:
        """One by one."""
        return Travel.ALONE

    def check(self, work: Work, uplink: Uplink, participation: Participation, federation: Federation) -> None:
        """The accountant needs to know how often a client takes part; secret coins leave that open."""
        if isinstance(participation, PoissonClients):
            raise RequestError(
                "a server that sees every message sees who takes part: give cohort as a number of clients, "
                "not by secret coins"
            )

    def check_target(self, work: Work, privacy: Target | Sequence[Target] | str) -> None:
        """Every client may have its own."""

    def event(
        self, work: Work, clients: int, records: int, noise_multiplier: float, releases: int
    ) -> dp_event.DpEvent:
        """The work's own."""
        return work.event(records, noise_multiplier, releases)

    def share(self, noise_multipliers: Tensor, cohort: int) -> Tensor:
        """All of it."""
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
        """Nothing is missing."""
        return total

    def exposures(
        self, work: Work, clients: int, records: int, noise_multiplier: float, attendance: Attendance
    ) -> tuple[Exposure, ...]:
        """Nobody sees more."""
        return ()


@dataclass(frozen=True)
class Aggregator:
    """Somebody (a trusted party, or secure aggregation) shows only sums, and not who took part.

    Guarantee: z bounds of noise on every round's sum, whoever takes part: `expected` clients add z/sqrt(expected)
    each, fewer leave the rest to the aggregator, and more add less each. So the noise does not tell how many
    there were, and a round is the Poisson-sampled Gaussian mechanism on whole clients: DP-NormFedAvg,
    Algorithm 1, line 12, and Theorem 3, with the number of participants no longer shining through. An empty
    round is noise.
    """

    expected: float
    adversary: Adversary = Adversary.SUM
    charges_everyone: bool = True
    quorum: int = 0
    """a round without clients is noise, and looks like any other"""

    def travel(self, work: Work) -> Travel:
        """Added up."""
        return Travel.SUMMED

    def check(self, work: Work, uplink: Uplink, participation: Participation, federation: Federation) -> None:
        """Whole updates as they are, secret coins, plain floating-point noise, equal weights."""
        if not isinstance(work, BoundedUpdate) or uplink != Direct(Identity()):
            raise RequestError(
                "a promise about sums is proved for bounded updates of whole clients, sent as they are: what was "
                "compressed one by one is no function of the noisy sum"
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
            raise RequestError("weights of clients go with promises about single messages, not about sums")

    def check_target(self, work: Work, privacy: Target | Sequence[Target] | str) -> None:
        """Any; that there is only one is checked with the noise."""

    def event(
        self, work: Work, clients: int, records: int, noise_multiplier: float, releases: int
    ) -> dp_event.DpEvent:
        """Every client by a coin, in every round."""
        return events.repeated(events.poisson(min(1.0, self.expected / clients), noise_multiplier), releases)

    def share(self, noise_multipliers: Tensor, cohort: int) -> Tensor:
        """z / sqrt(the number of clients, but at least as many as were expected)."""
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
        """The shares of those who did not come."""
        missing = 1 - cohort / max(cohort, self.expected)
        if missing <= 0 or noise_multiplier == 0:
            return total
        std = torch.tensor([noise_multiplier * bound * math.sqrt(missing)], dtype=torch.float64)
        noise = gaussian_rows(std, len(total), Generators(randomness, Purpose.AGGREGATE, round=round))
        return total + noise[0].to(total.device)

    def exposures(
        self, work: Work, clients: int, records: int, noise_multiplier: float, attendance: Attendance
    ) -> tuple[Exposure, ...]:
        """Known participants: no credit for secret coins. A visible message: the client's own share alone.

        Both are laws over the coins, never what the coins of this run were: these numbers are printed beside a
        promise that rests on nobody knowing them.
        """
        rounds, expected = attendance.rounds, min(self.expected, clients)
        known = events.revealed_batches(rounds, expected / clients, noise_multiplier, 1.0, 0.0)
        alone = events.repeated(events.shared_noise(clients, expected, noise_multiplier), rounds)
        return Exposure(Adversary.COHORT, known), Exposure(Adversary.SERVER, alone)
