"""The integers that silos add up under masks: multiples of a lattice step, modulo a power of two.

A silo sends nearest((c + N) / g) modulo 2^k, coordinate by coordinate: c is its bounded value, N its share of the
noise with standard deviation s, g the step and k the number of bits. Both follow from public numbers.

- g = s / 8. Rounding adds a variance of g^2 / 12 to a share of s^2 (one part in 768), and the theorem that shares
  add up needs s >= 5 g.
- k is the least number of bits for which a run wraps around with probability at most 1e-9. Wrapping costs
  accuracy, never privacy: the server sees the integer sum modulo 2^k, a function of the integer sum.

Rounding in two steps. Noise is drawn on a much finer lattice, g / 2^j (`tacit.noise.lattice`): rounding c alone
changes a record's influence by up to sqrt(dim) / 2 steps, which must be a small part of its bound. The low j bits
of the noisy value are dropped afterwards, half up. What is dropped depends only on (c + N) modulo g, as for a
single rounding, and the theorem about sums of rounded values uses nothing else. So fine steps pay for privacy and
coarse ones for bandwidth. The second rounding must be exact: use `coarsened` on whole numbers of fine steps. How
floats near a tie are rounded would depend on their size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.compress.bits import pack, packed_bytes, padding_is_zero, unpack
from tacit.errors import DataError, MessageError, RequestError, count

STEP_EXPONENT = 3
"""2^3 steps per standard deviation of one silo's share of the noise."""

MOST_BITS = 25
"""The widest integer that `tacit.compress.bits` packs in 32-bit words."""

WRAPPING = 1e-9
"""The largest probability that any coordinate of any sum of a run wraps around."""

_STEP_EXPONENT_WITHOUT_NOISE = 14
Residues = NDArray[np.uint32]
"""Whole numbers modulo 2^bits."""


@dataclass(frozen=True)
class Ring:
    """Integers modulo 2^`bits` that stand for multiples of `step`.

    >>> ring = Ring.for_sum(silos=100, bound=0.1, noise_std=0.2, dim=21_840, rounds=150)
    >>> ring.bits, ring.message_bytes(21_840)
    (12, 32760)
    >>> ring.step * ring.lifted(ring.encode(np.array([0.1, -0.05])) + ring.encode(np.array([0.1, 0.1])))
    array([0.2 , 0.05])
    """

    step: float
    bits: int

    @classmethod
    def for_sum(cls, *, silos: int, bound: float, noise_std: float, dim: int, rounds: int) -> Ring:
        """The lattice step and the least number of bits for a run's sums.

        silos: how many messages are added at most.
        bound: the largest absolute value of one coordinate of one silo's message, before noise.
        noise_std: the standard deviation of one silo's share of the noise, in the same unit; 0 for none.
        dim, rounds: coordinates in a message, and sums in the run.

        Guarantee: with probability 1 - WRAPPING no coordinate of any sum reaches 2^(bits - 1) steps. A sum of
        rounded values is at most silos (bound + step) + |N|, where N is normal with variance silos noise_std^2,
        and |N| exceeds x standard deviations with probability at most 2 exp(-x^2 / 2).
        """
        count("silos", silos)
        if not (0 <= bound < math.inf and 0 <= noise_std < math.inf and bound + noise_std > 0):
            raise RequestError(f"bound and noise_std must be finite, and not both 0: {bound!r}, {noise_std!r}")
        draws = 2 * count("dim", dim) * count("rounds", rounds)
        step = math.ldexp(noise_std, -STEP_EXPONENT) or math.ldexp(bound, -_STEP_EXPONENT_WITHOUT_NOISE)
        tail = math.sqrt(2 * math.log(draws / WRAPPING))
        largest = silos * (bound / step + 1) + tail * math.sqrt(silos) * noise_std / step
        bits = math.ceil(math.log2(largest + 1)) + 1
        if bits > MOST_BITS:
            raise RequestError(
                f"sums of {silos} messages of up to {bound:.3g} per coordinate with noise of {noise_std:.3g} "
                f"need {bits} bits per coordinate, and at most {MOST_BITS} are possible: use a smaller bound"
            )
        return cls(step, bits)

    def encode(self, values: NDArray[np.float64]) -> Residues:
        """The nearest lattice points, half up: for values without noise, or with noise already on the lattice."""
        steps = np.floor(np.asarray(values, dtype=np.float64) / self.step + 0.5)
        if not bool((np.abs(steps) < 2.0**62).all()):
            raise DataError("a message that is summed must be finite")
        return self.residues(steps.astype(np.int64))

    def coarsened(self, steps: NDArray[np.int64], exponent: int) -> NDArray[np.int64]:
        """Whole numbers of noise_std 2^-exponent, rounded to whole numbers of `step`, half up and exactly."""
        dropped = exponent - STEP_EXPONENT
        if dropped < 0:
            raise RequestError(f"exponent must be at least {STEP_EXPONENT}, not {exponent}")
        return steps if dropped == 0 else (steps + (1 << (dropped - 1))) >> dropped

    def residues(self, steps: NDArray[np.int64]) -> Residues:
        """Whole numbers of steps modulo 2^bits."""
        return (steps & self._mask).astype(np.uint32)

    def added(self, first: Residues, second: Residues) -> Residues:
        """The sum of two messages."""
        total: Residues = (first + second) & np.uint32(self._mask)
        return total

    def lifted(self, residues: Residues) -> NDArray[np.int64]:
        """The whole numbers of steps nearest to zero with these residues."""
        half = 1 << (self.bits - 1)
        return ((residues.astype(np.int64) + half) & self._mask) - half

    def message_bytes(self, dim: int) -> int:
        """The exact length of a message."""
        return packed_bytes(count("dim", dim), self.bits)

    def to_bytes(self, residues: Residues) -> bytes:
        """Residues, `bits` bits each, without gaps. Anything above these bits is dropped."""
        return pack((residues & np.uint32(self._mask))[None], self.bits).tobytes()

    def from_bytes(self, message: bytes, dim: int) -> Residues:
        """The inverse, for bytes that may come from anyone."""
        if len(message) != self.message_bytes(dim):
            raise MessageError(f"a summed message has {len(message)} bytes instead of {self.message_bytes(dim)}")
        packed = np.frombuffer(message, dtype=np.uint8)[None]
        if not padding_is_zero(packed, dim, self.bits):
            raise MessageError("a summed message has bits after its end")
        return unpack(packed, dim, self.bits).reshape(dim)

    @property
    def _mask(self) -> int:
        return (1 << self.bits) - 1
