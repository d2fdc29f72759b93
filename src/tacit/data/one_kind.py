"""Labels and names that are given as they are: the type of one of them does not decide what the others mean.

numpy makes words of all values of a list if one of them is a word, numbers of truth values beside numbers, and
fractions of all whole numbers beside a fraction. So such mixtures are refused.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tacit.errors import DataError

WORDS, TRUTH, WHOLE, FRACTIONS = "words", "truth values", "whole numbers", "decimal numbers"
_BY_DTYPE = {"b": TRUTH, "i": WHOLE, "u": WHOLE, "f": FRACTIONS, "U": WORDS, "S": WORDS, "T": WORDS}


def check_one_kind(what: str, *parts: Any, numbers_alike: bool) -> None:
    """Refuses values of several kinds, such as words and numbers, in one part or in several.

    Args:
        what: how the values are called in an error.
        parts: lists, arrays or tensors of values.
        numbers_alike: whether 1 and 1.0 mean the same.

    >>> check_one_kind("y", [1, 2, "3"], numbers_alike=True)
    Traceback (most recent call last):
    tacit.errors.DataError: y: whole numbers and words are mixed, so one record would decide the type of all. ...
    """
    found = set().union(*map(_kinds, parts))
    if len(found) > 1 and not (numbers_alike and found == {WHOLE, FRACTIONS}):
        point = "with a decimal point" if FRACTIONS in found else "as words"
        raise DataError(
            f"{what}: {' and '.join(sorted(found))} are mixed, so one record would decide the type of all. Write "
            f"all of them as whole numbers, or all {point}"
        )


def refuse_gaps(labels: npt.NDArray[Any], what: str) -> None:
    """Refuses missing labels, and names the first."""
    gaps = gaps_among(labels)
    if gaps.any():
        raise DataError(f"the {what} of record {int(gaps.argmax())} is missing; every record needs one")


def _kinds(values: Any) -> set[str]:
    """The kinds of some values; gaps are of none."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return {_BY_DTYPE.get(dtype.kind, str(dtype))} if values.size else set()
    cells = np.asarray(values, dtype=object).ravel()
    return {_kind(one) for one in set(map(type, cells[~gaps_among(cells)]))}


def _kind(one: type) -> str:
    if issubclass(one, bool | np.bool_):
        return TRUTH
    if issubclass(one, str | bytes):
        return WORDS
    if issubclass(one, numbers.Integral):
        return WHOLE
    return FRACTIONS if issubclass(one, numbers.Real) else one.__name__


def gaps_among(cells: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Which cells are missing."""
    import pandas as pd

    return np.asarray(pd.isna(cells))
