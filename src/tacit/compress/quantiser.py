"""Compressors that write each coordinate with fewer bits; they can also follow rand-k in a chain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compress.compressor import Packets, WrittenCompressor, check_rows
from tacit.compress.wire import Format
from tacit.errors import count


class Quantised(Protocol):
    """Rows of values as their receiver will read them, and the bytes that encode them."""

    @property
    def values(self) -> Tensor:
        """The decoded values, (clients, n) float32."""

    def payload(self) -> NDArray[np.uint8]:
        """The bytes of each row, (clients, payload_bytes(n))."""


class Quantiser(WrittenCompressor):
    """A compressor that keeps every coordinate and rounds its value.

    A subclass defines how values are rounded, written and read; this class does the rest.
    """

    codec: int
    """The number of this kind in the wire format: never reuse one."""

    @property
    def wire_levels(self) -> int:
        """The one parameter that the wire format can hold."""
        return 0

    @abstractmethod
    def omega(self, dim: int) -> float:
        """The variance factor of SoteriaFL (Li et al. 2022), Definition 1, for vectors of length `dim`."""

    @abstractmethod
    def spec(self) -> str:
        """The compressor as text that `parse_compressor` can read."""

    @abstractmethod
    def quantise(self, values: Tensor, generators: Sequence[np.random.Generator]) -> Quantised:
        """Finite float32 values, (clients, n), rounded at random without bias."""

    @abstractmethod
    def payload_bytes(self, values: int) -> int:
        """The number of bytes for a row of this many values."""

    @abstractmethod
    def read(self, payload: NDArray[np.uint8], values: int) -> Quantised:
        """The values in a payload of the right length; raises `MessageError` for invalid codes."""

    def format(self, dim: int) -> Format:
        """The wire format of messages with all `dim` coordinates."""
        dim = count("dim", dim)
        return Format(self.codec, self.wire_levels, dim, dim, self.payload_bytes(dim))

    def kept(self, dim: int) -> int:
        """All of them."""
        return dim

    def compress(self, rows: Tensor, generators: Sequence[np.random.Generator]) -> Packets:
        check_rows(rows, generators)
        return DensePackets(self.format(rows.shape[1]), self.quantise(rows, generators))

    def decode(self, messages: Sequence[bytes], dim: int) -> Packets:
        """The vectors in messages from untrusted senders; raises `MessageError` for an invalid message."""
        format = self.format(dim)
        return DensePackets(format, self.read(format.open(messages), dim))


@dataclass(frozen=True)
class CodedPackets(ABC):
    """Messages of one wire format, with the values that they carry."""

    format: Format
    quantised: Quantised

    @property
    def dim(self) -> int:
        return self.format.dim

    @property
    def clients(self) -> int:
        return self.quantised.values.shape[0]

    @property
    def bits(self) -> int:
        return 8 * self.format.message_bytes

    def sum(self) -> Tensor:
        total = torch.zeros(self.dim)
        self.add_sum_to(total)
        return total

    @abstractmethod
    def add_sum_to(self, total: Tensor) -> None:
        """`total += sum()`, in place, one client after another."""


@dataclass(frozen=True)
class DensePackets(CodedPackets):
    """Messages that carry every coordinate."""

    def dense(self) -> Tensor:
        return self.quantised.values

    def add_sum_to(self, total: Tensor) -> None:
        # A sum over the client axis would add in an order that depends on the number of rows.
        for row in self.quantised.values.unbind():
            total.add_(row)

    def add_to(self, rows: Tensor, scale: float, clients: Tensor | None = None) -> None:
        # Row by row needs no temporary, and no thread synchronisation when rows are short.
        members = range(self.clients) if clients is None else clients.tolist()
        for member, row in zip(members, self.quantised.values.unbind(), strict=True):
            rows[member].add_(row, alpha=scale)

    def encode(self) -> list[bytes]:
        return self.format.seal(self.quantised.payload())
