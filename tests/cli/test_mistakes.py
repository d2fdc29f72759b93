"""Mistakes that people make in their first hour: what the command line says to them."""

from __future__ import annotations

import errno
import shlex
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from tacit.cli.app import app, main
from tacit.cli.show import RunProgress
from tacit.cli.tables import show_table
from tacit.engine.history import HistoryRow
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError, unknown_name

MODELS = """
from torch import nn

def few():
    return nn.Linear(64, 3)

def wide():
    return nn.Linear(32, 10)

def cell():
    return nn.Sequential(nn.LSTMCell(8, 6))

def branching():
    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    return Branching(64, 10)

def recurrent():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.LSTM(8, 6, batch_first=True)
            self.head = nn.Linear(6, 10)

        def forward(self, x):
            return self.head(self.memory(x.view(-1, 8, 8))[0][:, -1])

    return Recurrent()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory that Python does not search, as for an installed command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    return tmp_path


def _call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def _refused(*arguments: str) -> str:
    error = _call(*arguments).exception
    assert isinstance(error, RequestError)
    return str(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch=1.0"], "can mean one record or all of them"),
        (["--batch=1e0"], "can mean one record or all of them"),
        (["--batch=few"], "a count of records or a fraction below 1, not 'few'"),
        (["--batch=-3", "--algorithm=soteriafl-sgd"], "batch must be a whole number of records"),
        (["--batch=-3", "--algorithm=soteriafl-gd"], "takes no batch"),
        (["--set=data.test=0.2"], "did you mean 'data.test_fraction'? Known"),
        (
            ["--set=algorithm.clip_nrm=3"],
            "takes no clip_nrm; did you mean clip_norm? It takes batch, bound, clip_norm",
        ),
        (["--data=nowhere.csv"], "nowhere.csv does not exist"),
        (["--data=nowhere.parquet"], "nowhere.parquet does not exist"),
        (["--data=."], ". is a directory; name the files in it"),
        (["--data=table.csv.gz"], "table.csv.gz is compressed; unpack it first"),
        (["nowhere.toml"], "cannot read recipe nowhere.toml: No such file or directory"),
        (["--set=rounds='ten'"], "rounds must be a whole number, not 'ten'"),
        (["--device=gpu"], "device 'gpu' is not available: write cpu, cuda, cuda:1 or mps"),
        (["--resume", "--out=nowhere"], "there is no run in nowhere"),
        (["--resume"], "--resume needs --out"),
        (["--model=module:absent:make"], "No module named 'absent'; absent.py is not in the current directory"),
        (["--set=algoritm.batch=3"], "unknown setting 'algoritm.batch'; did you mean 'algorithm.batch'?"),
        (["--trust=nobody"], "trust must be 'sum'"),
        (["--model=module:absent.py:make"], "Write 'module:absent:make'"),
        (["--model=module:absent"], "names no function: write 'module:FILE:FUNCTION'"),
        (["--model=absent.py"], "write 'module:absent:FUNCTION'"),
        (["--schema=schema.toml"], "--schema describes a table of your own: name it with --data"),
        (["--device=cuda:99"], "Use a machine and a PyTorch with CUDA, or device cpu"),
        (["digits"], "are options: --data NAME, --algorithm NAME"),
        (["own.csv"], "own.csv is no recipe (TOML); your own records are an option: --data own.csv"),
        (["--set=data.unit_norm='no'"], "data.unit_norm must be true or false, not 'no'"),
        (["--data=own.csv,"], "has a comma without a file beside it"),
        (["--data=.."], "is a directory; name the files in it"),
        (["--data=/"], "is a directory; name the files in it"),
    ],
)
def test_wrong_requests_to_run(here: Path, arguments: list[str], message: str) -> None:
    assert message in _refused("run", *arguments, "--rounds=1")
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"evaluation = 0.2", "evaluation must be a table in own.toml, not 0.2: write [evaluation]"),
        ("# f\xfcr\nrounds = 1".encode("latin-1"), "it is not UTF-8 text; save it as UTF-8"),
        ("rounds = 'a'".encode("utf-8-sig"), "rounds must be a whole number, not 'a'"),
    ],
)
def test_recipes_that_cannot_be_read(here: Path, content: bytes, message: str) -> None:
    (here / "own.toml").write_bytes(content)
    assert message in _refused("run", "own.toml")


def test_a_setting_that_no_algorithm_takes_is_answered_by_a_similar_one() -> None:
    refused = _refused("compare", "--grid=algorithm.stp=1,2", "--rounds=1")
    assert refused == "none of the chosen algorithms takes stp; did you mean 'step'?"


def test_what_is_missing_is_named_with_an_example() -> None:
    pytest.importorskip("nvflare")
    assert _refused("deploy") == "--local is missing: the number of silos to rehearse with, such as --local 3"
    assert "either the name of an experiment or --all" in _refused("reproduce")
    assert "either the name of an experiment or --all" in _refused("reproduce", "norm-fig1", "--all")


def test_an_option_of_another_tool_is_answered_by_ours() -> None:
    said = _call("run", "--lr=0.1").output
    assert "--lr" in said
    assert "--step" in said
    assert "--log" not in said
    assert "evaluate_every=VALUE" in _call("run", "--evaluate-every=9").output


def test_a_name_is_never_suggested_for_itself(here: Path) -> None:
    said = _refused("run", "--set=data.options=3")
    assert "unknown setting of data 'data.options'" in said
    assert "did you mean 'data.options'" not in said


def test_a_typo_is_answered_by_similar_names_alone() -> None:
    assert _refused("run", "--set=runds=3") == "unknown setting 'runds'; did you mean 'rounds' or 'trust'?"
    assert "Known: a, b" in str(unknown_name("thing", "c", ["a", "b"]))


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("recurrent", "layer 'memory' (LSTM) has no gradients per record"),
        ("cell", "layer '0' (LSTMCell) has no gradients per record"),
        ("cell", "tacit.fix(module) replaces nn.LSTM, so use that, by"),
        ("few", "has 3 outputs, but 'digits' has 10 classes"),
        ("wide", "does not take a record with 64 features"),
        ("branching", "model 'module:first_hour_models:branching' has no gradients per record: vmap"),
    ],
)
def test_modules_of_the_current_directory_that_do_not_fit(here: Path, factory: str, message: str) -> None:
    (here / "first_hour_models.py").write_text(MODELS)
    assert message in _refused("run", f"--model=module:first_hour_models:{factory}", "--rounds=1")
    assert str(here) not in sys.path


@pytest.mark.parametrize(
    ("source", "message"), [("def make(:", "invalid syntax"), ("raise KeyError('mine')", "KeyError('mine')")]
)
def test_a_module_that_cannot_be_imported_is_named(here: Path, source: str, message: str) -> None:
    name = f"first_hour_broken_{len(source)}"
    (here / f"{name}.py").write_text(source)
    said = _refused("run", f"--model=module:{name}:make", "--rounds=1")
    assert f"'module:{name}:make' cannot be loaded" in said
    assert message in said


def test_a_schema_may_follow_its_table(here: Path) -> None:
    (here / "table.csv").write_text("age,ill\n" + "30,yes\n40,no\n" * 20)
    assert _call("schema", "draft", "table.csv", "--target=ill", "--out=schema.toml").exit_code == 0
    assert "table.csv fits schema.toml" in _call("schema", "check", "table.csv", "schema.toml").stdout
    assert "tacit schema check table.csv schema.toml" in _refused("schema", "check", "schema.toml", "table.csv")
    assert "tacit schema check table.csv schema.toml" in _refused("schema", "check", "table.csv")
    assert "two schemas" in _refused("schema", "check", "table.csv", "schema.toml", "--schema=schema.toml")


def test_a_check_says_that_other_takes_every_word_and_looks_at_used_rows_only(here: Path) -> None:
    (here / "table.csv").write_text("age,sex,ill\n" + "30,male,yes\n40,female,no\n" * 20 + "unknown,male,\n")
    target = '[target]\ncolumn = "ill"\ntask = "binary"\nclasses = ["no", "yes"]\nmissing = "leave-out"\n'
    sex = '[columns.sex]\ntype = "category"\ncategories = ["f", "m"]\nother = true\n'
    age = '[columns.age]\ntype = "number"\nrange = [0, 100]\n'
    (here / "schema.toml").write_text(f"{target}{sex}{age}")
    checked = _call("schema", "check", "table.csv", "schema.toml")
    assert checked.exit_code == 0, checked.output
    said = " ".join(checked.stdout.split())
    assert "No value of column 'sex' is one of its categories; 'male' and such are other." in said


def test_a_check_asks_about_persons_that_a_schema_overlooks(here: Path) -> None:
    rows = [f"{n % 90},{'fm'[n % 90 % 2]},{n % 90 // 5},{n // 7},{'yes' if n % 3 else 'no'}" for n in range(270)]
    (here / "table.csv").write_text("\n".join(["RANDREF,sex,region,pulse,ill", *rows]) + "\n")
    assert _call("schema", "draft", "table.csv", "--target=ill", "--out=schema.toml").exit_code == 0
    said = " ".join(_call("schema", "check", "table.csv", "schema.toml").stdout.split())
    assert "Rows with the same RANDREF agree in sex" in said
    assert 'add [person] with column = "RANDREF": without it, the promise is to single rows.' in said


def test_predictions_say_which_columns_seem_to_be_others(here: Path) -> None:
    """No row is refused, so a column in another unit would be predicted from without a word."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"height": rng.normal(170, 9, 120).round(), "site": rng.choice(["a", "b"], 120)})
    frame["tall"] = np.where(frame["height"] > 170, "yes", "no")
    frame.to_csv("cm.csv", index=False)
    frame.assign(height=frame["height"] / 100).to_csv("m.csv", index=False)
    schema = '[target]\ncolumn = "tall"\ntask = "binary"\nclasses = ["no", "yes"]\n[client]\ncolumn = "site"\n'
    Path("s.toml").write_text(f'{schema}[columns.height]\ntype = "number"\nunit = "cm"\nrange = [120, 220]\n')
    words = ["run", "--data", "cm.csv", "--schema", "s.toml", "--epsilon", "4", "--rounds", "2", "--out", "run"]
    assert CliRunner().invoke(app, words).exit_code == 0
    for table, doubted in (("cm.csv", False), ("m.csv", True)):
        done = CliRunner().invoke(app, ["predict", "run", table])
        assert done.exit_code == 0
        assert (
            "most values lie outside its public range, 120 to 220 cm" in " ".join(done.stderr.split())
        ) is doubted
        assert len(done.stdout.splitlines()) == 121


