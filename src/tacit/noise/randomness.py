"""Random numbers by address instead of by order.

Every draw of a run has an address: purpose, client, round, and step of the round. The generator at an address is
the counter-based Philox 4x64 with the seed as its key and the address as its counter; for very many numbers it is
AES in counter mode. So the numbers do not depend on how a cohort is cut into chunks, on the number of threads, or
on which engine runs the client: a silo that runs alone draws what it would have drawn in the simulator.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, overload

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from tacit.errors import RequestError
from tacit.noise import philox

EVERYONE = 2**64 - 1
"""The address of randomness that all parties share: public coins such as SVRG's snapshot coin."""


class Purpose(enum.IntEnum):
    """What a stream of random numbers is for. The numbers are part of the format: append, never renumber."""

    INIT = 1
    PARTICIPATION = 2
    SAMPLE = 3
    NOISE = 4
    COMPRESS = 5
    SNAPSHOT = 6
    PARTITION = 7
    DATA = 8
    SECRET_PARTICIPATION = 9
    AGGREGATE = 10
    OUTPUT = 11
    REPORT = 12
    COORDINATES = 13


_PRIVATE = frozenset(
    [
        Purpose.SAMPLE,
        Purpose.NOISE,
        Purpose.COMPRESS,
        Purpose.SECRET_PARTICIPATION,
        Purpose.AGGREGATE,
        Purpose.REPORT,
    ]
)
"""Purposes whose draws only the client may know; otherwise amplification by sampling is lost."""


class _NoSeed(ISeedSequence):
    """Stops numpy from asking the operating system for a seed that is never used: three times faster."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


_NO_SEED = _NoSeed()
_ZEROS = memoryview(bytes(2**17))
_EMPTY = np.zeros(4, dtype=np.uint64)

SHORT_ROW = 2**12
"""Up to this many bytes per client, the clients' streams are filled together."""


@dataclass(frozen=True)
class Randomness:
    """All the randomness of a run, from one seed.

    Seeded noise is for research: anyone who knows the seed can subtract it. Runs that use it are marked.

    >>> randomness = Randomness(7)
    >>> a = randomness.generator(Purpose.NOISE, client=3, round=11).standard_normal(2)
    >>> b = randomness.generator(Purpose.NOISE, client=3, round=11).standard_normal(2)
    >>> bool((a == b).all())
    True
    """

    seed: int
    secret: int | None = field(default=None, repr=False)
    """a second key, for what the clients draw for themselves; derived from the seed unless given"""
    stream: str = ""
    """which of the seed's streams clients draw from for themselves. Two runs with the same seed and stream share
    their noise and their batches, so the difference of their messages may have no noise at all"""

    def __post_init__(self) -> None:
        for name, key in (("seed", self.seed), ("secret", self.secret or 0)):
            if not 0 <= key < 2**128:
                raise RequestError(f"{name} must be in [0, 2**128)")

    def generator(
        self, purpose: Purpose, *, client: int = EVERYONE, round: int = 0, step: int = 0
    ) -> np.random.Generator:
        """A new generator at one address, at the start of its stream. A step has room for 2^42 numbers."""
        number = self._number(purpose)
        key = np.array([number % 2**64, number >> 64], dtype=np.uint64)
        counter = np.array([step << 40, int(purpose), round, client], dtype=np.uint64)
        # numpy takes any ISeedSequence; its stubs say only SeedSequence.
        philox = np.random.Philox(_NO_SEED)  # type: ignore[arg-type]
        philox.state = {
            "bit_generator": "Philox",
            "state": {"counter": counter, "key": key},
            "buffer": _EMPTY,
            "buffer_pos": len(_EMPTY),
            "has_uint32": 0,
            "uinteger": 0,
        }
        return np.random.Generator(philox)

    def integers(
        self,
        purpose: Purpose,
        ends: Sequence[int],
        clients: Sequence[int],
        *,
        round: int,
        steps: int,
        number: int,
    ) -> NDArray[np.int64]:
        """`generator(...).integers(0, end, number)` for each step and client: (steps, clients, number).

        The numbers are the same, but generators, which take time to create, are hardly ever needed. At most
        `philox.FIRST` numbers.
        """
        counters = np.empty((steps, len(clients), 4), dtype=np.uint64)
        counters[..., 0] = np.arange(steps, dtype=np.uint64)[:, None] << np.uint64(40)
        counters[..., 1], counters[..., 2] = int(purpose), round
        counters[..., 3] = np.array(clients, dtype=np.uint64)
        words = philox.first_words(self._number(purpose), counters.reshape(-1, 4))[:, :number]
        limits = np.array(ends, dtype=np.uint64)[:, None]
        drawn, usable = philox.below(words.reshape(steps, len(clients), number), limits)
        for step, k in np.argwhere(~usable.all(2)).tolist():
            generator = self.generator(purpose, client=clients[k], round=round, step=step)
            drawn[step, k] = generator.integers(0, ends[k], number)
        return drawn.astype(np.int64)

    def key(self, purpose: Purpose, *, round: int = 0, step: int = 0) -> bytes:
        """The key of all clients' AES streams at one address: a digest of the run's own key and the address."""
        place = struct.pack("<3Q", purpose, round, step)
        return hashlib.sha256(self._number(purpose).to_bytes(16, "little") + place).digest()

    def _number(self, purpose: Purpose) -> int:
        if purpose not in _PRIVATE:
            return self.seed
        if self.secret is not None:
            return _secret_key(self.secret, purpose)
        return _stream_key(self.seed, self.stream, purpose) if self.stream else self.seed


