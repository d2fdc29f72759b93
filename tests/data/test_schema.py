"""A table's public description: what it says, what it refuses, and that it alone prepares records."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tacit.data.frames import read_csv
from tacit.data.schema import Column, Predicted, Schema, draft_schema, feature_names
from tacit.data.schema.doubts import doubts
from tacit.data.schema.encode import encode, scale, terms
from tacit.data.schema.records import TableSource, bundled, federate
from tacit.data.schema.values import table_values
from tacit.errors import DataError, RequestError
from tacit.federation import Federation

HEART = Schema(
    Predicted("ill", "binary", classes=("no", "yes")),
    (
        Column("age", "number", "years", (0, 100), missing="indicate"),
        Column("dose", "number", "mg", (1, 100), scale="log"),
        Column("ward", "category", categories=("a", "b", "c"), missing="indicate"),
        Column("sex", "category", categories=("f", "m")),
        Column("seen", "date", range=(18262.0, 18993.0)),
    ),
    client="hospital",
    test_share=0.0,
    left_out={"name": "identifies a person"},
)

TABLE = pd.DataFrame(
    {
        "name": ["x", "y", "z"],
        "hospital": ["B", "A", "B"],
        "age": [25.0, None, 120.0],
        "dose": [10, 1, 100],
        "ward": ["c", "a", None],
        "sex": ["m", "f", "f"],
        "seen": ["2020-01-01", "2022-01-01", "2021-01-01"],
        "ill": ["yes", "no", "no"],
    }
)


def of(frame: pd.DataFrame, schema: Schema = HEART) -> Federation:
    return federate([TableSource(frame, "heart.csv")], schema)


class TestPreparation:
    def test_every_kind_of_column(self) -> None:
        federation = of(TABLE)
        assert federation.names == ("A", "B")
        assert feature_names(HEART) == (
            "age", "age is missing", "dose", "ward = a", "ward = b", "ward = c", "ward is missing", "sex = m",
            "seen",
        )  # fmt: skip
        expected = [
            [0, 1, -1, 1, 0, 0, 0, -1, 1],
            [-0.5, 0, 0, 0, 0, 1, 0, 1, -1],
            [1, 0, 1, 0, 0, 0, 1, -1, 1 / 731],
        ]
        np.testing.assert_allclose(federation.features.numpy(), expected, atol=2e-3)
        assert federation.targets.tolist() == [0, 1, 0]
        assert federation.class_names == ("no", "yes")
        assert federation.peeks == ()

    def test_columns_go_by_name(self) -> None:
        shuffled = TABLE[list(reversed(TABLE.columns))]
        assert torch.equal(of(shuffled).features, of(TABLE).features)

    def test_a_record_does_not_change_how_others_are_prepared_or_split(self) -> None:
        """Replace any one record: all other rows of training and test stay bit for bit what they were."""
        schema = replace(HEART, test_share=0.3)
        rows = pd.concat([TABLE] * 20, ignore_index=True)
        before = of(rows, schema)
        other = rows.copy()
        other.loc[7, ["age", "dose", "ward", "sex", "ill"]] = [99.0, 50, "b", "m", "yes"]
        after = of(other, schema)
        assert torch.equal(before.sizes, after.sizes)
        changed = int((before.features != after.features).any(1).sum())
        assert before.test_features is not None
        assert after.test_features is not None
        changed += int((before.test_features != after.test_features).any(1).sum())
        assert changed == 1

    def test_a_number_is_scaled_by_its_public_range_alone(self) -> None:
        target = Predicted("cost", "regression", range=(0, 1000), unit="EUR")
        schema = Schema(target, (Column("age", "number", range=(0, 100)),), client="who", test_share=0.0)
        frame = pd.DataFrame({"age": [50, 60], "cost": [250, 14_089], "who": ["a", "b"]})
        federation = of(frame, schema)
        assert federation.targets.tolist() == [-0.5, 1.0]
        assert federation.classes is None
        assert federation.target_scale == 500

    def test_whole_numbers_are_not_classes(self) -> None:
        """The largest target used to set the number of classes, and with it the size of the model."""
        rng = np.random.default_rng(0)
        frame = pd.DataFrame({"x": rng.normal(size=200), "who": 1, "cost": rng.integers(0, 14_089, 200)})
        drafted = draft_schema(frame, client="who").schema
        assert drafted.target.task == "regression"
        assert federate([TableSource(frame, "t")], drafted).classes is None
        with pytest.raises(DataError, match="say task='regression'"):
            Federation.from_arrays(frame[["x"]], frame["cost"], frame["who"])

    def test_a_usual_value_becomes_zero_and_gaps_count_as_it(self) -> None:
        age = Column("age", "number", range=(0, 100), middle=80, missing="indicate")
        federation = of(TABLE, replace(HEART, columns=(age,)))
        np.testing.assert_allclose(federation.features.numpy(), [[0, 1], [-1.1, 0], [0.4, 0]], atol=1e-6)
        with pytest.raises(RequestError, match="middle = 120 must lie in its range"):
            replace(age, middle=120)

    def test_targets_outside_of_their_range_are_cut_for_training_and_not_for_results(self) -> None:
        """A model that predicts a long tail well must not look worse than one that cuts it off."""
        frame = pd.DataFrame({"x": [1.0] * 40, "y": [5.0, 500.0] * 20, "who": (list("abcdefg") * 6)[:40]})
        column = Column("x", "number", range=(0, 2))
        for person in (None, "who"):
            schema = Schema(Predicted("y", "regression", range=(0, 10)), (column,), person=person)
            found = federate([TableSource(frame, "t", "one")], schema)
            assert found.test_features is not None
            assert found.test_targets is not None
            # The rows of a person end with their targets and shares.
            trained = found.targets if person is None else found.features[..., -2]
            measured = found.test_targets if person is None else found.test_features[..., -2]
            assert (float(trained.max()), float(measured.max())) == (1.0, 99.0)

    def test_limits_let_a_line_go_on_outside_of_the_range(self) -> None:
        cost = Column("cost", "number", range=(0, 100), limits=(-50, 400), ends=2.0)
        assert scale(np.array([-1000.0, -50, 0, 100, 300, 9999]), cost).tolist() == [-4, -4, -2, 2, 10, 14]
        described = Schema(Predicted("y", "binary", classes=("a", "b")), (cost,), ends=2.0)
        assert Schema.from_toml(described.to_toml()) == described
        for wrong in ((10, 400), (0, 90), (0, math.inf)):
            with pytest.raises(RequestError, match="must hold its range, 0 to 100"):
                replace(cost, limits=wrong)
        with pytest.raises(RequestError, match="logarithmic scale needs a range above 0"):
            Column("cost", "number", range=(1, 100), limits=(0, 400), scale="log")
        with pytest.raises(RequestError, match='limits needs a public range, not range = "learn"'):
            Column("cost", "number", within=(0, 100), limits=(0, 400))

    def test_labels_by_name_and_not_by_order(self) -> None:
        swapped = replace(HEART, target=replace(HEART.target, classes=("yes", "no")))
        assert of(TABLE, swapped).targets.tolist() == [1, 0, 1]


class TestPersons:
    schema = replace(HEART, person="name", rows=2, left_out={})

    def test_a_person_is_one_record(self) -> None:
        rows = TABLE.assign(name=["x", "y", "x"], hospital="A")
        federation = of(rows, self.schema)
        assert federation.sizes.tolist() == [2]
        assert federation.feature_shape == (2, 9 + 2)
        shares = federation.features[..., -1].tolist()
        assert shares == [[0.5, 0.5], [1.0, 0.0]]
        assert "all rows of one person" in federation.peeks[0]

    @pytest.mark.parametrize("share", [0.0, 0.3])
    def test_the_rows_of_a_person_move_nobody_else(self, share: float) -> None:
        """If somebody's first row is missing, all others are where they were: in training, or held back."""
        schema = Schema(
            Predicted("ill", "binary", classes=("no", "yes"), missing="leave-out"),
            (Column("age", "number", range=(0, 100)),),
            person="who", rows=4, test_share=share,
        )  # fmt: skip
        whole = pd.DataFrame(
            {
                "who": [f"p{k:02}" for k in range(40)] + ["p00"],
                "age": [*range(40), 50],
                "ill": ["no", "yes"] * 20 + ["no"],
            }
        )
        less = whole.assign(ill=[None, *whole["ill"][1:]])
        one, other = (federate([TableSource(frame, "t.csv", client="A")], schema) for frame in (whole, less))
        assert torch.equal(one.sizes, other.sizes)
        moved = (one.features != other.features).flatten(1).any(1)
        assert int(moved.sum()) <= 1

    def test_no_more_rows_than_are_allowed_and_spread_over_the_file(self) -> None:
        found = bundled(np.arange(10.0)[:, None], np.zeros(10), np.array(["p"] * 10), 4)
        assert found.shape == (1, 4, 3)
        assert found[0, :, 0].tolist() == [0, 3, 5, 8]
        assert found[0, :, 2].tolist() == [0.25] * 4

    def test_persons_are_held_back_as_a_whole(self) -> None:
        rows = pd.concat([TABLE.assign(name=f"p{k}", hospital="A") for k in range(30)], ignore_index=True)
        federation = of(rows.sample(frac=1, random_state=0), replace(self.schema, test_share=0.5, rows=3))
        assert federation.sizes.tolist() == [15]
        assert federation.test_features is not None
        assert (federation.test_features[..., -1] > 0).all()

    def test_every_row_has_a_person(self) -> None:
        with pytest.raises(DataError, match="column 'name' names the person of every row, but row 2 has a gap"):
            of(TABLE.assign(name=["x", None, "y"]), self.schema)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"ward": ["c", "a", "d"]}, "heart.csv: column 'ward' holds 'd', which is not among its categories: a, b, c"),
    ({"ward": ["c", "a", "d"]}, "a, b, c. Write it as one of them, or agree on a schema that .* other = true"),
    ({"ill": ["yes", "no", "maybe"]}, "target 'ill' holds 'maybe', which is not among its classes: no, yes"),
    ({"sex": ["m", None, "f"]}, "column 'sex' has a gap, first in row 2"),
    ({"ill": ["yes", None, "no"]}, r"target 'ill' has a gap, first in row 2.*leave-out"),
    ({"age": ["old", 3, 4]}, "column 'age' must hold numbers, but row 1 holds 'old'"),
    (
        {"age": ["1,5", 3, 4]},
        "column 'age' must hold numbers, but row 1 holds '1,5': write decimals with",
    ),
    ({"dose": [np.inf, 3, 4]}, "column 'dose' has a gap, first in row 1"),
    ({"dose": [1000, 1500, 3]}, "column 'dose': most values lie outside its public range, 1 to 100 mg. Is it in"),
    ({"seen": ["1.2.2020", "2020-01-01", "2020-01-01"]}, "column 'seen' must hold dates .* but row 1 holds"),
    (
        {"seen": "1999-01-01"},
        "column 'seen': most values lie outside its public range, 2020-01-01 to .*Set format",
    ),
    ({"hospital": ["A", None, "B"]}, "names the client of every row, but row 2 has a gap"),
]


