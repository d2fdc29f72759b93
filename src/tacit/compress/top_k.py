"""Top-k sparsification: the k largest coordinates unchanged, the others zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.compress.compressor import Packets, WrittenCompressor, biased_error, check_rows
from tacit.compress.identity import Identity
from tacit.compress.kept import KeptCoordinates
from tacit.compress.positions import encode_positions, positions_bytes, read_positions
from tacit.compress.sparse import Choice, SparsePackets
from tacit.compress.wire import Format

_CODEC = 33
"""float32 values after their positions"""


@dataclass(frozen=True, kw_only=True)
class TopK(KeptCoordinates, WrittenCompressor):
    """Sends the k coordinates of largest absolute value, unchanged: ||C(x) - x||^2 <= (1 - k/d) ||x||^2.

    It is biased: E C(x) is not x. So theorems about unbiased compressors, such as those of SoteriaFL (Li et al.
    2022), do not apply, and without a memory of what was left out a run may not converge. Use it with
    `ErrorFeedback`. For the same k it keeps at least as much of a vector as rand-k, and much more if few
    coordinates are large.

    `fraction` sets k = max(1, floor(fraction d)), `count` sets k = min(count, d); exactly one is given. A message
    carries the positions (`tacit.compress.positions`) and k float32 values.

    >>> TopK(fraction=0.05).message_bytes(50_890), TopK(count=2).kept(100)
    (12170, 2)
    """

    name = "top-k"
    unbiased = False

    def omega(self, dim: int) -> float:
        """Always refused: a biased compressor has no such factor."""
        raise biased_error(self.spec())

    def format(self, dim: int) -> Format:
        """The wire format: positions, then values."""
        kept = self.kept(dim)
        return Format(_CODEC, 0, int(dim), kept, positions_bytes(int(dim), kept) + 4 * kept)

    def compress(self, rows: Tensor, generators: Sequence[np.random.Generator]) -> Packets:
        check_rows(rows, generators)
        format = self.format(rows.shape[1])
        indices = rows.abs().topk(format.kept, dim=1, sorted=False).indices.sort(dim=1).values.cpu()
        values = Identity().quantise(rows.cpu().gather(1, indices), generators)
        return SparsePackets(format, values, Listed.of(indices, format.dim))

    def decode(self, messages: Sequence[bytes], dim: int) -> Packets:
        """The vectors in messages from untrusted senders; raises `MessageError` for an invalid message."""
        format = self.format(dim)
        bodies, split = format.open(messages), positions_bytes(format.dim, format.kept)
        values = Identity().read(np.ascontiguousarray(bodies[:, split:]), format.kept)
        positions = read_positions(np.ascontiguousarray(bodies[:, :split]), format.dim, format.kept)
        return SparsePackets(format, values, Listed.of(torch.from_numpy(positions), format.dim))


@dataclass(frozen=True)
class Listed(Choice):
    """Coordinates that a message lists explicitly, because no seed selects them."""

    @classmethod
    def of(cls, indices: Tensor, dim: int) -> Listed:  # type: ignore[override]  # listed, not drawn
        """These coordinates, (clients, k), ascending in every row."""
        return cls(dim, np.empty(0, dtype=np.uint64), indices)

    @property
    def scale(self) -> float:
        """One: values are sent unchanged."""
        return 1.0

    def payload(self) -> NDArray[np.uint8]:
        """The encoded positions."""
        return encode_positions(self.indices.numpy(), self.dim)
