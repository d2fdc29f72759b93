"""Start-up kits: FLARE's certificates and settings for every party of a consortium."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.deploy.flare.job import CONTROLLER, EXECUTOR
from tacit.errors import TacitError

ADMIN = "operator@tacit.local"
"""The identity that submits jobs: the operator of the server, who has a separate certificate."""

ORGANISATION = "tacit"

_NOBODY = "none"

_COMMON: dict[str, dict[str, Any]] = {
    # Only warnings, to standard output, which goes to log.txt; FLARE's default logs every round five times.
    "log_config.json": {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "plain": {
                "()": "nvflare.fuel.utils.log_utils.BaseFormatter",
                "fmt": "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s",
            }
        },
        "handlers": {
            "console": {
                "class": "logging.StreamHandler",
                "level": "WARNING",
                "formatter": "plain",
                "stream": "ext://sys.stdout",
            }
        },
        "loggers": {"root": {"level": "WARNING", "handlers": ["console"]}},
    }
}


@dataclass(frozen=True)
class Network:
    """Names and addresses of the parties."""

    name: str
    host: str
    """the server's name in its certificate, by which silos reach it; "localhost" binds to loopback only"""
    port: int
    admin_port: int
    """always on the server's loopback interface, whatever the host"""
    silos: tuple[str, ...]
    valid_days: int = 360


def write_kits(network: Network, folders: dict[str, Path], server_folder: Path) -> None:
    """Writes every party's FLARE workspace: `folders[silo]/engine`, `server_folder/engine` and `/admin`.

    Guarantee: each private key is written only to its party's folder, readable only by its owner. The
    authority's own key is discarded, so no party can be added later.
    """
    # The authority's state holds every private key, so the working directory is private and short-lived. If we
    # are killed, it is left next to the keys' destination, not in a directory shared by all users.
    server_folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=server_folder.parent, prefix=".provisioning-") as workspace:
        kits = _provision(network, Path(workspace))
        _place(kits / network.host, server_folder / "engine", _server_settings(network))
        _place(kits / ADMIN, server_folder / "admin", {})
        for silo in network.silos:
            _place(kits / silo, folders[silo] / "engine", _site_settings())
    _confine_admin(server_folder, network)


def _provision(network: Network, workspace: Path) -> Path:
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project = Project(network.name, "tacit", props={"api_version": 3})
    ports = {"fed_learn_port": network.port, "admin_port": network.admin_port, "host_names": ["localhost"]}
    project.set_server(network.host, ORGANISATION, ports)
    for silo in network.silos:
        project.add_client(silo, ORGANISATION, {"allow_log_streaming": False})
    project.add_admin(ADMIN, ORGANISATION, {"role": "project_admin"})
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(root_valid_days=network.valid_days),
        SignatureBuilder(),
    ]
    notes = _Notes()
    context = Provisioner(str(workspace), builders).provision(project, logger=notes)
    if context.get(CtxKey.BUILD_ERROR):
        raise TacitError(f"FLARE could not provision the consortium: {'; '.join(notes.errors)}")
    return Path(context[CtxKey.CURRENT_PROD_DIR])


class _Notes:
    """Captures FLARE's output while it provisions and keeps only errors."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, message: str) -> None:
        self.errors.append(message)

    def debug(self, message: str) -> None:
        pass

    info = warning = debug


def _place(kit: Path, folder: Path, settings: dict[str, dict[str, Any]]) -> None:
    """Moves a kit to its party's folder, drops FLARE's shell scripts and applies tacit's settings."""
    folder.mkdir(mode=0o700, parents=True)
    shutil.copytree(kit / "startup", folder / "startup", ignore=shutil.ignore_patterns("*.sh", "*.ipynb"))
    (folder / "local").mkdir()
    for name, content in settings.items():
        (folder / "local" / name).write_text(json.dumps(content, indent=2) + "\n")
    if not settings:
        shutil.copy(kit / "local" / "resources.json.default", folder / "local" / "resources.json")
    for path in folder.rglob("*"):
        os.chmod(path, 0o700 if path.is_dir() else 0o600)


def _site_settings() -> dict[str, dict[str, Any]]:
    managers = "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager"
    consumers = "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer"
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [EXECUTOR],
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "Gzip"},
        "components": [
            _component("resource_manager", managers, num_of_gpus=0, mem_per_gpu_in_GiB=0, expiration_period=300),
            _component("resource_consumer", consumers),
            _component("process_launcher", "tacit.deploy.flare.launcher.RelaunchingLauncher"),
        ],
    }
    return {**_COMMON, "resources.json": resources, "authorization.json": _authorization(operate=_NOBODY)}


def _server_settings(network: Network) -> dict[str, dict[str, Any]]:
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    persistor = "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor"
    launcher = "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher"
    snapshots = {"path": storage, "args": {"root_dir": "storage/snapshots", "uri_root": "/"}}
    resources = {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [CONTROLLER],
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": len(network.silos),
                "heart_beat_timeout": 60,
                "admin_timeout": 10.0,
            }
        ],
        "snapshot_persistor": {"path": persistor, "args": {"uri_root": "/", "storage": snapshots}},
        "components": [
            _component(
                "job_scheduler",
                "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                max_jobs=1,
            ),
            _component(
                "job_manager",
                "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                uri_root="storage/jobs",
                job_store_id="job_store",
            ),
            _component("job_store", storage),
            _component("process_launcher", launcher),
        ],
    }
    return {**_COMMON, "resources.json": resources, "authorization.json": _authorization(operate="any")}


def settle_server(engine_folder: Path) -> None:
    """Points FLARE's storage into the folder, wherever it is now; FLARE's default is shared by all users.

    Anything that an earlier server stored is removed: it holds no state of the run, and FLARE would resume old
    jobs from it.
    """
    path = engine_folder / "local" / "resources.json"
    settings = json.loads(path.read_text())
    storage = engine_folder.resolve() / "storage"
    shutil.rmtree(storage, ignore_errors=True)
    settings["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
    for component in settings["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(storage / "jobs")
    path.write_text(json.dumps(settings, indent=2) + "\n")


def _component(identifier: str, path: str, **arguments: Any) -> dict[str, Any]:
    return {"id": identifier, "path": path, "args": arguments}


def _authorization(operate: str) -> dict[str, Any]:
    operator = {
        "submit_job": "any",
        "manage_job": "any",
        "view": "any",
        "operate": operate,
        "clone_job": _NOBODY,
        "download_job": _NOBODY,
        "shell_commands": _NOBODY,
        "byoc": _NOBODY,
        "server-predeployed-flwr": _NOBODY,
    }
    return {"format_version": "1.0", "permissions": {"project_admin": operator}}


def _confine_admin(server_folder: Path, network: Network) -> None:
    """Makes the interface that submits jobs listen only on the server's loopback interface."""
    server_file = server_folder / "engine" / "startup" / "fed_server.json"
    settings = json.loads(server_file.read_text())
    settings["servers"][0]["admin_host"] = "127.0.0.1"
    server_file.write_text(json.dumps(settings, indent=2) + "\n")
    admin_file = server_folder / "admin" / "startup" / "fed_admin.json"
    settings = json.loads(admin_file.read_text())
    settings["admin"]["host"] = "localhost"
    admin_file.write_text(json.dumps(settings, indent=2) + "\n")
