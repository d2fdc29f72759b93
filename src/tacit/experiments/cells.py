"""Cells: the single runs that an experiment is made of, each of which is done once.

A cell is a function and plain settings. Its result is a JSON file named by a digest of both and of the code that
the function depends on, written in one step when the cell is done; so an experiment that was killed goes on where
it was, experiments that share cells share their results, and an edited one never shows what it found before.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

from tacit._version import __version__
from tacit.engine.files import write_atomically
from tacit.engine.workers import begin_worker
from tacit.errors import TacitError, count
from tacit.experiments.dependencies import code_digest

Settings = Mapping[str, Any]
Result = dict[str, Any]
Work = Callable[[Settings, Path | None], Result]
"""What a cell does: from settings and the data directory to plain data for JSON."""


@dataclass(frozen=True)
class Cell:
    """One run. `work` is a function of a module, so that another process can find it."""

    work: Work
    settings: Settings = field(hash=False)

    @property
    def digest(self) -> str:
        """A name: equal for equal work, settings, versions of tacit and PyTorch, and code that it imports."""
        code = code_digest(Path(inspect.getfile(self.work)))
        name = f"{self.work.__module__}.{self.work.__qualname__}"
        said = json.dumps([name, dict(self.settings), __version__, version("torch"), code], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:20]


class Runner:
    """Runs cells in several processes, and never one that is already there.

    The processes live as long as the runner, so that the data which they have loaded serve the next cells.
    """

    def __init__(
        self,
        directory: Path,
        *,
        data_dir: Path | None = None,
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.directory = directory
        self.data_dir = data_dir
        self._workers = os.cpu_count() or 1 if workers is None else count("workers", workers)
        self._progress = progress
        self._pool: ProcessPoolExecutor | None = None
        self._asked = self._done = 0
        self.costs: dict[str, float] = {}
        """processor seconds of every run that was asked for, by digest, also of those that were already there;
        for who counts anew to clear"""

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def __call__(self, cells: Sequence[Cell]) -> list[Result]:
        """The results of the cells, in their order."""
        paths = {cell.digest: self.directory / f"{cell.digest}.json" for cell in cells}
        waiting = {cell.digest: cell for cell in cells if not paths[cell.digest].is_file()}
        self._asked += len(paths)
        self._note(len(paths) - len(waiting))
        if self._workers == 1:
            for digest, cell in waiting.items():
                _run(cell, paths[digest], self.data_dir)
                self._note(1)
        elif waiting:
            running = [
                self._processes().submit(_run, cell, paths[d], self.data_dir) for d, cell in waiting.items()
            ]
            try:
                for future in as_completed(running):
                    future.result()
                    self._note(1)
            finally:
                for future in running:
                    future.cancel()
        results = {digest: _read(path) for digest, path in paths.items()}
        self.costs |= {digest: result.get("processor_seconds", 0.0) for digest, result in results.items()}
        return [{**results[cell.digest], "settings": dict(cell.settings)} for cell in cells]

    def _processes(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Threads of PyTorch and forked processes do not go together.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=begin_worker)
        return self._pool

    def _note(self, done: int) -> None:
        self._done += done
        if self._progress is not None:
            self._progress(self._done, self._asked)


def _run(cell: Cell, path: Path, data_dir: Path | None) -> None:
    began = time.process_time()
    result = cell.work(cell.settings, data_dir)
    cost = {"processor_seconds": time.process_time() - began}
    write_atomically(path, json.dumps({"asked": dict(cell.settings), **cost, **result}).encode())


def _read(path: Path) -> Result:
    try:
        result = json.loads(path.read_text())
    except ValueError as error:
        raise TacitError(f"{path} is corrupted: {error}; delete it, and the run is done again") from error
    if not isinstance(result, dict):
        raise TacitError(f"{path} is corrupted: not a JSON object; delete it, and the run is done again")
    return result
