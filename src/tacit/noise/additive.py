"""The noise that a client adds: seeded for research, or on a lattice from the operating system's entropy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.errors import RequestError, unknown_name
from tacit.noise import lattice
from tacit.noise.entropy import Keystream
from tacit.noise.gaussian import gaussian_rows
from tacit.noise.randomness import Generators
from tacit.privacy import events
from tacit.state import State


class Noise(Protocol):
    """Gaussian noise on the vectors of a cohort.

    `slack` is what making room for real numbers costs: by so much, in bounds, one record's reach grows.
    """

    @property
    def name(self) -> str:
        """How recipes spell it."""
        ...

    @property
    def secret(self) -> bool:
        """Whether it comes from entropy that nobody can repeat."""
        ...

    @property
    def slack(self) -> float:
        """By how much, in bounds, one record's reach grows."""
        ...

    def init(self, clients: int, dim: int) -> State:
        """Its memory from one release of a client to the next, a row for each; none where every draw is fresh."""
        ...

    @property
    def precision(self) -> torch.dtype:
        """In which numbers the sums must be computed for the bound to hold for their rounded values."""
        ...

    def add(
        self, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, generators: Generators, memory: State
    ) -> tuple[Tensor, State]:
        """Rows plus noise of these standard deviations, (clients, dim) float32, and what it remembers of them.

        `memory` has the rows of these clients in what `init` made room for.
        """
        ...

    def charged(self, event: dp_event.DpEvent, dim: int, releases: int) -> dp_event.DpEvent:
        """The event of a client's whole run, with what its real noise costs beyond ideal noise."""
        ...


@dataclass(frozen=True)
class SeededGaussian:
    """Floating-point noise from each client's own seeded generator: repeatable, for research.

    Not float-safe: sums and noise are single-precision numbers, whose low bits say more than the accountant
    assumes. And whoever knows the seed can subtract the noise. Runs that use it are marked.
    """

    name: str = "gaussian"
    secret: bool = False
    slack: float = 0.0
    precision: torch.dtype = torch.float32

    def init(self, clients: int, dim: int) -> State:
        """None."""
        return {}

    def add(
        self, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, generators: Generators, memory: State
    ) -> tuple[Tensor, State]:
        """Continuous noise, as far as floating point goes."""
        return gaussian_rows(stds, rows.shape[1], generators).to(rows.device).add_(rows), memory

    def charged(self, event: dp_event.DpEvent, dim: int, releases: int) -> dp_event.DpEvent:
        """Taken as ideal, and marked instead."""
        return event


@dataclass(frozen=True)
class LatticeGaussian:
    """Noise on a lattice from the operating system's entropy, for releases that are meant.

    Guarantee: the release is post-processing of the ideal Gaussian mechanism on sums to which a record adds at
    most `slack` bounds more than without it, up to what `charged` adds (see `tacit.noise.lattice` for the proof).
    Sums are computed in double precision; for m records their rounding moves by at most 2 m^2 2^-53 bounds with
    one record, which the other half of the slack covers for up to 10^5 records.
    """

    name: str = "lattice"
    secret: bool = True
    slack: float = 1e-4
    precision: torch.dtype = torch.float64

    def init(self, clients: int, dim: int) -> State:
        """None."""
        return {}

    def add(
        self, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, generators: Generators, memory: State
    ) -> tuple[Tensor, State]:
        """Round to the lattice, add whole steps."""
        exponent = lattice.lattice_exponent(rows.shape[1], float(noise_multipliers.max()), self.slack / 2)
        stream = Keystream()
        return lattice.lattice_rows(rows, stds, exponent, [stream] * len(rows)), memory

    def charged(self, event: dp_event.DpEvent, dim: int, releases: int) -> dp_event.DpEvent:
        """Every draw has its ideal probability up to a tiny factor, and the far ends are never drawn."""
        real = events.inexact_noise(lattice.cost(dim, releases), dim * releases * lattice.TAIL_MASS)
        return events.composed([event, real])


MOST_RECORDS = 100_000
"""Up to here the rounding of sums in double precision is covered by the slack of lattice noise."""


def check_size(noise: Noise, records: int) -> None:
    """Refuse clients with more records than the slack of this noise is proved for."""
    if noise.slack and records > MOST_RECORDS:
        raise RequestError(
            f"{noise.name} noise is proved for up to {MOST_RECORDS} records a client, not {records}"
        )


NOISES: dict[str, Callable[[], Noise]] = {"gaussian": SeededGaussian, "lattice": LatticeGaussian}


def build_noise(name: str) -> Noise:
    """A kind of noise by name."""
    if name not in NOISES:
        raise unknown_name("noise", name, NOISES)
    return NOISES[name]()
