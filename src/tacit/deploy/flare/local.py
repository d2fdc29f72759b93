"""A consortium on one machine, for a rehearsal: every party is a process with a folder of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tacit.deploy.flare.backend import Ended
from tacit.deploy.flare.processes import last_lines, running
from tacit.deploy.flare.relay import listening
from tacit.deploy.learning import OpenTable
from tacit.engine.files import write_atomically
from tacit.federation import Federation


@contextlib.contextmanager
def local_parties(folders: dict[str, Path], shards: dict[str, Path]) -> Iterator[Ended]:
    """Runs every silo on its own shard, and the shuffler, as processes that end with the block or with us.

    Yields a function that says which of them have ended before.
    """
    with contextlib.ExitStack() as stack:
        home = next(iter(folders.values())).parent
        lifeline = stack.enter_context(listening(lambda connection: None, home))
        outputs = {party: folder / "output.txt" for party, folder in folders.items()}
        processes = {
            party: stack.enter_context(
                running(party_command(folder, shards.get(party)), relay=lifeline, log=outputs[party])
            )
            for party, folder in folders.items()
        }
        try:
            yield lambda: {
                party: last_lines(outputs[party])
                for party, process in processes.items()
                if process.poll() is not None
            }
        finally:
            # Terminate all of them before waiting for any.
            for process in processes.values():
                process.terminate()


def party_command(folder: Path, records: Path | None) -> list[str]:
    """The command for a silo with prepared records or a table or, without records, for the shuffler."""
    command = [sys.executable, "-m", "tacit"]
    if records is None:
        return [*command, "shuffler", str(folder)]
    prepared = ["--prepared"] if records.suffix == ".npz" else []
    return [*command, "silo", str(folder), "--data", str(records), *prepared]


def write_shards(federation: Federation, folders: dict[str, Path]) -> dict[str, Path]:
    """Write every silo's records into its own folder, for a trial on one machine."""
    shards = {}
    for position, (site, folder) in enumerate(folders.items()):
        one = federation.client(position)
        path = folder / "records.npz"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            np.savez(file, X=one.features.numpy(), y=one.targets.numpy())
        shards[site] = path
    return shards


def write_tables(tables: OpenTable, folders: dict[str, Path]) -> dict[str, Path]:
    """Write every silo's table into its own folder, for a trial on one machine."""
    shards = {}
    for (site, folder), source in zip(folders.items(), tables.sources, strict=True):
        shards[site] = folder / "records.csv"
        write_atomically(shards[site], source.frame.to_csv(index=False).encode(), mode=0o600)
    return shards


def free_ports(number: int) -> list[int]:
    """Free loopback ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
