"""Signs in FLARE's log that another process is connected to the server under this party's name.

FLARE knows clients by name. If a copy of a party's folder is started elsewhere, the server lets the newcomer in,
and what it sends to that name reaches the one or the other: both then wait in vain for replies, and say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_SIGNS = (("TP=heart_beat", "timeout on Request"), ("request authentication failed",))
"""Words of one line: connected, but no reply to a sign of life; or the session belongs to somebody else."""

WARNING = (
    "the server's replies do not arrive here. Another process may be connected under this name: stop every copy "
    "of this folder, on whatever machine, because two ledgers cannot count what one silo releases. This one goes "
    "on by itself once it is alone (or once the server is back, if it is the server that hangs)"
)


@dataclass
class LogWatch:
    """Reads what is added to FLARE's log, from now on."""

    log: Path
    _read: int = field(init=False)

    def __post_init__(self) -> None:
        self._read = self.log.stat().st_size if self.log.exists() else 0

    def sees_namesake(self) -> bool:
        """Whether there were signs of another process under this name since the last look."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._read)
                added = file.read()
        except OSError:
            return False
        whole, _, _ = added.rpartition(b"\n")
        self._read += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        return any(all(word in line for word in sign) for line in lines for sign in _SIGNS)
