"""Detects, from FLARE's log, that another process is connected under this party's name.

FLARE identifies clients by name. If a copy of a party's folder is started elsewhere, the server accepts it too,
and messages to that name reach one or the other. Both processes then wait for replies without saying why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_SIGNS = (("TP=heart_beat", "timeout on Request"), ("request authentication failed",))
"""Log patterns: connected but no reply to a heartbeat, or the session belongs to another process."""

WARNING = (
    "the server's replies do not arrive here. Another process may be connected under this name: stop every copy "
    "of this folder, on whatever machine, because two ledgers cannot count what one silo releases. This one goes "
    "on by itself once it is alone (or once the server is back, if it is the server that hangs)"
)


@dataclass
class LogWatch:
    """Reads lines that are added to FLARE's log from now on."""

    log: Path
    _read: int = field(init=False)

    def __post_init__(self) -> None:
        self._read = self.log.stat().st_size if self.log.exists() else 0

    def sees_namesake(self) -> bool:
        """Whether the log shows another process under this name since the last call."""
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
