"""Tasks on a Dask cluster that the user already has.

A worker need not share a file system with the caller. It runs a task in a scratch directory and returns the files
that the task left; the caller stores them, and the file that ends the run is stored last. Dask sends functions
and results as pickles: a cluster, like this machine, belongs to the user and is trusted.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tacit._version import __version__
from tacit.engine.files import write_atomically
from tacit.engine.workers import Result, StoredRun
from tacit.errors import DataError, RequestError, TacitError

SECONDS_TO_CONNECT = 10
PACKAGES = ("tacit", "torch", "numpy", "scipy", "dp_accounting")
"""Packages that must have the same version on every worker as here."""

Files = dict[str, bytes]
"""Contents by path, relative to the directory of a task's place."""


class Cluster:
    """A backend whose tasks run on the workers of a Dask client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        check_workers(client)

    @classmethod
    def at(cls, address: str) -> Cluster:
        """Connects to a scheduler."""
        try:
            from distributed import Client
        except ImportError as error:
            raise RequestError("--cluster needs Dask: pip install 'tacit[cluster]'") from error
        if not _has_port(address):
            raise RequestError(
                f"--cluster takes the address of a Dask scheduler, such as tcp://host:8786, not {address!r}"
            )
        try:
            client = Client(address, timeout=SECONDS_TO_CONNECT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise RequestError(
                f"--cluster {address}: no Dask scheduler can be reached there ({error}); start one with `dask "
                "scheduler` and give the address that it prints, such as tcp://host:8786"
            ) from error
        try:
            return cls(client)
        except BaseException:
            client.close()
            raise

    def close(self) -> None:
        self._client.close()

    def results(self, tasks: Sequence[StoredRun]) -> Iterator[tuple[StoredRun, Result]]:
        # Not `pure`: Dask would take two tasks of equal content for one and keep old results in memory.
        here = str(Path.cwd())
        running = [self._client.submit(run_elsewhere, task, here, pure=False) for task in tasks]
        by_key = {future.key: task for future, task in zip(running, tasks, strict=True)}
        try:
            for future in self._ended(running):
                task = by_key[future.key]
                yield task, keep(task, future.result())
                future.release()
        except Exception as error:
            # Dask's own: workers that die again and again, a scheduler that is gone.
            if not (type(error).__module__.startswith("distributed") or isinstance(error, CancelledError)):
                raise
            raise TacitError(
                f"the cluster stopped working on it ({type(error).__name__}: {error}); finished results are "
                "kept: start it again to continue"
            ) from error
        finally:
            self._client.cancel(running)

    def _ended(self, futures: Sequence[Any]) -> Iterator[Any]:
        from distributed import as_completed

        return iter(as_completed(futures, loop=self._client.loop))


def _has_port(address: str) -> bool:
    try:
        return urlsplit(address if "://" in address else f"tcp://{address}").port is not None
    except ValueError:
        return False


def check_workers(client: Any) -> None:
    """Refuses a cluster without workers, with other versions than here, or with several tasks in a process."""
    threads = client.nthreads()
    if not threads:
        raise RequestError("the cluster has no workers; start some with `dask worker ADDRESS --nthreads 1`")
    busy = [f"{worker} ({number})" for worker, number in threads.items() if number > 1]
    if busy:
        raise RequestError(
            f"workers must run one task at a time, for the same bits everywhere: {_some(busy)} run more; start "
            "them with --nthreads 1 and as many --nworkers as there are cores"
        )
    versions = client.get_versions(packages=list(PACKAGES))
    here = versions["client"]["packages"]
    others = [
        f"{worker} has {name} {there['packages'].get(name) or 'not at all'}, not {here[name]}"
        for worker, there in versions["workers"].items()
        for name in PACKAGES
        if there["packages"].get(name) != here[name]
    ]
    if others:
        raise RequestError(f"all workers need the same versions as here: {_some(others)}")


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def run_elsewhere(task: StoredRun, directory: str) -> Files:
    """Runs a task on a worker, on one thread, and returns the files that it left, those that end it last.

    The task's name is computed again first: other code or other files than at the caller are refused. Relative
    paths count from the caller's directory, if the worker has it too.
    """
    import torch

    torch.set_num_threads(1)
    # The worker runs nothing else in this process.
    with contextlib.chdir(directory if Path(directory).is_dir() else "."):
        if task.named() != task.place.name:
            raise DataError(
                f"{_own_name()}: tacit {__version__} there differs in its code, or in the files that the run "
                "names (data, schema, model): install the same code, and copy the files to the same paths. "
                f"Relative paths count from {Path.cwd()} there"
            )
        return _left_files(task)


def _left_files(task: StoredRun) -> Files:
    with tempfile.TemporaryDirectory(prefix="tacit-") as scratch:
        place = Path(scratch) / task.place.name
        try:
            task.at(place).run()
        except TacitError as error:
            raise type(error)(f"{_own_name()}: {error}") from error
        left = [path for path in Path(scratch).rglob("*") if path.is_file() and path.parent.name != "checkpoints"]
        left.sort(key=lambda path: path.name in task.endings)
        return {str(path.relative_to(scratch)): _told(path, place, task.place) for path in left}


def keep(task: StoredRun, files: Files) -> Result:
    """Stores what a worker returned where `run` would have stored it, and returns the result."""
    for name, content in files.items():
        write_atomically(task.place.parent / name, content)
    result = task.stored()
    assert result is not None, "a run that ended has a result"
    return result


def _told(path: Path, was: Path, now: Path) -> bytes:
    """A file's content; a JSON file that says where it is says where it will be."""
    content = path.read_bytes()
    if path.suffix != ".json":
        return content
    return content.replace(json.dumps(str(was))[1:-1].encode(), json.dumps(str(now))[1:-1].encode())


def _own_name() -> str:
    from distributed import get_worker

    return f"on the worker {get_worker().address}"
