"""Drafts of tables as they come: how gaps, numbers, codes, dates and identifiers are written in practice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tacit.data.schema import Column, Schema, draft_schema
from tacit.data.schema.records import TableSource, federate
from tacit.data.schema.values import table_values, target_values
from tacit.errors import DataError, RequestError
from tacit.federation import Federation

ROWS = 200


def drafted(values: list[Any], name: str = "x", **said: Any) -> Column | str:
    """What a draft says about a column with these values, over and over."""
    frame = pd.DataFrame({name: (values * ROWS)[:ROWS], "ill": ["no", "yes"] * (ROWS // 2), "other": range(ROWS)})
    frame["other"] = frame["other"] % 37
    schema = draft_schema(frame, target="ill", **said).schema
    found = {column.name: column for column in schema.columns}
    federate([TableSource(frame, "t", "one")], schema)  # a draft fits the table that it was made from
    return found.get(name) or schema.left_out[name]


def column(values: list[Any], name: str = "x") -> Column:
    found = drafted(values, name)
    assert isinstance(found, Column), found
    return found


class TestNumbers:
    @pytest.mark.parametrize("written", ["{:,.1f}", "${:,.0f}", "{:.1f}%", " {:,.0f} €"])
    def test_separators_and_signs(self, written: str) -> None:
        found = column([written.format(k * 37.0) for k in range(50)])
        assert (found.type, found.range is not None and found.range[1] > 900) == ("number", True)

    def test_words_among_numbers_are_gaps(self) -> None:
        found = column([*(f"{k / 7:.2f}" for k in range(50)), "<0.1", "n.a.", "-"])
        assert (found.type, found.gaps, found.missing) == ("number", ("-", "<0.1", "n.a."), "indicate")

    @pytest.mark.parametrize("gap", [-9, -999, 999, 9999])
    def test_numbers_that_mean_nothing_is_known(self, gap: int) -> None:
        assert column([*range(20, 60), gap]).gaps == (str(gap),)

    def test_a_large_value_among_large_ones_is_a_value(self) -> None:
        assert column([*range(500, 1000, 9), 999]).gaps == ()

    def test_a_usual_range_only_where_it_fits(self) -> None:
        assert column(list(range(20, 80)), "age").range == (0, 100)
        assert column([k / 100 for k in range(19, 73)], "age").range == (0.19, 0.72)

    def test_infinite_values_are_gaps(self) -> None:
        assert column([*np.linspace(0, 5, 40), np.inf]).missing == "indicate"


class TestUnits:
    """Numbers with their unit behind them."""

    def test_the_unit_goes_into_the_schema(self) -> None:
        found = column([*(f"{k} kg" for k in range(50, 90)), "n.a."])
        assert (found.type, found.unit, found.gaps, found.range) == ("number", "kg", ("n.a.",), (50, 89))
        draft = draft_schema(
            table([f"{k % 90}.5 mg" for k in range(200)], weight=[f"{k % 60} kg" for k in range(200)]), target="y"
        )
        assert (draft.schema.target.unit, draft.schema.target.task) == ("mg", "regression")
        assert {"y.unit", "weight.unit"} <= set(draft.schema.looked_at)

    def test_another_unit_is_refused(self) -> None:
        frame = table([1.5 * k for k in range(200)], weight=[f"{k % 60} kg" for k in range(200)])
        schema = draft_schema(frame, target="y").schema
        frame.loc[7, "weight"] = "7000 g"
        with pytest.raises(DataError, match="row 8 holds '7000 g'"):
            federate([TableSource(frame, "t", "one")], schema)

    def test_few_or_mixed_ones_are_words(self) -> None:
        assert column(["10s", "20s", "30s"]).type == "category"
        assert "tell people apart" in str(drafted([f"{k}{'ab'[k % 2]}" for k in range(200)]))


class TestWords:
    def test_none_is_an_answer_among_words(self) -> None:
        assert column(["belted", "none"]).categories == ("belted", "none")

    def test_one_answer_and_gaps(self) -> None:
        found = column(["yes", None, None])
        assert (found.categories, found.missing) == (("yes",), "indicate")

    def test_spaces_around_words_do_not_count(self) -> None:
        assert column(["tensed   ", "tensed", " fled"]).categories == ("fled", "tensed")

    @pytest.mark.parametrize("name", ["plan", "occ_code", "marital", "race4"])
    def test_codes_have_no_order(self, name: str) -> None:
        assert column([1, 3, 5, 7, 9], name).categories == ("1", "3", "5", "7", "9")

    def test_many_codes_tell_people_apart(self) -> None:
        assert "tell people apart" in str(drafted(list(range(1000, 1150)), "zip"))


class TestDates:
    @pytest.mark.parametrize(
        ("written", "format"),
        [
            ("9/30/1990 0:00:00", "%m/%d/%Y %H:%M:%S"),
            ("30.09.1990", "%d.%m.%Y"),
            ("30-Sep-1990", "%d-%b-%Y"),
            ("1990-09-30T06:00:42Z", ""),
        ],
    )
    def test_how_they_are_written(self, written: str, format: str) -> None:
        other = written.replace("1990", "1993")
        found = column([written, other], "seen")
        assert (found.type, found.format, found.range) == ("date", format, (7305.0, 8766.0))

    def test_years_of_two_digits(self) -> None:
        recent = column([f"{k % 28 + 1:02}.03.{k % 20:02}" for k in range(100)], "seen")
        assert (recent.type, recent.format) == ("date", "%d.%m.%y")
        births = drafted([f"{k % 28 + 1:02}.03.{k % 100:02}" for k in range(100)], "born")
        assert str(births).startswith("looked at: its years have two digits")

    def test_as_numbers(self) -> None:
        found = column([19900930, 19930101], "admission_date")
        assert (found.type, found.format) == ("date", "%Y%m%d")


class TestRows:
    @pytest.mark.parametrize("name", ["rownames", "Unnamed: 0", "idNum", "caseid", "uid"])
    def test_numbers_of_rows_and_people_are_left_out(self, name: str) -> None:
        assert drafted(list(range(ROWS)), name) == "its name says that it identifies people or rows"

    def test_an_id_that_repeats_is_a_person(self) -> None:
        frame = pd.DataFrame({"id": np.arange(60) // 3, "docvis": np.arange(60) % 7, "x": np.linspace(0, 1, 60)})
        schema = draft_schema(frame, target="docvis").schema
        assert (schema.person, schema.target.task, schema.target.range) == ("id", "count", (0.0, 6.0))

    def test_rows_without_client_person_or_target(self) -> None:
        frame = pd.DataFrame(
            {
                "site": ["a", "b", None] * 20,
                "patient": [*(k // 2 for k in range(59)), None],
                "x": np.linspace(0, 1, 60),
                "stage": ["I", "II", "III", "?"] * 15,
            }
        )
        schema = draft_schema(frame, target="stage").schema
        assert (schema.client_missing, schema.person_missing, schema.target.gaps) == ("leave-out",) * 2 + (
            ("?",),
        )
        assert {"client.missing", "person.missing", "stage.gaps"} <= set(schema.looked_at)
        assert Schema.from_toml(schema.to_toml()) == schema
        found = federate([TableSource(frame, "t")], schema)
        assert (found.names, found.classes) == (("a", "b"), 3)
        strict = Schema.from_toml(
            schema.to_toml().replace('column = "site"\nmissing = "leave-out"', 'column = "site"')
        )
        with pytest.raises(DataError, match=r'row 3 has a gap.*missing = "leave-out" in \[client\]'):
            federate([TableSource(frame, "t")], strict)


def test_a_task_that_there_is_not_is_named() -> None:
    with pytest.raises(RequestError, match="unknown task 'clasification'"):
        draft_schema(pd.DataFrame({"x": [1, 2], "y": ["a", "b"]}), task="clasification")


class TestTruth:
    @pytest.mark.parametrize("values", [[True, False, None], [False, None], [True, None, None]])
    def test_truth_beside_gaps_is_a_category(self, values: list[Any]) -> None:
        found = column(values)
        assert (found.categories, found.missing) == (("false", "true"), "indicate")


def table(target: Any, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame({**columns, "y": target})


class TestTails:
    """What lies far outside of a range counts where it tells of the target and noise leaves room for it."""

    rng = np.random.default_rng(0)
    size = np.exp(rng.normal(0, 2, 4000))
    noise = rng.normal(0, 1, 4000)

    def test_a_line_is_not_bent(self) -> None:
        """Sales grow with listings, not with their logarithm; marks of other columns are as before."""
        draft = draft_schema(table(3 * self.size + self.noise, size=self.size), target="y")
        assert draft.schema.columns[0].scale == "linear"
        bent = draft_schema(table(np.log(self.size) + self.noise, size=self.size), target="y").schema
        assert bent.columns[0].scale == "log"
        assert "size.scale" in bent.looked_at

    def test_classes_are_compared_by_their_means(self) -> None:
        likely = 1 / (1 + np.exp(-np.log(self.size)))
        ill = np.where(self.rng.random(4000) < likely, "yes", "no")
        assert draft_schema(table(ill, size=self.size), target="y").schema.columns[0].scale == "log"

    def test_limits_hold_the_tail_and_are_marked(self) -> None:
        late = np.where(np.arange(4000) % 400 == 0, 600.0, self.rng.normal(0, 10, 4000))
        draft = draft_schema(table(late + self.noise, late=late), target="y")
        found = draft.schema.columns[0]
        assert found.range is not None
        assert found.limits is not None
        assert found.limits[1] >= 3 * found.range[1]
        assert "late.limits" in draft.schema.looked_at
        assert Schema.from_toml(draft.to_toml()) == draft.schema
        alone = draft_schema(table(self.noise, late=late), target="y").schema
        assert alone.columns[0].limits is None, "they tell nothing of this target"

    def test_without_room_for_noise_they_are_a_comment(self) -> None:
        late = np.where(np.arange(400) % 200 == 0, 600.0, self.rng.normal(0, 10, 400))
        wards = np.array([f"ward {n % 30}" for n in range(400)])
        frame = table(late + self.noise[:400], late=late, ward=wards, clinic=np.arange(400) % 200)
        draft = draft_schema(frame, target="y")
        assert draft.schema.client == "clinic"
        assert draft.schema.columns[0].limits is None
        assert "limits = [" in draft.comments["late.range"]
        assert draft.advice[-1] == (
            "Values far outside of their range tell of y in late. To let them count, draft again with "
            "--trust sum, and run with it."
        )
        summed = draft_schema(frame, target="y", trust="sum")
        assert summed.schema.columns[0].limits is not None
        assert len(summed.advice) == len(draft.advice) - 1
        few = draft_schema(frame.head(200), target="y", client="clinic", trust="sum")
        assert "would need more records" in few.comments["late.range"]
        assert few.advice[-1].endswith("There are too few records to let them count.")

    def test_a_target_with_a_tail_says_what_its_range_costs(self) -> None:
        costs = np.where(np.arange(4000) % 500 == 0, 300.0, np.abs(self.noise))
        draft = draft_schema(table(costs, x=self.noise), target="y")
        assert draft.schema.target.range is not None
        assert draft.schema.target.range[1] < 10
        assert "of the variance" in draft.comments["target.range"]
        assert draft.comments["target.range"].startswith("looked at")
        assert draft_schema(table(self.noise, x=costs), target="y").advice == ()


class TestRoles:
    def test_a_share_that_institutions_hold_names_no_client(self) -> None:
        frame = table(["a", "b"] * 100, institutions=np.linspace(0, 90, 200), x=np.arange(200) % 7)
        assert draft_schema(frame, target="y").schema.client is None

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("school", [8, 9, 10, 11, 12, 12, 12, 14, 16]),  # years of schooling, which start anywhere
            ("school", [0, 1, 5, 8, 12, 150]),  # nobody's school has the number 0
            ("hospital", [0, 0, 0, 1, 2, 3]),  # stays
            ("Hospitals", [1, 2, 3, 4, 5, 6]),  # how many there are
            ("centre", [0, 1]),
        ],
    )
    def test_numbers_that_are_called_like_places_but_measure_something(
        self, name: str, values: list[int]
    ) -> None:
        frame = table(["a", "b"] * 100, **{name: (values * 100)[:200]}, x=np.arange(200) % 7)
        draft = draft_schema(frame, target="y")
        assert draft.schema.client is None
        assert next(c for c in draft.schema.columns if c.name == name).type == (
            "number" if len(set(values)) > 3 else "category"
        )
        assert any(f"--client {name}." in said for said in draft.advice)
        assert "# a guess: its numbers count or measure" in draft.to_toml()
        given = draft_schema(frame, target="y", client=name)
        assert (given.schema.client, given.advice) == (name, ())

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("school", [1, 2, 3, 4, 5, 6]),
            ("school", [1224, 1288, 2030, 9586]),
            ("clinic", list(range(102))),  # numbered from 0 on, and too many to be counted
            ("school_id", [8, 9, 10, 11]),
            ("site", [0, 1, 2]),
            ("hospital", ["8", "north", "south"]),
        ],
    )
    def test_numbers_that_name_places(self, name: str, values: list[Any]) -> None:
        frame = table(["a", "b"] * 200, **{name: (values * 200)[:400]}, x=np.arange(400) % 7)
        draft = draft_schema(frame, target="y")
        assert (draft.schema.client, draft.advice) == (name, ())
        assert "# a guess" in draft.to_toml(), "whoever reads it is asked"

    def test_numbers_of_many_places_are_names_even_if_they_were_given_out_by_region(self) -> None:
        schools = np.arange(2000) % 40 + 1
        region = schools + np.random.default_rng(0).normal(size=2000)
        assert (
            draft_schema(table(["a", "b"] * 1000, school=schools, wage=region), target="y").schema.client
            == "school"
        )

    def test_other_columns_follow_the_order_of_a_quantity(self) -> None:
        """Years of schooling from 1 to 18 look like the numbers of 18 schools; wages tell them apart."""
        rng = np.random.default_rng(0)
        years = rng.integers(1, 19, 2000)
        noise = rng.normal(size=2000)
        by_school = rng.permutation(18)[years - 1]
        for wage, client in ((years + 4 * noise, None), (by_school + 4 * noise, "school")):
            assert (
                draft_schema(table(["a", "b"] * 1000, school=years, wage=wage), target="y").schema.client
                == client
            )

    @pytest.mark.parametrize("values", [["yes", "no"], [True, False], ["Y", "N", None]])
    def test_having_been_in_hospital_names_no_client(self, values: list[Any]) -> None:
        frame = table(["a", "b"] * 100, hospital=(values * 100)[:200], x=np.arange(200) % 7)
        assert draft_schema(frame, target="y").schema.client is None

    def test_being_a_student_is_no_name(self) -> None:
        for values, person in ((["no", "yes"], None), ([f"s{k}" for k in range(50)], "student")):
            frame = table(["a", "b"] * 100, student=(values * 100)[:200], x=np.arange(200) % 7)
            assert draft_schema(frame, target="y").schema.person == person

    def test_rows_without_a_target_are_counted(self) -> None:
        frame = table([None, "a", "b", None] * 50, x=np.arange(200) % 7)
        draft = draft_schema(frame, target="y")
        assert "50%" in draft.comments["target.missing"]
        assert any("50%" in said for said in draft.advice)


@pytest.mark.parametrize(
    ("values", "name", "marked"),
    [
        (["03/04/2020", "28/12/2021"], "when", {"type", "format", "range"}),
        (["2020-04-03", "2021-12-28"], "when", {"type", "range"}),
        ([pd.Timestamp("2020-04-03"), pd.Timestamp("2021-12-28")], "when", {"range"}),
        ([1, 2, 3], "x", {"type", "categories"}),
        (["a", "b"], "x", {"categories"}),
        ([k / 7 for k in range(50)], "x", {"range"}),
        ([f"{k:05d}" for k in range(ROWS)], "zip_code", {"left_out"}),
    ],
)
def test_whatever_follows_from_the_values_is_marked(values: list[Any], name: str, marked: set[str]) -> None:
    """Also how dates are written, and that numbers are codes; not what names, or types of storage, say."""
    frame = pd.DataFrame({name: (values * ROWS)[:ROWS], "ill": ["no", "yes"] * (ROWS // 2), "age": 50})
    frame["age"] += np.arange(ROWS) % 37
    made = draft_schema(frame, target="ill")
    assert set(made.schema.unconfirmed[name]) == marked
    text = made.to_toml()
    assert Schema.from_toml(text) == made.schema
    assert all(
        f"{setting} = " in text.split("looked at:", 1)[1] for setting in marked & {"type", "format", "range"}
    )


@pytest.mark.parametrize("value", ["no", 0, 2.5, True])
def test_a_target_with_one_value_is_named(value: Any) -> None:
    frame = pd.DataFrame({"age": np.arange(ROWS) % 60, "ill": [value] * ROWS})
    with pytest.raises(DataError, match=r"target 'ill' is .* in every row.*choose another target"):
        draft_schema(frame, target="ill")


class TestLeavingOut:
    """Columns that tell nearly all of the target, and those that a user leaves out."""

    size = 600

    def table(self) -> pd.DataFrame:
        generator = np.random.default_rng(0)
        ill = generator.random(self.size) < 0.3
        days = np.where(ill, generator.integers(1, 300, self.size), np.nan)
        wrong = generator.random(self.size) < 0.2
        return pd.DataFrame(
            {
                "age": generator.integers(20, 90, self.size),
                "r_days": days,
                "r_ward": np.where(ill, "heart", "none"),
                "test": np.where(ill ^ wrong, "pos", "neg"),
                "cost": 100.0 * ill + generator.normal(0, 5, self.size),
                "ill": np.where(ill, "yes", "no"),
            }
        )

    def test_a_draft_names_what_tells_nearly_all_and_its_file_does_not(self) -> None:
        draft = draft_schema(self.table(), target="ill")
        assert len(draft.advice) == 1
        assert draft.advice[0].startswith("r_days, r_ward, cost each tell nearly all of ill alone.")
        assert draft.advice[0].endswith("--leave-out r_days --leave-out r_ward --leave-out cost.")
        assert "tell" not in draft.to_toml()
        costs = draft_schema(self.table().drop(columns=["r_days", "r_ward"]), target="cost").advice
        assert [said.partition(" nearly")[0] for said in costs] == ["ill tells"]
        few = self.table().head(150)
        assert draft_schema(few, target="ill").advice == (), "so few may fit by chance"

    def test_columns_are_left_out_by_name_and_by_pattern(self) -> None:
        schema = draft_schema(self.table(), target="ill", leave_out=["r_*", "cost"]).schema
        assert schema.left_out == {"r_days": "as asked", "r_ward": "as asked", "cost": "as asked"}
        assert {key.partition(".")[0] for key in schema.looked_at} == {"ill", "test"}

    def test_a_pattern_takes_no_role_and_must_match(self) -> None:
        with pytest.raises(DataError, match=r"leave_out: the table has no column 'il\*'; it has age, r_days"):
            draft_schema(self.table(), target="ill", leave_out=["il*"])
        with pytest.raises(RequestError, match="leave_out names 'ill', which is the target"):
            draft_schema(self.table(), target="ill", leave_out=["ill"])


def test_values_that_mean_the_same_are_drafted_once() -> None:
    """As pandas reads a column of numbers in parts, because one record holds a word."""
    found = column(["0", "0.0", "1", "1.0", "Don't know"])
    assert (found.type, found.categories) == ("category", ("0", "1", "Don't know"))
    frame = pd.DataFrame({"x": range(8), "ill": ["0", "0.0", "1", "1.0", "2", "0", "1", "2"]})
    assert draft_schema(frame, target="ill").schema.target.classes == ("0", "1", "2")


class TestSpellings:
    """One word in several spellings is one category; codes that differ in case stay apart."""

    def test_the_most_common_spelling_stands_for_all(self) -> None:
        found = column(["Van", "Van", "Van", "van", "VAN ", "Box  Truck", "box truck", "box truck"])
        assert found.categories == ("Van", "box truck")

    def test_answers_and_sexes_are_words_however_short(self) -> None:
        assert column(["ja", "Ja", "JA", "ja", "nein"]).categories == ("ja", "nein")
        assert column(["m", "m", "M", "w"]).categories == ("m", "w")

    def test_clients_in_two_spellings_are_asked_about(self) -> None:
        frame = table(["a", "b"] * 100, clinic=["West", "west", "West ", "Ost"] * 50, x=np.arange(200) % 7)
        draft = draft_schema(frame, target="y")
        assert draft.advice == (
            "clinic has names that differ in case or space alone, such as 'West' and 'west'. They count as two "
            "clients: if they are one, correct the table.",
        )
        assert federate([TableSource(frame, "t")], draft.schema).names == ("Ost", "West", "west")

    def test_short_words_may_be_codes(self) -> None:
        assert column(["AA", "Aa", "aa"]).categories == ("AA", "Aa", "aa")

    def test_they_count_as_the_category_wherever_they_are_met(self) -> None:
        """Also those that the draft has not seen; but what is a category itself is never another one."""
        schema = Schema.from_toml(
            '[target]\ncolumn = "y"\ntask = "binary"\nclasses = ["no", "yes"]\n'
            '[columns.car]\ntype = "category"\ncategories = ["Van", "Taxi", "Bus"]\nother = true\n'
            '[columns.gene]\ntype = "category"\ncategories = ["AA", "Aa", "aa"]\n'
        )
        frame = pd.DataFrame(
            {"car": ["VAN", " taxi", "tram"], "gene": ["aa", "AA", "Aa"], "y": ["No", "YES", "no"]}
        )
        values = table_values(frame, schema)
        assert values.tolist() == [[0, 2], [1, 0], [3, 1]]
        assert target_values(frame, schema.target, "t").tolist() == [0, 1, 0]
        with pytest.raises(DataError, match="holds 'aA', which is not among its categories"):
            table_values(frame.assign(gene="aA"), schema)


class TestRareCategories:
    """What few rows hold is not proposed as public, and a column is not wider for it."""

    def test_several_rare_ones_become_other(self) -> None:
        countries = ["Korea"] * 5000 + ["China"] * 200 + ["Mongolia"] * 30 + ["Canada"] * 2
        schema = draft_schema(table(["a", "b"] * 2616, country=countries), target="y").schema
        assert (schema.columns[0].categories, schema.columns[0].other) == (("China", "Korea"), True)

    def test_one_rare_one_keeps_its_name(self) -> None:
        answers = ["yes"] * 1500 + ["no"] * 500 + ["refused"] * 2
        schema = draft_schema(table(["a", "b"] * 1001, answer=answers), target="y").schema
        assert (schema.columns[0].categories, schema.columns[0].other) == (("no", "refused", "yes"), False)

    def test_so_many_rows_are_not_few(self) -> None:
        wards = ["main"] * 9000 + ["heart"] * 60 + ["lung"] * 60
        schema = draft_schema(table(["a", "b"] * 4560, ward=wards), target="y").schema
        assert schema.columns[0].categories == ("heart", "lung", "main")


class TestOverlookedPersons:
    """Rows of one person agree in what does not change, whatever the column of their names is called."""

    rng = np.random.default_rng(0)
    visits = rng.permutation(np.repeat(np.arange(400) + 7000, 3))

    def visited(self) -> pd.DataFrame:
        sex, born = self.rng.choice(["f", "m"], 400), self.rng.integers(1920, 2000, 400)
        person = self.visits - 7000
        return table(
            self.rng.choice(["a", "b"], 1200),
            RANDREF=self.visits,
            sex=sex[person],
            born=born[person],
            pulse=self.rng.integers(50, 130, 1200),
            weight=self.rng.integers(0, 700, 1200),
        )

    def test_a_draft_asks(self) -> None:
        draft = draft_schema(self.visited(), target="y")
        assert draft.schema.person is None
        assert draft.advice == (
            "Rows with the same RANDREF agree in sex and born. If they are rows of one person, draft again with "
            "--person RANDREF: as it is, the promise is to single rows.",
        )
        assert "agree" not in draft.to_toml()
        assert draft_schema(self.visited(), target="y", person="RANDREF").advice == ()

    def test_measured_values_that_come_back_name_nobody(self) -> None:
        frame = self.visited().drop(columns="RANDREF")
        assert draft_schema(frame, target="y").advice == ()
        computed = frame.assign(squared=frame.weight**2, heavy=frame.weight > 350, group=frame.weight // 100)
        assert draft_schema(computed, target="y").advice == ()

    def test_rows_of_one_person_are_of_different_years(self) -> None:
        """Where nothing stays the same, as with a firm: two rows of one firm would have one year by chance."""
        order = self.rng.permutation(1200)
        firm, year = np.repeat(np.arange(200) * 3, 6)[order], np.tile(np.arange(1983, 1989), 200)[order]
        sales = self.rng.random(1200)
        asked = draft_schema(table(["a", "b"] * 600, firm=firm, year=year, sales=sales), target="y")
        assert asked.advice == (
            "Hardly any two rows with the same firm have the same year. If they are rows of one person, draft "
            "again with --person firm: as it is, the promise is to single rows.",
        )
        mixed = self.rng.permutation(year)
        assert draft_schema(table(["a", "b"] * 600, firm=firm, year=mixed, sales=sales), target="y").advice == ()

    def test_copies_of_rows_say_nothing(self) -> None:
        copied = pd.concat([self.visited().assign(RANDREF=np.arange(1200) * 7919 % 1201)] * 2)
        assert not any("agree" in said for said in draft_schema(copied, target="y").advice)


class TestRowsOfNobody:
    def test_a_draft_says_how_many_name_no_client(self) -> None:
        frame = table(["a", "b"] * 100, borough=["Bronx", None, "Queens", None] * 50, x=np.arange(200) % 7)
        draft = draft_schema(frame, target="y", client="borough")
        assert draft.advice[0].startswith("50% of the rows name no client in borough, and are left out.")
        assert "# looked at: 50% of the rows name no client" in draft.to_toml()
        assert "client.missing" in draft.schema.looked_at


def test_a_draft_says_how_to_keep_rows_whose_gap_is_an_answer() -> None:
    draft = draft_schema(table(["gold", None, "silver", None] * 50, age=np.arange(200) % 7), target="y")
    assert draft.advice[0] == (
        "50% of the rows have no target, and are left out. If a gap is an answer (none, or 0), fill these gaps "
        "in the table to keep them."
    )


def test_numbers_that_were_given_out_are_no_feature() -> None:
    """Of 2,000 measured values below 10,000, some would come twice."""
    rng = np.random.default_rng(0)
    given, measured = rng.permutation(10_000)[:2000], rng.integers(0, 10_000, 2000)
    schema = draft_schema(table(["a", "b"] * 1000, key=given, cost=measured), target="y").schema
    assert [column.name for column in schema.columns] == ["cost"]
    assert schema.left_out["key"].startswith("looked at: no number comes twice")


def test_rows_are_dealt_to_clients_in_python_as_on_the_command_line() -> None:
    schema = draft_schema(table(["a", "b"] * 100, x=np.arange(200) % 7, site=["n", "s"] * 100), target="y").schema
    alone = replace(schema, client=None, left_out={"site": "a trial without it"}, looked_at=())
    frame = table(["a", "b"] * 100, x=np.arange(200) % 7, site=["n", "s"] * 100)
    assert Federation.from_frame(frame, alone, clients=5).clients == 5
    with pytest.raises(RequestError, match=r"deal the rows to --clients N \(clients=N\)"):
        Federation.from_frame(frame, alone)
    with pytest.raises(RequestError, match="column 'site' names the clients"):
        Federation.from_frame(frame, replace(schema, looked_at=()), clients=5)
