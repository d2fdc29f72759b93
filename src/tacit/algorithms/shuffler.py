"""Trust in a shuffler, which mixes the messages of all clients before the server sees them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from dp_accounting import dp_event
from torch import Tensor

from tacit.algorithms.trust import CommonTrust, Exposure, Travel
from tacit.client.work import Work
from tacit.compress.uplink import Uplink
from tacit.errors import RequestError, count
from tacit.federation import Federation
from tacit.noise.additive import check_size
from tacit.privacy import Target
from tacit.privacy.promises.terms import Adversary
from tacit.server.participation import Attendance, Participation

MOST_EPSILON_OF_COINS = 15.0
"""Largest epsilon covered by Lemma G.1 of ISRL-DP (Lowy & Razaviyayn 2023)."""


@dataclass(frozen=True)
class Shuffler(CommonTrust):
    """The server receives the messages of `cohort` clients in random order, and nobody else sees them.

    Guarantee: all messages of a round look alike (same noise, batch size and scale, no weights, no memory), so
    any message may be anyone's. Gaussian messages are amplified by shuffling (`tacit.privacy.accountant.mixed`),
    and are never charged more than a single message alone. For coins, shuffled bits reveal only their sum, which
    carries the noise of all clients. Clients of different sizes are all charged, and protected, like the smallest
    one, whose records are drawn most often. Who takes part in a round is public, so choosing some of the clients
    does not amplify privacy.

    Assumptions: no client of the cohort colludes with the server, and none leaves out its noise.
    """

    cohort: int = 0
    """how many messages are shuffled together; 0 if `tacit.plan` is to take it from who takes part"""
    records: int = 0
    """number of records of the smallest client; 0 if `tacit.plan` is to take it from the federation"""
    adversary: Adversary = Adversary.SHUFFLER
    charges_everyone: bool = False
    colluding: int = 0

    @property
    def quorum(self) -> int:
        return self.cohort

    def travel(self, work: Work) -> Travel:
        """Shuffled. Bits mixed with those of all other clients reveal only how many are ones."""
        return Travel.COUNTED if work.counted else Travel.SHUFFLED

    def __post_init__(self) -> None:
        count("records", self.records, at_least=0)
        if count("cohort", self.cohort, at_least=0) == 1:
            raise RequestError(
                "a shuffler needs at least 2 clients in a round: a single one has nobody to hide among. With "
                "one, use noisy-mb-sgd or accelerated-mb-sgd, whose messages are protected by themselves"
            )

    def fitted(self, participation: Participation, federation: Federation) -> Self:
        """The same shuffler with the numbers that are still open, from the federation."""
        cohort = self.cohort or participation.number_of(federation.clients) or federation.clients
        return replace(self, cohort=cohort, records=self.records or int(federation.sizes.min()))

    def check(self, work: Work, uplink: Uplink, participation: Participation, federation: Federation) -> None:
        """Refuses any setting that would tell one client's message from another's."""
        if not uplink.alike:
            raise RequestError(
                "an uplink with memory would make the clients' messages distinguishable behind a shuffler"
            )
        if participation.number_of(federation.clients) != self.cohort:
            raise RequestError(
                f"a shuffler that mixes {self.cohort} messages needs as many clients in every round: give cohort "
                f"as a fixed number, not {participation}"
            )
        if federation.weights is not None:
            raise RequestError("weights would tell clients' messages apart behind a shuffler; leave them out")
        if int(federation.sizes.min()) < self.records:
            raise RequestError(
                f"the smallest client has {int(federation.sizes.min())} records, fewer than the {self.records} "
                "that the promise assumes"
            )
        batches = work.sampling.batch_sizes(federation.sizes).unique()
        if not work.sampling.exact:
            raise RequestError(
                f"sampling {work.sampling.name!r} has no proof behind a shuffler: a batch may count one record "
                "several times, or all of them; use 'without-replacement', 'one-pass' or 'full'"
            )
        if len(batches) > 1:
            raise RequestError(
                f"batches of {int(batches.min())} to {int(batches.max())} records would make clients' messages "
                "distinguishable behind a shuffler: give batch as a number of records that every client has"
            )
        work.check_shuffled(self.cohort, int(batches[0]))

    def check_target(self, work: Work, privacy: Target | Sequence[Target] | str) -> None:
        """Refuses budgets that differ between clients, and any epsilon that the paper's theorems do not cover."""
        if isinstance(privacy, str):
            return
        if not isinstance(privacy, Target):
            raise RequestError(
                "behind a shuffler all messages must have the same noise: give one epsilon and delta for all "
                "clients"
            )
        coins = work.counted
        most = MOST_EPSILON_OF_COINS if coins else math.log(2 / privacy.delta)
        if privacy.epsilon > most:
            where = "15 (Lemma G.1)" if coins else f"ln(2/delta) = {most:.3g} (Theorem 5.1)"
            raise RequestError(
                f"epsilon = {privacy.epsilon:g} is above {where} of ISRL-DP: with so little noise, shuffling "
                "does not amplify. Use a smaller one, or noisy-mb-sgd or accelerated-mb-sgd, which need none"
            )

    def event(
        self, work: Work, clients: int, records: int, noise_multiplier: float, releases: int
    ) -> dp_event.DpEvent:
        """The event of the shuffled messages, or of the sum of bits, for a record of the smallest client."""
        check_size(work.noise, records)
        return work.shuffled_event(self.cohort, self.records, noise_multiplier, releases)

    def share(self, noise_multipliers: Tensor, cohort: int) -> Tensor:
        """Every client adds the full noise, and all add the same."""
        if len(noise_multipliers.unique()) > 1:
            raise RequestError(
                "behind a shuffler all messages must have the same noise: one budget for all clients"
            )
        return noise_multipliers

    def exposures(
        self, work: Work, clients: int, records: int, noise_multiplier: float, attendance: Attendance
    ) -> tuple[Exposure, ...]:
        """A server that colludes with the shuffler knows who sent what."""
        return (Exposure(Adversary.SERVER, work.event(records, noise_multiplier, max(1, attendance.most))),)
