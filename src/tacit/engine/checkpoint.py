"""Checkpoints: all state of a run after some round, in one safetensors file.

One file, because one rename is atomic and two are not. The small things (round, history) are JSON in the
file's own header. No pickle: a checkpoint from elsewhere can be wrong, but it cannot run code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from tacit.engine.files import remove_leftovers, write_atomically
from tacit.errors import DataError

FORMAT = "tacit-checkpoint-1"


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
    # Cloned, because one tensor may stand under two names, which the format does not allow.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in checkpoint.tensors.items()}
    # For the owner alone: what clients remember (SVRG's and SAGA's gradients) is not protected by noise.
    write_atomically(path, safetensors.torch.save(tensors, header), mode=0o600)
    for older in directory.glob("round-*.safetensors"):
        if older.name < path.name:
            older.unlink(missing_ok=True)
    return path


def latest(directory: Path, fingerprint: str) -> Checkpoint | None:
    """The newest checkpoint of this very run, or None if there is none yet."""
    if not directory.is_dir():
        return None
    remove_leftovers(directory)
    paths = sorted(directory.glob("round-*.safetensors"))
    if not paths:
        return None
    checkpoint = _read(paths[-1])
    if checkpoint.fingerprint != fingerprint:
        raise DataError(
            f"{paths[-1]} belongs to another run (other data, recipe or version of tacit); "
            "use another --out, or remove the run directory"
        )
    return checkpoint


def _read(path: Path) -> Checkpoint:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise DataError(f"{path} is not a checkpoint of tacit (format {header.get('format')!r})")
            # Cloned, because a tensor inside a file's bytes is not aligned as PyTorch aligns its own, and matrix
            # products round differently then: a resumed run would differ in the last bits.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no mapping
        return Checkpoint(int(header["round"]), header["fingerprint"], tensors, json.loads(header["facts"]))
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is corrupted ({error}); remove it to start again from the beginning") from error
