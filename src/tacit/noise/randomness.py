"""Random numbers by address instead of by order.

Every draw of a run has an address: what it is for, whose it is, which round, which step of the round. The generator at an address is
the counter-based Philox 4x64 with the seed as its key and the address as its counter, so the numbers do not
depend on how a cohort is cut into chunks, on the number of threads, or on which engine runs the client: a
silo that runs alone draws what it would have drawn in the simulator.
"""

from __future__ import annotations

import enum
import secrets
from dataclasses import dataclass

import numpy as np

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


@dataclass(frozen=True)
class Randomness:
    """All the randomness of a run, from one seed.

    Seeded noise is for research: whoever knows the seed can subtract it. Runs that use it say so.

    >>> randomness = Randomness(7)
    >>> a = randomness.generator(Purpose.NOISE, client=3, round=11).standard_normal(2)
    >>> b = randomness.generator(Purpose.NOISE, client=3, round=11).standard_normal(2)
    >>> bool((a == b).all())
    True
    """

    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**128:
            raise ValueError(f"seed must be in [0, 2**128), not {self.seed!r}")

    def generator(
        self, purpose: Purpose, *, client: int = EVERYONE, round: int = 0, step: int = 0
    ) -> np.random.Generator:
        """The generator at one address, always at its beginning. A step has room for 2^42 numbers."""
        key = np.array([self.seed % 2**64, self.seed >> 64], dtype=np.uint64)
        counter = np.array([step << 40, int(purpose), round, client], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(counter=counter, key=key))


def fresh_seed() -> int:
    """A seed from the operating system's entropy, short enough to be written down."""
    return secrets.randbits(63)
