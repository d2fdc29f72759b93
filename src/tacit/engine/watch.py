"""Watching a run: watchers are told what happens, and write it to CSV files, TensorBoard, MLflow or elsewhere.

A watcher is told what the promise covers: rounds, epsilon spent, bits sent, and the test metric if the test
records are public. What was measured on the clients' records without noise (`history.MEASURED`) is only for
watchers that ask for it, because logs are often read by people who may not see that.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tacit.engine.files import write_atomically
from tacit.engine.history import MEASURED, HistoryRow
from tacit.engine.plan import Plan
from tacit.errors import DataError, RequestError, unknown_name


class Watcher(Protocol):
    """Is told what happens in a run. An error in one of its methods ends the run."""

    measured: bool = False
    """whether it is also told what was measured without noise, which the promise does not cover"""

    def on_start(self, facts: Mapping[str, Any]) -> None:
        """Called before the first round, or when a run is resumed.

        Args:
            facts: algorithm, data, clients, parameters, rounds, epsilon and delta (None without privacy), promise
                (a sentence), round (those already done) and resumed.
        """
        ...

    def on_round(self, round: int, numbers: Mapping[str, float]) -> None:
        """Called after every evaluated round.

        Args:
            round: number of finished rounds.
            numbers: what is known by then, by name, such as epsilon and test_metric.
        """
        ...

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Called once, after the last round or when the run stops early.

        Args:
            result: `ended` ("finished", "stopped" or "failed"), `round`, and the last numbers.
        """
        ...


def _check(watchers: Any) -> None:
    """Refuses what cannot be told anything, before the first round."""
    if not isinstance(watchers, list | tuple):
        raise RequestError(f"watchers must be a list: write watchers=[{type(watchers).__name__}(...)]")
    for one in watchers:
        if isinstance(one, type):
            raise RequestError(
                f"a watcher must be an object, not the class {one.__name__}: write {one.__name__}()"
            )
        told = [name for name in ("on_start", "on_round", "on_end") if not hasattr(one, name)]
        if told or not hasattr(one, "measured"):
            raise RequestError(
                f"watcher {type(one).__name__} has no {' and '.join([*told] or ['measured'])}: derive it from "
                "tacit.Watcher"
            )


class Watch:
    """Tells the watchers of one run what they may know."""

    def __init__(self, plan: Plan, watchers: Sequence[Watcher]) -> None:
        _check(watchers)
        self._plan, self._watchers = plan, tuple(watchers)
        self._started: list[Watcher] = []
        self._last: HistoryRow | None = None

    def start(self, round: int, *, resumed: bool) -> None:
        """The run starts, or continues after `round` rounds."""
        if not self._watchers:
            return
        plan, guarantee = self._plan, self._plan.calibration.guarantee
        facts = {
            "algorithm": plan.algorithm.name,
            "data": plan.federation.name,
            "clients": plan.federation.clients,
            "parameters": plan.algorithm.work.model.dim,
            "rounds": plan.rounds,
            "epsilon": None if guarantee is None else guarantee.epsilon,
            "delta": None if guarantee is None else guarantee.delta,
            "promise": "no privacy: noise was switched off" if guarantee is None else guarantee.sentence(),
            "round": round,
            "resumed": resumed,
        }
        for watcher in self._watchers:
            watcher.on_start(facts)
            self._started.append(watcher)

    def row(self, row: HistoryRow) -> None:
        """A round was evaluated."""
        self._last = row
        for watcher in self._watchers:
            watcher.on_round(row.round, self._numbers(row, watcher.measured))

    def end(self, how: str) -> None:
        """The run ended: "finished", "stopped" by the user, or "failed"."""
        for watcher in self._started:
            numbers = {} if self._last is None else self._numbers(self._last, watcher.measured)
            watcher.on_end({"ended": how, "round": self._last.round if self._last else 0, **numbers})

    def _numbers(self, row: HistoryRow, measured: bool) -> dict[str, float]:
        """The numbers of a row that a watcher may know. Without a promise there is nothing to keep."""
        own_test = ("test_metric",) if self._plan.federation.test_is_private else ()
        hidden = () if measured or self._plan.calibration.guarantee is None else (*MEASURED, *own_test)
        known = {name: value for name, value in asdict(row).items() if value is not None and name not in hidden}
        del known["round"]
        return known


