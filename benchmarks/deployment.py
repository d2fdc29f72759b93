"""What a round costs over FLARE: tacit's relay beside FLARE's own controller and executor, same payload.

Five silos with empty work on loopback with mutual TLS, the two in turn. FLARE's own silos ask for work twenty
times a second, and its server looks for answers fifty times a second; tacit's relay does not poll.
Run: python benchmarks/deployment.py
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

from tacit.deploy.flare import job as jobs
from tacit.deploy.flare.backend import flare_backend
from tacit.deploy.flare.kits import ADMIN, Network, settle_server, write_kits
from tacit.deploy.flare.local import free_ports
from tacit.deploy.flare.processes import kept_running, running, server_command, site_command
from tacit.deploy.flare.relay import answering, listening

SITES = tuple(f"silo-{number + 1}" for number in range(5))
ROUNDS, TURNS = 20, 2
SIZES = (4_000, 400_000)
"""bytes up and down: float32 vectors of 10^3 and 10^5 numbers"""

CHECK_SECONDS, ASK_SECONDS = 0.02, 0.05
"""how often FLARE's own server looks for answers, and its silos ask for work; its defaults are far less often"""

TASK, PAYLOAD = "echo", "bytes"
RESULT_VARIABLE = "TACIT_BENCHMARK_RESULT"


class OwnController(Controller):  # type: ignore[misc]
    """FLARE's own broadcast, timed; the result goes into a file."""

    def __init__(self) -> None:
        super().__init__(task_check_period=CHECK_SECONDS)

    def set_communicator(self, communicator: Any) -> None:
        """Give FLARE's communicator the period: FLARE itself would ignore it."""
        super().set_communicator(communicator)
        communicator._task_check_period = CHECK_SECONDS

    def start_controller(self, fl_ctx: Any) -> None:
        """Nothing to do."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Nothing to do."""

    def process_result_of_unknown_task(self, *arguments: Any) -> None:
        """Nothing to do."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """All rounds of all sizes."""
        times: dict[str, list[float]] = {}
        for size in SIZES:
            for _ in range(ROUNDS):
                data = Shareable()
                data[PAYLOAD] = os.urandom(size)
                began = time.perf_counter()
                task = Task(name=TASK, data=data, timeout=60)
                self.broadcast_and_wait(task, fl_ctx, min_responses=len(SITES), abort_signal=abort_signal)
                times.setdefault(str(size), []).append(time.perf_counter() - began)
        Path(os.environ[RESULT_VARIABLE]).write_text(json.dumps(times))


class OwnExecutor(Executor):  # type: ignore[misc]
    """Sends back what it got."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: Any, abort_signal: Any) -> Shareable:
        """One echo."""
        reply = make_reply(ReturnCode.OK)
        reply[PAYLOAD] = shareable[PAYLOAD]
        return reply


def _kits(place: Path) -> Network:
    port, admin_port = free_ports(2)
    network = Network("bench", "localhost", port, admin_port, SITES)
    write_kits(network, {site: place / site for site in SITES}, place / "server")
    return network


def ours(place: Path) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of every round through tacit's backend, and bytes that a silo sent per round, by size."""
    network = _kits(place)
    times: dict[str, list[float]] = {}
    sent: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(flare_backend(place / "server", SITES, quorum=len(SITES)))
        for site in SITES:
            relay = stack.enter_context(answering(lambda frame: frame))
            command = site_command(place / site / "engine", site)
            stack.enter_context(kept_running(command, relay=relay, log=place / site / "log.txt"))
        backend.run_round(b"first", sites=SITES, quorum=len(SITES), deadline_seconds=120)
        for size in SIZES:
            before = _bytes_sent(network.port)
            for _ in range(ROUNDS):
                payload = os.urandom(size)
                began = time.perf_counter()
                answers = backend.run_round(payload, sites=SITES, quorum=len(SITES), deadline_seconds=60)
                times.setdefault(str(size), []).append(time.perf_counter() - began)
                assert all(answers[site] == payload for site in SITES)
            sent[str(size)] = (_bytes_sent(network.port) - before) / ROUNDS / len(SITES)
    return times, sent


