"""The server requests that a site accepts: of all that FLARE offers, only what a run of tacit needs."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any

from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import TrainingTopic
from nvflare.private.fed.client.training_cmds import DeployProcessor

from tacit.deploy.flare.job import CLIENT_CONFIG

OBEYED_TOPICS = frozenset(
    {
        TrainingTopic.ABORT,
        TrainingTopic.CHECK_STATUS,
        TrainingTopic.CHECK_RESOURCE,
        TrainingTopic.CANCEL_RESOURCE,
        TrainingTopic.START_JOB,
        TrainingTopic.NOTIFY_JOB_STATUS,
    }
)
"""Excludes shell commands, restart, environment and logging (a logging configuration can name any callable)."""

OBEYED_COMMANDS = frozenset(
    {AdminCommandNames.CHECK_STATUS, AdminCommandNames.ABORT, AdminCommandNames.ABORT_TASK}
)
"""Commands that a job process accepts. Excludes statistics, errors and logging."""

_CONFIG_FILE = "config/config_fed_client.json"
_SIGNATURES = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
_OTHER_FILES = frozenset(
    {
        "config/",
        "config/config_fed_server.json",
        *_SIGNATURES,
        *(f"config/{name}" for name in _SIGNATURES),
    }
)
_APP_LIMIT_BYTES = 2**16


class OnlyOurJob(DeployProcessor):  # type: ignore[misc]  # FLARE has no types
    """Accepts only a job with tacit's own client configuration: no other code, components or filters."""

    def process(self, req: Message, app_ctx: Any) -> Message:
        """Refuses the app, or deploys it as FLARE does."""
        reason = refusal_of_app(req.body)
        return error_reply(reason) if reason else super().process(req, app_ctx)


def refusal_of_app(app: object) -> str | None:
    """Why an app that the server sends is not tacit's own; None if it is."""
    if not isinstance(app, bytes) or len(app) > _APP_LIMIT_BYTES:
        return "the app is not a short archive"
    try:
        with zipfile.ZipFile(io.BytesIO(app)) as archive:
            names = archive.namelist()
            if names.count(_CONFIG_FILE) != 1 or not set(names) <= _OTHER_FILES | {_CONFIG_FILE}:
                return "the app holds other files than tacit's"
            if archive.getinfo(_CONFIG_FILE).file_size > _APP_LIMIT_BYTES:
                return "the app's configuration is too long"
            config = json.loads(archive.read(_CONFIG_FILE))
    except (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, NotImplementedError, RuntimeError):
        return "the app cannot be read"
    return None if config == CLIENT_CONFIG else "the app is not tacit's"


def harden_site(processors: Iterable[Any]) -> list[Any]:
    """The request processors that a site keeps, with its own for deployment."""
    kept = [processor for processor in processors if set(processor.get_topics()) <= OBEYED_TOPICS]
    return [OnlyOurJob(), *kept]


def harden_job(commands: Iterable[Any]) -> list[Any]:
    """The commands that the process of a job keeps."""
    return [command for command in commands if command.get_command_name() in OBEYED_COMMANDS]
