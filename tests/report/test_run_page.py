"""Pages of runs and comparisons: complete, escaped, self-contained, telling no more than the promise allows."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tacit.algorithms.fedavg import dp_normfedavg
from tacit.cli.pages import compared_schema
from tacit.data import load
from tacit.engine.compare import Outcome
from tacit.engine.plan import plan
from tacit.engine.simulate import simulate
from tacit.models import logistic_regression
from tacit.privacy import Adjacency, Adversary, Target
from tacit.privacy.promises.plain import plain_promise, strength
from tacit.privacy.promises.terms import PERSONS
from tacit.report.chart import Interval, Line, interval_chart, line_chart
from tacit.report.comparison_page import comparison_page
from tacit.report.intervals import joint_interval, mean_interval, share_interval
from tacit.report.run_page import Repeat, run_page
from tacit.report.terms import glossary
from tacit.report.words import plain_meaning

EVIL = "<script>alert('x')</script>"
REPEAT = Repeat("tacit run recipe.toml", {"recipe.toml": "00ff"}, {"tacit": "1"}, 'data = "<b>"\n')
VOID = {"meta", "link", "img", "br", "path", "circle", "polyline", "polygon", "input"}


class _Balanced(HTMLParser):
    """Fails for a tag that is closed out of order; collects what is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def checked(page: str) -> str:
    parser = _Balanced()
    parser.feed(page)
    assert parser.open == []
    assert all(address.startswith("data:") for address in parser.loaded)
    assert "alert(" not in page.replace("&lt;script&gt;alert(", "")
    assert "@import" not in page
    assert "url(" not in page
    return page


def summary(**changes: Any) -> dict[str, Any]:
    told = {
        "algorithm": EVIL, "data": EVIL, "clients": 3, "rounds": 2, "dim": 5, "privacy": "record", "epsilon": 1.5,
        "delta": 1e-5, "unit": "record", "adjacency": "replace-one", "adversary": "server", "promise": EVIL,
        "public": [EVIL], "clients_own": [], "entropy": "seeded: a simulation", "compressor": EVIL,
        "protection": [{"adversary": EVIL, "protected": "one record", "epsilon": 1.5},
                       {"adversary": "itself", "protected": "one record", "epsilon": None}],
        "uplink_bits_per_client": 320, "uplink_bits_total": 960, "train_loss": 0.5, "test_metric": 0.9,
        "test_metric_name": "accuracy", "test_records": 100, "seconds": 1.0, "records_per_client": [10, 20],
        "outlook": {"verdict": "noisy", "sentence": EVIL}, "findings": [{"what": EVIL, "change": EVIL}],
    }  # fmt: skip
    return {**told, **changes}


def rows(*losses: float) -> list[dict[str, Any]]:
    return [
        {
            "round": k, "train_loss": loss, "grad_norm_sq_mean": loss, "test_metric": 1 - loss / 2,
            "epsilon": float(k), "uplink_bits_per_client": 160 * k,
        }
        for k, loss in enumerate(losses)
    ]  # fmt: skip


def test_a_run_page_is_complete_and_nothing_in_it_is_markup() -> None:
    page = checked(run_page([summary()], [rows(1.0, 0.7, 0.5)], REPEAT))
    for heading in (
        "promised, and to whom",
        "The result",
        "What was sent",
        "taken as public",
        "What limits",
        "repeat",
    ):
        assert re.search(f"<h2>[^<]*{heading}", page), heading
    assert "40 bytes" in page
    assert "0.9 (0.826 to 0.945)" in page, "Wilson's interval"
    assert "no protection" in page
    assert page.index("Not covered by the promise") < page.index("training loss")


def test_a_page_of_a_table_says_what_is_predicted_and_from_what() -> None:
    said = {
        "target": {"column": EVIL, "task": "binary", "classes": ["no", "yes"]},
        "person": {"column": "patient"},
        "columns": {
            "age": {"type": "number", "unit": "years", "range": [0, 100]},
            "pressure": {"type": "number", "range": [87.4, 175], "within": [40, 300], "missing": "indicate"},
            "weight": {"type": "number", "range": "learn", "within": [0, 300]},
            "ward": {"type": "category", "categories": [*"abcdefghijklmn", EVIL], "other": True},
            "seen": {"type": "date", "range": [datetime.date(2020, 1, 1), datetime.date(2025, 1, 1)]},
        },
        "left_out": {"name": EVIL},
    }
    page = checked(run_page([summary()], [rows(1.0, 0.5)], REPEAT, said))
    for words in (
        "(no or yes) from 5 columns",
        "0 to 100 years",
        "87.4 to 175 (learned)",
        "learned, within 0 to 300",
        "k, l, 3 more, any other",
        "2020-01-01 to 2025-01-01",
        "rows with the same patient at a client are one person",
    ):
        assert words in page, words
    assert page.index("What was promised") < page.index("from 5 columns") < page.index("The result")


