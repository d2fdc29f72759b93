"""What is publicly known about a table, as a file that all parties can read and agree on (`schema.toml`).

    [target]
    column = "ill"
    task = "binary"                  # binary, multiclass, regression or count
    classes = ["no", "yes"]          # the last class of a binary target is the one that probabilities are for

    [client]
    column = "hospital"              # who holds a record; not needed where everybody has their own file

    [person]                         # only if one person may have several records: the promise is per person
    column = "patient"
    rows = 8                         # the most rows of one person that are used

    [test]
    share = 0.2                      # records (or persons) that are held back, by their place in the file

    [columns.age]
    type = "number"                  # number, category or date
    unit = "years"
    range = [0, 120]                 # values outside count as the nearest end
    missing = "indicate"             # gaps count as the middle of the range, with an indicator; or "refuse"

    [columns.ward]
    type = "category"
    categories = ["a", "b", "c"]

    [left_out]
    name = "identifies a person"

Everything that is done to records before training follows from this file alone: reading, clipping, scaling,
filling gaps, encoding, splitting. So it looks at nobody's records and costs no privacy. What a draft took from
records is listed under `looked_at` until somebody confirms that it is public.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from tacit.errors import DataError, RequestError, count, unknown_name
from tacit.privacy.promises.terms import PERSONS

TYPES = ("number", "category", "date")
TASKS = ("binary", "multiclass", "regression", "count")
MISSING = ("refuse", "indicate")
SCALES = ("linear", "log")
MOST_CATEGORIES = 500
"""A category with more values than this identifies people more than it describes them."""

IDENTIFIERS = re.compile(
    r"(?:^|[_\W])(?:id|ids|uuid|guid|mrn|ssn|iban|email|phone|telephone|surname|forename|firstname|lastname"
    r"|(?:first|last|full|patient|customer)[_\W]?name|address|passport)$|^name$",
    re.IGNORECASE,
)
"""Names of columns that tell people apart."""


def is_identifier(name: str) -> bool:
    """Whether a column's name says that it identifies a person or a row.

    >>> [is_identifier(name) for name in ("patient_id", "PatientID", "id", "acid", "plasma_lipid", "email")]
    [True, True, True, False, False, True]
    """
    return bool(IDENTIFIERS.search(re.sub(r"(?<=[a-z])I[Dd]$", "_id", name)))


@dataclass(frozen=True)
class Column:
    """A column that the model uses.

    Parameters
    ----------
    type : "number", "category" or "date".
    unit : the unit of its values, for people.
    range : the public range of a number, or of a date as days since 1970. Values outside count as its ends.
    scale : "linear", or "log" for positive numbers that spread over orders of magnitude.
    categories : every value of a category, as text.
    missing : "refuse" a table with gaps, or "indicate" them: a gap counts as the middle of the range (no
        category), and one more feature says that there was one.
    format : how dates are written, as in `strptime`; ISO 8601 by default.
    identifier : false says that a column with a name like "acid_id" does not identify anybody.
    """

    name: str
    type: str
    unit: str = ""
    range: tuple[float, float] | None = None
    scale: str = "linear"
    categories: tuple[str, ...] = ()
    missing: str = "refuse"
    format: str = ""
    identifier: bool | None = None

    def __post_init__(self) -> None:
        where = f"column {self.name!r} of the schema"
        for what, value, known in (
            ("type", self.type, TYPES),
            ("missing", self.missing, MISSING),
            ("scale", self.scale, SCALES),
        ):
            if value not in known:
                raise unknown_name(f"{what} of {where}", str(value), known)
        if self.identifier is not False and is_identifier(self.name):
            raise RequestError(
                f"{where} identifies people or rows by its name, and a model must not learn who they are: move "
                "it to [left_out], or set identifier = false if it means something else"
            )
        if self.type == "category":
            _check_categories(where, self.categories, "categories", least=1)
            return
        if self.range is None:
            raise RequestError(f"{where} has no range: give its public range, such as range = [0, 120]")
        low, high = self.range
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise RequestError(f"{where}: range must be two numbers, the smaller one first, not {self.range!r}")
        if self.scale == "log" and low <= 0:
            raise RequestError(f"{where}: a logarithmic scale needs a range above 0, not {self.range!r}")

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the range on the column's scale: logarithms for a logarithmic one."""
        low, high = self.range or (0.0, 1.0)
        return (math.log(low), math.log(high)) if self.scale == "log" else (low, high)


