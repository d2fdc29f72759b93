"""Watchers are told what the promise covers, in order, and their logs survive a crash."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.engine.history import MEASURED
from tacit.engine.logs import MlflowLog, TensorBoardLog, parse_watcher
from tacit.engine.watch import Watcher
from tacit.errors import RequestError
from tacit.sklearn import FederatedLogisticRegression


class Notebook(Watcher):
    """Keeps what it is told."""

    def __init__(self, measured: bool = False) -> None:
        self.measured, self.told = measured, list[tuple[str, Any]]()

    def on_start(self, facts: Mapping[str, Any]) -> None:
        self.told.append(("start", dict(facts)))

    def on_round(self, round: int, numbers: Mapping[str, float]) -> None:
        self.told.append((str(round), dict(numbers)))

    def on_end(self, result: Mapping[str, Any]) -> None:
        self.told.append(("end", dict(result)))


@pytest.fixture(scope="module")
def plan() -> tacit.Plan:
    federation = tacit.load("breast-cancer", clients=3, unit_norm=True)
    algorithm = tacit.soteriafl_gd(tacit.build_model("logistic", federation), step=0.5)
    return tacit.plan(algorithm, federation, rounds=4, privacy=tacit.Target(epsilon=4, delta=1e-5))


def _stop_at(round: int) -> Any:
    def progress(rounds: int, row: object) -> None:
        if rounds == round:
            raise KeyboardInterrupt

    return progress


class Half:
    """A watcher that was not derived from `Watcher`."""

    measured = False

    def on_round(self, round: int, numbers: Mapping[str, float]) -> None:
        raise AssertionError("the run must not start")


@pytest.mark.parametrize(
    ("watchers", "said"),
    [
        (Notebook(), r"must be a list: write watchers=\[Notebook\(...\)\]"),
        ([Notebook], r"not the class Notebook: write Notebook\(\)"),
        ([Half()], "watcher Half has no on_start and on_end: derive it from tacit.Watcher"),
    ],
)
def test_what_cannot_be_told_anything_is_refused(plan: tacit.Plan, watchers: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        tacit.simulate(plan, watchers=watchers)


def test_an_algorithm_is_no_plan(plan: tacit.Plan) -> None:
    not_planned: Any = plan.algorithm
    with pytest.raises(RequestError, match=r"simulate takes a plan, not Algorithm: tacit.plan\(algorithm"):
        tacit.simulate(not_planned)


def test_a_watcher_is_told_in_order_and_nothing_that_the_promise_does_not_cover(plan: tacit.Plan) -> None:
    plain, curious = Notebook(), Notebook(measured=True)
    run = tacit.simulate(plan, evaluate_every=2, watchers=[plain, curious])
    assert [what for what, _ in plain.told] == ["start", "0", "2", "4", "end"]
    facts, last, result = plain.told[0][1], plain.told[-2][1], plain.told[-1][1]
    assert run.guarantee is not None
    assert facts["promise"] == run.guarantee.sentence()
    assert facts["resumed"] is False
    assert result == {"ended": "finished", "round": 4, **last}
    assert last["epsilon"] == run.guarantee.epsilon
    assert last["test_metric"] == run.last.test_metric
    for _, numbers in plain.told:
        assert not set(numbers) & set(MEASURED)
    assert curious.told[-2][1]["train_loss"] == run.last.train_loss


def test_test_records_of_the_clients_are_not_told(plan: tacit.Plan) -> None:
    """With a schema, the test records are the clients' own."""
    import pandas as pd

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 90, 200), "site": rng.choice(["a", "b"], 200)})
    frame["ill"] = np.where(frame["age"] > 55, "yes", "no")
    own = tacit.Federation.from_frame(frame, target="ill", client="site", public_schema=True)
    algorithm = tacit.soteriafl_gd(tacit.build_model("logistic", own), step=0.5)
    made = tacit.plan(algorithm, own, rounds=2, privacy=tacit.Target(epsilon=4, delta=1e-5))
    plain, curious = Notebook(), Notebook(measured=True)
    run = tacit.simulate(made, watchers=[plain, curious])
    assert run.last.test_metric is not None
    assert "test_metric" not in plain.told[-1][1]
    assert curious.told[-1][1]["test_metric"] == run.last.test_metric