@pytest.mark.parametrize(
    ("columns", "message"), REFUSED, ids=[next(iter(c)) + str(i) for i, (c, _) in enumerate(REFUSED)]
)
def test_what_the_schema_does_not_describe_is_refused_by_name(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        of(TABLE.assign(**columns))


def test_missing_columns_and_empty_tables() -> None:
    with pytest.raises(DataError, match=r"heart.csv has no column 'dose'; it has"):
        of(TABLE.drop(columns="dose"))
    with pytest.raises(DataError, match=r"heart.csv has no column 'dose'; did you mean 'Dose'\? It has"):
        of(TABLE.rename(columns={"dose": "Dose"}))


def test_columns_that_would_pass_unnoticed_are_doubted() -> None:
    """Predictions take any word as a gap, and "other" takes any word, also in training."""
    schema = replace(
        HEART, columns=(*HEART.columns[:2], replace(HEART.columns[2], other=True), *HEART.columns[3:])
    )
    strange = TABLE.assign(
        dose=[5000, None, 7000],
        ward=["w1", None, "w2"],
        sex=["male", "f", "female"],
        seen=["1.2.2020", None, "x"],
    )
    for one in (HEART, schema):
        assert doubts(TABLE, one) == []
    _, *others = doubts(strange, schema)
    assert doubts(strange, HEART)[0] == (
        "Column 'dose': most values lie outside its public range, 1 to 100 mg. Is it in another unit? Convert it."
    )
    assert others == [
        "No value of column 'ward' is one of its categories; 'w1' and such are other.",
        "Most values of column 'sex' are not its categories, such as 'male': they count as gaps.",
        "Most values of column 'seen' are no dates (ISO 8601, such as 2024-05-31), such as '1.2.2020': they "
        "count as gaps.",
    ]
    # Gaps are no reason to doubt, nor is a single strange value.
    assert doubts(TABLE.assign(ward=None, sex=["f", "m", "?"], dose=[10.0, 1, 1e9]), schema) == []
    with pytest.raises(DataError, match=r"heart.csv holds no records"):
        of(TABLE.head(0))
    with pytest.raises(DataError, match="holds no records, so there is nothing to draft"):
        draft_schema(TABLE.head(0))
    with pytest.raises(RequestError, match="it is not known who holds the records"):
        of(TABLE, replace(HEART, client=None))


@pytest.mark.parametrize("word", ["03,True,4,01022024", "x,maybe,?,?", "\xe9,\xe9,?,03022024"])
def test_one_record_does_not_decide_how_the_others_are_read(word: str, tmp_path: Path) -> None:
    """A word among numbers, or a byte that is not UTF-8, changes how pandas reads a whole column."""
    lines = [
        "zip,old,dose,day,diet,y",
        "01,True,1.5,05022024,\u00e9,0",
        "02.0,False,2,06022024,b,1",
        f"{word},b,1",
    ]
    content = "\n".join(lines[:-1]).encode() + b"\n" + lines[-1].encode("latin-1") + b"\n"
    (tmp_path / "own.csv").write_bytes(content)
    schema = Schema(
        Predicted("y", "binary", classes=("0", "1")),
        (
            Column("zip", "category", categories=("1", "02"), other=True),
            Column("old", "category", categories=("false", "true"), other=True),
            Column("dose", "number", range=(0, 10), gaps=("?",), missing="indicate"),
            Column("day", "date", range=(19700.0, 19800.0), format="%d%m%Y", gaps=("?",), missing="indicate"),
            Column("diet", "category", categories=("\u00e9",), other=True),
        ),
        test_share=0.0,
    )
    values = table_values(read_csv(tmp_path / "own.csv"), schema)
    assert values[:2].tolist() == [[0, 1, 1.5, 19758, 0], [1, 0, 2, 19759, 1]]


def read(path: Path, column: Column, cells: list[str], separator: str = ",") -> list[float]:
    """The values of a column of a CSV file with these cells; a second column keeps empty lines apart."""
    path.write_text("\n".join([f"a{separator}y", *(f"{cell}{separator}1" for cell in cells)]) + "\n")
    schema = Schema(Predicted("y", "binary", classes=("0", "1")), (column,))
    values: list[float] = table_values(read_csv(path), schema)[:, 0].tolist()
    return values


DOSE = Column("a", "number", range=(0, 2000), gaps=("unknown",), missing="indicate")
CODE = Column(
    "a", "category", categories=("1,2", "900000000000207008", "inf", "x"), other=True, missing="indicate"
)
MONTH = Column("a", "date", range=(19000, 20000), gaps=("unknown",), missing="indicate")
DAY = replace(MONTH, format="%d%m%Y", range=(0, 20000))


@pytest.mark.parametrize(
    ("column", "cells", "usual", "other", "values"),
    [
        (DOSE, ["1,250", "0,750"], "2,500", "unknown", [1.25, 0.75]),
        (DOSE, ["1,250", "0,750"], "2,500", "12%", [1.25, 0.75]),
        (DOSE, ["1,250", "0,750"], "2,500", "1.5", [1.25, 0.75]),
        (CODE, ["1,2", "3"], "3", "x", [0, 4]),
        # Beside a gap, whole numbers are floats.
        (CODE, ["900000000000207008", "3"], "4", "", [1, 4]),
        (CODE, ["Infinity", "3"], "4", "x", [2, 4]),
        # Beside a number that is too large, pandas keeps gaps as words.
        (CODE, ["", "3"], "4", "12345678901234567890", [math.nan, 4]),
        # 1 February, as in a column of numbers.
        (DAY, ["1022003", "02022003"], "03022003", "unknown", [12084, 12085]),
    ],
)
def test_one_record_does_not_decide_what_numbers_and_gaps_are(
    tmp_path: Path,
    column: Column,
    cells: list[str],
    usual: str,
    other: str,
    values: list[float],
) -> None:
    for third in (usual, other):
        found = read(tmp_path / "own.csv", column, [*cells, third], ";")
        np.testing.assert_array_equal(found[:2], values)


def test_months_that_lost_their_zero_as_numbers_are_refused(tmp_path: Path) -> None:
    """2023.10 is 2023.1 in a column of numbers; in one of words it is a month."""
    assert read(tmp_path / "own.csv", MONTH, ["2023.10", "unknown"])[0] == 19631
    with pytest.raises(DataError, match="must hold dates"):
        read(tmp_path / "own.csv", MONTH, ["2023.10", "2023.11"])


def test_points_mark_thousands_before_a_decimal_comma(tmp_path: Path) -> None:
    """As costs are written in much of Europe. Without a comma, a point may mean either, so both are not read."""
    written = ["1.234,56 €", "234,56 €", "12,5", "1.234.567,0", "7"]
    assert read(tmp_path / "own.csv", DOSE, written, ";") == [1234.56, 234.56, 12.5, 1234567, 7]
    with pytest.raises(DataError, match=r"holds '1\.234,56', so '1\.250' may be a thousand times what its point"):
        read(tmp_path / "own.csv", DOSE, ["1.250", "1.234,56"], ";")


def test_commas_that_mark_thousands_are_refused_between_semicolons(tmp_path: Path) -> None:
    assert read(tmp_path / "own.csv", DOSE, ["1,234.5", "$20"], ";") == [1234.5, 20]
    with pytest.raises(DataError, match=r"column 'a' holds '1,234\.5', so '1,250' may be a thousand times"):
        read(tmp_path / "own.csv", DOSE, ["1,250", "1,234.5"], ";")


def test_categories_that_mean_the_same_are_refused() -> None:
    zips = Schema(
        Predicted("y", "binary", classes=("0", "1")), (Column("zip", "category", categories=("1", "01")),)
    )
    with pytest.raises(DataError, match="'1' and another one of its categories mean the same"):
        table_values(pd.DataFrame({"zip": [1]}), zips)


def test_rows_without_a_target_can_be_left_out() -> None:
    gaps = TABLE.assign(ill=["yes", None, "no"])
    leaving_out = replace(HEART, target=replace(HEART.target, missing="leave-out"))
    assert of(gaps, leaving_out).records == 2
    # Rows are counted below the header, whatever was left out and whatever the index is.
    for index in (range(3), range(7, 10), list("abc")):
        with pytest.raises(DataError, match="column 'age' must hold numbers, but row 3 holds 'old'"):
            of(gaps.assign(age=[1, 2, "old"]).set_axis(index), leaving_out)
        with pytest.raises(DataError, match="but row 3 has a gap"):
            of(gaps.assign(hospital=["A", "B", None]).set_axis(index), leaving_out)
    with pytest.raises(DataError, match="row 3 holds 'old'"):
        table_values(TABLE.assign(age=[1, 2, "old"]), HEART, strict=False)


TARGET = '[target]\ncolumn = "y"\n'
COUNT = 'task = "count"\nrange = [0, 9]\n'
X = '\n[columns.x]\ntype = "number"\nrange = [0, 1]\n'


class TestFile:
    def test_written_and_read(self) -> None:
        assert Schema.from_toml(HEART.to_toml()) == HEART
        assert Schema.from_toml(HEART.to_toml()).digest == HEART.digest
        odd = replace(HEART, columns=(Column("a b.c", "number", range=(0, 1)),), looked_at=("a b.c.range",))
        assert Schema.from_toml(odd.to_toml({"a b.c.range": "why"})) == odd

    def test_the_ends_of_ranges_are_said_once(self) -> None:
        """Features of numbers, and of nothing else, become twice as long; the file says so in one line."""
        wide = replace(HEART, ends=2)
        assert wide.to_toml().count("ends = ") == 1
        assert Schema.from_toml(wide.to_toml().replace("ends = 2.0", "ends = 2")) == wide
        assert wide.digest != HEART.digest
        values = np.ones((1, len(HEART.columns)))
        factors = [2 if term.kind == "number" else 1 for term in terms(HEART)]
        assert {1, 2} == set(factors)
        assert np.allclose(encode(values, wide), encode(values, HEART) * factors)
        with pytest.raises(RequestError, match="once for all columns"):
            Schema.from_toml(TARGET + COUNT + X + "ends = 2\n")
        with pytest.raises(RequestError, match="ends must be"):
            Schema.from_toml("ends = 0\n" + TARGET + COUNT + X)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("x = [", "not valid TOML"),
            ("", r"needs the tables \[target\] and \[columns.NAME\]"),
            ("colums = 1", "unknown setting 'colums'; did you mean 'columns'"),
            (TARGET + 'task = "binry"' + X, "did you mean 'binary'"),
            (TARGET + 'task = "regression"' + X, "public range"),
            (TARGET + COUNT + '[columns.x]\ntype = "number"', "'x' of the schema has no range"),
            (TARGET + COUNT + X.replace("x]", "patient_id]"), "identifies people or rows by its name"),
            (TARGET + COUNT + X.replace("x]", "y]"), "in two roles"),
            (TARGET + COUNT + X + '[test]\nshare = "20%"\n', r"share of \[test\] must be a number, not '20%'"),
        ],
    )  # fmt: skip
    def test_mistakes_are_named(self, text: str, message: str) -> None:
        with pytest.raises(RequestError, match=message):
            Schema.from_toml(text, "schema.toml")

    def test_the_documented_schema_is_one(self) -> None:
        page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
        schema = Schema.from_toml(page.partition("```toml\n")[2].partition("```")[0])
        assert Schema.from_toml(schema.to_toml()) == schema

    def test_a_category_of_everybody_is_an_identifier(self) -> None:
        with pytest.raises(RequestError, match="identify people"):
            Column("code", "category", categories=tuple(map(str, range(501))))


