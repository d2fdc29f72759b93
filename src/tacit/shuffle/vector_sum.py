"""The sum of vectors behind a shuffler, with coins as noise: P_vec and P_1D of ISRL-DP, put right.

The protocol is that of Cheu, Joseph, Mao & Peng (2021) as told by ISRL-DP (Lowy & Razaviyayn 2023), Algorithms 4
and 5. Each client

1. shifts its vector, of norm at most L, to [0, 2L] and scales each coordinate to v = g (x + L)/(2L) in [0, g],
2. rounds v at random to a whole number next to it, without bias,
3. adds the heads of b fair coins, and writes the result as g + b bits with so many ones,
4. sends every bit as a message of its own, labelled with its coordinate.

The shuffler mixes all messages of all clients: what can be seen is the number of ones S_j of every coordinate,
and nothing else. The server takes (2L/g)(S_j - N b/2) - N L. Algorithm 4 as printed hands values in [0, 2L] to
a subroutine for [0, L] and takes off L instead of N L. Its p is below 1/2, which makes the most noise of b bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import DataError, RequestError, count, positive
from tacit.noise.entropy import Keystream
from tacit.privacy.coins import MOST_COINS, CoinNoise
from tacit.privacy.plain_numbers import check_delta
from tacit.privacy.terms import Adjacency

Source = np.random.Generator | Keystream
"""Where a client's bits come from. A generator has a seed, and whoever knows it can take the noise off again."""

_SHAVE = 1 - 1e-9
"""This much less than the norm is let through: far more than the scaling in double precision can add to it."""


@dataclass(frozen=True)
class VectorSum:
    """The sum of one vector of each client, each of norm at most `clip_norm`.

    Guarantee, replace-one, for a whole client (`records = 1`) or for one of `records` vectors, each of norm at
    most `clip_norm`, whose mean a client sends:

    - behind an honest shuffler: `epsilon(delta)`, from the coins of all clients, or of the `honest` ones if the
      others tell theirs to the adversary or leave them out.
    - against a server that the shuffler helps: `exposed_epsilon(delta)`, from the client's own coins alone. It
      is a weak promise or, as here, none: the coins were counted to hide it in a crowd.

    Unbiased for vectors within the norm; longer ones are first scaled down to it. Exact in the computer: the
    noise is a whole number, made of single random bits. Not covered: how the vectors were computed, and how
    long this takes.

    >>> total = vector_sum(epsilon=1.0, delta=1e-5, clients=1000, dim=50, clip_norm=1.0)
    >>> total.levels, total.coins, total.messages, total.uplink_bits
    (32, 60, 4600, 32200)
    >>> round(total.epsilon(1e-5), 3), total.exposed_epsilon(1e-5)
    (0.999, inf)
    """

    clients: int
    dim: int
    clip_norm: float
    levels: int
    coins: int
    records: int = 1

    def __post_init__(self) -> None:
        for setting in ("clients", "dim", "levels", "coins", "records"):
            object.__setattr__(self, setting, count(setting, getattr(self, setting)))
        positive("clip_norm", self.clip_norm)

    @property
    def messages(self) -> int:
        """How many messages a client sends: g + b for every coordinate."""
        return self.dim * (self.levels + self.coins)

    @property
    def uplink_bits(self) -> int:
        """Bits a client sends: with every message its coordinate, because each travels alone."""
        return self.messages * (1 + math.ceil(math.log2(self.dim)))

    @property
    def variance_bound(self) -> float:
        """The variance of a coordinate of the result is at most this: (2L/g)^2 N (b + 1)/4."""
        return self._unit**2 * self.clients * (self.coins + 1) / 4

    def variances(self, rows: Tensor) -> Tensor:
        """The variance of every coordinate of the result for these vectors: (dim,) double.

        (2L/g)^2 (N b/4 + sum_i f_i (1 - f_i)), f_i the fractional part of v.
        """
        scaled = self._scaled(rows)
        parts = scaled - np.floor(scaled)
        return torch.from_numpy(self._unit**2 * (self.clients * self.coins / 4 + (parts * (1 - parts)).sum(0)))

    def noise(
        self, *, honest: int | None = None, rounds: int = 1, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ) -> CoinNoise:
        """What an accountant sees of `rounds` such sums; `honest` clients keep their coins to themselves."""
        honest = self.clients if honest is None else count("honest", honest)
        if honest > self.clients:
            raise RequestError(f"honest must be at most clients = {self.clients}, not {honest}")
        # To have contributed nothing is half as far away as the opposite contribution.
        sides = 1.0 if Adjacency(adjacency) is Adjacency.REPLACE_ONE else 0.5
        return CoinNoise(self.dim, honest * self.coins, sides * self.levels / self.records, rounds)

    def epsilon(self, delta: float, *, honest: int | None = None) -> float:
        """The epsilon of one sum behind an honest shuffler."""
        return self.noise(honest=honest).epsilon(delta)

    def exposed_epsilon(self, delta: float) -> float:
        """The epsilon of one client's messages alone."""
        return self.noise(honest=1).epsilon(delta)

    def randomise(self, rows: Tensor, sources: Sequence[Source]) -> Tensor:
        """How many bits of every coordinate are ones, each row from a source of its own: (rows, dim) int64."""
        scaled = self._scaled(rows)
        if len(sources) != len(scaled):
            raise RequestError(f"sources must be one for each of {len(scaled)} rows, not {len(sources)}")
        ones = np.empty(scaled.shape, dtype=np.int64)
        for row, values, source in zip(ones, scaled, sources, strict=True):
            row[:] = _rounded(values, source) + _heads(self.dim, self.coins, source)
        return torch.from_numpy(ones)

    def bits(self, ones: Tensor) -> Tensor:
        """The messages of every client, unmixed: (rows, dim, levels + coins) bool, ones first."""
        return torch.arange(self.levels + self.coins) < ones[..., None]

    def shuffle(self, bits: Tensor, generator: np.random.Generator) -> Tensor:
        """All messages in random order, coordinate by coordinate: (dim, messages of all clients) bool."""
        mixed = bits.transpose(0, 1).reshape(self.dim, -1).numpy()
        return torch.from_numpy(generator.permuted(mixed, axis=1))

    def analyse(self, ones: Tensor) -> Tensor:
        """The sum of the vectors of all clients, from the ones of every coordinate: (dim,) double."""
        if ones.shape != (self.dim,):
            raise RequestError(f"ones must have the shape ({self.dim},), not {tuple(ones.shape)}")
        centred = ones.double() - self.clients * (self.coins + self.levels) / 2
        return self._unit * centred

    def centred(self, ones: Tensor) -> Tensor:
        """Every client's part of what `analyse` gives for their sum, from its ones: (rows, dim) double."""
        return self._unit * (ones.double() - (self.coins + self.levels) / 2)

    @property
    def _unit(self) -> float:
        return 2 * self.clip_norm / self.levels

    def _scaled(self, rows: Tensor) -> NDArray[np.float64]:
        if rows.dim() != 2 or rows.shape[1] != self.dim or not rows.is_floating_point():
            raise DataError(
                f"rows must be floating-point (clients, {self.dim}), not {rows.dtype} {tuple(rows.shape)}"
            )
        values = rows.detach().cpu().double().numpy()
        wrong = np.flatnonzero(~np.isfinite(values).all(axis=1))
        if len(wrong):
            raise DataError(f"rows must be finite, but row {wrong[0]} is not; bound the records before")
        # Squares may overflow; such a row is scaled down to nothing.
        with np.errstate(divide="ignore", over="ignore"):
            norms = np.linalg.norm(values, axis=1, keepdims=True)
            shrink = np.minimum(1.0, self.clip_norm * _SHAVE / norms)
        scaled: NDArray[np.float64] = (values * shrink / self.clip_norm + 1) * (self.levels / 2)
        return scaled.clip(0.0, self.levels)


