"""Compressors that send only some coordinates: the common part of rand-k alone and rand-k in a chain."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compress.compressor import Packets, WrittenCompressor, check_finite, check_rows
from tacit.compress.indices import rand_k_indices
from tacit.compress.quantiser import CodedPackets, Quantiser
from tacit.compress.wire import Format
from tacit.errors import RequestError

_SPARSE_CODEC = 16
_SEED_BYTES = 8


class Sparsifier(WrittenCompressor):
    """A compressor that keeps k coordinates, times d/k, and writes their values with a quantiser."""

    @property
    @abstractmethod
    def values_as(self) -> Quantiser:
        """The quantiser that writes the kept values."""

    @abstractmethod
    def kept(self, dim: int) -> int:
        """The number k of the `dim` coordinates that a message carries."""

    @abstractmethod
    def omega(self, dim: int) -> float:
        """The variance factor of SoteriaFL (Li et al. 2022), Definition 1, for vectors of length `dim`."""

    @abstractmethod
    def spec(self) -> str:
        """The compressor as text that `parse_compressor` can read."""

    def format(self, dim: int) -> Format:
        """The wire format: a seed of 8 bytes, then the kept values."""
        kept, values_as = self.kept(dim), self.values_as
        body_bytes = _SEED_BYTES + values_as.payload_bytes(kept)
        return Format(_SPARSE_CODEC + values_as.codec, values_as.wire_levels, int(dim), kept, body_bytes)

    def compress(self, rows: Tensor, generators: Sequence[np.random.Generator]) -> Packets:
        check_rows(rows, generators)
        choice = self.choose(rows.shape[1], generators)
        return self.pack(rows.gather(1, choice.indices), choice, generators)

    def compress_difference(
        self, rows: Tensor, memory: Tensor, clients: Tensor, generators: Sequence[np.random.Generator]
    ) -> Packets:
        """C(x_i - m_i) for each row, m_i = `memory[clients[i]]`; only k coordinates of it are read."""
        check_rows(rows, generators)
        choice = self.choose(rows.shape[1], generators)
        known = choice.of_memory(memory, clients)
        return self.pack(rows.gather(1, choice.indices).sub_(known), choice, generators)

    def choose(self, dim: int, generators: Sequence[np.random.Generator]) -> Choice:
        """The coordinates of the coming messages. They are drawn first, without looking at any vector."""
        seeds = np.array([g.bit_generator.random_raw() for g in generators], dtype=np.uint64)
        return Choice.of(seeds, dim, self.kept(dim))

    def pack(self, values: Tensor, choice: Choice, generators: Sequence[np.random.Generator]) -> SparsePackets:
        """C(x_i) from the chosen coordinates of x_i alone, (clients, k); `generators` continue after `choose`.

        Equals `compress` of any rows with these values at these coordinates. `values` are consumed.
        """
        if values.shape != choice.indices.shape or values.dtype != torch.float32:
            raise RequestError(
                f"values must be float32 of shape {tuple(choice.indices.shape)}, one for each chosen coordinate, "
                f"not {values.dtype} of shape {tuple(values.shape)}"
            )
        format = self.format(choice.dim)
        values.mul_(format.dim / format.kept)
        check_finite(f"rows times d/k = {format.dim / format.kept:g}", values)
        return SparsePackets(format, self.values_as.quantise(values, generators), choice)

    def decode(self, messages: Sequence[bytes], dim: int) -> Packets:
        """The vectors in messages from untrusted senders; raises `MessageError` for an invalid message."""
        format = self.format(dim)
        bodies = format.open(messages)
        # Values are checked first, because computing the positions takes longer.
        quantised = self.values_as.read(np.ascontiguousarray(bodies[:, _SEED_BYTES:]), format.kept)
        seeds = np.ascontiguousarray(bodies[:, :_SEED_BYTES]).view("<u8").reshape(-1).astype(np.uint64)
        return SparsePackets(format, quantised, Choice.of(seeds, format.dim, format.kept))


@dataclass(frozen=True)
class Choice:
    """The coordinates of each message, (clients, k), and the seeds that select them."""

    dim: int
    seeds: NDArray[np.uint64]
    indices: Tensor

    @classmethod
    def of(cls, seeds: NDArray[np.uint64], dim: int, k: int) -> Choice:
        """The coordinates that these seeds select."""
        if k == dim:
            return cls(dim, seeds, torch.arange(dim).expand(len(seeds), dim))
        indices = np.empty((len(seeds), k), dtype=np.int64)
        for row, seed in zip(indices, seeds, strict=True):
            row[:] = rand_k_indices(int(seed), dim, k)
        return cls(dim, seeds, torch.from_numpy(indices))

    @property
    def scale(self) -> float:
        """The factor on values before they are sent, which makes them unbiased."""
        return self.dim / self.indices.shape[1]

    def payload(self) -> NDArray[np.uint8]:
        """How a message encodes its coordinates: the seed, (clients, 8)."""
        return self.seeds.astype("<u8").view(np.uint8).reshape(-1, _SEED_BYTES)

    def of_memory(self, memory: Tensor, clients: Tensor) -> Tensor:
        """The values of rows `clients` of `memory` at the chosen coordinates: (clients, k)."""
        # One flat index per value costs a third of a pair of indices.
        positions = (clients.unsqueeze(1) * self.dim + self.indices).reshape(-1)
        return memory.view(-1).index_select(0, positions).view(self.indices.shape)


@dataclass(frozen=True)
class SparsePackets(CodedPackets):
    """Messages that carry k of d coordinates."""

    choice: Choice

    def dense(self) -> Tensor:
        rows = torch.zeros(self.clients, self.dim)
        return rows.scatter_(1, self.choice.indices, self.quantised.values)

    def add_sum_to(self, total: Tensor) -> None:
        total.index_add_(0, self.choice.indices.reshape(-1), self.quantised.values.reshape(-1))

    def add_to(self, rows: Tensor, scale: float, clients: Tensor | None = None) -> None:
        if clients is None:
            clients = torch.arange(self.clients)
        # One flat index per value, so that the cost depends on the values and not on the rows.
        positions = (clients.unsqueeze(1) * self.dim + self.choice.indices).reshape(-1)
        rows.view(-1).index_add_(0, positions, self.quantised.values.reshape(-1), alpha=scale)

    def encode(self) -> list[bytes]:
        return self.format.seal(np.concatenate([self.choice.payload(), self.quantised.payload()], axis=1))