class TestDraft:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "row": np.arange(200),
            "patient_id": [f"P{k}" for k in range(200)],
            "note": [f"free text {k}" for k in range(200)],
            "same": 1,
            "age": rng.integers(18, 90, 200),
            "dose": rng.normal(5, 1, 200).round(2),
            "income": np.exp(rng.normal(8, 2.5, 200)).round(2),
            "born": pd.date_range("1950-03-04", periods=200).strftime("%d.%m.%Y"),
            "ward": rng.choice(["a", "b"], 200),
            "hospital": rng.choice(["x", "y"], 200),
            "ill": rng.choice(["no", "yes"], 200),
        }
    )

    def test_roles_types_and_marks(self) -> None:
        drafted = draft_schema(self.frame)
        schema = drafted.schema
        assert (schema.target.column, schema.target.task, schema.client) == ("ill", "binary", "hospital")
        assert set(schema.left_out) == {"row", "patient_id", "note", "same"}
        kinds = {column.name: (column.type, column.scale) for column in schema.columns}
        assert kinds["born"] == ("date", "linear")
        assert kinds["income"] == ("number", "log")
        assert {"ill.classes", "dose.range", "ward.categories", "note.left_out"} <= set(schema.looked_at)
        assert "age.range" not in schema.looked_at, "its range follows from its name"
        text = drafted.to_toml()
        marked = [line for line in text.splitlines() if "# looked at" in line]
        assert any(line.startswith("categories") for line in marked)
        assert Schema.from_toml(text) == schema
        assert federate([TableSource(self.frame, "t")], schema).records > 100

    def test_a_table_without_features_says_why_each_column_is_left_out(self) -> None:
        numbered = pd.DataFrame({"age": range(60), "ill": ["no", "yes"] * 30})
        with pytest.raises(
            DataError, match=r"can be used as a feature. Left out: age: looked at: it numbers the"
        ):
            draft_schema(numbered)

    def test_comments_are_folded(self) -> None:
        """One that does not fit behind its setting stands above it; the schema itself is the same."""
        many = self.frame.assign(ward=[f"ward number {row % 7}" for row in range(200)])
        drafted = draft_schema(many)
        lines = drafted.to_toml().splitlines()
        assert [line for line in lines if "#" in line and len(line) > 80] == []
        wide = next(k for k, line in enumerate(lines) if line.startswith('categories = ["ward'))
        assert lines[wide - 1].startswith("# looked at")
        assert not any("#" in line for line in drafted.schema.to_toml().splitlines())

    def test_two_values_identify_nobody_whatever_their_column_is_called(self) -> None:
        asked = self.frame.assign(has_email=["no", "yes"] * 100, email=[f"{k}@x" for k in range(200)])
        schema = draft_schema(asked, target="ill").schema
        assert "email" in schema.left_out
        assert next(column for column in schema.columns if column.name == "has_email").identifier is False
        assert "has_email.identifier" in schema.looked_at
        assert Schema.from_toml(schema.to_toml()) == schema
        assert "has_email" in draft_schema(asked.head(30), target="ill").schema.left_out, "in few rows they may"

    def test_nothing_unconfirmed_is_used(self) -> None:
        schema = draft_schema(self.frame).schema
        with pytest.raises(RequestError, match=r"looked_at.*--public-schema"):
            Federation.from_frame(self.frame, schema)
        with pytest.raises(RequestError, match=r"no schema.*from the records.*dose .range.*draft_schema"):
            Federation.from_frame(self.frame)
        accepted = Federation.from_frame(self.frame, schema, public_schema=True)
        assert "categories of ward" in accepted.peeks[0]
        assert "which columns have gaps" in accepted.peeks[0], "the absence of gaps was seen, too"
        assert Federation.from_frame(self.frame, replace(schema, looked_at=())).peeks == ()

    def test_persons_with_several_rows_are_found(self) -> None:
        several = self.frame.assign(patient_id=[f"P{k % 60}" for k in range(200)])
        schema = draft_schema(several).schema
        assert schema.person == "patient_id"
        assert "person.column" in schema.looked_at

    def test_gaps_are_marked(self) -> None:
        gaps = self.frame.assign(
            dose=self.frame["dose"].where(self.frame["dose"] > 4), ill=[None, *["no", "yes"] * 99, "no"]
        )
        schema = draft_schema(gaps).schema
        assert next(column for column in schema.columns if column.name == "dose").missing == "indicate"
        assert schema.target.missing == "leave-out"
        assert {"dose.missing", "ill.missing"} <= set(schema.looked_at)

    def test_words_for_gaps_and_many_categories(self) -> None:
        rng = np.random.default_rng(0)
        codes = [f"c{k}" for k in rng.geometric(0.15, 200)]
        odd = self.frame.assign(
            dose=["?", *map(str, self.frame["dose"][1:])], code=codes, lab=[-999, *rng.integers(0, 50, 199)]
        )
        schema = draft_schema(odd, target="ill").schema
        columns = {column.name: column for column in schema.columns}
        dose = columns["dose"]
        assert (dose.type, dose.gaps, dose.missing) == (
            "number",
            ("?",),
            "indicate",
        )
        assert columns["lab"].gaps == ("-999",)
        assert columns["code"].other
        assert {"dose.gaps", "code.categories"} <= set(schema.looked_at)
        federation = federate([TableSource(odd, "t")], replace(schema, test_share=0.0))
        names = feature_names(schema)
        row = federation.features[:, names.index("dose is missing")]
        assert row.sum() == 1
        others = federation.features[:, [k for k, name in enumerate(names) if name.startswith("code = ")]]
        assert (others.sum(1) == 1).all()
        assert names.index("code = other") > 0
        assert Schema.from_toml(schema.to_toml()) == schema

    @pytest.mark.parametrize(
        ("values", "task"),
        [
            ([0, 1], "binary"),
            ([True, False], "binary"),
            ([1, 2, 3], "multiclass"),
            (list(range(40)), "regression"),
            ([0.5, 1.5, 2.5], "regression"),
        ],
    )
    def test_tasks(self, values: list[float], task: str) -> None:
        frame = self.frame.assign(ill=np.resize(values, 200))
        schema = draft_schema(frame).schema
        assert schema.target.task == task
        assert federate([TableSource(frame, "t")], schema).records > 100
        counted = frame.rename(columns={"ill": "n_visits"})
        if len(values) == 40:
            assert draft_schema(counted).schema.target.task == "count"


