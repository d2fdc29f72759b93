"""Coins as noise on numbers that are rounded at random (`tacit.privacy.accountant.coin_losses`).

A number is rounded to one of its two whole neighbours, without bias, and the heads of m fair coins are added (and
m/2 subtracted). No test tells two numbers at a distance of t apart better than it tells N(0, 1) from N(kappa t,
1). So the coordinates of a vector that moves by t (Euclidean norm) are dominated by that pair: dominating pairs
multiply, and squared shifts add up. The proofs for sampled batches use no other property of the Gaussian: a
dominated likelihood ratio is smaller in convex order, which is all that Lemma A of docs/privacy.md needs.

The comparison is for heads whose tails differ from the real ones by `TAIL_MASS`. `charged` accounts for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from dp_accounting import dp_event
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import RequestError, count
from tacit.noise.entropy import Keystream
from tacit.noise.randomness import Generators
from tacit.privacy import events
from tacit.privacy.accountant.coin_losses import gaussian_shift
from tacit.state import State

TAIL_MASS = 1e-22
"""The mass that the heads of one draw may lose in both tails together."""

_Source = np.random.Generator | Keystream

LEAST_BITS, MOST_BITS = 8, 16
"""Fewer bits leave too few coins for such small tails; more bits gain nothing."""


@lru_cache(maxsize=4096)
def kappa(coins: int) -> float:
    """The Gaussian shift that dominates v against v + 1 after rounding and adding an even number of coins.

    Infinite if there are too few coins for tails as small as `TAIL_MASS`.

    >>> round(kappa(1024) * math.sqrt(1024) / 2, 2), round(kappa(32768) * math.sqrt(32768) / 2, 2)
    (1.41, 1.05)
    """
    if count("coins", coins) % 2:
        raise RequestError(f"coins must be even, so that half of them is a whole number, not {coins}")
    return gaussian_shift(coins, math.log(TAIL_MASS))


def fewest_coins(shift: float, at_most: int) -> int:
    """The fewest coins, an even number up to `at_most`, with kappa at most `shift`; 0 if there are none."""
    low, high = 0, at_most // 2
    if kappa(2 * high) > shift:
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if kappa(2 * middle) <= shift else (middle, high)
    return 2 * high


@dataclass(frozen=True)
class Grid:
    """How a client encodes a number: in steps of 2^exponent, with this many coins and levels on either side."""

    exponent: int
    coins: int
    levels: int

    @property
    def spacing(self) -> float:
        """The size of one step, 2^exponent."""
        return math.ldexp(1.0, self.exponent)

    @property
    def noise_std(self) -> float:
        """The standard deviation of the coins' noise."""
        return self.spacing * math.sqrt(self.coins) / 2


