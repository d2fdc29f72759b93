"""Runs that are each done once, several at a time: for grids of `compare` and cells of `reproduce`."""

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
"""What a run found, as plain data for JSON."""


class StoredRun(Protocol):
    """A run whose result is kept in a place that is named by all that the result depends on."""

    @property
    def place(self) -> Path:
        """Where the result is kept: equal for tasks that are the same run."""
        ...

    def stored(self) -> Result | None:
        """The result, if the run has ended before."""
        ...

    def run(self) -> Result:
        """Do it, and keep the result in one step, so that a run that was killed has not ended."""
        ...


class Workers:
    """Processes that run tasks, and never one that has ended before.

    They live as long as this object, so that the data which they have loaded serve the next tasks.

    Args:
        workers: how many processes at most; by default one for every core. With 1, tasks run in this process.
        progress: told how many tasks have ended, and how many were asked for so far.
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
            # What runs may end and is kept; what waits would only keep the user waiting.
            self._pool.shutdown(cancel_futures=True)

    def __call__(self, tasks: Sequence[StoredRun]) -> list[Result]:
        """The results of the tasks, in their order. An error of one of them cancels those that wait."""
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
            # Threads of PyTorch and forked processes do not go together; these start as they are needed.
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
                "a process was killed, perhaps because memory ran out; what is finished is kept: start it again "
                "to go on, with fewer --workers if memory was short"
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
    """A result that was kept as a JSON file, or None if there is no such file."""
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is corrupted: {error}; remove it, and the run is done again") from error
    if not isinstance(result, dict):
        raise DataError(f"{path} is corrupted: not a JSON object; remove it, and the run is done again")
    return result


def begin_worker() -> None:
    """For a pool's initializer: one thread, because there are other workers, and an end with the parent's."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker outlives a parent that was killed, and would go on in directories where the next one starts."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers have one"
    parent.join()
    os._exit(1)
