"""`python -m tacit.deploy.flare.server_process ADDRESS ...`: FLARE's server on one address, tied to its owner.

FLARE listens on all interfaces unless the server's name is a loopback name. Here it listens on the given address.
"""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import urlsplit

from nvflare.fuel.f3.communicator import Communicator, Mode
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.server.server_train import main, parse_arguments

from tacit.deploy.flare.lifeline import hold_lifeline

_ANYWHERE = ("0", "0.0.0.0", "")


def confined(url: str, address: str) -> str:
    """The address of a listener, on `address` instead of all interfaces.

    >>> confined("grpc://0:8002", "10.0.0.7"), confined("grpc://127.0.0.1:8003?admin=true", "10.0.0.7")
    ('grpc://10.0.0.7:8002', 'grpc://127.0.0.1:8003?admin=true')
    """
    parts = urlsplit(url)
    if (parts.hostname or "") not in _ANYWHERE:
        return url
    return parts._replace(netloc=f"{address}:{parts.port}").geturl()


def listen_only_on(address: str) -> None:
    """Makes listeners of this process that would be open to all interfaces listen on one address."""
    add = Communicator.add_connector

    def add_confined(self: Any, url: str, mode: Mode, *others: Any, **named: Any) -> Any:
        return add(self, confined(url, address) if mode == Mode.PASSIVE else url, mode, *others, **named)

    Communicator.add_connector = add_confined


if __name__ == "__main__":
    listen_only_on(sys.argv.pop(1))
    hold_lifeline()
    arguments = parse_arguments()
    sys.exit(MainProcessMonitor.run(main_func=main, run_dir=arguments.workspace, args=arguments))
