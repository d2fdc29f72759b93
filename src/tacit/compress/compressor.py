"""The interfaces of compressors and of batches of messages, and the checks on their inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.compress.wire import Format
from tacit.errors import DivergedError, RequestError

if TYPE_CHECKING:
    from tacit.compress.sparse import Choice


class Packets(Protocol):
    """The messages of one cohort, decoded or not yet encoded, as the server will read them."""

    @property
    def dim(self) -> int:
        """The length d of every vector."""

    @property
    def clients(self) -> int:
        """The number of messages."""

    @property
    def bits(self) -> int:
        """The length of each encoded message in bits: exactly `8 * len(encode()[i])`."""

    def dense(self) -> Tensor:
        """All decoded vectors, (clients, d)."""

    def sum(self) -> Tensor:
        """The sum of the decoded vectors, (d,); sparse vectors are not expanded to (clients, d)."""

    def add_sum_to(self, total: Tensor) -> None:
        """`total += sum()`, in place, one client after another.

        The order of additions is that of the clients, so a total over chunks equals, bit for bit, the
        total over the whole cohort.
        """

    def add_to(self, rows: Tensor, scale: float, clients: Tensor | None = None) -> None:
        """`rows[clients] += scale * dense()`, in place; without `clients`, row i belongs to message i."""

    def encode(self) -> list[bytes]:
        """One message for each client."""


class Compressor(Protocol):
    """A map C from vectors to short messages. Most are random with E C(x) = x, E ||C(x) - x||^2 <= omega ||x||^2.

    This is SoteriaFL (Li et al. 2022), Definition 1; `unbiased` tells whether it holds. Compression is
    post-processing of vectors that are already private: it neither costs nor adds privacy. Both properties hold
    up to the rounding of float32, in which messages are read.
    """

    @property
    def unbiased(self) -> bool:
        """Whether E C(x) = x."""

    @property
    def lossless(self) -> bool:
        """Whether messages are the vectors themselves, unchanged."""

    def omega(self, dim: int) -> float:
        """The variance factor for vectors of length `dim`; refused if C is biased."""

    def kept(self, dim: int) -> int:
        """The number of the `dim` coordinates that a message carries."""

    def compress(self, rows: Tensor, generators: Sequence[np.random.Generator]) -> Packets:
        """C(x_i) for each row x_i of a float32 (clients, d) tensor, each with its own generator."""

    def compress_difference(
        self, rows: Tensor, memory: Tensor, clients: Tensor, generators: Sequence[np.random.Generator]
    ) -> Packets:
        """C(x_i - m_i) for each row, where m_i is row `clients[i]` of `memory`.

        Equals `compress(rows - memory[clients], generators)`, but reads only the coordinates it sends.
        """

    def choose(self, dim: int, generators: Sequence[np.random.Generator]) -> Choice | None:
        """The coordinates of the coming messages, or None if they depend on the vectors."""

    def message_bytes(self, dim: int) -> int:
        """The exact length of every encoded message."""

    def decode(self, messages: Sequence[bytes], dim: int) -> Packets:
        """The vectors in messages from untrusted senders; raises `MessageError` for an invalid message."""

    def spec(self) -> str:
        """The compressor as text that `parse_compressor` can read."""


class WrittenCompressor(ABC):
    """What compressors of the wire format have in common."""

    unbiased = True
    lossless = False

    @abstractmethod
    def format(self, dim: int) -> Format:
        """The wire format of its messages."""

    @abstractmethod
    def compress(self, rows: Tensor, generators: Sequence[np.random.Generator]) -> Packets:
        """C(x_i) for each row x_i."""

    def message_bytes(self, dim: int) -> int:
        return self.format(dim).message_bytes

    def choose(self, dim: int, generators: Sequence[np.random.Generator]) -> Choice | None:
        return None

    def compress_difference(
        self, rows: Tensor, memory: Tensor, clients: Tensor, generators: Sequence[np.random.Generator]
    ) -> Packets:
        """C(x_i - m_i) for every row, where m_i is row `clients[i]` of `memory`."""
        return self.compress(rows - memory[clients], generators)


def biased_error(spec: str) -> RequestError:
    """The error for a biased compressor; it names the alternatives."""
    return RequestError(
        f"compressor {spec} is biased, and this algorithm's theory is about unbiased ones: use rand-k, qsgd or "
        "natural, or an algorithm with error feedback, such as ef21-sgdm"
    )


def check_unbiased(compressor: Compressor) -> None:
    """Refuse a biased compressor."""
    if not compressor.unbiased:
        raise biased_error(compressor.spec())


def check_rows(rows: Tensor, generators: Sequence[np.random.Generator]) -> None:
    """Refuse rows that cannot be compressed: a wrong shape or type, or values that are not finite."""
    if rows.dim() != 2 or rows.shape[1] == 0:
        raise RequestError(f"rows must have the shape (clients, d) with d >= 1, not {tuple(rows.shape)}")
    if rows.dtype != torch.float32:
        raise RequestError(f"rows must be float32, not {rows.dtype}; convert them with rows.float()")
    if rows.requires_grad:
        raise RequestError("rows must not require gradients; pass rows.detach()")
    if len(generators) != rows.shape[0]:
        raise RequestError(f"generators must be one for each of {rows.shape[0]} rows, not {len(generators)}")
    check_finite("rows", rows)


def check_finite(name: str, rows: Tensor) -> None:
    """Refuse rows with a value that is not finite, and say where it is."""
    # A sum is finite only if all its terms are, and takes one pass without a temporary. The converse fails (large
    # finite values overflow), so a sum that is not finite is followed by a slow check.
    if bool(rows.sum().isfinite()):
        return
    wrong = (~rows.isfinite()).nonzero()
    if wrong.shape[0]:
        row, coordinate = wrong[0].tolist()
        raise DivergedError(
            f"{name} must be finite, but row {row} has {rows[row, coordinate].item()} at coordinate "
            f"{coordinate}; nothing was encoded: use a smaller step"
        )
