"""Starts FLARE's processes with known ids, stops them with a signal, and kills them as a last resort."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tacit.deploy.flare.kits import ORGANISATION
from tacit.deploy.flare.relay import SOCKET_VARIABLE

PATIENCE_SECONDS = 3.0
"""How long a process may take to stop before it is killed; it holds no state worth saving."""

QUICK_SECONDS = 15.0
"""A process that ends sooner than this counts as failed to start."""

QUICK_DEATHS = 4
"""How many times in a row a FLARE process may fail to start."""

LAST_LINES = 8
"""How much of a dead process's output an error quotes."""

_MODULES = "tacit.deploy.flare"


def server_command(engine_folder: Path, listen: str) -> list[str]:
    """FLARE's server in its folder, on one address."""
    return [
        sys.executable, "-m", f"{_MODULES}.server_process", listen,
        "-m", str(engine_folder), "-s", "fed_server.json",
        "--set", "secure_train=true", f"org={ORGANISATION}", "config_folder=config",
    ]  # fmt: skip


def site_command(engine_folder: Path, site: str) -> list[str]:
    """FLARE's client of a silo in its folder."""
    return [
        sys.executable, "-m", f"{_MODULES}.site_process",
        "-m", str(engine_folder), "-s", "fed_client.json",
        "--set", "secure_train=true", f"uid={site}", f"org={ORGANISATION}", "config_folder=config",
    ]  # fmt: skip


def steward_command(admin_folder: Path, sites: Sequence[str], quorum: int) -> list[str]:
    """The process that keeps a job running."""
    return [
        sys.executable, "-m", f"{_MODULES}.steward", str(admin_folder), str(quorum), *sites,
    ]  # fmt: skip


@contextlib.contextmanager
def running(
    command: Sequence[str], *, relay: Path, log: Path, read_output: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Runs a process with its output in a log (or readable); it and its group end with the block."""
    process = _start(command, relay, log, read_output)
    try:
        yield process
    finally:
        stop(process)


@dataclass
class Keeper:
    """A process that is restarted whenever it ends, until it is told to stop."""

    command: Sequence[str]
    relay: Path
    log: Path
    hear: Callable[[str], None] | None = None
    """called with every line that it prints"""
    quick_deaths: int = 0
    """how many times in a row it ended soon after its start: a problem that restarting does not fix"""
    starts: int = 0
    """how many times it was started"""
    _over: threading.Event = field(default_factory=threading.Event)
    _process: subprocess.Popen[str] | None = None

    def keep(self) -> None:
        """Starts it, waits until it ends, and starts it again."""
        while not self._over.is_set():
            began = time.monotonic()
            self.starts += 1
            self._process = _start(self.command, self.relay, self.log, read_output=self.hear is not None)
            if self._over.is_set():
                break
            if self._process.stdout is not None and self.hear is not None:
                with contextlib.suppress(ValueError, OSError):
                    for line in self._process.stdout:
                        self.hear(line)
            self._process.wait()
            stop(self._process)
            lived = time.monotonic() - began
            self.quick_deaths = self.quick_deaths + 1 if lived < QUICK_SECONDS else 0
            self._over.wait(min(30.0, 2.0**self.quick_deaths))

    @property
    def hopeless(self) -> bool:
        """Whether it has failed to start too often."""
        return self.quick_deaths >= QUICK_DEATHS

    def stop(self) -> None:
        """Ends it without a restart."""
        self._over.set()
        if self._process is not None:
            stop(self._process)


@contextlib.contextmanager
def kept_running(
    command: Sequence[str], *, relay: Path, log: Path, hear: Callable[[str], None] | None = None
) -> Iterator[Keeper]:
    """Keep a process running for as long as the block lasts."""
    keeper = Keeper(command, relay, log, hear)
    thread = threading.Thread(target=keeper.keep, daemon=True)
    thread.start()
    try:
        yield keeper
    finally:
        keeper.stop()
        thread.join(2 * PATIENCE_SECONDS)
        keeper.stop()


def _start(command: Sequence[str], relay: Path, log: Path, read_output: bool) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        SOCKET_VARIABLE: str(relay),
        "PYTHONUNBUFFERED": "1",
        # A random.py in the current directory must not take the place of the standard module. Models of the
        # user's own are still found there (`tacit.models.registry`).
        "PYTHONSAFEPATH": "1",
    }
    with _open_log(log) as file:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if read_output else file,
            stderr=file,
            text=True,
            # In its own group, so that Ctrl-C reaches only tacit, which then stops everything in order.
            start_new_session=True,
        )


def stop(process: subprocess.Popen[str]) -> None:
    """End a process and its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


def last_lines(log: Path) -> str:
    """The end of a process's output, for an error message."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        if lines := file.read().decode(errors="replace").strip().splitlines():
            return "\n".join([f"The last lines of {log}:", *lines[-LAST_LINES:]])
    return f"{log} is empty"


def _open_log(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a")
