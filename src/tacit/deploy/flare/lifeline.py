"""Makes FLARE's processes end when the tacit process that started them ends, for whatever reason."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

from tacit.deploy.flare.relay import SOCKET_VARIABLE, connect_to_owner


def hold_lifeline() -> None:
    """Kills this process and its process group as soon as its owner is gone.

    The operating system closes the sockets of a dead process, even after kill -9. So no process is left behind
    that holds a port or keeps answering, and the unused socket is removed.
    """
    connection, directory = connect_to_owner(), Path(os.environ[SOCKET_VARIABLE]).parent

    def wait() -> None:
        with connection:
            connection.recv(1)
        shutil.rmtree(directory, ignore_errors=True)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
