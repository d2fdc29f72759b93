"""`tacit account` and `tacit plan` as a user meets them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

import tacit.cli.app
from tacit.cli import account, compare, plan, run
from tacit.privacy.promises.rounding import up_to

SMALL = ["--data=breast-cancer", "--clients=3", "--rounds=4", "--batch=0.5", "--algorithm=soteriafl-sgd"]
BARE = ["account", "--noise-multiplier=1.1", "--rounds=1000", "--delta=1e-5"]


@dataclass(frozen=True)
class Done:
    """What an in-process call of the command line left behind."""

    returncode: int
    stdout: str
    stderr: str


Inside = Callable[..., Done]


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """The command line in this process, with these verbs, in an empty directory."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command("account")(account.account)
    app.command("compare")(compare.compare)
    app.command("plan")(plan.plan)
    app.command("run")(run.run)
    monkeypatch.setattr(tacit.cli.app, "app", app)

    def call(*arguments: str) -> Done:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "160")
        monkeypatch.setattr(sys, "argv", ["tacit", *arguments])
        code = 0
        try:
            tacit.cli.app.main()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 0
        seen = capsys.readouterr()
        return Done(code, seen.out, seen.err)

    return call


@pytest.mark.parametrize(
    ("sampling", "epsilon"),
    [
        (["--sampling=poisson", "--adjacency=add-remove", "--rate=0.01"], 1.52),
        (["--sampling=poisson", "--adjacency=replace-one", "--rate=0.01"], 2.48),
        (["--sampling=poisson", "--records=1000", "--batch=10"], 2.48),
        (["--sampling=without-replacement", "--records=1000", "--batch=10"], 10.96),
        pytest.param(
            ["--sampling=with-replacement", "--records=1000", "--batch=10"], 13.14, marks=pytest.mark.slow
        ),
        (["--sampling=full"], 1897),
        (["--sampling=one-pass"], 8.83),
    ],
)
def test_bare_numbers(sampling: list[str], epsilon: float, inside: Inside) -> None:
    done = inside(*BARE, *sampling, "--json")
    assert done.returncode == 0, done.stderr
    sheet = json.loads(done.stdout)
    assert sheet["source"] == "numbers"
    assert sheet["epsilon"] == pytest.approx(epsilon, rel=0.01)
    assert sheet["rdp_epsilon"] is None or sheet["rdp_epsilon"] >= sheet["epsilon"]
    assert sheet["cost_per_round"]["mean"] == sheet["epsilon"] / 1000
    assert [1000, sheet["epsilon"]] in sheet["epsilon_by_rounds"]
    assert [1e-5, sheet["epsilon"]] in sheet["epsilon_by_delta"]
    assert sheet["protection"][0]["epsilon"] == sheet["epsilon"]
    assert sheet["protection"][-1]["epsilon"] is None


