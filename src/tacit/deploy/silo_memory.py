"""What a silo remembers of a run between two rounds: one file, replaced in one step.

The file of a round holds the estimator's memory, the uplink's memory as the server knows it ("uplink") and as it
will be if the server uses the message ("pending"), the message itself, the silo's secret coins, and a keyed
digest of the records that the run began with. It becomes the silo's memory only when the ledger names its digest,
so that the two cannot come apart. It is for the owner alone: snapshots and tables are not protected by noise.
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
    """Which records a run began with: a digest of their content and order, under a key of its own.

    Guarantee: it never leaves the silo, and without the key it tells nothing about the records. What a run
    remembers of a record (a table entry, a coefficient, its place in a pass) belongs to the record in that place
    and to no other, so a run goes on with the same records or not at all.
    """

    key: bytes
    digest: bytes

    @classmethod
    def of(cls, records: Federation, key: bytes | None = None) -> Fingerprint:
        """The fingerprint of these records, under a fresh key from the operating system unless one is given."""
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
    """as the server knows it: without this message"""
    pending: State
    """as it is once the server has used this message"""
    message: bytes
    secret: int | None
    records: Fingerprint
    """those that the run began with"""
    loss: float | None = None
    """the report that goes with the message"""

    def next_state(self, *, accepted: bool) -> ClientState:
        """What the next round starts from.

        The estimator's memory goes on in any case: it depends on the points alone. The uplink's must be what the
        server's half believes it to be, so a message that the server did not use leaves no trace in it.
        """
        return ClientState(self.work, self.pending if accepted else self.uplink)

    def to_bytes(self) -> bytes:
        """As safetensors."""
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
            # Cloned into aligned memory: products round differently in memory that is not.
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
    """Coins for one run of one silo, from the operating system; none where all follows from a seed."""
    return None if insecure else fresh_secret()


class MemoryFiles:
    """The memory of one run of a silo."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, round: int, content: bytes) -> str:
        """Put a memory on the disk, aside, and return its digest."""
        write_atomically(self._path(round), content, mode=0o600)
        return hashlib.sha256(content).hexdigest()

    def read(self, round: int, digest: str) -> Memory:
        """The memory that the ledger names; a `DataError` if it is not there, or another."""
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
        """Remove what is no longer needed."""
        remove_leftovers(self._directory)
        for path in self._directory.glob("round-*.safetensors"):
            if path != self._path(round):
                path.unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        return self._directory / f"round-{round:08d}.safetensors"
