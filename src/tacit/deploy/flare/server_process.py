"""`python -m tacit.deploy.flare.server_process`: FLARE's server, tied to the process that started it."""

from __future__ import annotations

import sys

from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.server.server_train import main, parse_arguments

from tacit.deploy.flare.lifeline import hold_lifeline

if __name__ == "__main__":
    hold_lifeline()
    arguments = parse_arguments()
    sys.exit(MainProcessMonitor.run(main_func=main, run_dir=arguments.workspace, args=arguments))
