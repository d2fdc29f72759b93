"""Clients' own files."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.data import from_files
from tacit.data.files import read_table
from tacit.data.frames import read_csv
from tacit.data.schema import Column, Predicted, Schema, draft_schema
from tacit.data.schema.values import table_values
from tacit.errors import DataError, RequestError
from tacit.privacy.promises.terms import LARGEST_INDEX

NORTH = pd.DataFrame({"age": [30, 40], "ward": ["a", "b"], "ill": ["no", "yes"]})
SOUTH = pd.DataFrame({"ward": ["c"], "age": [50], "ill": ["yes"]})


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    return path


WARDS = Schema(
    Predicted("ill", "binary", classes=("no", "yes")),
    (Column("ward", "category", categories=("a", "b", "c")), Column("age", "number", range=(0, 100))),
    test_share=0.0,
)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
class TestTables:
    def test_one_file_a_client(self, tmp_path: Path, suffix: str) -> None:
        paths = [write(SOUTH, tmp_path / f"south{suffix}"), write(NORTH, tmp_path / f"north{suffix}")]
        federation = from_files(paths, schema=WARDS, test=paths[1], name="wards")
        assert federation.names == ("south", "north")
        assert federation.sizes.tolist() == [1, 2]
        features = federation.features.numpy()
        np.testing.assert_allclose(features, [[0, 0, 1, 0], [1, 0, 0, -0.4], [0, 1, 0, -0.2]], atol=1e-7)
        assert federation.targets.tolist() == [1, 0, 1]
        np.testing.assert_allclose(federation.test_batch().features.numpy(), features[1:])
        assert federation.name == "wards"
        assert federation.peeks == ()

    def test_a_client_column(self, tmp_path: Path, suffix: str) -> None:
        both = write(pd.concat([NORTH, SOUTH]), tmp_path / f"both{suffix}")
        federation = from_files([both], schema=replace(WARDS, columns=WARDS.columns[1:], client="ward"))
        assert federation.names == ("a", "b", "c")
        assert federation.features.shape == (3, 1)


class TestArrays:
    def put(self, path: Path, **arrays: object) -> Path:
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return path

    def test_one_file_a_client(self, tmp_path: Path) -> None:
        paths = [
            self.put(tmp_path / "a.npz", X=np.zeros((2, 3)), y=np.array([0, 1])),
            self.put(tmp_path / "b.npz", X=np.ones((1, 3)), y=np.array([2])),
        ]
        federation = from_files(paths, test=paths[0])
        assert federation.names == ("a", "b")
        assert federation.classes == 3
        assert federation.test_batch().records == 2

    def test_a_client_array(self, tmp_path: Path) -> None:
        path = self.put(tmp_path / "a.npz", X=np.eye(3), label=np.array([0.5, 1, 2]), who=np.array([1, 0, 1]))
        federation = from_files([path], target="label", client="who")
        assert federation.names == ("0", "1")
        assert federation.targets.tolist() == [1, 0.5, 2]

    def test_missing_array(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has no array 'y'; it has X"):
            from_files([self.put(tmp_path / "a.npz", X=np.eye(3))])

    def test_pickles_are_refused(self, tmp_path: Path) -> None:
        path = self.put(tmp_path / "a.npz", X=np.eye(1), y=np.array([{"a": 1}], dtype=object))
        with pytest.raises(DataError, match=r"cannot be read as npz.*allow_pickle=False"):
            from_files([path])

    def test_damaged(self, tmp_path: Path) -> None:
        (tmp_path / "a.npz").write_bytes(b"PK\3\4 not really")
        with pytest.raises(DataError, match="cannot be read as npz"):
            from_files([tmp_path / "a.npz"])

    def test_arrays_that_do_not_fit(self, tmp_path: Path) -> None:
        paths = [
            self.put(tmp_path / f"{width}.npz", X=np.zeros((1, width)), y=np.array([1]), who=np.array([width]))
            for width in (2, 3)
        ]
        with pytest.raises(DataError, match="do not fit together"):
            from_files(paths, client="who")


def test_svmlight(tmp_path: Path) -> None:
    (tmp_path / "a.libsvm").write_text("+1 1:1\n-1 2:1\n")
    (tmp_path / "b.svmlight").write_text("-1 3:1\n")
    federation = from_files([tmp_path / "a.libsvm", tmp_path / "b.svmlight"], test=tmp_path / "a.libsvm")
    assert federation.names == ("a", "b")
    assert federation.feature_shape == (3,)
    assert federation.targets.tolist() == [1, 0, 0]
    assert LARGEST_INDEX in federation.peeks
    given = from_files([tmp_path / "a.libsvm", tmp_path / "b.svmlight"], columns=5)
    assert given.feature_shape == (5,)
    assert LARGEST_INDEX not in given.peeks
    with pytest.raises(RequestError, match="columns = 5 is for LIBSVM files"):
        from_files([write(NORTH, tmp_path / "own.csv")], columns=5)
    with pytest.raises(RequestError, match="LIBSVM files have no columns"):
        from_files([tmp_path / "a.libsvm"], client="who")


def test_the_records_of_a_file_that_is_listed_twice_would_count_twice(tmp_path: Path) -> None:
    """Also where a column names the clients, so that files have no names of their own."""
    table = write(NORTH.assign(client=["a", "b"]), tmp_path / "own.csv")
    with pytest.raises(RequestError, match="listed twice"):
        from_files(
            [table, tmp_path / "." / ".." / tmp_path.name / "own.csv"], client="client", public_schema=True
        )


def test_same_stem_in_two_folders(tmp_path: Path) -> None:
    for folder in ("north", "south"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data.libsvm").write_text("+1 1:1\n-1 2:1\n")
    paths = [tmp_path / folder / "data.libsvm" for folder in ("north", "south")]
    assert from_files(paths).names == tuple(map(str, paths))
    with pytest.raises(RequestError, match="listed twice"):
        from_files([paths[0], paths[0]])


AGES = Schema(Predicted("ill", "binary", classes=("0", "1")), (Column("age", "number", range=(0, 100)),))


@pytest.mark.parametrize(
    ("north", "south", "message"),
    [
        ("age,ill\n1,0\n", "age\n2\n", "south.csv has no column 'ill'"),
        ("age,ill\n1,0\n", "ill,bmi\n1,3\n", "south.csv has no column 'age'"),
        ("age,ill\n1,0\n", "age,ill\n?,1\n", r"south.csv: column 'age' must hold numbers, but row 1 holds '\?'"),
        ("age,ill\n1,0\n", "age,ill\n,1\n", "south.csv: column 'age' has a gap, first in row 1"),
        ("age,ill\n1,0\n", "age,ill\n", "south.csv holds no records"),
        ("age,ill\n1,0\n", "", "south.csv cannot be read as CSV: it is empty"),
        ("age,ill\n1,0\n", "age,ill,age\n1,0,9\n", "south.csv has two columns 'age'"),
        ("age,ill\n1,0\n", 'age,ill\n"1,0\n', "south.csv cannot be read as CSV"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path: Path, north: str, south: str, message: str) -> None:
    (tmp_path / "north.csv").write_text(north)
    (tmp_path / "south.csv").write_text(south)
    with pytest.raises(DataError, match=message):
        from_files([tmp_path / "north.csv", tmp_path / "south.csv"], schema=AGES)


@pytest.mark.parametrize(
    ("paths", "options", "message"),
    [
        ([], {}, "at least one file"),
        ("a.csv", {"target": "y"}, "must be a list"),
        (["a.npz"], {"schema": AGES}, "a schema describes tables"),
        (["a.csv"], {"test": 0.2}, "must be a file of test records, not 0.2"),
        (["a.csv"], {"task": "regression"}, "set by its schema"),
        (["a.csv"], {"target": "y"}, "a.csv does not exist"),
        (["a.npz"], {}, "a.npz does not exist"),
        (["a.libsvm"], {}, "a.libsvm does not exist"),
        (["a.xlsx"], {}, "ends in .csv, .parquet, .npz"),
        (["a.csv", "b.npz"], {"target": "y"}, "all files must be of one kind"),
    ],
)
def test_bad_requests(paths: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        from_files(paths, **options)


def test_a_mistyped_file_is_not_taken_for_another_of_its_kind(tmp_path: Path) -> None:
    for name in ("costs.csv", "c.csv", "severity.csv"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"cost\.csv does not exist; did you mean [^ ]*costs\.csv\?$"):
        from_files([tmp_path / "cost.csv"], target="y")


@pytest.mark.parametrize(
    "content",
    [
        "dose;ward\n1,5;süd\n2,25;nord\n".encode("latin-1"),
        "dose; ward\n1.5; süd\n2.25; nord\n".encode(),
        "dose\tward\n1.5\tsüd\n2.25\tnord\n".encode(),
        '\ufeffdose,ward\n1.5,"süd"\n2.25,nord\n'.encode(),
        "dose\tward\r\n1.5\tsüd\r\n2.25\tnord\r\n".encode("utf-16"),
        "dose,ward\r1.5,süd\r2.25,nord\r".encode(),
        ' dose ,"ward "\n 1.5 ,süd\n 2.25 ,nord\n'.encode(),
        "dose,ward\n1.5,süd,\n2.25,nord,\n".encode(),
    ],
    ids=["semicolons", "spaces", "tabs", "commas", "utf-16", "carriage returns", "spaced names", "end commas"],
)
def test_tables_as_people_save_them(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.csv").write_bytes(content)
    frame = read_csv(tmp_path / "own.csv")
    assert frame.to_dict("list") == {"dose": [1.5, 2.25], "ward": ["süd", "nord"]}


def test_columns_of_one_name_are_left_out_of_drafts_and_refused_only_where_they_are_used(tmp_path: Path) -> None:
    lines = ["age,bmi, bmi,ill"] + [f"{30 + k % 40},{20 + k % 9},{k % 3},{k % 2}" for k in range(60)]
    whole, first, second = (tmp_path / f"{name}.csv" for name in ("whole", "first", "second"))
    whole.write_text("\n".join(lines) + "\n")
    first.write_text("\n".join(lines[:31]) + "\n")
    second.write_text("\n".join([lines[0], *lines[31:]]) + "\n")
    frame = read_table(whole)
    assert list(frame.columns) == ["age", "bmi", "bmi", "ill"], "pandas would call the second one bmi.1"
    drafted = draft_schema(frame, target="ill").schema
    assert [column.name for column in drafted.columns] == ["age"]
    assert "two columns have this name" in drafted.left_out["bmi"]
    made = from_files([whole], schema=replace(drafted, looked_at=()), clients=2)
    torch.testing.assert_close(made.features, from_files([whole], schema=AGES, clients=2).features * 2)
    together = from_files([first, second], public_schema=True, target="ill")
    assert together.schema is not None
    assert [column.name for column in together.schema.columns] == ["age"]
    body = Column("bmi", "number", range=(10, 50))
    with pytest.raises(DataError, match=r"whole.csv has two columns 'bmi', so nobody knows which is meant"):
        from_files([whole], schema=replace(AGES, columns=(*AGES.columns, body)), clients=2)
    for role in ("client", "person"):
        said = replace(AGES, **{role: "bmi", f"{role}_missing": "leave-out"})
        with pytest.raises(DataError, match="has two columns 'bmi'"):
            from_files([whole], schema=said, clients=2)
    with pytest.raises(DataError, match="the table has two columns 'bmi'"):
        draft_schema(frame, target="bmi")
    with pytest.raises(DataError, match="all columns of the table share a name, such as 'bmi'"):
        draft_schema(frame[["bmi"]])


def test_none_is_an_answer_if_the_schema_says_so_and_a_gap_otherwise(tmp_path: Path) -> None:
    lines = ["damage,cost,seen,ill", "None,None,2024-05-31,no", "Minor,1.5,None,yes", ",NA,2024-06-01,no"]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    frame = read_csv(tmp_path / "own.csv")
    damage = Column("damage", "category", categories=("Minor", "None"), missing="indicate")
    cost = Column("cost", "number", range=(0.0, 2.0), missing="indicate")
    seen = Column("seen", "date", range=(19_000.0, 20_000.0), missing="indicate")
    target = Predicted("ill", "binary", classes=("no", "yes"))
    values = table_values(frame, Schema(target, (damage, cost, seen)))
    np.testing.assert_array_equal(values[:, :2], [[1, np.nan], [0, 1.5], [np.nan, np.nan]])
    assert np.isnan(values[:, 2]).tolist() == [False, True, False]
    without = Column("damage", "category", categories=("Minor", "Major"), missing="indicate")
    assert np.isnan(table_values(frame, Schema(target, (without,)))[:, 0]).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"age,ill\n30,1\n", mtime=0), "compressed by gzip; unpack it first"),
        (b"PK\x03\x04" + bytes(range(256)), "zip archive or an Excel file; unpack it, or save it as CSV"),
        ("age,ill\n30,1\n".encode("utf-16-le"), "save it as UTF-8"),
        (b"sep=;\nage;ill\n30;1\n", "'sep=;': remove it"),
        (b"30,yes,yes\n40,no,yes\n", "first line seems to be a record: put a line with the names"),
        (b"30,yes,yes\n40,no,no\n", "first line seems to be a record: put a line with the names"),
        (b"ward,ward,ill\nnorth,a,1\nward,ward,ill\n", "two columns 'ward', and its first line seems to be"),
        (b"age,ill\n7,30,1\n8,40,0\n", "more values than the first line has names: name every column"),
        (b"age,ill\n7,x,30,1\n8,y,40,0\n", "more values than the first line has names: name every column"),
        (b"age,ill\n30,1\n30,1,9\n", "own.csv cannot be read as CSV: Expected 2 fields in line 3, saw 3"),
    ],
)
def test_what_is_no_csv_file_is_refused_with_what_to_do(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "own.csv").write_bytes(content)
    with pytest.raises(DataError, match=re.escape(message)):
        read_csv(tmp_path / "own.csv")