@dataclass(frozen=True)
class Generators(Sequence[np.random.Generator]):
    """The generators of several clients at one purpose, round and step; or, for very many numbers, their bytes.

    Generators are created on first use and keep their position, so unused ones cost nothing.
    """

    randomness: Randomness
    purpose: Purpose
    clients: tuple[int, ...] = (EVERYONE,)
    round: int = 0
    step: int = 0

    def __len__(self) -> int:
        return len(self.clients)

    @overload
    def __getitem__(self, index: int) -> np.random.Generator: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.random.Generator]: ...

    def __getitem__(self, index: int | slice) -> np.random.Generator | list[np.random.Generator]:
        return self._made[index]

    def __iter__(self) -> Iterator[np.random.Generator]:
        return iter(self._made)

    @cached_property
    def _made(self) -> list[np.random.Generator]:
        make, where = self.randomness.generator, {"round": self.round, "step": self.step}
        return [make(self.purpose, client=i, **where) for i in self.clients]

    def fill(self, index: int, target: memoryview[int]) -> None:
        """Fill `target` with the start of one client's stream: AES-256 in counter mode, from block (client, 0).

        Several times as fast as the client's generator, with different numbers. No two clients share a block.
        """
        self._cipher.reset_nonce(struct.pack(">2Q", self.clients[index], 0))
        for start in range(0, len(target), len(_ZEROS)):
            part = target[start : start + len(_ZEROS)]
            self._cipher.update_into(_ZEROS[: len(part)], part)

    def fill_rows(self, start: int, target: NDArray[np.uint8]) -> None:
        """Fill rows (clients, bytes) as `fill` would, for the clients from `start` on; short rows all at once.

        A client's stream is the encryption of the blocks (client, 0), (client, 1), ...: counter mode in full.
        """
        number, length = target.shape
        if length > SHORT_ROW:
            for index, row in enumerate(target, start):
                self.fill(index, row.data)
            return
        key = self.randomness.key(self.purpose, round=self.round, step=self.step)
        blocks = _blocks(self.clients[start : start + number], -(-length // 16))
        encrypted = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)
        target[:] = np.frombuffer(encrypted, dtype=np.uint8).reshape(number, -1)[:, :length]

    @cached_property
    def _cipher(self) -> CipherContext:
        key = self.randomness.key(self.purpose, round=self.round, step=self.step)
        return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


@lru_cache(maxsize=4)
def _blocks(clients: tuple[int, ...], number: int) -> bytes:
    """The blocks (client, 0) to (client, number - 1) of all clients, as big-endian numbers of 16 bytes."""
    blocks = np.empty((len(clients), number, 2), dtype=">u8")
    blocks[:, :, 0] = np.array(clients, dtype=np.uint64)[:, None]
    blocks[:, :, 1] = np.arange(number)
    return blocks.tobytes()


@lru_cache(maxsize=64)
def _secret_key(secret: int, purpose: Purpose) -> int:
    """A separate key for every purpose, from which the others cannot be derived.

    Philox is not a cipher, and the seeds of supports are sent in messages: they must reveal nothing about the key
    that draws batches and noise.
    """
    digest = hashlib.sha256(secret.to_bytes(16, "little") + bytes([purpose])).digest()
    return int.from_bytes(digest[:16], "little")


@lru_cache(maxsize=64)
def _stream_key(seed: int, stream: str, purpose: Purpose) -> int:
    digest = hashlib.sha256(seed.to_bytes(16, "little") + bytes([purpose]) + stream.encode()).digest()
    return int.from_bytes(digest[:16], "little")


def fresh_secret() -> int:
    """A key from the operating system's entropy, which is not stored anywhere."""
    return secrets.randbits(128)
