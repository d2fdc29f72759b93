"""Starts the job process at a site, with restricted commands, and restarts it if it is killed."""

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
"""After this many kills of one job, the site gives up and tells the server."""


class RelaunchingHandle(ProcessHandle):  # type: ignore[misc]  # FLARE has no types
    """A job process that is restarted if a signal kills it, unless FLARE itself ended it.

    FLARE fails the whole job within seconds if one site's job process dies. Restarting it loses nothing: the
    silo's memory and ledger are in another process and on disk.
    """

    adapter: Any

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        super().__init__(process_adapter=spawn_process(arguments, environment))
        self._arguments, self._environment = arguments, environment
        self._asked_to_end = threading.Event()

    def terminate(self) -> None:
        """Ends it without a restart."""
        self._asked_to_end.set()
        super().terminate()

    def wait(self) -> None:
        """Waits until it has ended and will not be restarted."""
        for _ in range(RELAUNCHES):
            super().wait()
            code = self.adapter.poll()
            if self._asked_to_end.is_set() or code is None or code >= 0:
                return
            self.adapter = spawn_process(self._arguments, self._environment)
        super().wait()


class RelaunchingLauncher(ClientProcessJobLauncher):  # type: ignore[misc]  # FLARE has no types
    """Like FLARE's own process launcher, but puts no folder of code sent by the server on the path."""

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> RelaunchingHandle:
        """Start the process of a job."""
        job_arguments = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        job_arguments[JobProcessArgs.EXE_MODULE] = ("-m", JOB_PROCESS)
        environment = {**os.environ, **get_credential_env(job_arguments)}
        return RelaunchingHandle(shlex.split(generate_client_command(fl_ctx)), environment)
