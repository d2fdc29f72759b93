"""The parts of a schema as plain values, and as lines of TOML with comments."""

from __future__ import annotations

import datetime
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tomli_w

from tacit.data.frames import DECIMAL_COMMA
from tacit.errors import RequestError, unknown_name

LEARN = "learn"
"""In place of a range: learn it from the records, at a privacy cost."""

WIDTH = 80
"""Lines with comments are at most this wide, apart from values that are wider themselves."""


def as_text(value: Any) -> str:
    """A category's value as text: whole numbers without a point, truth values in lower case, no space around it.

    >>> as_text(3.0), as_text(True), as_text("A ")
    ('3', 'true', 'A')
    """
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.IGNORECASE)


def alike(value: Any) -> str:
    """A text that is the same for two values which mean the same: "01", "1.0" and 1, or "True" and true.

    Whether pandas takes a column for numbers, and for which, depends on all of its values. One record that holds
    a word or a gap must not decide how the values of all others are compared with a schema. (Beside a gap, whole
    numbers are floats, which have 16 digits.)

    >>> alike("01"), alike(1.0), alike("TRUE"), alike(True), alike("1.50"), alike("1,5"), alike("A1 ")
    ('1', '1', 'true', 'true', '1.5', '1.5', 'A1')
    """
    text = as_text(value)
    if text.lower() in ("true", "false"):
        return text.lower()
    if DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    return as_text(float(text)) if _NUMBER.fullmatch(text) else text


_WHOLE_NUMBER = re.compile(r"([+-]?\d+)(?:\.0*)?")


def same_name(value: Any) -> str:
    """A text that is the same for one name of a client or a person, however its column is read; all digits count.

    >>> same_name("007"), same_name(7.0), same_name("9007199254740993"), same_name("A07 ")
    ('7', '7', '9007199254740993', 'A07')
    """
    whole = _WHOLE_NUMBER.fullmatch(as_text(value))
    return str(int(whole[1])) if whole else alike(value)


def spelled(value: Any) -> str:
    """A text that is the same for all spellings of a word: case, and how much space there is, do not count.

    >>> spelled("Box  Truck ") == spelled("BOX TRUCK")
    True
    """
    return " ".join(alike(value).casefold().split())


class Places:
    """The position of a value among known ones, such as categories: as it is written, or in another spelling.

    A value that is not known as it is written counts as the one known value that differs from it in case or space
    alone. So "van" is "Van", unless both are known, as "Aa" and "aa" of genotypes are. This follows from what is
    known alone, never from other values.

    >>> places = Places(["AA", "Aa", "Van"])
    >>> [places.get(value) for value in ("AA", "aa", "van", "bus")]
    [0, None, 2, None]
    """

    def __init__(self, known: Sequence[str]):
        self.exact = {alike(text): place for place, text in enumerate(known)}
        loose: dict[str, list[int]] = {}
        for text, place in self.exact.items():
            loose.setdefault(spelled(text), []).append(place)
        self.loose = {text: places[0] for text, places in loose.items() if len(places) == 1}

    def get(self, value: Any) -> int | None:
        """The position of a value; None if it is not known in any spelling."""
        found = self.exact.get(alike(value))
        return self.loose.get(spelled(value)) if found is None else found


def briefly(names: Sequence[str], most: int = 5) -> str:
    """The first of many names, and how many more there are.

    >>> briefly("ab"), briefly("abcdef", most=3)
    ('a and b', 'a, b, c and 3 more')
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def as_day(days: float) -> datetime.date:
    """The date so many days after the first of 1970.

    >>> print(as_day(20089))
    2025-01-01
    """
    return datetime.date(1970, 1, 1) + datetime.timedelta(days=days)


def built(kind: Any, where: str, own: Mapping[str, Any]) -> Any:
    """A part of a schema from plain values: ranges as pairs of numbers, categories as text."""
    known = list(kind.__dataclass_fields__)
    check_names(where, own, known)
    values = dict(own)
    for name in ("classes", "categories", "gaps"):
        if name in values:
            if not isinstance(values[name], list):
                raise RequestError(f"{name} of {where} must be a list, not {values[name]!r}")
            values[name] = tuple(as_text(value) for value in values[name])
    if values.get("range") == LEARN:
        if "within" not in values:
            raise RequestError(f'{where}: range = "learn" needs limits where it surely lies: within = [0, 10000]')
        del values["range"]
    for name in values.keys() & {"range", "limits", "typical", "within"}:
        values[name] = _range(where, name, values[name])
    if "middle" in values:
        values["middle"] = _as_number(where, values["middle"])
    try:
        return kind(**values)
    except TypeError as error:
        raise RequestError(f"{where} is not complete: {error}") from error


def _range(where: str, name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise RequestError(f"{name} of {where} must be two numbers or two dates, not {value!r}")
    return _as_number(where, value[0]), _as_number(where, value[1])


def _as_number(where: str, value: Any) -> float:
    if isinstance(value, datetime.date):
        day = value.date() if isinstance(value, datetime.datetime) else value
        return float((day - datetime.date(1970, 1, 1)).days)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"range of {where} must be two numbers or two dates, not {value!r}")
    return float(value)


def without_defaults(part: Any, kind: Any) -> dict[str, Any]:
    """The fields of a part that differ from their defaults, as plain values."""
    defaults = {name: f.default for name, f in kind.__dataclass_fields__.items()}
    said = {name: getattr(part, name) for name in defaults}
    plain = {name: value for name, value in said.items() if value != defaults[name]}
    if part.open:
        plain = {"range": LEARN} | plain
    return {name: _plain(value) for name, value in plain.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def check_names(where: str, given: Mapping[str, Any], known: list[str]) -> None:
    """Refuses settings that are not known in this table."""
    for name in given:
        if name not in known:
            raise unknown_name("setting", name, known, where)


def toml_line(key: str, value: Any, comment: str | None) -> str:
    """A setting as a line of TOML, with its comment, if it has one."""
    items = value if isinstance(value, list) else None
    said = _scalar(value) if items is None else f"[{', '.join(map(_scalar, items))}]"
    return commented(f"{key} = {said}", comment)


def commented(line: str, comment: str | None) -> str:
    """A line of TOML with its comment behind it, or above it if both together are too wide.

    >>> commented("share = 0.2", "of the records")
    'share = 0.2  # of the records'
    """
    if not comment or len(line) + len(comment) + 4 <= WIDTH:
        return f"{line}  # {comment}" if comment else line
    above = textwrap.fill(comment, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return f"{above}\n{line}"


def _scalar(value: Any) -> str:
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")


def toml_key(name: str) -> str:
    """A name as a key of TOML, quoted if need be."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _scalar(name)
