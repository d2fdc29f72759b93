"""Tensors that live in a file instead of in memory, such as the shifts of a million clients."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import torch
from torch import Tensor


def mapped_zeros(shape: tuple[int, ...], directory: Path | None = None) -> Tensor:
    """Zeros (float32) whose pages the system reads and writes as needed, and may drop from memory.

    The file is already unlinked when this returns, so it disappears with the tensor or with a killed process.
    """
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".memory.", suffix=".part") as file:
        # A sparse file of zeros, which takes no disk space until it is written to.
        file.truncate(4 * math.prod(shape))
        return torch.from_file(file.name, shared=True, size=math.prod(shape)).view(shape)