def test_a_result_is_compared_with_a_constant_and_what_noise_hides_is_named() -> None:
    seen, hidden = {"value": 0.8, "low": 0.7, "high": 0.9}, {"value": None, "low": 0.0, "high": 1.0}
    told = {"records": 50, "accuracy": seen, "auc": hidden, "groups": {}, "reliability": []}
    evaluation = {"all": told, "clients": {"a": told}, "epsilon_alone": 0.3, "loss_bound": 4.0}
    naive = [0.625, "always the most common class"]
    page = checked(run_page([summary(naive_metric=naive, evaluation=evaluation)], [rows(1.0, 0.5)], REPEAT))
    assert "accuracy 0.625 (always the most common class)" in page
    assert "not shown: AUC." in page


def test_persons_are_counted_as_persons() -> None:
    bar = {"value": 0.8, "low": 0.7, "high": 0.9}
    told = {"records": 50, "accuracy": bar, "groups": {}, "reliability": []}
    evaluation = {"epsilon_alone": 0.3, "loss_bound": 4.0, "all": told, "clients": {}}
    for units, others in (("persons", "records"), ("records", "persons")):
        page = checked(run_page([summary(counted=units, evaluation=evaluation)], [rows(1.0, 0.5)], REPEAT))
        for said in ("100 test {}:", "other test {}.", "<dt>{} per client", "Measured on 50 {} that"):
            assert said.format(units) in page
            assert said.format(others) not in page


def test_the_gap_between_two_groups_is_told_once() -> None:
    bar = {"value": 0.1, "low": -0.1, "high": 0.2}
    for names, gap, lines in ((["f", "m"], "gap to m", 1), (["f", "m", "x"], "gap to all others", 3)):
        groups = {name: {"accuracy": bar, "accuracy_gap": bar} for name in names}
        told = {"records": 50, "accuracy": bar, "groups": groups, "reliability": []}
        evaluation = {"epsilon_alone": 0.3, "loss_bound": 4.0, "all": told, "clients": {}}
        page = checked(run_page([summary(evaluation=evaluation)], [rows(1.0, 0.5)], REPEAT))
        assert gap in page
        assert page.count("no difference can be seen") == lines


def test_learned_ranges_are_not_among_what_is_public() -> None:
    learned = {"epsilon_alone": 0.8, "ranges": {"dose": [1.0, 2.0]}}
    for changes, said in (
        ({}, "columns, ranges, "),
        ({"learned": learned}, "ranges (not those that were learned)"),
    ):
        assert said in checked(run_page([summary(schema=True, **changes)], [rows(1.0, 0.5)], REPEAT))


def test_a_test_set_of_the_clients_own_records_is_not_covered() -> None:
    page = checked(run_page([summary(not_covered=["test_metric"])], [rows(1.0, 0.5)], REPEAT))
    assert "The test records belong to the clients" in page
    assert "belong to no client" not in page


def test_a_comparison_marks_what_was_measured_on_the_clients_own_records() -> None:
    """Also if the first of its runs promises nothing, and so names nothing that it does not cover."""
    own = summary(not_covered=["train_loss", "test_metric"])
    entries = [("plain", [summary(privacy="none")], [rows(1.0, 0.5)]), ("a", [own], [rows(1.0, 0.5)])]
    row = {
        "algorithm": "a",
        "seeds": 1,
        "privacy": "record",
        "epsilon": 1.5,
        "test_metric": 0.1234567,
        "rounds": 2,
    }
    table = [{**row, "uplink_bits_per_client": 320, "tuned": {}}]
    page = checked(comparison_page(entries, table, REPEAT, tuned=False, diverged=[]))
    assert "The test records belong to the clients" in page
    assert "belong to no client" not in page
    covered = re.sub(r'(?s)<section class="not-covered">.*?</section>', "", page)
    assert "test accuracy" not in covered
    assert "0.1234567" not in covered
    assert "What was promised" in covered


def test_without_privacy_nothing_reads_like_a_promise() -> None:
    none = summary(
        privacy="none", epsilon=None, delta=None, unit=None, adversary=None, adjacency=None, outlook=None
    )
    page = checked(run_page([none], [rows(1.0, 0.5)], REPEAT))
    assert "Not private" in page
    assert "epsilon =" not in page


