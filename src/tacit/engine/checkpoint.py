"""Checkpoints: all state of a run after some round, in one safetensors file.

One file, because one rename is atomic and two are not. The small things (round, history) are JSON in the
file's own header. No pickle: a checkpoint from elsewhere can be wrong, but it cannot run code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from torch import Tensor

from tacit.engine.files import remove_leftovers, write_atomically
from tacit.errors import DataError

FORMAT = "tacit-checkpoint-1"

_DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Checkpoint:
    """The state after `round` rounds."""

    round: int
    fingerprint: str
    """Of everything that determines the run; a checkpoint of another run is refused"""
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def save(directory: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint durably, then remove the older ones."""
    path = directory / f"round-{checkpoint.round:08d}.safetensors"
    header = {
        "format": FORMAT,
        "round": str(checkpoint.round),
        "fingerprint": checkpoint.fingerprint,
        "facts": json.dumps(checkpoint.facts),
    }
    # For the owner alone: what clients remember (SVRG's and SAGA's gradients) is not protected by noise.
    write_atomically(path, _safetensors(checkpoint.tensors, header), mode=0o600)
    for older in directory.glob("round-*.safetensors"):
        if older.name < path.name:
            older.unlink(missing_ok=True)
    return path


def _safetensors(tensors: dict[str, Tensor], facts: dict[str, str]) -> Iterator[bytes | memoryview[int]]:
    """A safetensors file, piece by piece: what lies in a mapped file need not be in memory to be written."""
    rows = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header: dict[str, Any] = {"__metadata__": facts}
    start = 0
    for name, row in rows.items():
        end = start + row.nbytes
        header[name] = {"dtype": _DTYPES[row.dtype], "shape": list(row.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for row in rows.values():
        yield row.numpy().reshape(-1).view(np.uint8).data


def latest(
    directory: Path, fingerprint: str, placed: Callable[[Tensor], Tensor] = Tensor.clone
) -> Checkpoint | None:
    """The newest checkpoint of this very run, or None if there is none yet.

    `placed` copies a tensor out of the file.
    """
    if not directory.is_dir():
        return None
    remove_leftovers(directory)
    paths = sorted(directory.glob("round-*.safetensors"))
    if not paths:
        return None
    checkpoint = _read(paths[-1], placed)
    if checkpoint.fingerprint != fingerprint:
        raise DataError(
            f"{paths[-1]} belongs to another run (other data, recipe or version of tacit); "
            "use another --out, or remove the run directory"
        )
    return checkpoint


def _read(path: Path, placed: Callable[[Tensor], Tensor]) -> Checkpoint:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise DataError(f"{path} is not a checkpoint of tacit (format {header.get('format')!r})")
            # Copied, because a tensor inside a file's bytes is not aligned as PyTorch aligns its own, and matrix
            # products round differently then: a resumed run would differ in the last bits.
            tensors = {name: placed(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 - no mapping
        return Checkpoint(int(header["round"]), header["fingerprint"], tensors, json.loads(header["facts"]))
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is corrupted ({error}); remove it to start again from the beginning") from error
