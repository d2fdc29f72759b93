"""Logs of runs, as watchers that write: CSV files, TensorBoard and MLflow."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.engine.files import write_atomically
from tacit.errors import DataError, RequestError, unknown_name


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


def _time_of_all(facts: Mapping[str, Any], *, measured: bool) -> float | None:
    """The time that a log states for every round; None if each round's own may be known.

    How long rounds take depends on the records, and no promise covers it.
    """
    return None if measured or facts["epsilon"] is None else time.time()


@dataclass
class TensorBoardLog:
    """Writes scalars for TensorBoard, and the promise as a text. Needs `pip install 'tacit[tensorboard]'`.

    All rounds have the time of the start, unless `measured` is set.

    Args:
        directory: where the event files go.
        measured: also write what was measured without noise.
    """

    directory: Path | str
    measured: bool = False
    _writer: Any = field(default=None, init=False, repr=False)
    _time: float | None = field(default=None, init=False, repr=False)

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
        self._time = _time_of_all(facts, measured=self.measured)
        self._writer.add_text("promise", str(facts["promise"]), facts["round"])

    def on_round(self, round: int, numbers: Mapping[str, float]) -> None:
        """Writes a scalar for every number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round, walltime=self._time)

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Closes the file."""
        self._writer.close()
        self._writer = None


@dataclass
class MlflowLog:
    """Logs to an MLflow tracking server. Needs `pip install 'tacit[mlflow]'`.

    All rounds and the end have the time of the start, unless `measured` is set. The server itself sees when it is
    told of them.

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
    _time: int | None = field(default=None, init=False, repr=False)

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
        started = _time_of_all(facts, measured=self.measured)
        self._time = None if started is None else int(1000 * started)
        for name, value in facts.items():
            if name == "promise":
                self._client.set_tag(self._id, name, value)
            else:
                self._client.log_param(self._id, name, value)

    def on_round(self, round: int, numbers: Mapping[str, float]) -> None:
        """Logs every number."""
        for name, value in numbers.items():
            self._client.log_metric(self._id, name, float(value), timestamp=self._time, step=round)

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Ends the run with its status."""
        status = {"finished": "FINISHED", "stopped": "KILLED"}.get(str(result["ended"]), "FAILED")
        self._client.set_terminated(self._id, status=status, end_time=self._time)
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