def _bytes_sent(port: int) -> int:
    """What silos have sent to the server so far over all their connections, TLS and polling included."""
    listed = subprocess.run(["ss", "-tinH", "dport", "=", f":{port}"], capture_output=True, text=True, check=True)
    return sum(map(int, re.findall(r"bytes_sent:(\d+)", listed.stdout)))


def own(place: Path) -> dict[str, list[float]]:
    """Seconds of every round of FLARE's own classes, in FLARE's own processes."""
    _kits(place)
    settle_server(place / "server" / "engine")
    launcher = "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher"
    for party in ("server", *SITES):
        path = place / party / "engine" / "local" / "resources.json"
        text = path.read_text().replace("tacit.deploy.flare.launcher.RelaunchingLauncher", launcher)
        settings = json.loads(text)
        settings["class_allow_list"] = ["deployment.OwnController", "deployment.OwnExecutor"]
        path.write_text(json.dumps(settings))
    folder = jobs.write_job(place / "job", min_sites=len(SITES))
    for path in (folder / "app" / "config").iterdir():
        config = json.loads(path.read_text())
        if "workflows" in config:
            config["workflows"][0]["path"] = "deployment.OwnController"
            config["server"]["task_request_interval"] = ASK_SECONDS
        else:
            config["executors"] = [{"tasks": [TASK], "executor": {"path": "deployment.OwnExecutor", "args": {}}}]
        path.write_text(json.dumps(config))
    os.environ[RESULT_VARIABLE] = str(place / "result.json")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with contextlib.ExitStack() as stack:
        relay = stack.enter_context(listening(lambda connection: None))
        bare = [word for word in server_command(place / "server" / "engine", "ADDRESS") if word != "ADDRESS"]
        commands = [(bare, place / "server" / "log.txt")]
        commands += [(site_command(place / site / "engine", site), place / site / "log.txt") for site in SITES]
        for command, log in commands:
            plain = [
                word.replace("tacit.deploy.flare.server_process", _APP + "server.server_train")
                for word in command
            ]
            plain = [
                word.replace("tacit.deploy.flare.site_process", _APP + "client.client_train") for word in plain
            ]
            stack.enter_context(running(plain, relay=relay, log=log))
        _submit(place / "server" / "admin", folder, place / "result.json")
    return dict(json.loads((place / "result.json").read_text()))


_APP = "nvflare.private.fed.app."


def _submit(admin: Path, folder: Path, result: Path) -> None:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    session = new_secure_session(ADMIN, str(admin), timeout=60)
    while len(session.get_connected_client_list()) < len(SITES):
        time.sleep(0.5)
    session.submit_job(str(folder))
    while not result.exists():
        time.sleep(1)
    session.close()


def _add(times: dict[str, list[float]], more: dict[str, list[float]]) -> None:
    """Take in what one turn measured, but for the first two rounds of each size."""
    for size, seconds in more.items():
        times[size] += seconds[2:]


def main() -> None:
    """Print one line a size."""
    engine: dict[str, list[float]] = {str(size): [] for size in SIZES}
    relayed: dict[str, list[float]] = {str(size): [] for size in SIZES}
    with tempfile.TemporaryDirectory(prefix="tacit-") as place:
        for turn in range(TURNS):
            _add(engine, own(Path(place) / f"own-{turn}"))
            times, sent = ours(Path(place) / f"ours-{turn}")
            _add(relayed, times)
    for size in map(str, SIZES):
        mine, its = (statistics.median(times[size]) for times in (relayed, engine))
        print(
            f"{int(size):>7} bytes: {mine:.3f} s a round, FLARE alone {its:.3f} s, ratio {mine / its:.2f}; "
            f"a silo sends {sent[size] - int(size):,.0f} bytes a round more than its message"
        )


if __name__ == "__main__":
    main()
    # FLARE's session leaves threads behind that would keep the interpreter waiting.
    sys.stdout.flush()
    os._exit(0)
