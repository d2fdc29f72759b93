"""Runs tasks once each, several at a time: the grids of `compare` and the cells of `reproduce`."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from tacit.errors import DataError, TacitError, count

Result = dict[str, Any]
"""The result of a run, as plain data for JSON."""


class StoredRun(Protocol):
    """A run whose result is stored under a path that identifies everything the result depends on."""

    @property
    def place(self) -> Path:
        """Where the result is stored; equal for tasks that are the same run."""
        ...

    def stored(self) -> Result | None:
        """The result, if the run has already ended."""
        ...

    def run(self) -> Result:
        """Runs it and stores the result in one step, so that a killed run has no result."""
        ...


class Workers:
    """Processes that run tasks, but never one that has already ended.

    They live as long as this object, so that later tasks can use the data they have loaded.

    Args:
        workers: maximum number of processes; by default one per core. With 1, tasks run in this process.
        progress: called with the number of finished tasks and the number requested so far.
    """

    def __init__(self, workers: int | None = None, progress: Callable[[int, int], None] | None = None) -> None:
        self._workers = os.cpu_count() or 1 if workers is None else count("workers", workers)
        self._progress = progress
        self._pool: ProcessPoolExecutor | None = None
        self._asked = self._done = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._pool is not None:
            # Running tasks may finish, and their results are kept; waiting ones would only delay the user.
            self._pool.shutdown(cancel_futures=True)

    def __call__(self, tasks: Sequence[StoredRun]) -> list[Result]:
        """The results of the tasks, in order. An error in one of them cancels those that are waiting."""
        named = {task.place: task for task in tasks}
        found = {place: task.stored() for place, task in named.items()}
        waiting = [task for place, task in named.items() if found[place] is None]
        self._asked += len(named)
        self._note(len(named) - len(waiting))
        if self._workers == 1 or (len(waiting) <= 1 and self._pool is None):
            for task in waiting:
                found[task.place] = task.run()
                self._note(1)
        else:
            found |= self._in_processes(waiting)
        results = {place: result for place, result in found.items() if result is not None}
        return [results[task.place] for task in tasks]

    def _in_processes(self, waiting: Sequence[StoredRun]) -> dict[Path, Result]:
        if self._pool is None:
            # PyTorch's threads do not survive a fork, so processes are spawned, and only as needed.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=begin_worker)
        found = {}
        running = {self._pool.submit(task.run): task.place for task in waiting}
        try:
            for future in as_completed(running):
                found[running[future]] = future.result()
                self._note(1)
        except BrokenProcessPool as error:
            raise TacitError(
                "a process was killed, perhaps because memory ran out; finished results are kept: start it again "
                "to continue, with fewer --workers if memory was short"
            ) from error
        finally:
            for future in running:
                future.cancel()
        return found

    def _note(self, done: int) -> None:
        self._done += done
        if self._progress is not None:
            self._progress(self._done, self._asked)


def read_result(path: Path) -> Result | None:
    """A result stored as a JSON file, or None if there is no such file."""
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is corrupted: {error}; remove it to repeat the run") from error
    if not isinstance(result, dict):
        raise DataError(f"{path} is corrupted: not a JSON object; remove it to repeat the run")
    return result


def begin_worker() -> None:
    """Initialises a pool's worker: one thread, because there are other workers, and it ends with its parent."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this worker if its parent is killed; it would write to directories that the next one uses."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers have one"
    parent.join()
    os._exit(1)
