"""Every cell of a table is read alone: no other row decides what it means, whatever a frame or a file holds."""

from __future__ import annotations

import datetime
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.data.files import read_table
from tacit.data.schema import Column, Predicted, Schema, draft_schema
from tacit.data.schema.records import TableSource, by_client, federate
from tacit.data.schema.values import table_values
from tacit.errors import DataError

ILL = Predicted("ill", "binary", classes=("no", "yes"))
CODE = Column("a", "category", categories=("0", "1"), other=True, missing="indicate")
DOSE = Column("a", "number", range=(0, 2e9), gaps=("?", "1"), missing="indicate")
DAY = Column("a", "date", range=(0, 20000), missing="indicate")


def values(column: Column, cells: list[Any]) -> list[float]:
    """The values of the cells, in a frame that leaves them as they are."""
    frame = pd.DataFrame({"a": pd.Series(cells, dtype=object)})
    found: list[float] = table_values(frame, Schema(ILL, (column,)))[:, 0].tolist()
    return found


@pytest.mark.parametrize(
    ("column", "cells", "other", "expected"),
    [
        # 1 == True in Python, and the first of the two would be what both mean.
        (CODE, [1, 0, 1.0], True, [1, 0, 1]),
        (CODE, [1, 0, 1.0], None, [1, 0, 1]),
        (DOSE, [1, 5, 7.5], True, [math.nan, 5, 7.5]),
        (DOSE, [1, 5, 7.5], "?", [math.nan, 5, 7.5]),
        # pandas counts times in nanoseconds if one needs them, and these end in 2262.
        (DAY, ["9999-12-31", "2020-01-01"], "2020-01-01 10:00:00.123456789", [2932896, 18262]),
        (DAY, ["9999-12-31", "2020-01-01"], pd.Timestamp("2020-01-01 10:00:00.123456789"), [2932896, 18262]),
        (DAY, [datetime.date(9999, 12, 31), 20200101.0], datetime.datetime(2020, 1, 1), [2932896, 18262]),
        (replace(DAY, format="%d.%m.%Y"), [pd.Timestamp("2020-01-02"), pd.NaT], None, [18263, math.nan]),
        (
            replace(DAY, gaps=("?",), format="%d.%m.%Y"),
            [pd.Timestamp("2020-01-02"), pd.NaT],
            "?",
            [18263, math.nan],
        ),
    ],
)
def test_another_row_does_not_decide_what_a_cell_means(
    column: Column, cells: list[Any], other: Any, expected: list[float]
) -> None:
    np.testing.assert_array_equal(values(column, [other, *cells])[1:], expected)


ODD_CELLS = [
    *(1, 0, 1.5, True, False, None, 20200101, 2**63, 1 + 2j, pd.NaT),
    *("1", "01", "van", "VAN ", "80 kg", "80 g", "1,234.5", "7%", "?", "None", "true", "inf"),
    *("2020-01-01", "31.12.2019", pd.Timestamp("2020-01-02 06:00"), datetime.date(9999, 12, 31)),
]
KINDS = [
    CODE,
    Column("a", "category", categories=("Van", "1.5")),
    replace(DOSE, unit="kg"),
    replace(DAY, gaps=("1",)),
    replace(DAY, format="%d.%m.%Y"),
]


@pytest.mark.parametrize("inferred", [False, True])
@pytest.mark.parametrize("column", KINDS)
def test_a_cell_means_the_same_beside_any_other(column: Column, inferred: bool) -> None:
    schema = Schema(ILL, (replace(column, missing="indicate"),))

    def read(cells: list[Any]) -> list[float] | None:
        frame = pd.DataFrame({"a": pd.Series(cells, dtype=object)})
        try:
            found: list[float] = table_values(frame.infer_objects() if inferred else frame, schema, strict=False)[
                :, 0
            ].tolist()
        except DataError:
            return None
        return found

    for pair in itertools.permutations(ODD_CELLS, 2):
        together = read(list(pair))
        if together is not None:
            alone = [one[0] if (one := read([cell])) is not None else "refused" for cell in pair]
            assert repr(together) == repr(alone), pair