def test_predictions_without_a_schema_take_numbers_of_the_right_number(here: Path) -> None:
    assert _call("run", "--data=breast-cancer", "--rounds=1", "--out=run", "--quiet").exit_code == 0
    (here / "words.csv").write_text("age,ill\n30,yes\n")
    (here / "numbers.csv").write_text("age,size\n30,2\n")
    assert "this run has no schema" in _refused("predict", "run", "words.csv")
    assert "does not take rows with 2 features" in _refused("predict", "run", "numbers.csv")


def test_a_directory_that_cannot_be_written_to_is_refused_at_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert f"--out runs/mine: nothing can be written to {here}" in _refused(
        "run", "--out=runs/mine", "--rounds=1"
    )


def test_a_number_that_is_not_finite_is_named_with_its_column(here: Path) -> None:
    (here / "table.csv").write_text("age,income,ill\n30,1000,0\n40,inf,1\n50,2000,0\n60,3000,1\n")
    said = _call("schema", "draft", "table.csv").stdout
    assert '"income.missing"' in said, "an infinite number is a gap, and its column is named"


def test_parquet_without_pyarrow_says_what_to_install(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "table.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "fastparquet", None)
    said = _refused("schema", "draft", "table.parquet")
    assert "pip install 'tacit[parquet]'" in said


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("table.csv.gz", "is compressed; unpack it first: a table must be a .csv or .parquet file"),
        ("table.xlsx", "table.xlsx is a spreadsheet; save it as CSV: a table must be a .csv or .parquet file"),
        (".", ". is a directory, not a file"),
    ],
)
def test_a_draft_of_what_is_no_table(here: Path, table: str, message: str) -> None:
    if table != ".":
        (here / table).write_bytes(b"PK")
    assert message in _refused("schema", "draft", table, "--out=draft.toml")
    assert not (here / "draft.toml").exists()


