"""A silo's memory of a run between two rounds: one file, replaced in one step.

The file of a round holds the estimator's memory, the uplink's memory as the server knows it ("uplink") and as it
will be if the server uses the message ("pending"), the message itself, the silo's secret coins, and a keyed
digest of the records that the run began with. It counts as the silo's memory only once the ledger names its
digest, so that the two stay consistent. Only the owner may read it: snapshots and tables are not protected by
noise.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from tacit.engine.files import remove_leftovers, write_atomically
from tacit.engine.round import ClientState
from tacit.errors import DataError
from tacit.federation import Federation
from tacit.noise.randomness import fresh_secret
from tacit.state import State

_FORMAT = "tacit-silo-memory-2"
_SECRET_BYTES = 16
_KEY_BYTES = 32


@dataclass(frozen=True)
class Fingerprint:
    """Identifies the records that a run began with: a keyed digest of their content and order.

    Guarantee: it never leaves the silo, and without the key it reveals nothing about the records. What a run
    remembers of a record (a table entry, a coefficient, its place in a pass) belongs to the record at that
    position and to no other, so a run continues with the same records or not at all.
    """

    key: bytes
    digest: bytes

    @classmethod
    def of(cls, records: Federation, key: bytes | None = None) -> Fingerprint:
        """The fingerprint of these records, with a fresh key from the operating system unless one is given."""
        key = secrets.token_bytes(_KEY_BYTES) if key is None else key
        digest = hashlib.blake2b(key=key, digest_size=_KEY_BYTES)
        for tensor in (records.features, records.targets):
            values = np.ascontiguousarray(tensor.cpu().numpy())
            digest.update(f"{values.dtype.str} {values.shape};".encode())
            digest.update(values.data)
        return cls(key, digest.digest())

    def matches(self, records: Federation) -> bool:
        """Whether these are the same records, in the same order, to the last bit."""
        return hmac.compare_digest(self.digest, self.of(records, self.key).digest)


@dataclass(frozen=True)
class Memory:
    """A silo's memory after it computed the message of `round`."""

    work: State
    uplink: State
    """the uplink's memory as the server knows it, without this message"""
    pending: State
    """the uplink's memory once the server has used this message"""
    message: bytes
    secret: int | None
    records: Fingerprint
    """identifies the records that the run began with"""
    loss: float | None = None
    """the loss report that goes with the message, if any"""

    def next_state(self, *, accepted: bool) -> ClientState:
        """The state that the next round starts from.

        The estimator's memory is kept in any case, because it depends only on the points. The uplink's memory
        must match the server's half, so a message that the server did not use leaves no trace in it.
        """
        return ClientState(self.work, self.pending if accepted else self.uplink)

    def to_bytes(self) -> bytes:
        """The memory in safetensors format."""
        parts = {"work": self.work, "uplink": self.uplink, "pending": self.pending}
        tensors = {
            f"{part}.{name}": t.contiguous().clone() for part, named in parts.items() for name, t in named.items()
        }
        tensors["message"] = _to_tensor(self.message)
        tensors["records"] = _to_tensor(self.records.key + self.records.digest)
        if self.loss is not None:
            tensors["loss"] = torch.tensor([self.loss], dtype=torch.float64)
        if self.secret is not None:
            tensors["secret"] = _to_tensor(self.secret.to_bytes(_SECRET_BYTES, "little"))
        return safetensors.torch.save(tensors, {"format": _FORMAT})

    @classmethod
    def from_bytes(cls, content: bytes) -> Memory:
        """The inverse of `to_bytes`."""
        parts: dict[str, State] = {"work": {}, "uplink": {}, "pending": {}}
        try:
            # Cloned into aligned memory: products round differently in unaligned memory.
            tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load(content).items()}
            message, records = (tensors.pop(name).numpy().tobytes() for name in ("message", "records"))
            digits = tensors.pop("secret", None)
            secret = None if digits is None else int.from_bytes(digits.numpy().tobytes(), "little")
            report = tensors.pop("loss", None)
            loss = None if report is None else float(report[0])
            for full_name, tensor in tensors.items():
                part, _, name = full_name.partition(".")
                parts[part][name] = tensor
        except (safetensors.SafetensorError, KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"a silo's memory is corrupted: {error}") from error
        fingerprint = Fingerprint(records[:_KEY_BYTES], records[_KEY_BYTES:])
        return cls(parts["work"], parts["uplink"], parts["pending"], message, secret, fingerprint, loss)


def _to_tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def new_secret(insecure: bool) -> int | None:
    """The secret coins of a silo for one run, from the operating system; None if everything is seeded."""
    return None if insecure else fresh_secret()


class MemoryFiles:
    """The files with a silo's memory of one run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, round: int, content: bytes) -> str:
        """Write a memory to disk, next to the current one, and return its digest."""
        write_atomically(self._path(round), content, mode=0o600)
        return hashlib.sha256(content).hexdigest()

    def read(self, round: int, digest: str) -> Memory:
        """Read the memory that the ledger names; a `DataError` if it is missing or a different one."""
        try:
            content = self._path(round).read_bytes()
        except OSError as error:
            raise DataError(f"{self._path(round)} cannot be read: {error}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise DataError(f"{self._path(round)} is not the one that the ledger names")
        return Memory.from_bytes(content)

    def forget(self, round: int) -> None:
        """Remove a memory that the ledger does not name."""
        self._path(round).unlink(missing_ok=True)

    def keep_only(self, round: int) -> None:
        """Remove the memories of all other rounds."""
        remove_leftovers(self._directory)
        for path in self._directory.glob("round-*.safetensors"):
            if path != self._path(round):
                path.unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self._directory / f"round-{round:08d}.safetensors"