def test_a_comparison_page_marks_who_is_not_private() -> None:
    table = [
        {"algorithm": name, "seeds": 2, "privacy": privacy, "epsilon": 1.5, "test_metric": 0.9, "rounds": 2,
         "uplink_bits_per_client": 320, "tuned": {"algorithm.step": 0.1}}
        for name, privacy in (("a", "record"), (EVIL, "none"))
    ]  # fmt: skip
    entries = [
        ("a", [summary(), summary(test_metric=0.8)], [rows(1.0, 0.5), rows(1.0, 0.6)]),
        (EVIL, [summary(privacy="none")], [rows(1.0, 0.4)]),
        ("gone", [], []),
    ]
    page = checked(comparison_page(entries, table, REPEAT, tuned=True, diverged=[f"{EVIL} at 1"]))
    assert "a:</span> From what was sent" in page
    assert f"{EVIL.replace('<', '&lt;').replace('>', '&gt;').replace(chr(39), '&#x27;')}: not private." in page
    assert "Tuning is not paid for" in page


def test_a_comparison_page_shows_evaluations_and_a_run_page_what_was_learned() -> None:
    bar = {"value": 0.8125, "low": 0.7, "high": 0.9}
    told = {"all": {"records": 50, "auc": bar, "loss": bar}, "clients": {}}
    entries = [
        (EVIL, [summary(evaluation=told, seed=0), summary(evaluation=told, seed=1)], [rows(1.0, 0.5)] * 2),
        ("b", [summary(evaluation=told)], [rows(1.0, 0.4)]),
    ]
    page = checked(comparison_page(entries, [], REPEAT, tuned=False, diverged=[]))
    assert "How good it is for new records" in page
    assert page.count("AUC") >= 1
    assert "mean loss" in page.partition("How good it is for new records")[2].partition("What was sent")[0]
    # A regression's error stands for its loss, in a unit that people know.
    told = {"all": {"records": 50, "error": bar, "loss": bar}, "clients": {}, "error_is": "in days"}
    entries = [(name, [summary(evaluation=told)], [rows(1.0, 0.5)]) for name in ("a", "b")]
    page = checked(comparison_page(entries, [], REPEAT, tuned=False, diverged=[]))
    assert "error: in days" in page
    assert "mean loss" not in page.partition("How good it is for new records")[2].partition("What was sent")[0]
    learned = {"epsilon_alone": 0.3, "ranges": {EVIL: [0.0, 5.0]}}
    page = checked(run_page([summary(learned=learned)], [rows(1.0, 0.5)], REPEAT))
    assert "alone epsilon 0.3; included above" in page


def test_a_comparison_page_lists_the_columns_of_the_schema(tmp_path: Path) -> None:
    """As public as in the schema: a range that every run learned for itself is told as learned."""
    schema = {
        "target": {"column": "cost", "task": "regression", "range": [0, 100]},
        "columns": {
            EVIL: {"type": "number", "range": [0.5, 9.5]},
            "dose": {"type": "number", "range": [3, 4], "within": [0, 1000]},
        },
        "left_out": {"name": "identifies a person"},
    }
    (tmp_path / "schema.toml").write_text(tomli_w.dumps(schema))
    told = summary(run_dir=str(tmp_path))
    found = compared_schema([Outcome("gone", {}, [], []), Outcome("a", {}, [told], [])])
    entries = [("a", [told], [rows(1.0, 0.5)])]
    page = checked(comparison_page(entries, [], REPEAT, tuned=False, diverged=[], schema=found))
    for words in (
        "What the models predict, and from what",
        "0.5 to 9.5",
        "within 0 to 1000",
        "identifies a person",
    ):
        assert words in page
    assert "3 to 4" not in page


def test_client_level_pages_do_not_tell_numbers_of_records() -> None:
    """The record counts of these clients appear nowhere, in no number and in no sentence."""
    data = load("breast-cancer", clients=3, partition="dirichlet:0.5", seed=1)
    model = logistic_regression(features=data.feature_shape[0])
    algorithm = dp_normfedavg(model, local_steps=1, local_step=0.1, step=0.5)
    run = simulate(plan(algorithm, data, rounds=2, privacy=Target(5.0, 1e-3), seed=0))
    history = [vars(row) for row in run.history]
    page = checked(run_page([run.summary()], [history], replace(REPEAT, recipe="")))
    counts = {str(n) for n in (*data.sizes.tolist(), data.records)}
    assert not counts & set(re.findall(r"\d[\d.]*\d|\d", re.sub(r"<svg.*?</svg>|<style>.*?</style>", "", page)))
    assert "protected" in page


