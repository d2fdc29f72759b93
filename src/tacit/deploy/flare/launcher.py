"""How a site starts the process of a job: stripped, and started again when somebody kills it."""

from __future__ import annotations

import os
import shlex
import threading
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.utils.job_launcher_utils import generate_client_command, get_credential_env
from nvflare.utils.process_utils import spawn_process

JOB_PROCESS = "tacit.deploy.flare.site_job_process"

RELAUNCHES = 20
"""After so many kills of one job the site gives up, and says so to the server."""


class RelaunchingHandle(ProcessHandle):  # type: ignore[misc]  # FLARE has no types
    """A job's process that is started again when a signal killed it, unless FLARE itself asked for its end.

    FLARE fails the whole job within seconds when one site's job process dies. Nothing is lost with it: the
    silo's memory and ledger are in another process and on disk.
    """

    adapter: Any

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        super().__init__(process_adapter=spawn_process(arguments, environment))
        self._arguments, self._environment = arguments, environment
        self._asked_to_end = threading.Event()

    def terminate(self) -> None:
        """End it for good."""
        self._asked_to_end.set()
        super().terminate()

    def wait(self) -> None:
        """Return when it has ended for good."""
        for _ in range(RELAUNCHES):
            super().wait()
            code = self.adapter.poll()
            if self._asked_to_end.is_set() or code is None or code >= 0:
                return
            self.adapter = spawn_process(self._arguments, self._environment)
        super().wait()


class RelaunchingLauncher(ClientProcessJobLauncher):  # type: ignore[misc]  # FLARE has no types
    """Starts jobs as FLARE's own process launcher does, without a folder of shipped code on the path."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> RelaunchingHandle:
        """Start the process of a job."""
        job_arguments = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        job_arguments[JobProcessArgs.EXE_MODULE] = ("-m", JOB_PROCESS)
        environment = {**os.environ, **get_credential_env(job_arguments)}
        return RelaunchingHandle(shlex.split(generate_client_command(fl_ctx)), environment)
