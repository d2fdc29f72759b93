"""FLARE's processes end with the process of tacit that started them, however that ended."""

from __future__ import annotations

import os
import signal
import threading

from tacit.deploy.flare.relay import connect_to_owner


def hold_lifeline() -> None:
    """Kill this process, and what it started in its group, as soon as its owner is gone.

    The operating system closes a dead process's sockets, also after a kill -9: no process is left behind to
    hold a port or to go on answering.
    """
    connection = connect_to_owner()

    def wait() -> None:
        with connection:
            connection.recv(1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
