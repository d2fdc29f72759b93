"""Runs tasks once each, several at a time: the grids of `compare` and the cells of `reproduce`."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tacit.errors import DataError, RequestError, TacitError, count

Result = dict[str, Any]
"""The result of a run, as plain data for JSON."""


class StoredRun(Protocol):
    """A run whose result is stored under a path that identifies everything the result depends on."""

    @property
    def place(self) -> Path:
        """Where the result is stored; equal for tasks that are the same run."""
        ...

    @property
    def endings(self) -> tuple[str, ...]:
        """The names of files that end a run: written last, so that what was cut off has no result."""
        ...

    def named(self) -> str:
        """The name of the place, computed again from the code and the files of this machine."""
        ...

    def at(self, place: Path) -> Self:
        """The same run, stored elsewhere."""
        ...

    def stored(self) -> Result | None:
        """The result, if the run has already ended."""
        ...

    def run(self) -> Result:
        """Runs it and stores the result in one step, so that a killed run has no result."""
        ...


class TaskBackend(Protocol):
    """Where tasks run: in this process, in processes of this machine, or on a cluster."""

    def results(self, tasks: Sequence[StoredRun]) -> Iterator[tuple[StoredRun, Result]]:
        """Runs the tasks and yields each with its result, stored by then, as it ends.

        If the caller stops listening, tasks that have not begun are cancelled.
        """
        ...

    def close(self) -> None:
        """Ends what was started. Running tasks may finish; waiting ones would only delay the user."""
        ...


class Workers:
    """Runs tasks on a backend, but never one that has already ended.

    The backend lives as long as this object, so that later tasks can use the data that it has loaded.

    Args:
        workers: maximum number of processes; by default one per core. With 1, tasks run in this process.
        progress: called with the number of finished tasks and the number requested so far.
        cluster: the address of a Dask scheduler, whose workers run the tasks instead of processes.
    """

    def __init__(
        self,
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        cluster: str | None = None,
    ) -> None:
        if cluster is not None and workers is not None:
            raise RequestError("--workers is for this machine: a --cluster has as many workers as it was given")
        self._backend = Processes(workers) if cluster is None else _cluster(cluster)
        self._progress = progress
        self._asked = self._done = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._backend.close()

    def __call__(self, tasks: Sequence[StoredRun]) -> list[Result]:
        """The results of the tasks, in order. An error in one of them cancels those that are waiting."""
        named = {task.place: task for task in tasks}
        found = {place: result for place, task in named.items() if (result := task.stored()) is not None}
        waiting = [task for place, task in named.items() if place not in found]
        self._asked += len(named)
        self._note(len(found))
        if waiting:
            for task, result in self._backend.results(waiting):
                found[task.place] = result
                self._note(1)
        return [found[task.place] for task in tasks]

    def _note(self, done: int) -> None:
        self._done += done
        if self._progress is not None:
            self._progress(self._done, self._asked)


def _cluster(address: str) -> TaskBackend:
    from tacit.engine.cluster import Cluster

    return Cluster.at(address)


class Processes:
    """Processes of this machine; or this process itself, for one worker or a single task."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = os.cpu_count() or 1 if workers is None else count("workers", workers)
        self._pool: ProcessPoolExecutor | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def results(self, tasks: Sequence[StoredRun]) -> Iterator[tuple[StoredRun, Result]]:
        if self._workers == 1 or (len(tasks) == 1 and self._pool is None):
            yield from ((task, task.run()) for task in tasks)
            return
        if self._pool is None:
            # PyTorch's threads do not survive a fork, so processes are spawned, and only as needed.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._workers, mp_context=context, initializer=begin_worker)
        running = {self._pool.submit(task.run): task for task in tasks}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            raise TacitError(
                "a process was killed, perhaps because memory ran out; finished results are kept: start it again "
                "to continue, with fewer --workers if memory was short"
            ) from error
        finally:
            for future in running:
                future.cancel()


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