@dataclass
class CsvLog:
    """Writes one line per evaluated round to a CSV file.

    The file must not exist yet, unless its run is resumed: then lines of rounds that are repeated are dropped.

    Args:
        path: the file.
        measured: also write what was measured without noise.
    """

    path: Path | str
    measured: bool = False
    _columns: list[str] = field(default_factory=list, init=False, repr=False)

    def check(self, *, resumed: bool) -> None:
        """Refuses a file of another run, and a place that cannot be written to."""
        if Path(self.path).exists() and not resumed:
            raise RequestError(
                f"log {self.path} exists and is not overwritten: choose another file, or remove it"
            )
        above = next(place for place in Path(self.path).absolute().parents if place.exists())
        if not above.is_dir() or not os.access(above, os.W_OK):
            raise RequestError(f"log {self.path} cannot be written: {above} is not a directory to write to")

    def on_start(self, facts: Mapping[str, Any]) -> None:
        """Keeps the lines of a resumed run."""
        self.check(resumed=facts["resumed"])
        place, self._columns = Path(self.path), []
        if not place.exists():
            return
        header, *lines = place.read_text().splitlines() or [""]
        self._columns = header.split(",") if header else []
        if header and self._columns[0] != "round":
            raise DataError(f"{place} is not a log of tacit: its first column must be 'round', not {header!r}")
        rounds = [line.partition(",")[0] for line in lines]
        kept = [line for line, n in zip(lines, rounds, strict=True) if n.isdigit() and int(n) < facts["round"]]
        write_atomically(place, "".join(f"{line}\n" for line in (header, *kept) if line).encode())

    def on_round(self, round: int, numbers: Mapping[str, float]) -> None:
        """Appends a line."""
        place = Path(self.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if not self._columns:
                self._columns = ["round", *numbers]
                writer.writerow(self._columns)
            row = {"round": round, **numbers}
            writer.writerow([row.get(name, "") for name in self._columns])

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Nothing is left to write."""


@dataclass
class TensorBoardLog:
    """Writes scalars for TensorBoard, and the promise as a text. Needs `pip install 'tacit[tensorboard]'`.

    Args:
        directory: where the event files go.
        measured: also write what was measured without noise.
    """

    directory: Path | str
    measured: bool = False
    _writer: Any = field(default=None, init=False, repr=False)

    def check(self, *, resumed: bool) -> None:
        """Refuses if TensorBoard is not installed."""
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError as error:
            raise RequestError("a TensorBoard log needs the extra: pip install 'tacit[tensorboard]'") from error

    def on_start(self, facts: Mapping[str, Any]) -> None:
        """Opens the file and writes the promise."""
        self.check(resumed=facts["resumed"])
        from torch.utils.tensorboard import SummaryWriter

        # Rounds that are repeated after a crash replace those that were written before it.
        purge = facts["round"] if facts["resumed"] else None
        self._writer = SummaryWriter(str(self.directory), purge_step=purge)
        self._writer.add_text("promise", str(facts["promise"]), facts["round"])

    def on_round(self, round: int, numbers: Mapping[str, float]) -> None:
        """Writes a scalar for every number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round)

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Closes the file."""
        self._writer.close()
        self._writer = None


@dataclass
class MlflowLog:
    """Logs to an MLflow tracking server. Needs `pip install 'tacit[mlflow]'`.

    Args:
        uri: the address of the tracking server, such as "http://localhost:5000", or another tracking URI.
        run: the name of the run; MLflow makes one up unless it is given.
        experiment: the experiment that the run belongs to; it is created if it does not exist.
        measured: also log what was measured without noise.
    """

    uri: str
    run: str | None = None
    experiment: str = "tacit"
    measured: bool = False
    _client: Any = field(default=None, init=False, repr=False)
    _id: str = field(default="", init=False, repr=False)

    def check(self, *, resumed: bool) -> None:
        """Refuses if MLflow is not installed, or nothing answers at its address."""
        self._connected()

    def _connected(self) -> tuple[Any, Any]:
        """A client of the tracking server, and the experiment if it exists."""
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise RequestError("an MLflow log needs the extra: pip install 'tacit[mlflow]'") from error
        try:
            client = MlflowClient(tracking_uri=self.uri)
            return client, client.get_experiment_by_name(self.experiment)
        except Exception as error:
            raise RequestError(f"cannot log to mlflow:{self.uri}: {error}") from error

    def on_start(self, facts: Mapping[str, Any]) -> None:
        """Creates the run, with the facts as parameters and the promise as a tag."""
        self._client, found = self._connected()
        try:
            place = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
            self._id = self._client.create_run(place, run_name=self.run).info.run_id
        except Exception as error:
            raise RequestError(f"cannot log to mlflow:{self.uri}: {error}") from error
        for name, value in facts.items():
            if name == "promise":
                self._client.set_tag(self._id, name, value)
            else:
                self._client.log_param(self._id, name, value)

    def on_round(self, round: int, numbers: Mapping[str, float]) -> None:
        """Logs every number."""
        for name, value in numbers.items():
            self._client.log_metric(self._id, name, float(value), step=round)

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Ends the run with its status."""
        status = {"finished": "FINISHED", "stopped": "KILLED"}.get(str(result["ended"]), "FAILED")
        self._client.set_terminated(self._id, status=status)
        self._client = None


KINDS = ("csv:FILE", "tensorboard:DIRECTORY", "mlflow:URI")


Log = CsvLog | TensorBoardLog | MlflowLog


def parse_watcher(text: str, *, run: str | None = None, measured: bool = False) -> Log:
    """A watcher as `--log` names it. With `run`, the name of one of several runs, each has a log of its own.

    Its `check` says before a run starts whether the log can be written.

    >>> parse_watcher("csv:logs/all.csv", run="seed-3")
    CsvLog(path=PosixPath('logs/all-seed-3.csv'), measured=False)
    """
    kind, _, place = text.partition(":")
    if kind not in {known.partition(":")[0] for known in KINDS} or not place:
        raise unknown_name("--log", text, KINDS)
    if kind == "mlflow":
        return MlflowLog(place, run=run, measured=measured)
    path = Path(place)
    if kind == "tensorboard":
        return TensorBoardLog(path / run if run else path, measured)
    return CsvLog(path.with_name(f"{path.stem}-{run}{path.suffix}") if run else path, measured)