@dataclass(frozen=True)
class Predicted:
    """What is predicted: classes with names, or a number with a public range."""

    column: str
    task: str
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    unit: str = ""
    missing: str = "refuse"
    """"refuse" a table in which the target has gaps, or "leave-out" such rows, whose number is then public"""

    def __post_init__(self) -> None:
        where = f"target {self.column!r} of the schema"
        if self.task not in TASKS:
            raise unknown_name(f"task of {where}", str(self.task), TASKS)
        if self.missing not in ("refuse", "leave-out"):
            raise unknown_name(f"missing of {where}", str(self.missing), ["refuse", "leave-out"])
        if self.classed:
            _check_categories(where, self.classes, "classes", least=2)
            if self.task == "binary" and len(self.classes) != 2:
                raise RequestError(f"{where}: a binary target has two classes, not {list(self.classes)}")
            return
        if self.range is None or not (
            math.isfinite(self.range[1] - self.range[0]) and self.range[0] < self.range[1]
        ):
            raise RequestError(
                f"{where}: task = {self.task!r} needs the target's public range, such as range = [0, 1000], not "
                f"{self.range!r}. It must not be taken from the records: the largest one is somebody's"
            )

    @property
    def classed(self) -> bool:
        """Whether it is a class and not a number."""
        return self.task in ("binary", "multiclass")

    @property
    def middle(self) -> float:
        """The middle of the range of a number: 0 for the model."""
        low, high = self.range or (0.0, 0.0)
        return (low + high) / 2

    @property
    def half(self) -> float:
        """Half of the range of a number: 1 for the model."""
        low, high = self.range or (-1.0, 1.0)
        return (high - low) / 2