def test_a_person_sees_tables_and_a_figure(inside: Inside, tmp_path: Path) -> None:
    done = inside(*BARE, "--rounds=10", "--sampling=poisson", "--rate=0.1", "--group=3", "--plot=cost.png")
    assert done.returncode == 0, done.stderr
    for text in ("epsilon", "second opinion", "who is protected against whom", "3 records together"):
        assert text in done.stdout
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["account"], "--sampling, --noise-multiplier, --rounds, --delta missing"),
        (["account", "--sampling=poisson"], "--noise-multiplier, --rounds, --delta missing"),
        ([*BARE, "--sampling=poison", "--rate=0.1"], "did you mean 'poisson'"),
        ([*BARE, "--sampling=poisson", "--rate=1.5"], "rate must be above 0 and at most 1"),
        ([*BARE, "--sampling=poisson", "--rate=0"], "rate must be"),
        ([*BARE, "--sampling=poisson", "--rate=0.1", "--delta=1"], "delta must be"),
        ([*BARE, "--sampling=poisson", "--rate=0.1", "--delta=0"], "delta must be"),
        ([*BARE, "--sampling=poisson", "--rate=0.1", "--delta=nan"], "delta must be"),
        ([*BARE, "--sampling=poisson", "--rate=0.1", "--rounds=-2"], "rounds must be"),
        ([*BARE, "--sampling=poisson", "--rate=0.1", "--noise-multiplier=nan"], "noise_multiplier must be"),
        ([*BARE, "--sampling=poisson", "--rate=0.1", "--adjacency=remove"], "unknown adjacency 'remove'"),
        ([*BARE, "--sampling=without-replacement", "--rate=0.1"], "needs records and batch"),
        (
            [*BARE, "--sampling=without-replacement", "--records=10", "--batch=2", "--adjacency=add-remove"],
            "cannot be used with fixed-size batches",
        ),
        ([*BARE, "--sampling=poisson", "--rate=0.1", "--epsilon=1"], "--epsilon works only with --published"),
        ([*BARE, "--sampling=poisson", "--rate=0.1", "--set=algorithm.step=1"], "--set changes a recipe"),
        ([*BARE, "--sampling=poisson", "--rate=0.1", "--group=1"], "groups must be"),
        ([*BARE, "--sampling=poisson", "--rate=0.1", "--plot=x.nothing"], "--plot x.nothing cannot be written"),
        (["account", "missing.toml"], "cannot read recipe"),
        (["account", "state"], "state does not exist: name a run's directory, a recipe, or a silo's folder"),
        (["account", "missing.toml", "--delta=1e-5"], "--delta cannot be combined with missing.toml"),
        (["account", "."], "no ledger.jsonl"),
        (["account", "--published=soteria"], "did you mean 'soteriafl'"),
        (["account", "--published=isrl-dp", "--epsilon=1"], "--delta, --records, --batch, --rounds missing"),
        (["account", "--published=isrl-dp", "x.toml"], "cannot be combined with a recipe"),
        (["account", "--published=isrl-dp", "--rate=0.1", "--epsilon=1", "--delta=1e-3", "--records=9",
          "--batch=2", "--rounds=3"], "--rate is not among them"),
        (["account", "--published=soteriafl", "--epsilon=nan", "--delta=1e-3", "--records=9", "--batch=2",
          "--rounds=3"], "epsilon must be"),
        (["plan", "--algorithm=sgd"], "unknown algorithm 'sgd'"),
        (["plan", "--epsilon=0"], "epsilon must be"),
        (["plan", "--set=privacy=none"], "no noise is needed"),
    ],
)  # fmt: skip
def test_wrong_requests_exit_with_2(arguments: list[str], message: str, inside: Inside, tmp_path: Path) -> None:
    done = inside(*arguments)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_a_recipe_and_its_run_have_the_same_account(inside: Inside, tmp_path: Path) -> None:
    assert inside("run", *SMALL, "--out=here").returncode == 0
    recipe = json.loads(inside("account", "here/recipe.toml", "--json").stdout)
    done = inside("account", "here", "--json")
    assert done.returncode == 0, done.stderr
    ledger = json.loads(done.stdout)
    assert (recipe["source"], ledger["source"]) == ("recipe", "run")
    assert ledger["agrees"] is True
    assert ledger["epsilon"] == pytest.approx(recipe["epsilon"], rel=1e-6)
    assert [client["rounds"] for client in ledger["clients"]] == [4, 4, 4]
    assert len(recipe["protection"]) == len(ledger["protection"]) == 8
    stricter = json.loads(inside("account", "here/recipe.toml", "--set=epsilon=1", "--json").stdout)
    assert stricter["epsilon"] <= 1
    said = inside("account", "here").stdout
    assert "agrees with the ledger" in said
    assert "3, each in 4 rounds; the largest cost is shown" in said
    assert "all records of a client" in inside("account", "here/recipe.toml").stdout


def test_a_summary_that_lies_exits_with_1(inside: Inside, tmp_path: Path) -> None:
    assert inside("run", *SMALL, "--out=here").returncode == 0
    path = tmp_path / "here" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "epsilon": 0.1}))
    done = inside("account", "here")
    assert done.returncode == 1
    assert "differs from the ledger" in done.stdout
    assert json.loads(inside("account", "here", "--json").stdout)["differences"]


def test_a_run_without_privacy_says_so(inside: Inside) -> None:
    assert inside("run", *SMALL, "--set=privacy=none", "--out=here").returncode == 0
    done = inside("account", "here")
    assert done.returncode == 0
    assert "NOT PRIVATE" in done.stdout
    assert json.loads(inside("account", "here", "--json").stdout)["epsilon"] is None


@pytest.mark.parametrize("paper", ["soteriafl", "fed-spa", "norm-fedavg"])
def test_published_tables(paper: str, inside: Inside) -> None:
    sheet = json.loads(inside("account", f"--published={paper}", "--json").stdout)
    assert sheet["source"] == "published"
    assert len(sheet["rows"]) >= 4
    assert "label" in inside("account", f"--published={paper}").stdout


