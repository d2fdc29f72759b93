"""How a statistic leaves the clients: bounded contributions, noise of each client's own, one Gaussian event for each message."""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.errors import DataError, RequestError, count, positive
from tacit.federation import Federation
from tacit.noise.gaussian import gaussian_rows
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy.calibrate import calibrate_noise
from tacit.privacy.events import gaussian, repeated
from tacit.privacy.guarantee import Guarantee, Target

Value = TypeVar("Value")


@dataclass(frozen=True)
class SideRelease(Generic[Value]):
    """A statistic that every client helped to release, and what that costs each of them.

    Guarantee: `event` is what happened to the records of every single client, as the server and all other parties see
    it together; `value` is computed from the messages alone. Compose `event` with what else is released from the same
    records, and account for all of it at once. It is the same for every client: all of them use every record, and
    their noise does not depend on how many there are.
    """

    value: Value
    event: DpEvent
    noise_multiplier: float
    """Of each message: its noise's standard deviation, over the bound on one record's contribution"""
    noise_std: float
    """The standard deviation of the noise on a mean over the records of all clients: how far to trust `value`"""
    clients: int
    target: Target
    public: tuple[str, ...]
    """What is taken as known to everyone"""
    seeded: bool
    """Whether the noise came from a seed: for research, since whoever knows the seed can subtract it"""

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """The event of every client, in client order."""
        return (self.event,) * self.clients

    @property
    def guarantee(self) -> Guarantee:
        """What this release alone promises."""
        return Guarantee(self.events, self.target.delta, self.target.adjacency, public=self.public)


@dataclass(frozen=True)
class NoisyMeans:
    """The means over all records of bounded contributions, asked for `releases` times, each client adding its own noise.

    Guarantee: if every record contributes to each sum a vector of norm at most `bound`, the messages of one client are
    `event`, which keeps `target`. What the guarantee calls a record that is not used contributes the zero vector, so
    contributions should be centred: subtracting a vector that everybody knows from each of them changes nothing but the
    bound. Where the ball around that centre is no wider than the contributions are apart, the bound is tight for both
    adjacencies.

    `question` names the release: all that is public about it. The noise's address is made of the seed and the question,
    so releases that ask different things, and training, never share noise even if they share a seed; the same question
    about *other* values would (two columns under one name: their difference would be released without noise).
    """

    federation: Federation
    question: str
    bound: float
    releases: int
    target: Target
    seed: int | None

    def __post_init__(self) -> None:
        positive("bound", self.bound)
        if not isinstance(self.target, Target):
            raise RequestError(f"target must be a Target(epsilon, delta), not {self.target!r}")
        if self.seed is not None:
            count("seed", self.seed, at_least=0)

    @cached_property
    def noise_multiplier(self) -> float:
        """The least that keeps the target over all releases."""
        return calibrate_noise(
            self._event,
            epsilon=self.target.epsilon,
            delta=self.target.delta,
            adjacency=self.target.adjacency,
        )

    @property
    def noise_std(self) -> float:
        """Of each coordinate of a mean: z bound sqrt(clients) / records."""
        clients, records = self.federation.clients, self.federation.records
        return self.noise_multiplier * self.bound * math.sqrt(clients) / records

    def messages(self, sums: Tensor, release: int = 0) -> Tensor:
        """What every client sends: its row of `sums` plus noise, (clients, dim) double."""
        stds = torch.full((self.federation.clients,), self.noise_multiplier * self.bound).double()
        generators = [
            self._randomness.generator(Purpose.NOISE, client=client, round=release)
            for client in self.federation.ids.tolist()
        ]
        return sums.double() + gaussian_rows(stds, sums.shape[1], generators).double()

    def means(self, sums: Tensor, release: int = 0) -> Tensor:
        """What the server makes of the messages: (dim,) double. Every record counts the same, whoever holds it."""
        return self.messages(sums, release).sum(0) / self.federation.records

    def released(self, value: Value, *assumed: str) -> SideRelease[Value]:
        """The finished release, and what it `assumed` to be known to everyone."""
        return SideRelease(
            value=value,
            event=self._event(self.noise_multiplier),
            noise_multiplier=self.noise_multiplier,
            noise_std=self.noise_std,
            clients=self.federation.clients,
            target=self.target,
            public=("the number of records of every client", *self.federation.peeks, *assumed),
            seeded=self.seed is not None,
        )

    def _event(self, noise_multiplier: float) -> DpEvent:
        return repeated(gaussian(noise_multiplier), self.releases)

    @cached_property
    def _randomness(self) -> Randomness:
        if self.seed is None:
            return Randomness(secrets.randbits(128))
        address = f"{Randomness(self.seed).seed}|{self.question}|{self.target}"
        return Randomness(int.from_bytes(hashlib.blake2b(address.encode(), digest_size=16).digest(), "little"))


def check_range(name: str, lower: float, upper: float) -> None:
    """Refuse public bounds that leave no room."""
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise RequestError(
            f"lower and upper must be finite numbers with lower < upper, not {lower!r} and {upper!r}: "
            f"public bounds of {name} that were chosen without a look at the records"
        )


def check_one_number_each(name: str, values: Tensor, federation: Federation) -> None:
    """Refuse anything but one number, not NaN, for every record; infinite ones lie beyond every bound."""
    if values.shape != (federation.records,):
        raise DataError(
            f"{name} must be one number for each of the {federation.records} records, not {tuple(values.shape)}"
        )
    if bool(torch.isnan(values).any()):
        row = int(torch.isnan(values).nonzero()[0])
        owner = int(torch.searchsorted(federation.offsets, row, right=True)) - 1
        raise DataError(
            f"{name} of client {int(federation.ids[owner])}, record {row - int(federation.offsets[owner])} is not a "
            "number; say what such records count as, or leave them out"
        )