@pytest.mark.parametrize(
    ("lines", "drawn"),
    [
        ([Line("a", [0, 1], [math.nan, 1.0])], 1),
        ([Line("a", [3], [2.0])], 1),
        ([Line("a", [0, 1], [1.0, 1.0]), Line(EVIL, [0, 1], [0.0, 0.0], [-1, -1], [1, 1])], 4),
    ],
)
def test_charts_draw_what_there_is_inside_the_box(lines: Sequence[Line], drawn: int) -> None:
    svg = line_chart(lines, EVIL, "y")
    assert svg.count("<polyline") == drawn
    assert "<script" not in svg
    for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", " ".join(re.findall(r'points="([^"]*)"', svg))):
        assert 0 <= float(x) <= 360
        assert 0 <= float(y) <= 300


def test_intervals_are_drawn_to_scale_and_named() -> None:
    rows = [Interval(EVIL, 0.5, 0.25, 0.75), Interval("b", 0.5), Interval("c", None, 0.0, 1.0)]
    svg = interval_chart(rows, "accuracy", fixed=(0, 1))
    assert "unknown (0 to 1)" in svg
    assert svg.count("<circle") == 2
    assert "0.5 (0.25 to 0.75)" in svg
    assert "<script" not in svg
    assert re.search(r'class="whisker" d="M94\.0 \d+H266\.0"', svg)


def test_error_bars_are_those_of_the_textbooks() -> None:
    bar = share_interval("a", 1.0, 50)
    assert bar.high == 1.0
    assert bar.low == pytest.approx(0.9287, abs=1e-4)
    several = mean_interval("a", [0.8, 0.9, 1.0])
    assert (several.low, several.high) == pytest.approx((0.6516, 1.1484), abs=1e-4)
    joint = joint_interval(several, share_interval("a", 0.9, 100))
    assert joint.high == 1.0
    assert joint.low is not None
    assert several.low is not None
    assert joint.low < several.low
    assert mean_interval("a", [0.8]).low is None


@pytest.mark.parametrize("adversary", list(Adversary))
@pytest.mark.parametrize("unit", ["record", "person", "client"])
def test_every_promise_has_words(adversary: Adversary, unit: str) -> None:
    assert "than epsilon = 2 at delta = 1e-05 allows" in plain_promise(2.0, 1e-5, unit, str(adversary))
    assert "they guess right at most" in plain_meaning(2.0, 1e-5, unit, str(adversary))
    assert all(words for adjacency in Adjacency for _, words in glossary(unit, str(adversary), str(adjacency)))


def test_persons_are_named_as_such() -> None:
    page = checked(run_page([summary(public=[PERSONS])], [rows(1.0, 0.5)], REPEAT))
    assert "what the rows of any one person at a client contained" in page
    assert "One person with all rows" in page


def test_a_weaker_adjacency_promises_less() -> None:
    """Zero-out neighbours hide whether a record was used; hiding what it contained may cost twice as much."""
    weaker = summary(adjacency=str(Adjacency.ADD_REMOVE))
    page = checked(run_page([weaker], [rows(1.0, 0.5)], REPEAT))
    assert "whether any one record was used" in page
    assert "any one record contained" not in page
    assert "versions of one record" not in page
    # A page and a certificate tell the exact number of records, which hides no record that is or is not counted.
    assert "used or contributed nothing, counted either way" in page
    assert "number of records is public, and the same in both" in page
    assert "unbounded" not in page


def test_words_never_flatter_a_promise() -> None:
    assert [strength(e, 1e-5)[0] for e in (1.0, 1.01, 5.01, math.inf)] == ["good", "fair", "bad", "bad"]
    assert plain_promise(None, None, "record", "server") == "Nothing is promised to anybody."
    assert "cannot learn more" in plain_promise(1.0, 1e-5, "record", "shuffler")
    assert "strong" not in plain_promise(0.1, 0.5, "record", "server"), "every second record may be published"
    assert "and no more of them help it than agreed" in plain_promise(1.0, 1e-5, "record", "secure-sum")
    summed = plain_meaning(1.0, 1e-5, "record", "secure-sum")
    assert "everything" not in summed, "who knows all noise, or sees single messages, guesses better"
    for epsilon in (0.01, 0.5, 1.0, 4.0, 8.0, 20.0, 60.0):
        shown = float(re.search(r"at most ([\d.]+)%", plain_meaning(epsilon, 1e-5, "record", "server")).group(1))  # type: ignore[union-attr]
        exact = 100 * (math.exp(epsilon) + 1e-5) / (math.exp(epsilon) + 1)
        assert shown >= exact - 1e-9
        assert shown - exact < 5
    assert "100%" not in plain_meaning(8.0, 1e-5, "record", "server")