@pytest.mark.parametrize(
    "cells",
    [
        pd.to_datetime(["2020-01-01", None]),
        pd.to_timedelta(["3 days", None]),
        pd.PeriodIndex(["2020-01", None], freq="M"),
        np.array([1, 2 + 1j]),
        pd.Series(["1,250", 1 + 2j], dtype=object),
        pd.Series([[1], None], dtype=object),
    ],
)
def test_times_and_lists_are_no_numbers(cells: Any) -> None:
    """A time counted in units that depend on its column, and its gap was the least number of all."""
    with pytest.raises(DataError, match="column 'a' must hold numbers"):
        table_values(pd.DataFrame({"a": cells}), Schema(ILL, (DOSE,)))


def test_a_draft_leaves_lists_out() -> None:
    frame = pd.DataFrame({"age": [30.5, 41.0] * 20, "codes": [["x"], ["y", "z"]] * 20, "ill": ["no", "yes"] * 20})
    drafted = draft_schema(frame, target="ill").schema
    assert drafted.left_out["codes"] == "looked at: a cell holds several values"


NUMBERED = Schema(
    ILL,
    (Column("x", "number", range=(0, 100)),),
    client="who",
    client_missing="leave-out",
    person="id",
    person_missing="leave-out",
    rows=2,
    test_share=0.5,
)


@pytest.mark.parametrize("gap", ["None", ""])
@pytest.mark.parametrize("where", ["who", "id"])
def test_a_row_without_a_name_does_not_rename_or_reorder_all_others(tmp_path: Path, where: str, gap: str) -> None:
    """Persons are held back by the order of their names: as words, 10 comes before 9."""
    table = pd.DataFrame(
        {
            "x": [str(number) for number in range(24)],
            "who": [str(7 + 3 * (number % 2)) for number in range(24)],
            "id": [str(5 + number // 2) for number in range(24)],
            "ill": ["no", "yes"] * 12,
        }
    )
    beside = pd.concat([table, table.iloc[:1].assign(**{where: gap})], ignore_index=True)
    found = []
    for number, frame in enumerate((table, beside)):
        frame.to_csv(tmp_path / f"{number}.csv", index=False)
        read = read_table(tmp_path / f"{number}.csv")
        found.append(federate([TableSource(read, "t")], NUMBERED))
        assert [name for name, _ in by_client(read, NUMBERED, "t")] == ["7", "10"]
    before, after = found
    assert before.names == after.names == ("7", "10")
    assert torch.equal(before.features, after.features)
    assert before.test_features is not None
    assert after.test_features is not None
    assert torch.equal(before.test_features, after.test_features)


def test_long_numbers_beside_a_gap_are_no_names() -> None:
    """As floats, 9007199254740992 and 9007199254740993 are one person."""
    frame = pd.DataFrame({"x": 1.0, "who": "a", "id": [2**53, 2**53 + 1, 5], "ill": "no"})
    whole = replace(NUMBERED, test_share=0.0)
    assert federate([TableSource(frame, "t")], whole).records == 3
    with pytest.raises(DataError, match="column 'id' holds numbers of more than 15 digits beside gaps"):
        federate([TableSource(frame.assign(id=[float(2**53), 5.0, None]), "t")], whole)


def test_a_parquet_file_holds_the_records_of_the_same_table_as_csv(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    schema = Schema(
        ILL,
        (
            Column("age", "number", range=(0, 100), missing="indicate"),
            Column("ward", "category", categories=("1", "2"), other=True, missing="indicate"),
            Column("smokes", "category", categories=("false", "true"), missing="indicate"),
            Column("seen", "date", range=(18000, 19000), missing="indicate"),
            Column("until", "date", range=(18000, 19000), missing="indicate"),
        ),
        client="who",
        test_share=0.0,
    )
    frame = pd.DataFrame(
        {
            "age": pd.array([20, None, 60, 80], dtype="Int64"),
            "ward": pd.Categorical([1, 2, None, 3]),
            "smokes": pd.array([True, None, False, True], dtype="boolean"),
            "seen": [datetime.date(2020, 1, 1), None, datetime.date(9999, 12, 31), datetime.date(2021, 1, 1)],
            "until": pd.to_datetime(["2020-01-01 12:00", None, "2020-06-01 00:00", "2020-07-01 18:00"]).as_unit(
                "ms"
            ),
            "who": [1, 1, 2, 2],
            "ill": ["no", "yes", "no", "yes"],
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    tables = [read_table(tmp_path / name) for name in ("t.csv", "t.parquet")]
    plain, typed = (federate([TableSource(table, "t")], schema) for table in tables)
    assert plain.names == typed.names == ("1", "2")
    assert torch.equal(plain.features, typed.features)
    assert plain.features[2, 8] == 1, "the end of time is the end of the range"
