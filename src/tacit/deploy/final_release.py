"""One noisy sum about every silo's records, at the model that a run came to: what final releases have in common.

Guarantee: every record adds to a silo's sums a vector of norm at most the question's `bound`, *whatever the model
is*. So the cost does not depend on the point that a server sends, and a server that lies about the model gains
nothing. A run is charged for its final releases from the start, whether or not they are ever asked for. A silo
makes each of them once in a run: it writes the sums to its ledger before they leave, and sends the same ones
again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.algorithms.secure_sum import SecureSum
from tacit.deploy.final_parts import Gathered
from tacit.deploy.finals import Final
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models.model import Model
from tacit.noise.additive import build_noise, check_size
from tacit.privacy import Target
from tacit.side.noisy_total import NoisyTotal
from tacit.side.release import NoisyMeans, address_of
from tacit.sums.arithmetic import Residues
from tacit.sums.encoding import Encoding
from tacit.sums.group import SumGroup


class RecordQuestion(Protocol):
    """What is asked of every record: a vector of norm at most `bound`, at any point."""

    @property
    def dim(self) -> int:
        """The length of the vectors."""
        ...

    @property
    def bound(self) -> float:
        """The largest norm of a vector."""
        ...

    def sums(self, model: Model, point: Tensor, batch: Batch) -> Tensor:
        """The sum of the vectors of every client: (clients, dim) double."""
        ...


@dataclass(frozen=True)
class FinalTerms:
    """A silo's terms of a final release: its noise, and how many records it is about."""

    noise_multiplier: float
    records: int

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for the ledger and the certificate."""
        return {"noise_multiplier": self.noise_multiplier, "records": self.records}


@dataclass(frozen=True)
class FinalRelease(ABC):
    """A final release that a job asks of every site."""

    name: ClassVar[Final]

    target: Target
    """what it may cost alone, the same for all sites"""
    noise: str
    seed: int
    """of noise that is for research"""
    stream: str
    """the stream of that seed, as in the simulator"""
    trust: SecureSum | None
    """if only the sum over all silos is opened: with whom"""
    round: int
    """the number of its round, after those of training"""

    @property
    @abstractmethod
    def question(self) -> RecordQuestion:
        """What is asked of every record."""

    @abstractmethod
    def release(self, records: Federation, about: str = "") -> NoisyMeans:
        """What silos with these records send, if the server sees it."""

    @abstractmethod
    def total(self, about: str = "") -> NoisyTotal:
        """With sums: the release of the sum over all silos."""

    @cached_property
    def noise_multiplier(self) -> float:
        """The least noise multiplier that keeps the target; with sums, that of all honest shares together."""
        return (self.release(_nobody()) if self.trust is None else self.total()).noise_multiplier

    def event(self, noise_multiplier: float) -> DpEvent:
        """What a silo releases for it."""
        return (self.release(_nobody()) if self.trust is None else self.total()).event(noise_multiplier)

    def exposed(self, noise_multiplier: float) -> DpEvent:
        """The same if all other silos help the server."""
        return self.event(noise_multiplier) if self.trust is None else self.total().exposed(noise_multiplier)

    @cached_property
    def encoding(self) -> Encoding:
        """With sums: how a silo's part becomes integers modulo 2^32."""
        total = self.total()
        return Encoding.of_total(total.share_std, total.share_multiplier, total.noise.slack, total.dim)

    def check_size(self, records: int) -> None:
        """Refuse more records than the noise, or the numbers of a sum, are made for."""
        check_size(build_noise(self.noise), records)
        if self.trust is not None and records * self.trust.cohort > 2**30 * self.encoding.ring.step:
            raise RequestError(
                f"{records} records at each of {self.trust.cohort} sites could make the sum of the {self.name} "
                f"wrap around: {self.way_out}"
            )

    way_out: ClassVar[str]
    """what to do about too many records"""

    def measure(self, model: Model, point: Tensor, records: Federation) -> list[float]:
        """The noisy sums of a silo, at a point."""
        # Seeded noise has the simulator's address, so that it is the same.
        release = self.release(records, address_of(self.stream, point))
        noisy: list[float] = release.messages(self._sums(model, point, records))[0].tolist()
        return noisy

    def integers(self, model: Model, point: Tensor, records: Federation, client: int) -> Residues:
        """With sums: what a silo adds, with its share of the noise."""
        total = self.total(address_of(self.stream, point))
        sums = self._sums(model, point, records)[0]
        return self.encoding.encode(sums, total.noise, total.generators(client))

    def _sums(self, model: Model, point: Tensor, records: Federation) -> Tensor:
        # By position, which aligns the records as they are in the simulator.
        return self.question.sums(model, point, records.batch(torch.zeros(1, dtype=torch.int64)))

    def opened(self, gathered: Gathered, group: SumGroup | None) -> tuple[Tensor, float]:
        """The noisy sum over all silos, and the standard deviation of its noise.

        `group` opens masked parts. `MessageError` if an opened sum is not that of what its silos sent.
        """
        silos = math.sqrt(len(gathered.parts))
        if self.trust is None:
            rows = [gathered.parts[silo].sums for silo in sorted(gathered.parts)]
            std = self.noise_multiplier * self.question.bound * silos
            return torch.tensor(rows, dtype=torch.float64).sum(0), std
        assert group is not None, "masked parts are opened by their group"
        steps = self.encoding.ring.lifted(gathered.opened(group))
        return self.encoding.from_steps(steps), self.encoding.noise_std * silos

    @property
    def own_seed(self) -> int | None:
        """The seed of its noise; None for noise of the operating system."""
        return None if build_noise(self.noise).secret else self.seed


def _nobody() -> Federation:
    """A stand-in where a release is only accounted for."""
    return Federation(torch.zeros(1, 1), torch.zeros(1), torch.ones(1, dtype=torch.int64), torch.zeros(1).long())
