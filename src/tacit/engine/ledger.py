"""An append-only record of who released what in which round, one JSON object per line.

The first line gives, for each group of clients (size, noise), the event of all that a client has released after
some numbers of rounds, starting from 0. These events are cumulative, because a run need not repeat one release.
Every further line names a round and the clients that took part. Everything that was promised can be recomputed
from these.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from tacit.engine.files import write_atomically
from tacit.errors import DataError


class RunLedger:
    """The ledger of one run directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[str] = []

    def exists(self) -> bool:
        """Whether a ledger was started here before."""
        return self._path.is_file()

    def begin(self, header: dict[str, Any], *, keep_rounds: int) -> None:
        """Starts the ledger, or continues it after `keep_rounds` rounds.

        Rounds after the last checkpoint were lost with the process that ran them. They are drawn again, bit for
        bit the same, so their lines are dropped here and written again.
        """
        lines = [json.dumps(header, sort_keys=True)]
        if keep_rounds:
            try:
                kept = self._path.read_text().splitlines()[: keep_rounds + 1]
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"{self._path} cannot be read: {error}") from error
            if len(kept) != keep_rounds + 1 or kept[0] != lines[0]:
                raise DataError(f"{self._path} does not fit the checkpoint after {keep_rounds} rounds")
            lines = kept
        write_atomically(self._path, ("\n".join(lines) + "\n").encode())

    def append(self, round: int, ids: Tensor, clients: int) -> None:
        """Notes that these clients are about to release something in this round."""
        who: str | list[int] = "all" if len(ids) == clients else ids.tolist()
        self._pending.append(json.dumps({"round": round, "clients": who}))

    def write(self, header: dict[str, Any], rounds: Sequence[Tensor], clients: int) -> None:
        """Writes a finished ledger at once: the ids of those who released something, for every round."""
        for round, ids in enumerate(rounds):
            self.append(round, ids, clients)
        lines = [json.dumps(header, sort_keys=True), *self._pending]
        self._pending.clear()
        write_atomically(self._path, ("\n".join(lines) + "\n").encode())

    def sync(self) -> None:
        """Makes the noted rounds durable."""
        with self._path.open("a") as file:
            file.writelines(line + "\n" for line in self._pending)
            file.flush()
            os.fsync(file.fileno())
        self._pending.clear()


def read_ledger(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Reads the header and the rounds of a ledger."""
    try:
        whole = path.read_text()
        # An unfinished last line was being written when the process died, before its round was released.
        header, *rounds = [json.loads(line) for line in whole[: whole.rfind("\n") + 1].splitlines()]
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a ledger of tacit: {error}") from error
    objects = all(isinstance(entry, dict) for entry in (header, *rounds))
    if not objects or [entry.get("round") for entry in rounds] != list(range(len(rounds))):
        raise DataError(f"{path} is not a ledger of tacit: rounds are missing or out of order")
    return header, rounds
