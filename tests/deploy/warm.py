"""`tacit` commands as processes of their own that do not wait for PyTorch: forks of one that has imported it.

They are killed, frozen and waited for like any other. What `python -m tacit` does in addition, `test_flare_run`
shows.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.deploy.flare.processes import _start
from tacit.deploy.flare.relay import SOCKET_VARIABLE

# What a party imports. More is imported by whoever needs it.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["tacit.cli.app", "tacit.deploy.flare.parties", "tacit.deploy.records", "tacit.data.schema.encode"]
)


def _run(words: Sequence[str], environment: dict[str, str], output: str, session: bool) -> None:
    from tests.deploy import meddling

    if session:
        os.setsid()
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
        stream.reconfigure(write_through="PYTHONUNBUFFERED" in environment)  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["tacit", *words]
    meddling.main()


class WarmTacit:
    """What tests and `tacit.deploy.flare.processes` use of `subprocess.Popen`, for `tacit WORDS`."""

    stdout = None

    def __init__(
        self, words: Sequence[str], *, environment: dict[str, str], output: Path, session: bool = False
    ) -> None:
        self._words = list(words)
        self._process = _FORKS.Process(target=_run, args=(self._words, environment, str(output), session))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.kill, self.terminate = self._process.kill, self._process.terminate

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget  # type: ignore[attr-defined]

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired(self._words, timeout or 0.0)
        return code


def warm_start(command: Sequence[str], relay: Path, log: Path, read_output: bool) -> Any:
    """In the place of `tacit.deploy.flare.processes._start`: FLARE's processes are started as ever."""
    if list(command[:3]) != [sys.executable, "-m", "tacit"]:
        return _start(command, relay, log, read_output)
    environment = {**os.environ, SOCKET_VARIABLE: str(relay), "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    return WarmTacit(command[3:], environment=environment, output=log, session=True)
