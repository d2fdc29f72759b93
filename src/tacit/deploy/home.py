"""A silo's directory: its ledger, its memory of runs, and marker files that must stay together with the ledger.

ledger.sqlite    what was released, and what was charged for it
runs/RUN/        the memory of a run (`MemoryFiles`)
certificates/    issued certificates
released         exists once something has been released
halted           exists while the silo answers nobody, after a failed computation
errors.log       what went wrong, for the silo's operators; older entries are in errors.old.log
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tacit.deploy.ledger import Ledger, read_account
from tacit.deploy.ledger_account import WAY_OUT, Account
from tacit.deploy.silo_memory import MemoryFiles
from tacit.engine.files import write_atomically
from tacit.errors import DataError

LEDGER = "ledger.sqlite"
_RELEASED = "released"
_RELEASED_TEXT = b"Messages have left this silo. ledger.sqlite counts them; without it nothing more may leave.\n"
_MOST_LOG_BYTES = 2**20
"""A server may repeat refused requests as often as it likes; that must not fill the disk."""

_HALTED_TEXT = b"See errors.log. Remove this file to let the silo answer again.\n"


def look(directory: Path) -> Account:
    """Read the account from the ledger in a silo's directory. Writes nothing; the silo may be running meanwhile.

    Guarantee: a ledger that is missing, empty or without lines counts as new only if nothing else in the
    directory shows that anything was ever released. Otherwise it is refused.
    """
    path = directory / LEDGER
    if not path.exists() or path.stat().st_size == 0:
        _refuse_if_released(directory, "empty" if path.exists() else "missing", memories_without_line=0)
        return Account()
    account = read_account(path)
    if account.lines == 0:
        # A silo that died in its first round may have left one memory without a line.
        _refuse_if_released(directory, "without a single line", memories_without_line=1)
    return account


def _refuse_if_released(directory: Path, state: str, memories_without_line: int) -> None:
    traces = {
        _RELEASED: (directory / _RELEASED).exists(),
        "runs": len(_memories(directory)) > memories_without_line,
        "certificates": any(path.stat().st_size for path in directory.glob("certificates/*/ledger.jsonl")),
    }
    found = [name for name, there in traces.items() if there]
    if found:
        raise DataError(
            f"{directory / LEDGER} is {state}, but messages have left this silo: see {', '.join(found)} next to "
            f"it. {WAY_OUT}"
        )


def _memories(directory: Path) -> list[Path]:
    return [path for path in directory.glob("runs/*/*") if not path.name.startswith(".")]


class Home:
    """The directory of one silo, opened by the process that answers for it."""

    def __init__(self, directory: Path) -> None:
        """Open a silo's directory, or create it. Whatever `look` refuses is refused here too.

        directory: used by this silo alone; created if missing.
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory = directory
        lines = look(directory).lines
        path = directory / LEDGER
        if path.exists() and path.stat().st_size == 0:
            path.unlink()
        self.ledger = Ledger(path)
        if lines:
            # This also repairs a crash between the first line and the mark.
            self.mark_released()
        else:
            for path in _memories(directory):
                path.unlink()

    def mark_released(self) -> None:
        """Mark that something was released: after its ledger line is on disk, before the message leaves."""
        if not (self.directory / _RELEASED).exists():
            write_atomically(self.directory / _RELEASED, _RELEASED_TEXT)

    def memories(self, run: str) -> MemoryFiles:
        """The files with the silo's memory of a run."""
        return MemoryFiles(self.directory / "runs" / run)

    @property
    def halted(self) -> bool:
        """Whether the silo refuses to answer until its operators have looked at it."""
        return (self.directory / "halted").exists()

    def halt(self) -> None:
        """Stop answering from now on, also after a restart."""
        write_atomically(self.directory / "halted", _HALTED_TEXT)

    def note(self, text: str) -> None:
        """Log what went wrong, for the silo's operators and nobody else."""
        # A full disk may be the very problem, so a failure to write is ignored.
        with contextlib.suppress(OSError):
            log = self.directory / "errors.log"
            if log.exists() and log.stat().st_size > _MOST_LOG_BYTES:
                os.replace(log, self.directory / "errors.old.log")
            handle = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            with os.fdopen(handle, "a") as file:
                file.write(text + "\n")
