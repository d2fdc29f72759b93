"""Checkpoints: the whole state of a run after some round, in one safetensors file.

It is a single file because one rename is atomic and two are not. Small values (round, history) are JSON in the
file's own header, and the last tensor is the SHA-256 of all bytes before it, which reveals damage. No pickle is
used: a checkpoint from elsewhere can be wrong, but it cannot run code.
"""

from __future__ import annotations

import hashlib
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

FORMAT = "tacit-checkpoint-2"
_DIGEST = "sha256"
_DIGEST_BYTES = 32
_CHUNK_BYTES = 2**20

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
    """digest of everything that determines the run; a checkpoint of another run is refused"""
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class OtherRunError(DataError):
    """The directory holds checkpoints of another run."""


class DamagedError(DataError):
    """There are checkpoints, but none of them can be read."""


def save(directory: Path, checkpoint: Checkpoint, *, copies: int = 1) -> None:
    """Writes a checkpoint durably, then removes those of other rounds.

    With two `copies`, either file may be damaged later: when this returns, both hold the newest round, so falling
    back to the other one loses nothing.
    """
    stem = f"round-{checkpoint.round:08d}"
    paths = [directory / f"{stem}{f'-copy-{number}' if number else ''}.safetensors" for number in range(copies)]
    header = {
        "format": FORMAT,
        "round": str(checkpoint.round),
        "fingerprint": checkpoint.fingerprint,
        "facts": json.dumps(checkpoint.facts),
    }
    for path in paths:
        # Readable only by the owner: noise does not protect what clients remember (SVRG's and SAGA's gradients).
        write_atomically(path, _safetensors(checkpoint.tensors, header), mode=0o600)
    for other in directory.glob("round-*.safetensors"):
        if other not in paths:
            other.unlink(missing_ok=True)


def _safetensors(tensors: dict[str, Tensor], facts: dict[str, str]) -> Iterator[bytes | memoryview[int]]:
    """A safetensors file, piece by piece: tensors in mapped files need not fit into memory."""
    rows = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header: dict[str, Any] = {"__metadata__": facts}
    start = 0
    for name, row in rows.items():
        end = start + row.nbytes
        header[name] = {"dtype": _DTYPES[row.dtype], "shape": list(row.shape), "data_offsets": [start, end]}
        start = end
    offsets = [start, start + _DIGEST_BYTES]
    header[_DIGEST] = {"dtype": "U8", "shape": [_DIGEST_BYTES], "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start_of_file = struct.pack("<Q", len(text)) + text
    digest = hashlib.sha256(start_of_file)
    yield start_of_file
    for row in rows.values():
        data: memoryview[int] = row.numpy().reshape(-1).view(np.uint8).data
        digest.update(data)
        yield data
    yield digest.digest()


def latest(
    directory: Path,
    fingerprint: str,
    placed: Callable[[Tensor], Tensor] = Tensor.clone,
    *,
    notify: Callable[[str], None] = lambda text: None,
) -> Checkpoint | None:
    """The newest intact checkpoint of this run, or None if none was ever written.

    `placed` copies a tensor out of the file. `notify` is told about damaged files that are skipped. Raises
    `DamagedError` if no checkpoint is intact, and `OtherRunError` if they belong to another run.
    """
    if not directory.is_dir():
        return None
    remove_leftovers(directory)
    damage = []
    for path in sorted(directory.glob("round-*.safetensors"), reverse=True):
        try:
            checkpoint = _read(path, placed)
        except DamagedError as error:
            damage.append(str(error))
            continue
        if checkpoint.fingerprint != fingerprint:
            raise OtherRunError(f"{path} belongs to another run (other data, recipe or version of tacit)")
        for what in damage:
            notify(f"{what}; going on from {path.name}")
        return checkpoint
    if damage:
        raise DamagedError("; ".join(damage))
    return None


def _read(path: Path, placed: Callable[[Tensor], Tensor]) -> Checkpoint:
    try:
        _check_digest(path)
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise ValueError(f"its format is {header.get('format')!r}, not {FORMAT!r}")
            # Copied, because PyTorch aligns its own tensors differently from those in a file's bytes, and matrix
            # products then round differently: a resumed run would differ in the last bits.
            names = [name for name in file.keys() if name != _DIGEST]  # noqa: SIM118 - no mapping
            tensors = {name: placed(file.get_tensor(name)) for name in names}
        return Checkpoint(int(header["round"]), header["fingerprint"], tensors, json.loads(header["facts"]))
    except (safetensors.SafetensorError, KeyError, ValueError, OSError, RecursionError) as error:
        raise DamagedError(f"{path} is corrupted ({error})") from error


def _check_digest(path: Path) -> None:
    """Checks that the file's last bytes are the digest of all others."""
    digest, left = hashlib.sha256(), path.stat().st_size - _DIGEST_BYTES
    if left <= 0:
        raise ValueError("too short")
    with path.open("rb") as file:
        while left:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise ValueError("it was truncated while being read")
            digest.update(chunk)
            left -= len(chunk)
        if file.read() != digest.digest():
            raise ValueError("its digest is wrong")