def test_a_narrow_table_has_whole_names_and_fewer_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"algorithm": "soteriafl-sgd", **{f"a long heading {k}": "1.234e-01" for k in range(6)}}]
    show_table(rows, title="table", words=("algorithm",), console=Console(width=80))
    said = capsys.readouterr().out
    assert "soteriafl-sgd" in said
    assert "…" not in said
    assert '"a long heading 4"; "a long heading 5": widen' in " ".join(said.split())
    assert max(map(len, said.splitlines())) <= 80
    show_table(rows, title="table", words=("algorithm",), console=Console(width=160))
    assert "Too narrow" not in capsys.readouterr().out


def test_a_comparison_names_batches_that_differ_and_the_edge_of_its_grid(here: Path) -> None:
    done = _call(
        "compare", "--algorithm=soteriafl-gd,soteriafl-sgd", "--data=breast-cancer", "--clients=3", "--rounds=2",
        "--grid=algorithm.step=0.001,0.002", "--workers=1",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "at the edge of the grid: the best may be beyond it" in said
    assert "Batches they differ" in said
    assert "all (soteriafl-gd)" in said
    assert "(soteriafl-sgd)" in said
    assert "…" not in done.output


@pytest.mark.parametrize(
    ("data", "message"),
    [("missing.csv", "missing.csv does not exist"), ("text.npz", "text.npz cannot be read as npz")],
)
def test_a_comparison_that_fails_leaves_no_bar_and_no_directory(here: Path, data: str, message: str) -> None:
    (here / "text.npz").write_text("no archive")
    result = _call("compare", "--algorithm=cdp-sgd", f"--data={data}", "--rounds=1", "--workers=1", "--out=new")
    assert message in str(result.exception)
    assert not result.output.strip()
    assert not (here / "new").exists()


def test_sentences_about_protection_use_the_width_of_the_terminal() -> None:
    done = _call("account", "--sampling=full", "--noise-multiplier=9", "--rounds=2", "--delta=1e-5")
    assert done.exit_code == 0
    about = done.output.partition("who is protected against whom")[2].splitlines()
    assert max(map(len, about)) <= 80
    assert sum(len(line.strip()) > 60 for line in about) > 5


def test_an_interrupted_run_names_the_command_that_continues_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "run",
        "--data=breast-cancer",
        "--clients=3",
        "--rounds=6",
        "--set=checkpoint_every=2",
        "--out=my run",
    ]
    monkeypatch.setattr(sys, "argv", ["tacit", *words])
    with monkeypatch.context() as patched:
        patched.setattr(RunProgress, "__call__", _interrupt)
        stopped = _call(*words)
    assert stopped.exit_code == 130
    command = stopped.output.partition("from the last checkpoint:\n")[2].strip()
    assert shlex.split(command) == ["tacit", *words, "--resume"]
    continued = _call(*shlex.split(command)[1:], "--quiet")
    assert continued.exit_code == 0
    assert continued.output == ""
    assert (here / "my run" / "summary.json").is_file()


