"""How clients release a statistic: bounded contributions, noise added by each client, one event per message."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.errors import DataError, RequestError, count, positive
from tacit.federation import Federation
from tacit.federation_checks import describe_client
from tacit.noise.additive import LatticeGaussian, Noise, SeededGaussian, check_size
from tacit.noise.randomness import Generators, Purpose, Randomness
from tacit.privacy.accountant.calibrate import calibrate_noise
from tacit.privacy.events import gaussian, repeated
from tacit.privacy.promises.guarantee import Guarantee, Target
from tacit.privacy.promises.terms import RECORD_COUNTS

Value = TypeVar("Value")


@dataclass(frozen=True)
class SideRelease(Generic[Value]):
    """A statistic that all clients released together, and its privacy cost for each of them.

    Guarantee: `event` describes what the server and all other parties together see of each client's records;
    `value` is computed from the messages alone. Compose `event` with everything else that is released from the
    same records, and account for all of it at once. It is the same for every client, because all clients use
    every record once per message, and their noise does not depend on how many records they have.
    """

    value: Value
    event: DpEvent
    noise_multiplier: float
    """The noise's standard deviation in each message, divided by the bound on one record's contribution"""
    noise_std: float
    """The standard deviation of the noise on a mean over the records of all clients: the accuracy of `value`"""
    clients: int
    """how many clients released it"""
    target: Target
    """the privacy that was asked for"""
    public: tuple[str, ...]
    """What is treated as public"""
    seeded: bool
    """Whether the noise came from a seed. That is for research: anyone who knows the seed can subtract it.
    Otherwise it is lattice noise from the operating system's entropy"""

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """The event of each client, in client order."""
        return (self.event,) * self.clients

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of this release on its own."""
        return Guarantee(self.events, self.target.delta, self.target.adjacency, public=self.public)


@dataclass(frozen=True)
class NoisyMeans:
    """Means over all records of bounded contributions, `releases` times; each client adds its own noise.

    Guarantee: if every record adds to each sum a vector of norm at most `bound`, all messages of a client
    together meet `target`. A record that is not used, in the sense of add-remove, adds the zero vector.
    Contributions may be centred: subtracting a public vector from each of them changes no release, only the
    bound. If the diameter of their smallest enclosing ball equals the largest distance between two of them, the
    bound at its centre is tight in both adjacencies. Here that holds for counts and boxes. (It fails for one-hot
    vectors: their ball has a radius near 1 although two of them are only sqrt(2) apart.)

    Without a seed the noise is `LatticeGaussian`, whose slack and sampler are charged. With a seed it is
    `SeededGaussian`, for research. `question` is everything that is public about the release. The noise's address
    is derived from it and the seed, so that training and releases with different questions share no noise even if
    they share a seed. The same question about *other* values would share it: with two columns under one name,
    their difference would be released without noise.
    """

    federation: Federation
    question: str
    bound: float
    releases: int
    target: Target
    seed: int | None
    dim: int = 1
    """how many numbers each sum has"""

    def __post_init__(self) -> None:
        positive("bound", self.bound)
        count("dim", self.dim)
        if not isinstance(self.target, Target):
            raise RequestError(f"target must be a Target(epsilon, delta), not {self.target!r}")
        if self.seed is not None:
            count("seed", self.seed, at_least=0)

    @cached_property
    def noise_multiplier(self) -> float:
        """The smallest noise multiplier that meets the target over all releases."""
        return calibrate_noise(
            self.event,
            epsilon=self.target.epsilon,
            delta=self.target.delta,
            adjacency=self.target.adjacency,
        )

    @property
    def noise_std(self) -> float:
        """The noise on each coordinate of a mean: z bound sqrt(clients) / records."""
        clients, records = self.federation.clients, self.federation.records
        return self.noise_multiplier * self.bound * math.sqrt(clients) / records

    def messages(self, sums: Tensor, release: int = 0) -> Tensor:
        """What each client sends: its row of `sums` plus noise, (clients, dim) double."""

        if sums.shape != (self.federation.clients, self.dim):
            raise RequestError(f"sums must have {self.dim} numbers for each client, not {tuple(sums.shape)}")
        check_size(self._noise, int(self.federation.sizes.max()))
        clients = tuple(self.federation.ids.tolist())
        generators = Generators(self._randomness, Purpose.NOISE, clients, round=release)
        multipliers = torch.full((self.federation.clients,), self.noise_multiplier, dtype=torch.float64)
        noisy, _ = self._noise.add(sums.double(), multipliers * self.bound, multipliers, generators, {})
        return noisy.double()

    def means(self, sums: Tensor, release: int = 0) -> Tensor:
        """The server's estimate from the messages: (dim,) double. All records have the same weight."""
        return self.messages(sums, release).sum(0) / self.federation.records

    def released(self, value: Value, *assumed: str) -> SideRelease[Value]:
        """The finished release; `assumed` lists what it treats as public."""
        return SideRelease(
            value=value,
            event=self.event(self.noise_multiplier),
            noise_multiplier=self.noise_multiplier,
            noise_std=self.noise_std,
            clients=self.federation.clients,
            target=self.target,
            public=tuple(dict.fromkeys((RECORD_COUNTS, *self.federation.peeks, *assumed))),
            seeded=self.seed is not None,
        )

    def event(self, noise_multiplier: float) -> DpEvent:
        """What every client releases with this noise multiplier."""
        ideal = repeated(gaussian(noise_multiplier / (1 + self._noise.slack)), self.releases)
        return self._noise.charged(ideal, self.dim, self.releases)

    @property
    def _noise(self) -> Noise:
        return LatticeGaussian() if self.seed is None else SeededGaussian()

    @cached_property
    def _randomness(self) -> Randomness:
        address = f"{self.seed}|{self.question}|{self.target}"
        return Randomness(int.from_bytes(hashlib.blake2b(address.encode(), digest_size=16).digest(), "little"))


def address_of(stream: str, point: Tensor) -> str:
    """The question of a release about a model: with one seed, those about different models share no noise."""
    return f"{stream} {hashlib.sha256(point.detach().cpu().numpy().tobytes()).hexdigest()}"


def check_range(name: str, lower: float, upper: float) -> None:
    """Refuse bounds that are not finite or not in increasing order."""
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise RequestError(
            f"lower and upper must be finite numbers with lower < upper, not {lower!r} and {upper!r}: "
            f"public bounds of {name} that were chosen without looking at the records"
        )


def check_one_number_each(name: str, values: Tensor, federation: Federation) -> None:
    """Refuse anything but one number per record, and NaN; infinite numbers lie beyond every bound."""
    if values.shape != (federation.records,):
        raise DataError(
            f"{name} must be one number for each of the {federation.records} records, not {tuple(values.shape)}"
        )
    if bool(torch.isnan(values).any()):
        row = int(torch.isnan(values).nonzero()[0])
        owner = int(torch.searchsorted(federation.offsets, row, right=True)) - 1
        record = row - int(federation.offsets[owner])
        raise DataError(
            f"{describe_client(federation, owner)}, record {record}: {name} must be a number, not NaN; "
            "give such records a value, or leave them out"
        )
