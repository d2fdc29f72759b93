"""The one job that tacit runs on FLARE: a controller, an executor, and no code of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CHANNEL = "tacit"
TOPIC = "request"
"""Where the executor listens for requests of the controller, in FLARE's network."""

_TASK = "tacit_none"
"""FLARE wants the name of a task. None is ever sent."""

CONTROLLER = "tacit.deploy.flare.controller.RelayController"
EXECUTOR = "tacit.deploy.flare.executor.RelayExecutor"

_APP = "app"

CLIENT_CONFIG: dict[str, Any] = {
    "format_version": 2,
    "executors": [{"tasks": [_TASK], "executor": {"path": EXECUTOR, "args": {}}}],
    "task_data_filters": [],
    "task_result_filters": [],
    "components": [],
}
"""The client configuration of the job. A silo refuses any other (`site.OnlyOurJob`)."""

SERVER_CONFIG: dict[str, Any] = {
    "format_version": 2,
    # Silos poll only to learn that the job has ended.
    "server": {"heart_beat_timeout": 600, "task_request_interval": 1.0},
    "workflows": [{"id": "rounds", "path": CONTROLLER, "args": {}}],
    "task_data_filters": [],
    "task_result_filters": [],
    "components": [],
}


def write_job(directory: Path, *, min_sites: int) -> Path:
    """Writes the folder of a FLARE job that starts once `min_sites` silos are connected."""
    meta = {
        "name": "tacit",
        "min_clients": min_sites,
        "mandatory_clients": [],
        "deploy_map": {_APP: ["@ALL"]},
        "resource_spec": {},
    }
    config = directory / _APP / "config"
    config.mkdir(parents=True, exist_ok=True)
    for path, content in {
        directory / "meta.json": meta,
        config / "config_fed_server.json": SERVER_CONFIG,
        config / "config_fed_client.json": CLIENT_CONFIG,
    }.items():
        path.write_text(json.dumps(content, indent=2) + "\n")
    return directory