def test_an_interrupted_run_that_has_not_begun_names_no_command(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.engine.execute.make_plan", _stop)
    stopped = _call("run", "--out=early")
    assert stopped.exit_code == 130
    assert stopped.output.strip().endswith("Stopped. Nothing was begun.")
    assert not list(here.iterdir())


def test_an_interrupted_comparison_names_the_command_to_repeat(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["compare", "--algorithm=cdp-sgd", "--rounds=2", "--out=my points"]
    monkeypatch.setattr(sys, "argv", ["tacit", *words])
    monkeypatch.setattr("tacit.engine.compare.compare", _stop)
    stopped = _call(*words)
    assert stopped.exit_code == 130
    assert shlex.split(stopped.output.partition("To continue:\n")[2]) == ["tacit", *words]


def _stop(*asked: object, **options: object) -> None:
    raise KeyboardInterrupt


def _interrupt(self: RunProgress, rounds: int, row: object) -> None:
    if rounds == 4:
        raise KeyboardInterrupt


def test_a_log_that_cannot_be_written_is_refused_before_anything_is(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "log.csv").write_text("round\n")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert "log.csv exists" in _refused("run", "--rounds=1", "--log=csv:log.csv", "--out=new")
    assert "tacit[tensorboard]" in _refused("run", "--rounds=1", "--log=tensorboard:boards", "--out=new")
    assert "tacit[mlflow]" in _refused("compare", "--rounds=1", "--log=mlflow:http://localhost:1", "--out=new")
    assert "cannot be written" in _refused("run", "--rounds=1", "--log=csv:log.csv/below/log.csv", "--out=new")
    assert [path.name for path in here.iterdir()] == ["log.csv"]


def test_names_of_one_kind_can_be_listed() -> None:
    said = _call("list", "compressors").stdout
    assert "natural" in said
    assert "soteriafl-gd" not in said
    assert "did you mean 'compressors'" in _refused("list", "compressor")


def test_progress_says_when_its_epsilon_was_spent(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(Recipe(rounds=600), quiet=False) as progress:
        progress(12, HistoryRow(0, 1.0, 0.5, 0.5, 0.1, 0, 0, 0, 0.0, 0.0))
        progress(77, None)
    assert "77/600 at 0: epsilon 0" in capsys.readouterr().err


def test_progress_of_many_rounds_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with RunProgress(Recipe(algorithm="accelerated-mb-sgd", rounds=20000), quiet=False) as progress:
        progress(19000, HistoryRow(19000, 1.0, 0.5, 0.5, 0.1, 0, 0, 0, 7.995, 0.0))
    said = capsys.readouterr().err
    assert "19000/20000 at 19000: epsilon 8" in said
    assert "…" not in said


def test_a_full_disk_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tacit.cli.app.app", full)
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "No space left on device: free some, or write elsewhere with --out" in capsys.readouterr().err
