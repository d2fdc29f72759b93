"""The command line as a user meets it."""

from __future__ import annotations

import json
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.warm import Warm, tacit

from tacit.client.sampling import SAMPLINGS

PLAIN = ["--data=breast-cancer", "--clients=3", "--rounds=4", "--batch=0.5", "--step=0.1"]
SMALL = [
    *PLAIN,
    "--algorithm=soteriafl-svrg",
    "--compressor=rand-k:0.5",
    "--set=algorithm.snapshot_probability=0.2",
]

KEYS = [
    "algorithm",
    "data",
    "clients",
    "records",
    "records_per_client",
    "dim",
    "rounds",
    "epsilon",
    "delta",
    "unit",
    "adjacency",
    "adversary",
    "sampling",
    "sampling_rate",
    "clip_norm",
    "noise_std",
    "noise_multiplier",
    "uplink_bits_per_client",
    "uplink_bits_total",
    "gradient_evaluations",
    "train_loss",
    "grad_norm_sq",
    "grad_norm_sq_mean",
    "test_metric",
    "test_metric_name",
    "seconds",
    "run_dir",
]


@dataclass(frozen=True)
class Done:
    """What an in-process call of the command line left behind."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """The command line in this process, in an empty directory: no waiting for another PyTorch."""
    from tacit.cli.app import main

    def call(*arguments: str) -> Done:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["tacit", *arguments])
        code = 0
        try:
            main()
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 0
        seen = capsys.readouterr()
        return Done(code, seen.out, seen.err)

    return call


Inside = Callable[..., Done]


def test_run_prints_one_json_object_and_leaves_a_run_directory(inside: Inside, tmp_path: Path) -> None:
    done = inside("run", *SMALL, "--epsilon=2", "--json", "--out=here")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert not set(KEYS) - set(summary)
    assert 0 < summary["epsilon"] <= 2
    assert summary["unit"] == "record"
    assert summary["adjacency"] == "replace-one"
    assert summary["adversary"] == "server"
    assert len(summary["protection"]) >= 4
    records = [row for row in summary["protection"] if row["protected"] == "one record"]
    assert max(row["epsilon"] or 0 for row in records) == summary["epsilon"]
    files = {path.name for path in (tmp_path / "here").iterdir()}
    assert files == {
        "recipe.toml", "history.csv", "summary.json", "ledger.jsonl", "model.safetensors", "model.json",
        "checkpoints", "report.html",
    }  # fmt: skip
    again = inside("run", "here/recipe.toml", "--out=there", "--json")
    assert again.returncode == 0, again.stderr
    first, second = (tmp_path / d / "model.safetensors" for d in ("here", "there"))
    assert first.read_bytes() == second.read_bytes()
    finished = inside("run", "--resume", "--out=here", "--json")
    assert json.loads(finished.stdout)["seconds"] == summary["seconds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--algorithm=soteria-svrg"], "did you mean 'soteriafl-svrg'"),
        (["run", "--data=digit"], "did you mean 'digits'"),
        (["run", "--epsilon=0"], "epsilon must be"),
        (["run", "--delta=2"], "delta must be"),
        (["run", "--rounds=0"], "rounds must be"),
        (["run", "--set=colour=red"], "unknown setting 'colour'"),
        (["run", "--resume"], "--resume needs --out"),
        (["run", "missing.toml"], "cannot read recipe"),
        (["run", "--data=a9a", "--data-dir=nowhere"], "data_dir='nowhere' is not a directory"),
        (["compare", "--algorithm=cdp-sgd,nothing"], "unknown algorithm 'nothing'"),
        (["compare", "--grid=stp=1,2"], "unknown setting 'stp'"),
        (["plan", "--records=10"], "needs --clients, --records and --dim"),
        (["plan", "--clients=2", "--records=9", "--dim=2"], "needs --classes, or a --model"),
        (["plan", "--clients=2", "--records=9", "--dim=2", "--data=digits"], "or the recipe file, --data"),
        (
            ["plan", "--clients=2", "--records=9", "--dim=2", "--model=svm", "--set=data=digits"],
            "plan without data",
        ),
        (["plan", "--choose", "--step=5"], "leave out --step"),
        (["plan", "--trials=2"], "need --choose"),
        (["run", "--clients=ten"], "--clients"),
        (["run", "--batch=inf", "--set=algorithm.sampling=poisson", "--algorithm=ldp-sgd"], "batch must be"),
        (["run", "--set=algorithm.step=0"], "step must be"),
        (["run", "--set=device=nowhere"], "device 'nowhere'"),
        (["run", "--set=data.colour=1"], "data.colour"),
        (["run", "--set=model.ridge=abc"], "ridge must be"),
        (["run", "--set=memory_limit_mb=-1"], "memory_limit_mb"),
        (["run", "--compressor="], "compressor"),
        (
            ["run", "--algorithm=soteriafl-gd", "--batch=0.1"],
            "'soteriafl-gd' takes no batch; it takes bound, clip_norm, compressor",
        ),
        (["run", "--set=kappa=1"], "for kappa write algorithm.kappa"),
        (
            ["compare", "--algorithm=ldp-sgd", "--compressor=natural"],
            "none of the chosen algorithms takes compressor: ldp-sgd takes",
        ),
        (["rnu"], "No such command"),
    ],
)
def test_wrong_requests_exit_with_2_and_name_the_setting(
    arguments: list[str], message: str, inside: Inside, tmp_path: Path
) -> None:
    done = inside(*arguments)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_said_so(inside: Inside) -> None:
    done = inside("run", *SMALL, "--out=/dev/null/here")
    assert done.returncode == 2
    assert "nothing can be written to /dev/null; choose another directory" in " ".join(done.stderr.split())


def test_a_directory_is_not_overwritten_and_not_mixed_up(inside: Inside, tmp_path: Path) -> None:
    assert inside("run", *SMALL, "--out=here").returncode == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "here").rglob("*")}
    twice = inside("run", *SMALL, "--out=here")
    assert twice.returncode == 2
    assert "add --resume" in " ".join(twice.stderr.split())
    mixed = inside("run", *SMALL, "--out=here", "--resume", "--seed=3")
    assert mixed.returncode == 2
    assert "seed = 0, asked for 3" in " ".join(mixed.stderr.split())
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "here").rglob("*")}


def test_a_run_without_privacy_says_so_everywhere(inside: Inside, tmp_path: Path) -> None:
    settings = [*SMALL, "--set=privacy=none", "--out=here"]
    shown = inside("run", *settings)
    assert "for everyone" not in shown.stdout, "the page has what only the researcher may see"
    assert "NOT PRIVATE" in shown.stdout
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert summary["privacy"] == "none"
    assert summary["epsilon"] is None
    assert summary["noise_std"] == 0
    assert json.loads((tmp_path / "here" / "ledger.jsonl").read_text().splitlines()[0])["privacy"] == "none"
    assert 'privacy = "none"' in (tmp_path / "here" / "recipe.toml").read_text()
    assert (
        '<div class="verdict bad"><p class="word">Not private</p>' in (tmp_path / "here/report.html").read_text()
    )


def test_seeds_repeat_a_run(inside: Inside, tmp_path: Path) -> None:
    done = inside("run", *SMALL, "--seeds=2", "--json", "--out=here")
    runs = json.loads(done.stdout)["runs"]
    assert [run["seed"] for run in runs] == [0, 1]
    assert runs[0]["train_loss"] != runs[1]["train_loss"]
    page = (tmp_path / "here" / "report.html").read_text()
    assert "95% interval of the mean over 2 seeds" in page
    assert "each of the 2 runs alone" in page
    assert not (tmp_path / "here" / "seed-0" / "report.html").exists()


def test_an_evaluation_is_printed_stored_and_on_the_page(inside: Inside, tmp_path: Path) -> None:
    done = inside("run", *SMALL, "--evaluate=0.3", "--set=evaluation.epsilon_share=0.5", "--out=here")
    assert done.returncode == 0, done.stderr
    assert "137 records, with 95% bars: accuracy" in done.stdout
    told = json.loads((tmp_path / "here" / "summary.json").read_text())["evaluation"]
    assert told["all"]["records"] == 137
    assert 0 <= told["all"]["accuracy"]["low"] <= told["all"]["accuracy"]["high"] <= 1
    page = (tmp_path / "here" / "report.html").read_text()
    assert "How good it is for new records" in page
    assert "client 2" in page


def test_compare_tunes_each_algorithm_and_never_runs_a_point_twice(inside: Inside, tmp_path: Path) -> None:
    arguments = [
        "compare", "--algorithm=cdp-sgd,ldp-sgd", *PLAIN, "--compressor=rand-k:0.5",
        "--grid=algorithm.step=0.05,0.2", "--seeds=2", "--json", "--out=here", "--workers=1",
    ]  # fmt: skip
    done = inside(*arguments)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [row["algorithm"] for row in rows] == ["cdp-sgd", "ldp-sgd"]
    assert all(row["seeds"] == 2 and row["tuned"]["algorithm.step"] in (0.05, 0.2) for row in rows)
    assert rows[0]["epsilon"] == rows[1]["epsilon"]
    bare = ["train_loss", "grad_norm_sq_mean"]
    tuned = ["tuned", "at_the_edge"]
    assert rows[0]["not_covered"] == [*bare, *(f"{name}_at_equal_bits" for name in reversed(bare)), *tuned]
    assert rows[0]["equal_bits"] == rows[0]["uplink_bits_per_client"] < rows[1]["uplink_bits_per_client"]
    summaries = {p: p.stat().st_mtime_ns for p in (tmp_path / "here").rglob("summary.json")}
    assert len(summaries) == 2 * 2 + 2
    assert {"comparison.csv", "comparison.png", "comparison.svg", "report.html"} <= {
        p.name for p in (tmp_path / "here").iterdir()
    }
    page = (tmp_path / "here" / "report.html").read_text()
    assert "cdp-sgd; ldp-sgd:</span> From what was sent" in page
    assert "No epsilon here includes that." in page
    again = json.loads(inside(*arguments).stdout)
    assert (again["rows"], again["points"], again["points_already_there"]) == (rows, 6, 6)
    assert json.loads(done.stdout)["points_already_there"] == 0
    assert summaries == {p: p.stat().st_mtime_ns for p in (tmp_path / "here").rglob("summary.json")}


def test_the_same_comparison_finds_its_own_directory(inside: Inside, tmp_path: Path, undrawn: None) -> None:
    arguments = ["compare", "--algorithm=ldp-sgd", *PLAIN, "--grid=algorithm.step=0.1,1e42", "--workers=1"]
    first, second, other = inside(*arguments), inside(*arguments), inside(*arguments, "--epsilon=1")
    assert "0 of 2 runs were already there" in first.stdout
    assert "ldp-sgd diverged at step 1e+42, seed 0" in first.stdout
    assert "2 of 2 runs were already there" in second.stdout
    assert "0 of 2 runs were already there" in other.stdout
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_what_diverged_has_a_row_without_numbers(inside: Inside, undrawn: None) -> None:
    arguments = [
        "compare", "--algorithm=ldp-sgd,accelerated-mb-sgd", *PLAIN, "--set=algorithm.stages=[[4, 10.0]]",
        "--set=algorithm.step=1e42", "--workers=1", "--out=here",
    ]  # fmt: skip
    lost, kept = json.loads(inside(*arguments, "--json").stdout)["rows"]
    assert (lost["seeds"], lost["train_loss"], lost["epsilon"], lost["diverged"]) == (
        0,
        None,
        None,
        [{"seed": 0}],
    )
    assert kept["train_loss"] is not None
    assert "diverged" in inside(*arguments).stdout


def test_a_plan_without_data_says_so_and_its_recipe_waits_for_them(inside: Inside, tmp_path: Path) -> None:
    arguments = [
        "plan", "--clients=3", "--records=100", "--dim=5", "--model=logistic", "--epsilon=2",
        "--algorithm=ldp-sgd", "--rounds=10",
    ]  # fmt: skip
    said = "no data was read: 3 clients with 100 records each, 5 features"
    assert said in " ".join(inside(*arguments).stdout.split())
    sheet = json.loads(inside(*arguments, "--choose", "--trials=2", "--out=plan.toml", "--json").stdout)
    unfilled = inside("run", "plan.toml")
    assert unfilled.returncode == 2
    assert "unknown data set 'fill-in-your-data'" in " ".join(unfilled.stderr.split())
    filled = inside("run", "plan.toml", "--data=breast-cancer", "--rounds=2", "--json", "--out=here")
    assert 0 < json.loads(filled.stdout)["epsilon"] <= 2
    assert sheet["shape"] == {
        "clients": 3, "records_per_client": 100, "features": 5, "classes": 2, "feature_norm": 1.0,
    }  # fmt: skip
    assert sheet["recipe"] == (tmp_path / "plan.toml").read_text()


def test_a_choice_ends_with_the_command_to_run(inside: Inside) -> None:
    done = inside(
        "plan", "--choose", "--data=breast-cancer", "--clients=5", "--algorithm=noisy-mb-sgd", "--trials=1"
    )
    assert max(map(len, done.stdout.splitlines())) <= 80
    command = done.stdout[done.stdout.index("  tacit run") :]
    # As a shell reads lines that end with a backslash.
    summary = json.loads(inside(*shlex.split(command.replace("\\\n", ""))[1:], "--json", "--out=here").stdout)
    assert summary["epsilon"] <= 8
    assert summary["test_metric"] > 0.9


def test_several_models_are_repeated_or_separated_by_commas_and_need_a_choice(inside: Inside) -> None:
    arguments = ["plan", "--data=breast-cancer", "--clients=5", "--algorithm=noisy-mb-sgd", "--rounds=5"]
    for models in (["--model=logistic", "--model=svm"], ["--model=logistic,svm"]):
        sheet = json.loads(inside(*arguments, *models, "--choose", "--trials=0", "--json").stdout)
        assert {row["model"] for row in sheet["candidates"]} == {"logistic", "svm"}
    refused = inside(*arguments, "--model=logistic", "--model=svm")
    assert refused.returncode == 2
    assert "several models need --choose" in refused.stderr


def test_compare_at_several_epsilons_shows_twins_as_not_private(inside: Inside, tmp_path: Path) -> None:
    arguments = [
        "compare", "--algorithm=mb-sgd,noisy-mb-sgd", "--data=breast-cancer", "--clients=3", "--rounds=3",
        "--set=algorithm.step=0.1", "--at=epsilon=0.5,2", "--seeds=2", "--workers=1", "--out=here",
    ]  # fmt: skip
    done = inside(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["algorithm"], row["at"]) for row in rows] == [
        (name, {"epsilon": value}) for value in (0.5, 2) for name in ("mb-sgd", "noisy-mb-sgd")
    ]
    assert [row["epsilon"] is None for row in rows] == [True, False, True, False]
    assert 0 < rows[1]["epsilon"] <= 0.5 < rows[3]["epsilon"] <= 2
    # What promises nothing is the same at every epsilon, and is run once.
    assert rows[0]["train_loss"] == rows[2]["train_loss"]
    assert len(list((tmp_path / "here" / "points").iterdir())) == 2 + 2 * 2
    printed = inside(*arguments).stdout
    assert "not private" in printed
    assert "Losses are measured on the clients' records without noise" in " ".join(printed.split())


def test_list_names_everything(inside: Inside) -> None:
    groups = json.loads(inside("list", "--json").stdout)
    assert {"algorithms", "models", "data", "partitions", "compressors", "samplings"} == set(groups)
    assert "soteriafl-svrg" in groups["algorithms"]
    assert set(groups["samplings"]) == {*SAMPLINGS, "full"}
    assert "soteriafl-svrg" in inside("list").stdout


def test_theory_answers_for_the_recipe_at_hand(inside: Inside) -> None:
    sheet = json.loads(
        inside("theory", "--clip-norm=2.1", "--step=0.5", "--set=data.unit_norm=true", "--json").stdout
    )
    assert sheet["algorithm"] == "soteriafl-sgd"
    assert sheet["covered"]
    assert sheet["bound"] == pytest.approx(sum(sheet["terms"].values()))
    shown = inside(
        "theory", "--algorithm=noisy-mb-sgd", "--set=algorithm.projection=ball:2", "--rounds=5",
        "--set=data.unit_norm=true", "--step=0.5", "--clip-norm=2.1",
    )  # fmt: skip
    assert "Lemma D.6" in shown.stdout
    assert "Lower bound (Theorem 4.2" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    silent = inside("theory", "--data=breast-cancer", "--epsilon=4", "--delta=1e-5")
    assert "feature_norm" in silent.stdout
    for wrong in ("--assume=smoothness", "--set=algorithm.bound_from=quantile:0.1"):
        refused = inside("theory", "--algorithm=fed-spa", wrong)
        assert refused.returncode == 2, refused.stdout
        assert refused.stderr


def test_a_users_own_file_is_a_data_set(inside: Inside, tmp_path: Path) -> None:
    rows = [f"{i % 7},{(i * 5) % 3},{'ab'[i % 2]},{i % 2}" for i in range(60)]
    (tmp_path / "patients.csv").write_text("age,stage,hospital,ill\n" + "\n".join(rows) + "\n")
    refused = inside("run", "--data=patients.csv")
    assert refused.returncode == 2
    assert "ill (task, classes)" in " ".join(refused.stderr.split())
    drafted = inside("schema", "draft", "patients.csv", "--out=schema.toml")
    assert drafted.returncode == 0, drafted.stderr
    assert "Clients are named by hospital." in " ".join((drafted.stdout + drafted.stderr).split())
    checked = inside("schema", "check", "patients.csv", "--schema=schema.toml")
    assert checked.returncode == 0, checked.stderr
    assert "Still to confirm" in checked.stdout
    assert "18 rows repeat an earlier row" in checked.stdout
    persons = (
        (tmp_path / "schema.toml").read_text().replace("[columns.stage]", '[person]\ncolumn = "stage"\n\n[x]')
    )
    (tmp_path / "persons.toml").write_text(re.sub(r"\[x\]\n(.+\n)*", "", persons))
    shared = inside("schema", "check", "patients.csv", "--schema=persons.toml")
    assert "3 persons have rows at several clients" in shared.stdout, shared.stderr
    assert "3 persons have more than 8 rows at a client" in " ".join(shared.stdout.split())
    run = ["run", "--data=patients.csv", "--schema=schema.toml", "--rounds=2", "--json"]
    unconfirmed = inside(*run)
    assert unconfirmed.returncode == 2
    assert "looked_at" in unconfirmed.stderr
    accepted = inside(*run, "--public-schema", "--out=accepted")
    assert accepted.returncode == 0, accepted.stderr
    assert "classes of ill" in json.loads(accepted.stdout)["promise"]
    text = (tmp_path / "schema.toml").read_text()
    (tmp_path / "schema.toml").write_text(re.sub(r"looked_at = .*\n", "", text))
    confirmed = json.loads(inside(*run, "--out=confirmed").stdout)
    assert (confirmed["clients"], confirmed["records"]) == (2, 48)
    assert "schema" not in confirmed["promise"]
    assert "test_metric" in confirmed["not_covered"]


def test_help_does_not_wait_for_torch(tmp_path: Path) -> None:
    code = "import sys, tacit.cli.app; assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_killed_at_any_moment_it_resumes_bit_for_bit(inside: Inside, tmp_path: Path) -> None:
    """Kills of real processes at random moments, checkpoints after every round, then the same parameters."""
    arguments = [*SMALL[:2], "--rounds=70", *SMALL[3:], "--set=checkpoint_every=1", "--set=evaluate_every=10"]
    assert inside("run", *arguments, "--out=whole").returncode == 0
    moments, checkpoints = random.Random(0), tmp_path / "killed" / "checkpoints"
    command = ["run", *arguments, f"--out={tmp_path / 'killed'}"]
    for begun, first in (([], 1), (["--resume"], 30)):
        process = Warm(tacit, *command, *begun, output=tmp_path / "output.txt")
        # Somewhere in some round.
        reached = f"round-{moments.randrange(first, first + 20):08d}"
        while process.poll() is None and not any(path.name >= reached for path in checkpoints.glob("round-*")):
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "it was over before it was killed"
    last = inside("run", *arguments, "--out=killed", "--resume")
    assert last.returncode == 0, last.stderr
    whole, resumed = (tmp_path / d / "model.safetensors" for d in ("whole", "killed"))
    assert whole.read_bytes() == resumed.read_bytes()
    assert not list((tmp_path / "killed").rglob("*.part"))
