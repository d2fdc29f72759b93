"""Gaussian noise whose privacy proof also holds in floating-point arithmetic.

Accountants assume ideal Gaussian noise. A floating-point sampler does not provide it: which numbers it can reach
depends on the value it is added to, so the low bits of a release distinguish values that the theory calls
indistinguishable (Mironov 2012). Here values and noise are whole multiples of a spacing g = noise_std 2^-j:

    release = g (k_x + k_n),    k_x = nearest(x / g),    k_n = nearest(2^j N(0, 1))

Guarantee. Put x' = g k_x. As k_x is whole, k_x + nearest(2^j N) = nearest(2^j (x' / noise_std + N)): the release
is a function of x' + noise_std N, the ideal, continuous Gaussian mechanism on x'. So everything that is proved
for continuous Gaussian noise (sampling, mixtures, Theorem B of docs/privacy.md) holds unchanged. (A discrete
Gaussian as in Canonne, Kamath & Steinke 2020 is not such a function: sampled releases of it would need their own
proofs.) Two things must be charged:

1. Rounding x. A coordinate moves by at most g/2, and by the rounding of one division: 2^-5 g for |x / g| <= 2^48.
   So a record that moves x by a vector of norm r moves x' by at most r + (1 + 2^-4) sqrt(dim) g, and a record
   that does not move x does not move x'. `lattice_exponent` makes this a small part of a bound.
2. The sampler. Its probabilities are the ideal ones up to a factor within exp(+-RELATIVE_ERROR), after the ideal
   law has been cut at 16 standard deviations. `cost` gives the cost in epsilon, and
   `tacit.privacy.accountant.inexact` the cost in delta.

Not covered: how x was computed (a sum of floats can move further than its records do); how long sampling takes.

The sampler. |y| lives on the points (m + 1/2) 2^-40 below 16, with probability proportional to exp(-y^2 / 2).
Cells of width 1/64 carry stairs of height n_i / N above that curve, n_i whole and all n_i together 2^16, so that
16 bits choose a cell without any error; 34 bits choose the point in it, one bit the sign. It is accepted with
probability N exp(-y^2 / 2) / n_i, which is rounded to a double and then met exactly, by 13 bits of the same word
and, if these do not decide, by `_coins`. The points are middles of intervals of length h = 2^-40 that cross no
border between lattice steps: nothing ties, and the probability of a step is the midpoint rule for its integral.

Error, with u = 2^-53. For y = c + t, c the beginning of the cell, a = t (c + t/2) < 1/4 has one rounding, and
exp(-a) = 1 - a (1 - a/2 + ...) by Horner's rule is then off by at most 1.6 u; the constant of the cell and the
last product add u each: below 4 u. Both a probability and the sum that normalises it are within that: 8 u. The
midpoint rule adds h^2 / 24 sup |y^2 - 1| < 2^-76 to each. RELATIVE_ERROR is 16 u. Only sums and products of
doubles are used, which round the same way on every machine: no library's exp has to be trusted.
"""

from __future__ import annotations

import bisect
import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import DataError, RequestError, count, positive
from tacit.noise.entropy import Keystream

RELATIVE_ERROR = 2.0**-49
"""Every probability of `rounded_gaussian` is the ideal one times a factor within exp(+-this), up to the cut."""

TAIL_MASS = 2.0**-188
"""Upper bound on the probability of what `rounded_gaussian` never draws: 16 standard deviations and beyond."""

LARGEST_EXPONENT = 39
"""The finest lattice has 2^39 steps per standard deviation."""

LARGEST_STEP = 2**48
"""The largest allowed distance of a value from zero, in steps; beyond it, x / g would be too coarse."""

_CUT, _CELLS_PER_UNIT, _POINT_BITS = 16, 64, 40
_SLOT_BITS, _OFFSET_BITS, _DIGIT_BITS = 16, 34, 13
_BLOCK = 2**15
_TERMS = [(-1.0) ** k / math.factorial(k + 1) for k in range(14)]
LatticeSteps = NDArray[np.int64]
Reals = NDArray[np.float64]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class _Staircase:
    """The staircase above exp(-y^2 / 2) from which points are proposed."""

    cells: NDArray[np.uint16]
    """(2^16,) the cell of every slot: cell i has n_i of them"""
    ceilings: Reals
    """(cells,) the acceptance at the beginning of the cell, N exp(-c_i^2 / 2) / n_i, where it is largest"""
    sure: Words
    """(cells,) the 13-bit digits that lie below the acceptance everywhere in the cell"""


