"""Cells: the single runs that an experiment consists of, each done only once.

A cell is a function and plain settings. Its result is a JSON file named by a digest of both and of the code that
the function depends on, written in one step when the cell is done. So a killed experiment continues where it
stopped, experiments with common cells share their results, and edited code never shows old results.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from tacit._version import __version__
from tacit.algorithms.settings import Settings
from tacit.engine.files import write_atomically
from tacit.engine.identity import libraries
from tacit.engine.workers import Result, Workers, read_result
from tacit.experiments.dependencies import imports_digest

CellFunction = Callable[[Settings, Path | None], Result]
"""The function of a cell: from settings and the data directory to plain data for JSON."""


@dataclass(frozen=True)
class Cell:
    """One run. `work` is a module-level function, so that another process can find it."""

    work: CellFunction
    settings: Settings = field(hash=False)

    @property
    def digest(self) -> str:
        """A name that is equal for equal work, settings, versions of tacit and libraries, and imported code."""
        code = imports_digest(Path(inspect.getfile(self.work)))
        name = f"{self.work.__module__}.{self.work.__qualname__}"
        key = json.dumps([name, dict(self.settings), __version__, libraries(), code], sort_keys=True)
        return hashlib.sha256(key.encode()).hexdigest()[:20]


@dataclass(frozen=True)
class _StoredCell:
    """A cell as a task, whose result is a file."""

    cell: Cell
    place: Path
    data_dir: Path | None

    @property
    def endings(self) -> tuple[str, ...]:
        return (self.place.name,)

    def named(self) -> str:
        return f"{self.cell.digest}.json"

    def at(self, place: Path) -> _StoredCell:
        return replace(self, place=place)

    def stored(self) -> Result | None:
        return read_result(self.place)

    def run(self) -> Result:
        began = time.process_time()
        result = self.cell.work(self.cell.settings, self.data_dir)
        cost = {"processor_seconds": time.process_time() - began}
        kept = json.dumps({"asked": dict(self.cell.settings), **cost, **result})
        write_atomically(self.place, kept.encode())
        # This is what a later call will read: JSON turns tuples into lists, and keys into strings.
        return dict(json.loads(kept))


class Runner:
    """Runs cells in several processes, but never one whose result is already in the directory."""

    def __init__(
        self,
        directory: Path,
        *,
        data_dir: Path | None = None,
        workers: int | None = None,
        cluster: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.directory = directory
        self.data_dir = data_dir
        self._workers = Workers(workers, progress, cluster)
        self.costs: dict[str, float] = {}
        """CPU seconds of every requested run, by digest, including those done earlier; clear it to start a new
        count"""

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._workers.__exit__(kind, error, trace)

    def __call__(self, cells: Sequence[Cell]) -> list[Result]:
        """The results of the cells, in order."""
        digests = [cell.digest for cell in cells]
        named = zip(cells, digests, strict=True)
        results = self._workers([_StoredCell(c, self.directory / f"{d}.json", self.data_dir) for c, d in named])
        self.costs |= {d: r.get("processor_seconds", 0.0) for d, r in zip(digests, results, strict=True)}
        return [{**r, "settings": dict(cell.settings)} for cell, r in zip(cells, results, strict=True)]