@dataclass(frozen=True)
class Schema:
    """Everything that is publicly known about a table; see the module for the file."""

    target: Predicted
    columns: tuple[Column, ...]
    client: str | None = None
    person: str | None = None
    rows: int = 8
    """the most rows of one person that are used"""
    test_share: float = 0.2
    test_seed: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    looked_at: tuple[str, ...] = ()
    """what was taken from records and not yet confirmed as public, as "column.setting" """

    def __post_init__(self) -> None:
        if not self.columns:
            raise RequestError("the schema has no columns: describe at least one column that the model may use")
        named = [self.target.column, *(column.name for column in self.columns), *self.left_out]
        named += [name for name in (self.client, self.person) if name is not None]
        twice = {name for name in named if named.count(name) > 1}
        if twice:
            raise RequestError(f"the schema uses the column {min(twice)!r} in two roles: give it one")
        count("rows of [person]", self.rows)
        if not 0 <= self.test_share <= 0.9:
            raise RequestError(f"share of [test] must be between 0 and 0.9, not {self.test_share!r}")
        count("seed of [test]", self.test_seed, at_least=0)

    @property
    def classes(self) -> int | None:
        """The number of classes; None for numbers."""
        return len(self.target.classes) if self.target.classed else None

    @property
    def peeks(self) -> tuple[str, ...]:
        """What a guarantee must list as taken as public, because it came from the records."""
        if not self.looked_at:
            return ()
        kinds: dict[str, list[str]] = {}
        for entry in self.looked_at:
            name, _, setting = entry.rpartition(".")
            kinds.setdefault(setting, []).append(name)
        said = "; ".join(f"{setting} of {', '.join(names)}" for setting, names in kinds.items())
        return (f"what a schema took from the records ({said})",)

    @property
    def units(self) -> tuple[str, ...]:
        """What a guarantee must say about whom it protects, if that is not a row."""
        return () if self.person is None else (PERSONS,)

    @property
    def digest(self) -> str:
        """The SHA-256 of what the schema says; the same for every way of writing it."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()

    def check_confirmed(self, public_schema: bool) -> None:
        """Refuse a schema with values that came from records and that nobody has confirmed."""
        if self.looked_at and not public_schema:
            raise RequestError(
                f"the schema takes {len(self.looked_at)} values from the records: {', '.join(self.looked_at)}. "
                "Replace them by public knowledge, or confirm that they are public, and delete them from "
                "looked_at; or accept them all by name with --public-schema (public_schema=True), and the "
                "guarantee will list them as taken as public"
            )

    def to_values(self) -> dict[str, Any]:
        """As plain values."""
        values: dict[str, Any] = {"looked_at": list(self.looked_at)} if self.looked_at else {}
        values["target"] = _without_defaults(self.target, Predicted)
        if self.client is not None:
            values["client"] = {"column": self.client}
        if self.person is not None:
            values["person"] = {"column": self.person, "rows": self.rows}
        values["test"] = {"share": self.test_share, "seed": self.test_seed}
        values["columns"] = {column.name: _column_values(column) for column in self.columns}
        if self.left_out:
            values["left_out"] = dict(self.left_out)
        return values

    def to_toml(self, comments: Mapping[str, str] | None = None) -> str:
        """As TOML. `comments` are written behind the settings that they are about, by "table.setting"."""
        comments, lines, tables = comments or {}, [], []
        for name, value in self.to_values().items():
            if not isinstance(value, dict):
                lines.append(_line(name, value, comments.get(name)))
            elif name == "columns":
                tables += [(f"columns.{_key(column)}", column, own) for column, own in value.items()]
            else:
                tables.append((name, name, value))
        for header, name, own in tables:
            lines += ["", f"[{header}]" + _behind(comments.get(name))]
            lines += [_line(_key(key), value, comments.get(f"{name}.{key}")) for key, value in own.items()]
        return "\n".join(lines).lstrip("\n") + "\n"

    @classmethod
    def from_toml(cls, text: str, source: str = "schema") -> Schema:
        """The inverse of `to_toml`."""
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{source} is not valid TOML: {error}") from error
        try:
            return cls.from_values(values)
        except RequestError as error:
            raise RequestError(f"{source}: {error}") from error

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Schema:
        """The inverse of `to_values`."""
        tables = ["target", "client", "person", "test", "columns", "left_out"]
        _check_names("setting", values, [*tables, "looked_at"])
        for name in tables:
            if not isinstance(values.get(name, {}), dict):
                raise RequestError(f"{name} must be a table, not {values[name]!r}")
        if "target" not in values or "columns" not in values:
            raise RequestError("a schema needs the tables [target] and [columns.NAME]")
        client, person, test = (dict(values.get(name, {})) for name in ("client", "person", "test"))
        _check_names("setting of [client]", client, ["column"])
        _check_names("setting of [person]", person, ["column", "rows"])
        _check_names("setting of [test]", test, ["share", "seed"])
        columns = tuple(_column(name, own) for name, own in values["columns"].items())
        return cls(
            target=_built(Predicted, "[target]", values["target"]),
            columns=columns,
            client=client.get("column"),
            person=person.get("column"),
            rows=person.get("rows", 8),
            test_share=float(test.get("share", 0.2)),
            test_seed=test.get("seed", 0),
            left_out={name: str(why) for name, why in values.get("left_out", {}).items()},
            looked_at=tuple(values.get("looked_at", ())),
        )

    @classmethod
    def read(cls, path: Path | str) -> Schema:
        """A schema from a file."""
        try:
            text = Path(path).read_text()
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the schema {path}: {error}") from error
        return cls.from_toml(text, str(path))


def _column(name: str, own: Any) -> Column:
    if not isinstance(own, dict):
        raise RequestError(f"columns.{name} must be a table, such as [columns.{name}], not {own!r}")
    built: Column = _built(Column, f"[columns.{name}]", {"name": name, **own})
    return built


def _built(kind: Any, where: str, own: Mapping[str, Any]) -> Any:
    """A part of a schema from plain values: ranges as pairs of numbers, categories as text."""
    known = list(kind.__dataclass_fields__)
    _check_names(f"setting of {where}", own, known)
    values = dict(own)
    for name in ("classes", "categories"):
        if name in values:
            if not isinstance(values[name], list):
                raise RequestError(f"{name} of {where} must be a list, not {values[name]!r}")
            values[name] = tuple(as_text(value) for value in values[name])
    if "range" in values:
        values["range"] = _range(where, values["range"])
    try:
        return kind(**values)
    except TypeError as error:
        raise RequestError(f"{where} is not complete: {error}") from error


def _range(where: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise RequestError(f"range of {where} must be two numbers or two dates, not {value!r}")
    return _as_number(where, value[0]), _as_number(where, value[1])


def _as_number(where: str, value: Any) -> float:
    if isinstance(value, datetime.date):
        day = value.date() if isinstance(value, datetime.datetime) else value
        return float((day - datetime.date(1970, 1, 1)).days)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"range of {where} must be two numbers or two dates, not {value!r}")
    return float(value)


def as_text(value: Any) -> str:
    """A category's value as text: whole numbers without a point, truth values in lower case.

    >>> as_text(3.0), as_text(True), as_text("A")
    ('3', 'true', 'A')
    """
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _column_values(column: Column) -> dict[str, Any]:
    values = _without_defaults(column, Column)
    del values["name"]
    if column.type == "date" and column.range is not None:
        first = datetime.date(1970, 1, 1)
        values["range"] = [first + datetime.timedelta(days=day) for day in column.range]
    return values


def _without_defaults(part: Any, kind: Any) -> dict[str, Any]:
    defaults = {name: f.default for name, f in kind.__dataclass_fields__.items()}
    said = {name: getattr(part, name) for name in defaults}
    plain = {name: value for name, value in said.items() if value != defaults[name]}
    return {name: _plain(value) for name, value in plain.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _check_categories(where: str, values: tuple[str, ...], setting: str, least: int) -> None:
    if len(values) < least or len(set(values)) != len(values):
        raise RequestError(f"{where}: {setting} must list every value once, at least {least}, not {list(values)}")
    if len(values) > MOST_CATEGORIES:
        raise RequestError(
            f"{where} has {len(values)} {setting}: more than {MOST_CATEGORIES} identify people more than they "
            "describe them. Group them, or move the column to [left_out]"
        )


def _check_names(kind: str, given: Mapping[str, Any], known: list[str]) -> None:
    for name in given:
        if name not in known:
            raise unknown_name(kind, name, known)


def _line(key: str, value: Any, comment: str | None) -> str:
    items = value if isinstance(value, list) else None
    said = _scalar(value) if items is None else f"[{', '.join(map(_scalar, items))}]"
    return f"{key} = {said}" + _behind(comment)


def _behind(comment: str | None) -> str:
    return f"  # {comment}" if comment else ""


def _scalar(value: Any) -> str:
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _scalar(name)
