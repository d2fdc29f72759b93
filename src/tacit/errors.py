"""The errors that tacit raises, and the small checks that raise them.

A message names the setting, the value it had, what is allowed and what to do. A `RequestError` means that
the caller asked for something wrong (the command line exits with 2); every other error is a failure (1).
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable


class TacitError(Exception):
    """Base class of every error that tacit raises on purpose."""


class RequestError(TacitError, ValueError):
    """The request is wrong: an unknown name, a value out of range, settings that contradict each other."""


class DataError(RequestError):
    """The data are wrong or missing: a NaN, a wrong shape, a client without records, a missing file."""


class DivergedError(TacitError, ValueError):
    """Training produced infinities or NaN because a step was too long."""


class MessageError(TacitError, ValueError):
    """The bytes are not a valid message: truncated, oversized, not finite, or in another format."""


def reason(error: Exception) -> str:
    """Why a file could not be read, without its path and the number of the system's error.

    >>> reason(FileNotFoundError(2, "No such file or directory", "recipe.toml"))
    'No such file or directory'
    """
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text; save it as UTF-8"
    return str(getattr(error, "strerror", None) or error)


_MANY_NAMES = 20
"""With more names than this, only similar ones are listed."""


def unknown_name(kind: str, name: str, known: Iterable[str], where: str = "") -> RequestError:
    """The error for an unknown name; it suggests similar names, and lists all known ones unless they are many.

    >>> print(unknown_name("compressor", "rnd-k", ["rand-k", "natural"]))
    unknown compressor 'rnd-k'; did you mean 'rand-k'? Known: natural, rand-k
    >>> print(unknown_name("setting", "sed", ["seed", "share"], "[test] of schema.toml"))
    [test] of schema.toml: unknown setting 'sed'; did you mean 'seed'? Known: seed, share
    """
    kind = f"{where}: unknown {kind}" if where else f"unknown {kind}"
    names = sorted(set(known))
    close = similar_names(name, names)
    hint = f"; did you mean {' or '.join(repr(c) for c in close)}?" if close else "."
    if close and len(names) > _MANY_NAMES:
        return RequestError(f"{kind} {name!r}{hint}")
    return RequestError(f"{kind} {name!r}{hint} Known: {', '.join(names)}")


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that are like a mistyped one, the most similar first.

    What all of them begin with, such as the name of a table, makes no two of them similar.

    >>> similar_names("data.test", ["data.test_fraction", "data.seed", "data.pca", "data.image"])
    ['data.test_fraction']
    """
    others = [one for one in known if one != name]
    table = name[: name.rfind(".") + 1]
    table = table if all(one.startswith(table) for one in others) else ""
    ends = [one.removeprefix(table) for one in others]
    typed = name.removeprefix(table)
    longer = [one for one in ends if one.startswith(typed)]
    close = dict.fromkeys(longer + difflib.get_close_matches(typed, ends, n=3, cutoff=0.55))
    return [table + one for one in close][:3]


def _is_number(value: object) -> bool:
    """Whether the value is a real number (not a bool) that fits into a float."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def positive(setting: str, value: float) -> float:
    """Return the value if it is a finite number above zero; raise `RequestError` otherwise."""
    if not (_is_number(value) and math.isfinite(value) and value > 0):
        raise RequestError(f"{setting} must be a finite number above 0, not {value!r}")
    return value


def probability(setting: str, value: float) -> float:
    """Return the value if it lies in (0, 1]; raise `RequestError` otherwise."""
    if not (_is_number(value) and 0 < value <= 1):
        raise RequestError(f"{setting} must be above 0 and at most 1, not {value!r}")
    return value


def count(setting: str, value: int, *, at_least: int = 1) -> int:
    """Return the value as an int if it is whole and at least `at_least`; raise `RequestError` otherwise."""
    if not (_is_number(value) and math.isfinite(value) and int(value) == value and value >= at_least):
        raise RequestError(f"{setting} must be a whole number of at least {at_least}, not {value!r}")
    return int(value)


def known_step(step: float | None) -> float:
    """Return the step size if it has been chosen; raise `RequestError` otherwise."""
    if step is None:
        raise RequestError("the step follows from the noise, which is not known yet: make a plan (tacit.plan)")
    return step