@functools.cache
def _staircase() -> _Staircase:
    with localcontext(Context(prec=60)):
        curve = [(-((Decimal(i) / _CELLS_PER_UNIT) ** 2) / 2).exp() for i in range(_CUT * _CELLS_PER_UNIT + 1)]

        def slots(scale: int) -> list[int]:
            return [int(scale * height) + 1 for height in curve[:-1]]

        total = 2**_SLOT_BITS
        scale = bisect.bisect_right(range(total), total, key=lambda scale: sum(slots(scale))) - 1
        widths = slots(scale)
        widths[0] += total - sum(widths)
        # Slightly less than the acceptance at the end of the cell, so that its rounding cannot matter.
        ends = [scale * height / width for height, width in zip(curve[1:], widths, strict=True)]
        sure = [int(end * (1 - Decimal(2) ** -40) * 2**_DIGIT_BITS) for end in ends]
        ceilings = [float(scale * height / width) for height, width in zip(curve[:-1], widths, strict=True)]
    cells = np.repeat(np.arange(len(widths), dtype=np.uint16), widths)
    return _Staircase(cells, np.array(ceilings), np.array(sure, dtype=np.uint64))


def _acceptance(ceilings: Reals, c: Reals, t: Reals) -> Reals:
    """ceiling exp(-((c + t)^2 - c^2) / 2), to a relative error below 4 u; see the head of the file."""
    a = t * (c + 0.5 * t)
    series = np.full_like(a, _TERMS[-1])
    for term in reversed(_TERMS[:-1]):
        series *= a
        series += term
    return ceilings * (1.0 - a * series)


def _coins(chances: Reals, keystream: Keystream) -> NDArray[np.bool_]:
    """True with exactly the given probabilities, doubles in [0, 1), however small.

    A uniform real number is compared with the chance 64 binary digits at a time, until they differ.
    """
    heads = np.zeros(len(chances), dtype=bool)
    tied = np.arange(len(chances))
    while len(tied):
        scaled = np.ldexp(chances, 64)
        whole = np.floor(scaled)
        digits, limits = keystream.uint64(len(tied)), whole.astype(np.uint64)
        heads[tied[digits < limits]] = True
        still = digits == limits
        tied, chances = tied[still], (scaled - whole)[still]
    return heads


def _rejected(cells: NDArray[np.uint16], offsets: Words, digits: Words, keystream: Keystream) -> NDArray[np.intp]:
    """Indices of the rejected proposals, about 2% of all. Only about 3% need the exact comparison."""
    stairs = _staircase()
    unsure = np.flatnonzero(digits >= stairs.sure.take(cells))
    cells, digits = cells[unsure], digits[unsure]
    t = np.ldexp(offsets[unsure] + 0.5, -_POINT_BITS)
    chances = _acceptance(stairs.ceilings[cells], cells / _CELLS_PER_UNIT, t)
    scaled = np.ldexp(chances, _DIGIT_BITS)
    whole = np.floor(scaled)
    accepted = digits < whole
    tied = np.flatnonzero(digits == whole)
    accepted[tied] = _coins((scaled - whole)[tied], keystream)
    return unsure[~accepted]


def _accepted(proposals: int, exponent: int, keystream: Keystream) -> LatticeSteps:
    """The steps of the accepted proposals, in order."""
    words = keystream.uint64(proposals)
    cells = _staircase().cells.take((words >> (64 - _SLOT_BITS)).view(np.int64))
    offsets = (words >> _DIGIT_BITS) & (2**_OFFSET_BITS - 1)
    rejected = _rejected(cells, offsets, words & (2**_DIGIT_BITS - 1), keystream)
    steps = (cells.astype(np.int64) << _OFFSET_BITS) + offsets.view(np.int64)
    shift = _POINT_BITS - exponent
    steps += 1 << (shift - 1)
    steps >>= shift
    # The sign bit s turns k into (k ^ -s) + s, which is -k where s is 1.
    minus = ((words >> (_OFFSET_BITS + _DIGIT_BITS)) & 1).view(np.int64)
    steps ^= -minus
    steps += minus
    return np.delete(steps, rejected)