class TestTypical:
    """A unit that fits the range but not what is typical."""

    SCHEMA = Schema(
        Predicted("weight", "regression", range=(0, 300), typical=(40, 120)),
        (Column("glucose", "number", "mg/dl", (0, 600), typical=(70, 200)),),
        client="site",
        test_share=0.0,
    )

    def frame(self, factor: float = 1.0, rows: int = 30) -> pd.DataFrame:
        site, spread = ["a", "b"] * rows, np.linspace(-20, 20, 2 * rows)
        own = np.where(np.array(site) == "b", factor, 1.0)
        return pd.DataFrame({"site": site, "glucose": (110 + spread) * own, "weight": 80 + spread})

    def test_mmol_for_mg_is_refused_with_the_client(self) -> None:
        assert of(self.frame(), self.SCHEMA).clients == 2
        with pytest.raises(DataError, match=r"client b: column 'glucose'.*70 to 200 mg/dl is typical"):
            of(self.frame(1 / 18), self.SCHEMA)

    def test_the_target_has_a_unit_too(self) -> None:
        pounds = self.frame().assign(weight=lambda frame: 2.2 * frame["weight"])
        with pytest.raises(DataError, match=r"client a: target 'weight'"):
            of(pounds, self.SCHEMA)

    def test_few_records_say_little(self) -> None:
        assert of(self.frame(1 / 18, rows=10), self.SCHEMA).clients == 2

    def test_it_survives_the_file(self) -> None:
        assert Schema.from_toml(self.SCHEMA.to_toml()) == self.SCHEMA
        with pytest.raises(RequestError, match="typical must be two numbers"):
            Column("glucose", "number", range=(0, 1), typical=(3, 2))