def vector_sum(
    *,
    epsilon: float,
    delta: float,
    clients: int,
    dim: int,
    clip_norm: float,
    levels: int | None = None,
    records: int = 1,
    rounds: int = 1,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> VectorSum:
    """The sum with the fewest coins that keeps (epsilon, delta) over `rounds` of them behind an honest shuffler.

    Without `levels` there are g = ceil(records sqrt(clients)); rounding then adds little to the noise of the
    coins. More of them pay off where sqrt(dim) is larger than g.
    """
    positive("epsilon", epsilon)
    check_delta(delta)
    if levels is None:
        levels = math.ceil(count("records", records) * math.sqrt(count("clients", clients)))
    start = VectorSum(clients, dim, clip_norm, levels, 1, records)

    def keeps(coins: int) -> bool:
        run = replace(start, coins=coins).noise(rounds=rounds, adjacency=adjacency)
        return run.epsilon(delta) <= epsilon

    low, high = 0, 1
    while not keeps(high):
        low, high = high, 2 * high
        if high * start.clients > MOST_COINS:
            raise RequestError(
                f"no number of coins up to {low} keeps epsilon = {epsilon!r} at delta = {delta!r}; "
                "ask for a larger epsilon or for fewer rounds"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return replace(start, coins=high)


def _words(size: int, source: Source) -> NDArray[np.uint64]:
    if isinstance(source, Keystream):
        return source.uint64(size)
    return source.integers(0, 2**64 - 1, size, dtype=np.uint64, endpoint=True)


def _rounded(values: NDArray[np.float64], source: Source) -> NDArray[np.int64]:
    """One of the two whole numbers next to each value, without bias (to 2^-64)."""
    below = np.floor(values)
    chances = np.ldexp(values - below, 64).astype(np.uint64)
    return below.astype(np.int64) + (_words(len(values), source) < chances)


def _heads(size: int, coins: int, source: Source) -> NDArray[np.int64]:
    """`size` independent counts of heads among `coins` fair coins: exactly binomial, one random bit a coin."""
    full, rest = divmod(coins, 64)
    heads = np.zeros(size, dtype=np.int64)
    for _ in range(full):
        heads += _ones(_words(size, source))
    if rest:
        heads += _ones(_words(size, source) >> np.uint64(64 - rest))
    return heads


def _ones(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The number of ones in each word."""
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1)
    counts: NDArray[np.int64] = bits.sum(axis=1, dtype=np.int64)
    return counts