def rounded_gaussian(size: int, exponent: int, keystream: Keystream) -> LatticeSteps:
    """Independent draws of nearest(2^exponent N(0, 1)): whole numbers.

    Guarantee: P(k) is Phi((k + 1/2) / 2^exponent) - Phi((k - 1/2) / 2^exponent), cut at 16 standard deviations,
    times a factor within exp(+-RELATIVE_ERROR).

    >>> rounded_gaussian(8, 3, Keystream(bytes(32))).tolist()
    [6, -6, 9, -6, 5, -1, -5, 6]
    """
    exponent, missing = _checked_exponent(exponent), count("size", size, at_least=0)
    blocks = [np.empty(0, dtype=np.int64)]
    while missing:
        wanted = min(missing, _BLOCK)
        # A few spare proposals, so that one pass is nearly always enough.
        blocks.append(_accepted(wanted + wanted // 32 + 8, exponent, keystream)[:wanted])
        missing -= len(blocks[-1])
    return np.concatenate(blocks)


def nearest_steps(row: Reals, noise_std: float, exponent: int) -> LatticeSteps:
    """nearest(x / g) for every coordinate, g = noise_std 2^-exponent.

    Guarantee: two rows within LARGEST_STEP steps of zero get at most (1 + 2^-4) sqrt(dim) g further apart.
    """
    steps: LatticeSteps = np.rint(np.ldexp(row / noise_std, exponent)).astype(np.int64)
    return steps


def lattice_steps(row: Reals, noise_std: float, exponent: int, keystream: Keystream) -> LatticeSteps:
    """The release of one row before it is scaled: k_x + k_n, whole numbers of steps g."""
    return nearest_steps(row, noise_std, exponent) + rounded_gaussian(len(row), exponent, keystream)


def lattice_rows(rows: Tensor, stds: Tensor, exponent: int, keystreams: Sequence[Keystream]) -> Tensor:
    """Each client's row on its own lattice, with its own noise: (clients, dim) float32.

    Guarantee: release i is a function of g nearest(row i / g) + N(0, stds[i]^2 I), up to `cost` and TAIL_MASS.
    `stds` and `exponent` must not depend on anyone's records. Rows that are not finite, or too large to be
    rounded accurately, are refused before any noise is drawn. A refusal is visible to others, so the bound should
    make it impossible.

    >>> rows = torch.tensor([[3.0, -1.0], [3.0, -1.0]])
    >>> lattice_rows(rows, torch.tensor([1e-3, 10.0]), 20, [Keystream(bytes(32)), Keystream(bytes(32))])
    tensor([[ 3.0007, -1.0007],
            [10.4226, -8.1931]])
    """
    exponent = _checked_exponent(exponent)
    _check_rows(rows, stds.cpu().double(), exponent, keystreams)
    values = rows.detach().cpu().numpy()
    noisy = np.empty(values.shape, dtype=np.float32)
    for row, release, std, keystream in zip(values, noisy, stds.double().tolist(), keystreams, strict=True):
        spacing = math.ldexp(std, -exponent)
        for start in range(0, len(row), _BLOCK):
            part = row[start : start + _BLOCK].astype(np.float64)
            release[start : start + _BLOCK] = lattice_steps(part, std, exponent, keystream) * spacing
    return torch.from_numpy(noisy).to(rows.device)


def lattice_exponent(dim: int, noise_multiplier: float, slack: float = 1e-4) -> int:
    """The exponent of the coarsest lattice on which rounding adds at most `slack` bounds to one record's reach.

    With noise_std = noise_multiplier bound / b, a record that moves the sum by r bounds moves the rounded sum by
    at most r + slack of them: the least j with (1 + 2^-4) sqrt(dim) noise_multiplier 2^-j <= slack.

    >>> lattice_exponent(dim=7850, noise_multiplier=1.3)
    21
    """
    count("dim", dim)
    positive("noise_multiplier", noise_multiplier)
    positive("slack", slack)
    # 1.07 instead of 1 + 2^-4: the difference covers the rounding of this line.
    reach = 1.07 * math.sqrt(dim) * noise_multiplier
    for exponent in range(LARGEST_EXPONENT + 1):
        if math.ldexp(reach, -exponent) <= slack:
            return exponent
    raise RequestError(
        f"slack must be at least {math.ldexp(reach, -LARGEST_EXPONENT):.3g} for dim = {dim} and "
        f"noise_multiplier = {noise_multiplier!r}, not {slack!r}: there is no finer lattice"
    )


def cost(dim: int, releases: int) -> float:
    """What the sampler's error adds to epsilon over all releases: 2 RELATIVE_ERROR dim releases.

    Whatever else is random and whatever came before, each of n = dim releases draws has its probability under the
    ideal, cut law up to a factor within exp(+-RELATIVE_ERROR), so all together have theirs up to a factor within
    1/w and w = exp(RELATIVE_ERROR n). A comparison of two neighbours pays w twice, once for each of them.

    >>> cost(dim=1_000_000, releases=1000) < 1e-5
    True
    """
    return 2 * RELATIVE_ERROR * count("dim", dim) * count("releases", releases, at_least=0)


def _checked_exponent(exponent: int) -> int:
    exponent = count("exponent", exponent, at_least=0)
    if exponent > LARGEST_EXPONENT:
        raise RequestError(f"exponent must be at most {LARGEST_EXPONENT}, not {exponent}; use a coarser lattice")
    return exponent


def _check_rows(rows: Tensor, stds: Tensor, exponent: int, keystreams: Sequence[Keystream]) -> None:
    if rows.dim() != 2 or rows.shape[1] == 0 or not rows.is_floating_point():
        raise DataError(f"rows must be floating-point (clients, dim), not {rows.dtype} {tuple(rows.shape)}")
    if stds.shape != rows.shape[:1] or len(keystreams) != len(rows):
        raise RequestError(
            f"{len(rows)} rows need as many stds and keystreams, not {tuple(stds.shape)} and {len(keystreams)}"
        )
    if not bool((torch.isfinite(stds) & (stds * 2.0**-exponent >= sys.float_info.min)).all()):
        raise RequestError(f"stds must be finite and above 0, not {stds.tolist()}; without noise use no lattice")
    largest = rows.detach().abs().amax(1).cpu().double()
    if not bool((largest / stds * 2.0**exponent <= LARGEST_STEP).all()):
        # The value is left out: it is private, and error messages may leave the client.
        raise DataError(
            f"rows must be finite and within {LARGEST_STEP / 2**exponent:.3g} noise stds at exponent {exponent}; "
            "bound the records, or use a smaller exponent (a larger slack)"
        )
