"""FLARE's processes end with the process of tacit that started them, however that ended."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

from tacit.deploy.flare.relay import SOCKET_VARIABLE, connect_to_owner


def hold_lifeline() -> None:
    """Kill this process and its process group as soon as its owner is gone.

    The operating system closes a dead process's sockets, also after a kill -9: no process is left behind to
    hold a port or to go on answering, and the socket that nobody answers any more is removed.
    """
    connection, directory = connect_to_owner(), Path(os.environ[SOCKET_VARIABLE]).parent

    def wait() -> None:
        with connection:
            connection.recv(1)
        shutil.rmtree(directory, ignore_errors=True)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
