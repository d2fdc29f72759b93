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

    Adding noise to real (floating-point) numbers has a cost: one record's reach grows by `slack`, in bounds.
    """

    @property
    def name(self) -> str:
        """The name used in recipes."""
        ...

    @property
    def secret(self) -> bool:
        """Whether the noise comes from entropy that nobody can reproduce."""
        ...

    @property
    def slack(self) -> float:
        """By how much, in bounds, one record's reach grows."""
        ...

    def init(self, clients: int, dim: int) -> State:
        """The memory kept between a client's releases, one row per client; empty if every draw is fresh."""
        ...

    @property
    def precision(self) -> torch.dtype:
        """The precision in which sums must be computed so that the bound holds for their rounded values."""
        ...

    def add(
        self, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, generators: Generators, memory: State
    ) -> tuple[Tensor, State]:
        """Rows plus noise of these standard deviations, (clients, dim) float32, and the noise's new memory.

        `memory` holds these clients' rows of the memory that `init` created.
        """
        ...

    def charged(self, event: dp_event.DpEvent, dim: int, releases: int) -> dp_event.DpEvent:
        """The event of a client's whole run, including the extra cost of real noise over ideal noise."""
        ...


@dataclass(frozen=True)
class SeededGaussian:
    """Floating-point noise from each client's own seeded generator: repeatable, for research.

    Not float-safe: sums and noise are single-precision numbers, whose low bits reveal more than the accountant
    assumes. Also, anyone who knows the seed can subtract the noise. Runs that use it are marked.
    """

    name: str = "gaussian"
    secret: bool = False
    slack: float = 0.0
    precision: torch.dtype = torch.float32

    def init(self, clients: int, dim: int) -> State:
        return {}

    def add(
        self, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, generators: Generators, memory: State
    ) -> tuple[Tensor, State]:
        """Add Gaussian noise in single precision."""
        return gaussian_rows(stds, rows.shape[1], generators).to(rows.device).add_(rows), memory

    def charged(self, event: dp_event.DpEvent, dim: int, releases: int) -> dp_event.DpEvent:
        """The event unchanged: the noise is accounted for as ideal, and the run is marked instead."""
        return event


@dataclass(frozen=True)
class LatticeGaussian:
    """Noise on a lattice from the operating system's entropy, for real releases.

    Guarantee: the release is post-processing of the ideal Gaussian mechanism on sums whose bound per record is
    larger by at most `slack` bounds, up to what `charged` adds (see `tacit.noise.lattice` for the proof). Sums
    are computed in double precision. For m records, one record changes their rounding error by at most 2 m^2
    2^-53 bounds, which the other half of the slack covers for up to 10^5 records.
    """

    name: str = "lattice"
    secret: bool = True
    slack: float = 1e-4
    precision: torch.dtype = torch.float64

    def init(self, clients: int, dim: int) -> State:
        return {}

    def add(
        self, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, generators: Generators, memory: State
    ) -> tuple[Tensor, State]:
        """Round each row to its lattice, then add noise in whole steps."""
        exponent = lattice.lattice_exponent(rows.shape[1], float(noise_multipliers.max()), self.slack / 2)
        stream = Keystream()
        return lattice.lattice_rows(rows, stds, exponent, [stream] * len(rows)), memory

    def charged(self, event: dp_event.DpEvent, dim: int, releases: int) -> dp_event.DpEvent:
        """The event with the sampler's error: a tiny factor on each probability, and tails never drawn."""
        real = events.inexact_noise(lattice.cost(dim, releases), dim * releases * lattice.TAIL_MASS)
        return events.composed([event, real])


MOST_RECORDS = 100_000
"""Up to this many records, the slack of lattice noise covers the rounding of sums in double precision."""


def check_size(noise: Noise, records: int) -> None:
    """Refuse clients with more records than the slack of this noise is proved for."""
    if noise.slack and records > MOST_RECORDS:
        raise RequestError(
            f"{noise.name} noise is proved for up to {MOST_RECORDS} records per client, not {records}"
        )


NOISES: dict[str, Callable[[], Noise]] = {"gaussian": SeededGaussian, "lattice": LatticeGaussian}


def build_noise(name: str) -> Noise:
    """Build a kind of noise from its name."""
    if name not in NOISES:
        raise unknown_name("noise", name, NOISES)
    return NOISES[name]()