def test_published_with_numbers(inside: Inside) -> None:
    done = inside(
        "account", "--published=soteriafl", "--epsilon=1", "--delta=1e-3", "--records=3256", "--batch=10",
        "--rounds=25", "--json",
    )  # fmt: skip
    (row,) = json.loads(done.stdout)["rows"]
    assert row["true"]["without replacement"] == pytest.approx(200, rel=0.02)


def test_plan(inside: Inside) -> None:
    arguments = [
        "plan",
        "--data=breast-cancer",
        "--clients=3",
        "--rounds=4",
        "--epsilon=2",
        "--algorithm=cdp-sgd,soteriafl-gd",
    ]
    done = inside(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    sheet = json.loads(done.stdout)
    assert sheet["target"] == {"epsilon": 2.0, "delta": 1e-5, "adjacency": "replace-one"}
    assert [row["algorithm"] for row in sheet["algorithms"]] == ["cdp-sgd", "soteriafl-gd"]
    assert [row["fraction"] for row in sheet["batches"]] == [0.01, 0.1, 0.3, 1.0]
    shown = inside(*arguments).stdout
    assert "noise std by batch" in shown
    assert "soteriafl-gd" in shown
    assert "next to a promise to whole clients" not in " ".join(shown.split())
    # A promise to whole clients protects their sizes, and lines about records show them.
    both = inside(*arguments[:-1], "--algorithm=soteriafl-gd,dp-fedavg").stdout
    assert "next to a promise to whole clients" in " ".join(both.split())


@pytest.mark.parametrize("algorithm", ["soteriafl-gd", "dp-normfedavg"])
def test_every_output_about_sums_has_two_epsilons(inside: Inside, tmp_path: Path, algorithm: str) -> None:
    """The promise, and what is left of it if all other parties help the server: the same in every output."""
    asked = [f"--algorithm={algorithm}", "--data=breast-cancer", "--clients=5", "--rounds=3", "--epsilon=2"]
    sums = [*asked, "--trust=sum"]
    assert inside("run", *sums, "--quiet", "--out=run").returncode == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    left = summary["epsilon_without_trust"]
    assert summary["epsilon"] < left < 20
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"If all other parties help the server, epsilon = {up_to(left)} is left." in page
    assert "quorum = 4\ncolluding = 1\n" in (tmp_path / "run" / "recipe.toml").read_text()
    for path in ("run", "run/recipe.toml"):
        rows = json.loads(inside("account", path, "--json").stdout)["protection"]
        told = {row["adversary"]: row["epsilon"] for row in rows[:2]}
        assert told == {
            "a server that opens only sums": pytest.approx(summary["epsilon"]),
            "the server and all other parties": pytest.approx(left),
        }
    said = "psilon if all other parties help the server:"
    assert f"{said} {up_to(left)} ({algorithm})" in " ".join(inside("plan", *sums).stdout.split())
    compared = inside("compare", *sums, "--out=compared")
    assert f"{said} {algorithm}: {up_to(left)}" in " ".join(compared.stdout.split())
    assert f"epsilon = {up_to(left)} is left" in (tmp_path / "compared" / "report.html").read_text()


def test_the_server_of_a_deployment_has_no_ledger_and_says_who_has(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "consortium" / "server" / "state").mkdir(parents=True)
    (tmp_path / "consortium" / "server" / "state" / "certificate.json").write_text("{}")
    for place in ("consortium", "consortium/server", "consortium/server/state"):
        told = inside("account", place)
        assert told.returncode == 2
        assert "tacit verify consortium/server/state/certificate.json" in " ".join(told.stderr.split())


def test_what_a_run_released_besides_its_rounds_is_told_apart(inside: Inside) -> None:
    """A fifth of epsilon for an evaluation: part of every number, and named on its own."""
    assert inside("run", "--rounds=2", "--epsilon=2", "--evaluate=0.2", "--out=evaluated").returncode == 0
    shown = inside("account", "evaluated").stdout
    assert "besides rounds" in shown
    assert json.loads(inside("account", "evaluated", "--json").stdout)["epsilon_besides_rounds"] == pytest.approx(
        0.4, rel=1e-3
    )
    assert inside("run", "--rounds=2", "--epsilon=2", "--out=plain").returncode == 0
    assert "besides" not in inside("account", "plain").stdout
    assert json.loads(inside("account", "plain", "--json").stdout)["epsilon_besides_rounds"] == 0
