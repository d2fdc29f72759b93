"""What is publicly known about a table, as a file that all parties can read and agree on (`schema.toml`).

    ends = 2                         # the ends of numbers' ranges become -2 and 2 for the model; by default 1

    [target]
    column = "ill"
    task = "binary"                  # binary, multiclass, regression or count
    classes = ["no", "yes"]          # the last class of a binary target is the one that probabilities are for

    [client]
    column = "hospital"              # who holds a record; not needed where everybody has their own file
    missing = "leave-out"            # rows that name no client; "refuse" by default, also in [person]

    [person]                         # only if one person may have several records: the promise is per person
    column = "patient"
    rows = 8                         # the most rows of one person that are used

    [test]
    share = 0.2                      # records that are held back, by place in the file; persons, by name

    [columns.age]
    type = "number"                  # number, category or date
    unit = "years"
    range = [0, 120]                 # values outside count as the nearest end
    limits = [0, 500]                # or as they are, up to here
    middle = 60                      # a usual value, if it is not the middle of the range
    missing = "indicate"             # gaps count as the middle, with an indicator; or "refuse"

    [columns.ward]
    type = "category"
    categories = ["a", "b", "c"]
    other = true                     # any other value counts as one more category; refused by default
    gaps = ["?"]                     # values that mean that nothing is known
    missing = "indicate"

    [left_out]
    name = "identifies a person"

Everything that is done to records before training follows from this file alone: reading, clipping, scaling,
filling gaps, encoding, splitting. So it looks at nobody's records and costs no privacy. What a draft took from
records is listed under `looked_at` until somebody confirms that it is public.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.data.schema.column import ROWS_WITHOUT, Column, Predicted
from tacit.data.schema.plain import as_day, built, check_names, commented, toml_key, toml_line, without_defaults
from tacit.errors import DataError, RequestError, count, positive, reason, unknown_name
from tacit.privacy.promises.terms import PERSON_NAMES, PERSONS

MOST_NAMED = 20
"""Of more columns than this, messages name the first ones."""


@dataclass(frozen=True)
class Schema:
    """Everything that is publicly known about a table; see the module for the file."""

    target: Predicted
    """the column to predict"""
    columns: tuple[Column, ...]
    """the columns that features are made of"""
    client: str | None = None
    """the column of clients' names, if any"""
    person: str | None = None
    """the column of persons' names, if any: then a record is a person"""
    rows: int = 8
    """the most rows of one person that are used"""
    test_share: float = 0.2
    """the share of records that is kept for testing"""
    test_seed: int = 0
    """the seed that chooses them"""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """columns that are not used, each with the reason"""
    client_missing: str = "refuse"
    """"refuse" a table in which some rows name no client, or "leave-out" such rows"""
    person_missing: str = "refuse"
    """"refuse" a table in which some rows name no client (person), or "leave-out" such rows"""
    ends: float = 1.0
    """the ends of a number's range become -ends and ends as features. Drafts say 2: most values lie far inside
    their range, and noise is the same on all features"""
    learned: tuple[str, ...] = ()
    """columns whose ranges a private run has learned; its promise covers that"""
    looked_at: tuple[str, ...] = ()
    """what was taken from records and not yet confirmed as public, as "column.setting" """

    def __post_init__(self) -> None:
        if not self.columns:
            raise RequestError("the schema has no columns: describe at least one column that the model may use")
        named = [*self.used, *self.left_out]
        twice = {name for name in named if named.count(name) > 1}
        if twice:
            raise RequestError(f"the schema uses the column {min(twice)!r} in two roles: give it one")
        for table, missing in (("client", self.client_missing), ("person", self.person_missing)):
            if missing not in ROWS_WITHOUT:
                raise unknown_name("missing", str(missing), ROWS_WITHOUT, f"[{table}]")
        count("rows of [person]", self.rows)
        if not 0 <= self.test_share <= 0.9:
            raise RequestError(f"share of [test] must be between 0 and 0.9, not {self.test_share!r}")
        count("seed of [test]", self.test_seed, at_least=0)
        object.__setattr__(self, "ends", float(positive("ends", self.ends)))
        object.__setattr__(self, "columns", tuple(replace(column, ends=self.ends) for column in self.columns))

    @property
    def used(self) -> tuple[str, ...]:
        """The columns of a table that the schema uses."""
        roles = (name for name in (self.client, self.person) if name is not None)
        return (self.target.column, *(column.name for column in self.columns), *roles)

    @property
    def classes(self) -> int | None:
        """The number of classes; None for numbers."""
        return len(self.target.classes) if self.target.classed else None

    @property
    def open(self) -> tuple[str, ...]:
        """The columns whose ranges are still to be learned."""
        return tuple(name for name, part in self._parts.items() if part.open)

    @property
    def wide(self) -> Schema:
        """The schema with the limits of open ranges in their place."""
        limits = {
            name: part.within for name, part in self._parts.items() if part.open and part.within is not None
        }
        return self.closed(limits)

    @property
    def _parts(self) -> dict[str, Column | Predicted]:
        return {self.target.column: self.target, **{column.name: column for column in self.columns}}

    def closed(self, ranges: Mapping[str, tuple[float, float]]) -> Schema:
        """The schema with these ranges in place of those that were open."""
        target = self.target
        if target.column in ranges:
            target = replace(target, range=ranges[target.column])
        columns = (replace(c, range=ranges[c.name]) if c.name in ranges else c for c in self.columns)
        return replace(self, target=target, columns=tuple(columns), learned=(*self.learned, *ranges))

    @property
    def tells_units(self) -> bool:
        """Whether it says what is typical of a column, so that a client's unit can be checked."""
        return self.target.typical is not None or any(column.typical is not None for column in self.columns)

    @property
    def peeks(self) -> tuple[str, ...]:
        """What a guarantee must list as taken as public, because it came from the records."""
        names = ", ".join(self.learned)
        learned = (f"ranges that a private run has learned ({names})",) if names else ()
        if not self.looked_at:
            return learned
        kinds: dict[str, list[str]] = {}
        for name, settings in self.unconfirmed.items():
            for setting in settings:
                kinds.setdefault(setting, []).append(name)
        said = "; ".join(f"{setting} of {', '.join(names)}" for setting, names in kinds.items())
        # That a column has no gaps was seen, too, and leaves no trace in the schema.
        return (f"what a schema took from the records ({said}; which columns have gaps)", *learned)

    @property
    def unconfirmed(self) -> dict[str, list[str]]:
        """What was taken from records and is not yet confirmed: the settings by column."""
        found: dict[str, list[str]] = {}
        for entry in self.looked_at:
            name, _, setting = entry.rpartition(".")
            found.setdefault(name, []).append(setting)
        return found

    @property
    def unconfirmed_words(self) -> str:
        """The same for people: "2 columns: age (range), ward (categories, missing)".

        Of a wide table only the first columns are named: its file marks all of them.
        """
        each = [f"{name} ({', '.join(settings)})" for name, settings in self.unconfirmed.items()]
        more = f" and {len(each) - MOST_NAMED} more" if len(each) > MOST_NAMED else ""
        return f"{len(each)} column{'' if len(each) == 1 else 's'}: {', '.join(each[:MOST_NAMED])}{more}"

    @property
    def units(self) -> tuple[str, ...]:
        """What a guarantee must say about whom it protects, if that is not a row."""
        return () if self.person is None else (PERSONS, PERSON_NAMES)

    @property
    def digest(self) -> str:
        """The SHA-256 of what the schema says; the same for every way of writing it."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()

    def check_confirmed(self, public_schema: bool) -> None:
        """Refuse a schema with values that came from records and that nobody has confirmed."""
        if self.looked_at and not public_schema:
            raise RequestError(
                f"the schema was drafted from the records of {self.unconfirmed_words}. Replace what is not "
                "public, and delete the line looked_at: this confirms all of it. Or accept it by name with "
                "--public-schema (public_schema=True), and the guarantee will list it as taken as public"
            )

    def to_values(self) -> dict[str, Any]:
        """As plain values."""
        values: dict[str, Any] = {"looked_at": list(self.looked_at)} if self.looked_at else {}
        if self.ends != 1:
            values["ends"] = self.ends
        if self.learned:
            values["learned"] = list(self.learned)
        values["target"] = without_defaults(self.target, Predicted)
        if self.client is not None:
            values["client"] = {"column": self.client} | _unusual(self.client_missing)
        if self.person is not None:
            values["person"] = {"column": self.person, "rows": self.rows} | _unusual(self.person_missing)
        values["test"] = {"share": self.test_share, "seed": self.test_seed}
        values["columns"] = {column.name: _column_values(column) for column in self.columns}
        if self.left_out:
            values["left_out"] = dict(self.left_out)
        return values

    def to_toml(self, comments: Mapping[str, str] | None = None) -> str:
        """As TOML. `comments` are written behind or above what they are about, by "table.setting"."""
        comments, lines, tables = comments or {}, [], []
        for name, value in self.to_values().items():
            if not isinstance(value, dict):
                lines.append(toml_line(name, value, comments.get(name)))
            elif name == "columns":
                tables += [(f"columns.{toml_key(column)}", column, own) for column, own in value.items()]
            else:
                tables.append((name, name, value))
        for header, name, own in tables:
            lines += ["", commented(f"[{header}]", comments.get(name))]
            lines += [
                toml_line(toml_key(key), value, comments.get(f"{name}.{key}")) for key, value in own.items()
            ]
        return "\n".join(lines).lstrip("\n") + "\n"

    @classmethod
    def from_toml(cls, text: str, source: str = "schema") -> Schema:
        """The inverse of `to_toml`."""
        try:
            values = tomllib.loads(text.removeprefix("\ufeff"))
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
        check_names("", values, [*tables, "ends", "looked_at", "learned"])
        for name in tables:
            if not isinstance(values.get(name, {}), dict):
                raise RequestError(f"{name} must be a table, not {values[name]!r}")
        if "target" not in values or "columns" not in values:
            raise RequestError("a schema needs the tables [target] and [columns.NAME]")
        client, person, test = (dict(values.get(name, {})) for name in ("client", "person", "test"))
        check_names("[client]", client, ["column", "missing"])
        check_names("[person]", person, ["column", "rows", "missing"])
        check_names("[test]", test, ["share", "seed"])
        columns = tuple(_column(name, own) for name, own in values["columns"].items())
        return cls(
            target=built(Predicted, "[target]", values["target"]),
            columns=columns,
            client=client.get("column"),
            person=person.get("column"),
            rows=person.get("rows", 8),
            test_share=_number("share of [test]", test.get("share", 0.2)),
            test_seed=test.get("seed", 0),
            client_missing=client.get("missing", "refuse"),
            person_missing=person.get("missing", "refuse"),
            left_out={name: str(why) for name, why in values.get("left_out", {}).items()},
            ends=values.get("ends", 1.0),
            learned=tuple(values.get("learned", ())),
            looked_at=tuple(values.get("looked_at", ())),
        )

    @classmethod
    def read(cls, path: Path | str) -> Schema:
        """A schema from a file."""
        try:
            text = Path(path).read_text()
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the schema {path}: {reason(error)}") from error
        return cls.from_toml(text, str(path))


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RequestError(f"{name} must be a number, not {value!r}")
    return float(value)


def _unusual(missing: str) -> dict[str, str]:
    return {} if missing == "refuse" else {"missing": missing}


def _column(name: str, own: Any) -> Column:
    if not isinstance(own, dict):
        raise RequestError(f"columns.{name} must be a table, such as [columns.{name}], not {own!r}")
    if "ends" in own:
        raise RequestError(f"ends = {own['ends']!r} is set once for all columns, at the top, not for {name}")
    column: Column = built(Column, f"[columns.{name}]", {"name": name, **own})
    return column


def _column_values(column: Column) -> dict[str, Any]:
    values = without_defaults(column, Column)
    del values["name"]
    values.pop("ends", None)
    for name in ("range", "limits", "typical", "within"):
        if column.type == "date" and (ends := getattr(column, name)) is not None:
            values[name] = [as_day(day) for day in ends]
    return values
