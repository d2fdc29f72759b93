"""The wire format of P_vec (ISRL-DP, Lowy & Razaviyayn 2023): single bits, each labelled with its coordinate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compress.bits import MAX_WIDTH, pack, packed_bytes, padding_is_zero, unpack
from tacit.compress.quantiser import Quantised, Quantiser
from tacit.errors import MessageError, RequestError, count, positive


@dataclass(frozen=True)
class CoinBits(Quantiser):
    """g + b bits per coordinate, as many of them ones as the client counted (ISRL-DP, Algorithm 5, line 7).

    Every bit is a separate message, labelled with its coordinate: 1 + ceil(log2 d) bits per message. A client's
    messages travel to the shuffler in one envelope, in the order of their coordinates; after the shuffler there
    are no envelopes and no order. Values that are not a whole number of ones are refused, not rounded.

    >>> CoinBits(levels=4, coins=6, clip_norm=1.0).message_bytes(50)
    444
    """

    codec = 5
    levels: int
    coins: int
    clip_norm: float

    def __post_init__(self) -> None:
        count("levels", self.levels)
        count("coins", self.coins)
        positive("clip_norm", self.clip_norm)

    @property
    def wire_levels(self) -> int:
        """Bits per coordinate, modulo 2^16 to fit the header; the message length gives the full number."""
        return self.bits % 2**16

    def omega(self, dim: int) -> float:
        """Zero: the values were rounded before, so encoding loses nothing."""
        return 0.0

    def spec(self) -> str:
        """The text shown to users; recipes cannot choose this format."""
        return f"coin-bits:{self.levels}+{self.coins}"

    def quantise(self, values: Tensor, generators: Sequence[np.random.Generator]) -> Quantised:
        """The number of ones of each value; uses no randomness."""
        return _Ones(self, values, self.ones(values))

    def ones(self, values: Tensor) -> NDArray[np.int64]:
        """The number of ones among each value's bits."""
        exact = values.double().cpu().numpy() * self.levels / (2 * self.clip_norm) + self.bits / 2
        ones = np.rint(exact).astype(np.int64)
        if len(ones) and (np.abs(exact - ones).max() > 0.01 or ones.min() < 0 or ones.max() > self.bits):
            raise RequestError(f"values must stand for 0 to {self.bits} ones each; nothing was encoded")
        return ones

    def values(self, ones: NDArray[np.int64], clients: int = 1) -> Tensor:
        """The values for these ones, of one client or of several together: 2 L/g (ones - clients bits/2)."""
        centred = torch.from_numpy(ones) - clients * self.bits / 2
        return (2 * self.clip_norm / self.levels * centred.double()).float()

    def payload_bytes(self, values: int) -> int:
        """The packed size of all messages, 1 + ceil(log2 d) bits each."""
        return packed_bytes(values * self.bits, _width(values))

    def read(self, payload: NDArray[np.uint8], values: int) -> Quantised:
        """Count the ones of each coordinate; a coordinate with too few or too many messages is refused."""
        messages, width = values * self.bits, _width(values)
        codes = unpack(payload, messages, width).astype(np.int64)
        expected = np.repeat(np.arange(values), self.bits)
        if not (np.sort(codes >> 1, axis=1) == expected).all() or not padding_is_zero(payload, messages, width):
            raise MessageError(f"an envelope must have exactly {self.bits} messages for each coordinate")
        ones = np.stack([np.bincount(row >> 1, row & 1, values) for row in codes]).astype(np.int64)
        return _Ones(self, self.values(ones), ones)

    @property
    def bits(self) -> int:
        """The number of messages per coordinate."""
        return self.levels + self.coins


@dataclass(frozen=True)
class _Ones:
    """Values, and the numbers of ones that encode them."""

    format: CoinBits
    values: Tensor
    ones: NDArray[np.int64]

    def payload(self) -> NDArray[np.uint8]:
        rows, dim = self.ones.shape
        bits = np.arange(self.format.bits) < self.ones[..., None]
        codes = (np.arange(dim, dtype=np.uint32)[:, None] << np.uint32(1)) | bits
        return pack(codes.astype(np.uint32).reshape(rows, -1), _width(dim))


def _width(dim: int) -> int:
    width = 1 + math.ceil(math.log2(dim))
    if width > MAX_WIDTH:
        raise RequestError(
            f"a vector of {dim} coordinates is too long for single bits: at most {2 ** (MAX_WIDTH - 1)}"
        )
    return width
