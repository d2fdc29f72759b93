"""`python -m tacit.deploy.flare.site_job_process`: a job at a site, with the same restrictions."""

from __future__ import annotations

import os
import sys

from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.client.worker_process import main, parse_arguments
from nvflare.private.fed.client.admin_commands import AdminCommands

from tacit.deploy.flare.disk import outlive_full_disks
from tacit.deploy.flare.lifeline import hold_lifeline
from tacit.deploy.flare.site import harden_job

if __name__ == "__main__":
    hold_lifeline()
    outlive_full_disks()
    AdminCommands.commands[:] = harden_job(AdminCommands.commands)
    arguments = parse_arguments()
    run_directory = os.path.join(arguments.workspace, arguments.job_id)
    sys.exit(MainProcessMonitor.run(main_func=main, run_dir=run_directory, args=arguments))
