"""Processes of their own that do not wait for PyTorch: forks of one that has imported it.

They are killed, frozen and waited for like any other. That they start from nothing as well, other tests show:
`test_flare_run` deploys with `python -m tacit`.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tacit.deploy.flare import processes
from tacit.deploy.flare.relay import SOCKET_VARIABLE

FORKS = multiprocessing.get_context("forkserver")
# What parties and runs import.
FORKS.set_forkserver_preload(
    [
        "tacit.cli.app",
        "tacit.deploy.flare.parties",
        "tacit.deploy.records",
        "tacit.engine.execute",
        "sklearn.datasets",
    ]
)


class Warm:
    """A process that calls a function, with what is used here of `subprocess.Popen`; its output is in a file."""

    stdout = None

    def __init__(
        self,
        call: Callable[..., None],
        *arguments: Any,
        output: Path,
        environment: dict[str, str] | None = None,
        session: bool = False,
    ) -> None:
        told = dict(os.environ) if environment is None else environment
        self._process = FORKS.Process(target=_called, args=(call, arguments, str(output), told, session))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.kill, self.terminate = self._process.kill, self._process.terminate

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code


def _called(
    call: Callable[..., None], arguments: Sequence[Any], output: str, environment: dict[str, str], session: bool
) -> None:
    if session:
        os.setsid()
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
        stream.reconfigure(write_through="PYTHONUNBUFFERED" in environment)  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(environment)
    call(*arguments)


def tacit(*words: str) -> None:
    """Run the command `tacit WORDS` in this process, and leave it."""
    from tacit.cli.app import main

    sys.argv = ["tacit", *words]
    main()


def start(command: Sequence[str], relay: Path, log: Path, read_output: bool) -> Any:
    """In the place of `tacit.deploy.flare.processes._start`: FLARE's own processes are started as ever."""
    if list(command[:3]) != [sys.executable, "-m", "tacit"]:
        return _start(command, relay, log, read_output)
    environment = {**os.environ, SOCKET_VARIABLE: str(relay), "PYTHONUNBUFFERED": "1"}
    return Warm(tacit, *command[3:], output=log, environment=environment, session=True)


_start = processes._start