def test_a_stopped_run_says_so_and_a_log_that_cannot_be_closed_hides_nothing(plan: tacit.Plan) -> None:
    class Broken(Notebook):
        def on_end(self, result: Mapping[str, Any]) -> None:
            raise RuntimeError("the log server is gone")

    watcher = Notebook()
    with pytest.raises(KeyboardInterrupt):
        tacit.simulate(plan, evaluate_every=1, progress=_stop_at(2), watchers=[watcher, Broken()])
    assert watcher.told[-1][1]["ended"] == "stopped"
    assert watcher.told[-1][1]["round"] == 2


@pytest.mark.parametrize("at", [0, 1, 3])
def test_the_csv_log_of_a_resumed_run_is_that_of_one_never_stopped(
    plan: tacit.Plan, tmp_path: Path, at: int
) -> None:
    def logged(name: str, progress: Any = None) -> str:
        log = tacit.CsvLog(tmp_path / "logs" / f"{name}.csv")
        options: Any = {"evaluate_every": 1, "checkpoint_every": 2, "watchers": [log]}
        tacit.simulate(plan, out=tmp_path / name, progress=progress, **options)
        return Path(log.path).read_text()

    whole = logged(f"whole{at}")
    with pytest.raises(KeyboardInterrupt):
        logged(f"cut{at}", _stop_at(at))
    assert logged(f"cut{at}") == whole
    rows = list(csv.DictReader(whole.splitlines()))
    assert [row["round"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert float(rows[-1]["epsilon"]) <= 4


def test_a_csv_log_is_never_overwritten(plan: tacit.Plan, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("precious\n")
    with pytest.raises(RequestError, match="exists and is not overwritten"):
        tacit.simulate(plan, watchers=[tacit.CsvLog(tmp_path / "log.csv")])
    assert (tmp_path / "log.csv").read_text() == "precious\n"


def test_estimators_and_comparisons_are_watched(tmp_path: Path) -> None:
    watcher = Notebook()
    X, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    FederatedLogisticRegression(epsilon=4, rounds=2, random_state=0, watchers=[watcher]).fit(X, y)
    assert watcher.told[-1][1]["ended"] == "finished"
    base = tacit.Recipe(data="breast-cancer", clients=3, rounds=2)
    tacit.compare(base, ["ldp-sgd"], out=tmp_path, seeds=2, workers=1, logs=[f"csv:{tmp_path / 'all.csv'}"])
    points = {path.name for path in (tmp_path / "points").iterdir()}
    assert {path.name for path in tmp_path.glob("all-*.csv")} == {f"all-{name}.csv" for name in points}
    assert len(points) == 2
    with pytest.raises(RequestError, match="csv:FILE"):
        tacit.compare(base, ["ldp-sgd"], out=tmp_path, logs=["cvs:all.csv"])


def test_logs_by_name(tmp_path: Path) -> None:
    assert parse_watcher("tensorboard:boards", run="seed-1", measured=True) == TensorBoardLog(
        Path("boards/seed-1"), True
    )
    assert parse_watcher("mlflow:http://host:5000", run="one") == MlflowLog("http://host:5000", run="one")
    for wrong in ("csv", "csv:", "excel:a.xls"):
        with pytest.raises(RequestError, match="--log"):
            parse_watcher(wrong)


def test_tensorboard(plan: tacit.Plan, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra: pip install 'tacit[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tacit.simulate(plan, evaluate_every=2, watchers=[tacit.TensorBoardLog(tmp_path)])
    seen = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in seen.Scalars("epsilon")] == [0, 2, 4]
    assert seen.Scalars("test_metric")[-1].value == pytest.approx(run.last.test_metric)
    assert "train_loss" not in seen.Tags()["scalars"]
    assert len({event.wall_time for event in seen.Scalars("epsilon")}) == 1


def test_logs_do_not_tell_how_long_rounds_took(
    plan: tacit.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`seconds` is among what no promise covers, and both tools would note the time of every line."""
    times: list[tuple[str, object]] = []

    class Writer:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def add_text(self, *_: Any) -> None: ...

        def add_scalar(self, name: str, value: float, round: int, walltime: float | None) -> None:
            times.append(("board", walltime))

        def close(self) -> None: ...

    class Client:
        def __init__(self, tracking_uri: str) -> None: ...

        def get_experiment_by_name(self, name: str) -> Any:
            return SimpleNamespace(experiment_id="0")

        def create_run(self, experiment: str, run_name: str | None) -> Any:
            return SimpleNamespace(info=SimpleNamespace(run_id="7"))

        def log_param(self, *_: Any) -> None: ...

        set_tag = log_param

        def log_metric(self, *_: Any, timestamp: int | None, step: int) -> None:
            times.append(("flow", timestamp))

        def set_terminated(self, run: str, status: str, end_time: int | None) -> None:
            times.append(("flow", end_time))

    for name, content in (
        ("torch.utils.tensorboard", {"SummaryWriter": Writer}),
        ("mlflow.tracking", {"MlflowClient": Client}),
    ):
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    open_plan = tacit.plan(plan.algorithm, plan.federation, rounds=4, privacy="none")
    for measured, one, free in ((False, plan, False), (True, plan, True), (False, open_plan, True)):
        times.clear()
        logs = [tacit.TensorBoardLog(tmp_path, measured), tacit.MlflowLog("file:here", measured=measured)]
        tacit.simulate(one, watchers=logs)
        noted = dict(times)
        assert len(noted) == 2 < len(times)
        assert len(set(times)) == 2, "one time for each log"
        assert all((time is None) == free for time in noted.values())


def test_mlflow_gets_parameters_metrics_and_a_status(plan: tacit.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with the methods of MLflow's client that are used."""
    calls: list[tuple[Any, ...]] = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            calls.append(("client", tracking_uri))

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_experiment(self, name: str) -> str:
            return f"id of {name}"

        def create_run(self, experiment: str, run_name: str | None) -> Any:
            calls.append(("run", experiment, run_name))
            return SimpleNamespace(info=SimpleNamespace(run_id="7"))

        def log_param(self, run: str, key: str, value: Any) -> None:
            calls.append(("param", run, key, value))

        def set_tag(self, run: str, key: str, value: Any) -> None:
            calls.append(("tag", run, key))

        def log_metric(self, run: str, key: str, value: float, timestamp: int, step: int) -> None:
            calls.append(("metric", run, key, step))

        def set_terminated(self, run: str, status: str, end_time: int) -> None:
            calls.append(("end", run, status))

    module = ModuleType("mlflow.tracking")
    module.MlflowClient = Client  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", module)
    tacit.simulate(plan, evaluate_every=4, watchers=[tacit.MlflowLog("file:here", run="mine")])
    assert calls[:2] == [("client", "file:here"), ("run", "id of tacit", "mine")]
    assert ("param", "7", "algorithm", "soteriafl-gd") in calls
    assert {call for call in calls if call[:3] == ("metric", "7", "epsilon")} == {
        ("metric", "7", "epsilon", 0),
        ("metric", "7", "epsilon", 4),
    }
    assert ("tag", "7", "promise") in calls
    assert calls[-1] == ("end", "7", "FINISHED")


def test_a_server_that_cannot_be_reached_is_named(plan: tacit.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tracking_uri: str) -> None:
        raise OSError("connection refused")

    module = ModuleType("mlflow.tracking")
    module.MlflowClient = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", module)
    with pytest.raises(RequestError, match="cannot log to mlflow:http://nowhere: connection refused"):
        tacit.simulate(plan, watchers=[tacit.MlflowLog("http://nowhere")])
    with pytest.raises(RequestError, match="connection refused"):
        tacit.MlflowLog("http://nowhere").check(resumed=False)  # before a run's directory is made


@pytest.mark.parametrize(
    ("log", "package", "extra"),
    [
        (TensorBoardLog("x"), "torch.utils.tensorboard", "tensorboard"),
        (MlflowLog("x"), "mlflow.tracking", "mlflow"),
    ],
)
def test_a_missing_extra_is_named(
    plan: tacit.Plan, monkeypatch: pytest.MonkeyPatch, log: Watcher, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RequestError, match=rf"tacit\[{extra}\]"):
        tacit.simulate(plan, watchers=[log])


def test_the_name_of_a_log_tells_nothing_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads logs could test guesses about one record by a digest of all of them."""
    found = []
    for place, last in (("one", 0.25), ("other", 0.75)):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        features = np.linspace(-1, 1, 60, dtype=np.float32).reshape(30, 2)
        features[-1] = last
        for name in ("a.npz", "b.npz"):
            np.savez(name, X=features, y=np.arange(30) % 2)
        base = tacit.Recipe(data="a.npz,b.npz", data_settings={"target": "y"}, model="logistic", rounds=2)
        tacit.compare(base, ["ldp-sgd"], out=Path("out"), workers=1, logs=["csv:all.csv"])
        found.append(sorted(path.name for path in Path().glob("all-*.csv")))
    assert found[0] == found[1] != []