@dataclass(frozen=True)
class Binomial:
    """Numbers on a grid of at most 2^bits steps, with coins as noise: cpSGD (Agarwal et al. 2018, section 3).

    Guarantee: `add` with a standard deviation of z bounds is at least as private as the Gaussian mechanism with
    noise multiplier z, as shown above, up to what `charged` adds. Numbers beyond the levels are clipped, which
    never increases the distance between two of them.

    The step is a power of two, so that grid numbers are exact in every floating-point format. It is the smallest
    one for which at most half of the 2^bits numbers are needed for coins and the others, the levels, cover the
    range of the numbers. If the range is large and the noise small, the grid may be too coarse for that noise:
    the client then uses the fewest coins that the tails allow, which is more noise than requested. Steps and
    coins depend only on the noise, the bits and the bound, so they may be public.
    """

    bits: int
    """the bits of a coordinate"""
    secret: bool = False
    """whether coins come from the operating system's entropy instead of the seed"""
    name: str = "binomial"

    def __post_init__(self) -> None:
        if not LEAST_BITS <= count("bits", self.bits) <= MOST_BITS:
            raise RequestError(f"bits must be between {LEAST_BITS} and {MOST_BITS}, not {self.bits}")

    @property
    def slack(self) -> float:
        """Room for the rounding of sums in double precision, as for lattice noise; zero for seeded coins."""
        return 1e-4 if self.secret else 0.0

    @property
    def precision(self) -> torch.dtype:
        """Double precision for secret coins, single precision for seeded ones."""
        return torch.float64 if self.secret else torch.float32

    def grid(self, std: float, largest: float = 0.0) -> Grid:
        """The grid for numbers up to `largest` whose coins are worth at least Gaussian noise of this deviation.

        >>> Binomial(bits=12).grid(0.1), Binomial(bits=12).grid(0.1, largest=30.0)
        (Grid(exponent=-7, coins=1220, levels=1437), Grid(exponent=-5, coins=240, levels=1927))
        """
        return _grid(self.bits, std, largest)

    def silent_grid(self, largest: float) -> Grid:
        """The grid for numbers up to `largest` in a run without privacy: no coins."""
        levels = 2 ** (self.bits - 1) - 1
        return Grid(math.ceil(math.log2(largest / levels)), 0, levels)

    def init(self, clients: int, dim: int) -> State:
        return {}

    def add(
        self, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, generators: Generators, memory: State
    ) -> tuple[Tensor, State]:
        """Round at random and add heads: (clients, dim) float32, multiples of each client's own step.

        The grids depend only on the noise, and clip numbers many deviations out; `on_grids` takes other grids.
        """
        return self.on_grids(rows, [self.grid(std) for std in stds.tolist()], generators), memory

    def on_grids(self, rows: Tensor, grids: Sequence[Grid], generators: Generators) -> Tensor:
        """Round each row to its own grid and add heads."""
        noisy = np.empty(tuple(rows.shape), dtype=np.float32)
        sources: Sequence[_Source] = [Keystream()] * len(rows) if self.secret else generators
        for noisy_row, row, grid, source in zip(noisy, rows.cpu().double(), grids, sources, strict=True):
            scaled = np.clip(row.numpy() / grid.spacing, -grid.levels, grid.levels)
            whole = np.floor(scaled + _uniform(len(scaled), source))
            noisy_row[:] = (whole + _heads(len(scaled), grid.coins, source) - grid.coins // 2) * grid.spacing
        return torch.from_numpy(noisy).to(rows.device)

    def charged(self, event: dp_event.DpEvent, dim: int, releases: int) -> dp_event.DpEvent:
        """The event with the cost of the tails that all draws together lack."""
        mass = dim * releases * TAIL_MASS
        return events.composed([event, events.inexact_noise(2 * mass, mass)])


@lru_cache(maxsize=4096)
def _grid(bits: int, std: float, largest_number: float) -> Grid:
    largest = 2 ** (bits - 1) - 1
    most = 2 ** (bits - 1) - 2
    exponent = math.ceil(math.log2(kappa(most) * std))
    if largest_number:
        exponent = max(exponent, math.ceil(math.log2(largest_number / largest)))
    while True:
        # The first step may be too fine by the rounding of a logarithm. Then there is no number of coins for it.
        coins = fewest_coins(math.ldexp(1.0, exponent) / std, most)
        grid = Grid(exponent, coins, largest - coins // 2)
        if coins and grid.levels * grid.spacing >= largest_number:
            return grid
        exponent += 1


def _uniform(size: int, source: _Source) -> NDArray[np.float64]:
    if isinstance(source, Keystream):
        return np.ldexp((source.uint64(size) >> np.uint64(11)).astype(np.float64), -53)
    return source.random(size)


def _heads(size: int, coins: int, source: _Source) -> NDArray[np.int64]:
    """Counts of heads. A keystream gives one random bit per coin, so the counts are exactly binomial."""
    if not isinstance(source, Keystream):
        return source.binomial(coins, 0.5, size)
    heads = np.zeros(size, dtype=np.int64)
    for left in range(coins, 0, -64):
        words = source.uint64(size) >> np.uint64(max(0, 64 - left))
        heads += _ONES[words.view(np.uint8).reshape(size, 8)].sum(axis=1, dtype=np.int64)
    return heads


_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)
