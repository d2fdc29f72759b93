"""The coordinates that a seed selects."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.errors import RequestError, count


def rand_k_indices(seed: int, dim: int, k: int) -> NDArray[np.int64]:
    """The k of `dim` coordinates that a 64-bit seed chooses, in ascending order.

    For a random seed every set of k coordinates is equally likely (up to a relative error of dim/2^53): positions
    are drawn independently until k different ones have come up, which treats all positions the same way. A batch
    never draws more than are still missing, so batches stop exactly where single draws would. For k above dim/2,
    the coordinates to leave out are drawn instead; k = dim draws nothing.

    The choice is part of the wire format. It uses only the raw output r of Philox 4x64 (key = seed, counter
    0), which is the same on every platform and in every numpy version, as floor((r >> 11) 2^-53 dim).

    >>> rand_k_indices(seed=7, dim=10, k=3)
    array([2, 4, 8])
    """
    dim = count("dim", dim)
    if not 0 <= seed < 2**64:
        raise RequestError(f"seed must be in [0, 2**64), not {seed!r}")
    if not 1 <= k <= dim:
        raise RequestError(f"k must be in [1, {dim}], the dimension, not {k!r}")
    if k == dim:
        return np.arange(dim, dtype=np.int64)
    draw_the_kept = 2 * k <= dim
    wanted = k if draw_the_kept else dim - k
    source = np.random.Philox(key=seed, counter=0)
    if draw_the_kept and dim >= _LONG and wanted * _SPARSE <= dim:
        return _by_sorting(source, dim, wanted)
    drawn = np.zeros(dim, dtype=np.bool_)
    # Draw about as many as will be needed at once; surplus draws are not used.
    ahead = _positions(source, wanted + wanted * wanted // dim + 16, dim)
    used, missing = 0, wanted
    while missing:
        if used + missing > len(ahead):
            ahead = np.concatenate([ahead, _positions(source, missing, dim)])
        drawn[ahead[used : used + missing]] = True
        used += missing
        missing = wanted - int(np.count_nonzero(drawn))
    return np.flatnonzero(drawn if draw_the_kept else ~drawn).astype(np.int64, copy=False)


_LONG, _SPARSE = 2**18, 12
"""At this dimension and above, and for at most a twelfth of the coordinates, sorting the draws is faster than
marking them in a table of `dim` entries, which must be scanned from end to end."""


def _positions(source: np.random.Philox, number: int, dim: int) -> NDArray[np.int64]:
    positions = (source.random_raw(number) >> np.uint64(11)) * 2.0**-53
    positions *= dim
    return positions.astype(np.int64)


def _by_sorting(source: np.random.Philox, dim: int, wanted: int) -> NDArray[np.int64]:
    """The same set from the same draws, without a table."""
    # 32-bit integers are half as wide and twice as fast to sort.
    narrow = np.int32 if dim <= 2**31 else np.int64
    found = _distinct(_positions(source, wanted, dim).astype(narrow))
    while len(found) < wanted:
        more = _distinct(_positions(source, wanted - len(found), dim).astype(narrow))
        places = np.searchsorted(found, more)
        new = found.take(places, mode="clip") != more
        found = np.insert(found, places[new], more[new])
    return found.astype(np.int64)


def _distinct(numbers: NDArray[np.integer]) -> NDArray[np.integer]:
    """The distinct numbers in ascending order."""
    numbers.sort()
    new = np.ones(len(numbers), dtype=np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=new[1:])
    return np.compress(new, numbers)
