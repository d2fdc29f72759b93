"""Real processes over mutual TLS: parity with the simulator, who is refused, and who listens where."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")

import psutil
from tests import warm
from typer.testing import CliRunner

from tacit.cli.app import app, main
from tacit.data.schema import Column, Predicted, Schema
from tacit.deploy.flare import processes
from tacit.deploy.flare.backend import flare_backend
from tacit.deploy.flare.kits import Network, write_kits
from tacit.deploy.flare.local import free_ports
from tacit.engine.loaded import load_run
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate

pytestmark = pytest.mark.slow

ROUNDS = 5


def _processes(words: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if words in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _until_gone(words: str) -> list[psutil.Process]:
    for _ in range(240):
        left = _processes(words)
        if not left:
            return []
        time.sleep(0.25)
    return left


def test_a_deployed_trial_equals_the_simulator_and_leaves_no_process(tmp_path: Path) -> None:
    recipe = Recipe(
        algorithm="soteriafl-svrg",
        data="digits",
        clients=2,
        model="softmax",
        rounds=ROUNDS,
        algorithm_settings={"batch": 20.0, "step": 0.5},
    )
    (tmp_path / "recipe.toml").write_text(replace(recipe, clients=None).to_toml())
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tacit", "deploy", str(tmp_path / "recipe.toml"), "--local", "2"]
    options = ["--insecure-reproducible", "--out", str(out), "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["insecure_reproducible"] is True
    assert {silo["rounds_answered"] for silo in summary["silos"].values()} == {ROUNDS}
    assert _until_gone(str(tmp_path)) == []

    plan = make_plan(recipe)
    # One client at a time, because silos cannot share a matrix product.
    run = simulate(plan, memory_limit_bytes=1)
    loaded = load_run(Path(summary["model"]).parent)
    assert torch.equal(loaded.trained.parameters, run.parameters)
    assert loaded.guarantee is None  # its noise followed from a seed
    assert len(loaded.history) == ROUNDS

    verified = CliRunner().invoke(app, ["verify", summary["certificate"]])
    assert verified.exit_code == 0, verified.output
    planted = plan.federation.features.numpy()[:4].tobytes()
    for path in (out / "server").rglob("*"):
        assert not path.is_file() or planted not in path.read_bytes()


def test_a_deployed_regression_is_corrected_as_in_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server in this process, the silos in forks of one: the test above starts all of them from nothing."""
    rng, rows = np.random.default_rng(0), 4000
    table = pd.DataFrame({"age": rng.uniform(0, 100, rows), "site": np.repeat(["a", "b"], [3000, 1000])})
    table["cost"] = rng.exponential(2 + table["age"] / 8)
    table.to_csv(tmp_path / "t.csv", index=False)
    target = Predicted("cost", "regression", range=(0, 100), middle=10)
    schema = Schema(target, (Column("age", "number", range=(0, 100)),), client="site", ends=2.0)
    (tmp_path / "s.toml").write_text(schema.to_toml())
    recipe = Recipe(
        algorithm="noisy-mb-sgd",
        data=str(tmp_path / "t.csv"),
        data_settings={"schema": str(tmp_path / "s.toml")},
        epsilon=8.0,
        rounds=ROUNDS,
        correction=0.4,
        algorithm_settings={"clip_norm": 0.05, "step": 3.0, "batch": 0.5},
    )
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    options = ["--insecure-reproducible", "--out", str(tmp_path / "out"), "--json"]
    monkeypatch.setattr(processes, "_start", warm.start)
    monkeypatch.setattr(sys, "argv", ["tacit", "deploy", str(tmp_path / "recipe.toml"), "--local", "2", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    summary = json.loads(printed.out)
    run = simulate(make_plan(recipe), memory_limit_bytes=1)
    assert run.correction is not None
    assert run.correction.shift > 0.01
    assert torch.equal(load_run(Path(summary["model"]).parent).trained.parameters, run.parameters)
    assert summary["correction"]["shift"] == run.summary()["correction"]["shift"]
    verified = CliRunner().invoke(app, ["verify", summary["certificate"]])
    assert verified.exit_code == 0, verified.output
    assert "Corrected after training: predictions raised" in " ".join(verified.output.split())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """The folders of two consortia, of which the first has its server running; and that server's port."""
    place = tmp_path_factory.mktemp("tls")
    ports = {}
    for name in ("ours", "theirs"):
        port, admin_port = free_ports(2)
        ports[name] = port
        network = Network(name, "localhost", port, admin_port, ("lyon",))
        write_kits(network, {"lyon": place / name / "lyon"}, place / name / "server")
    with flare_backend(place / "ours" / "server", ["lyon"], quorum=1):
        for _ in range(240):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", ports["ours"])) == 0:
                    break
            time.sleep(0.25)
        yield place, ports["ours"]
    assert _until_gone(str(place)) == []


def _handshake(port: int, root: Path, party: Path | None) -> str:
    """What a client with this certificate gets from the server once both have shown theirs."""
    context = ssl.create_default_context(cafile=root / "rootCA.pem")
    context.set_alpn_protocols(["h2"])
    if party is not None:
        context.load_cert_chain(party / "client.crt", party / "client.key")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
        try:
            with context.wrap_socket(raw, server_hostname="localhost") as connection:
                # With TLS 1.3 a client learns only now whether its certificate was taken.
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                return "accepted" if connection.recv(9) else "refused"
        except (ssl.SSLError, ConnectionError):
            return "refused"


def test_who_is_let_in(server: tuple[Path, int]) -> None:
    place, port = server
    ours, theirs = (place / name / "lyon" / "engine" / "startup" for name in ("ours", "theirs"))
    assert _handshake(port, ours, ours) == "accepted"
    assert _handshake(port, ours, None) == "refused"
    assert _handshake(port, ours, theirs) == "refused"


def test_plain_tcp_is_refused(server: tuple[Path, int]) -> None:
    _, port = server
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        try:
            heard = connection.recv(64)
        except ConnectionError:
            heard = b""
    # At most a TLS alert: no frame of HTTP/2, whose first one would be of type 4.
    assert heard == b"" or heard[0] == 0x15


def _listening(place: Path) -> set[tuple[str, int]]:
    return {
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for process in _processes(str(place))
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_nobody_listens_beyond_loopback(server: tuple[Path, int]) -> None:
    place, port = server
    assert ("127.0.0.1", port) in _listening(place)
    assert {address for address, _ in _listening(place)} == {"127.0.0.1"}


def test_a_server_with_a_name_listens_on_its_one_address(tmp_path: Path) -> None:
    port, admin_port = free_ports(2)
    network = Network("named", "fl.example.org", port, admin_port, ("lyon",))
    write_kits(network, {"lyon": tmp_path / "lyon"}, tmp_path / "server")
    with flare_backend(tmp_path / "server", ["lyon"], quorum=1, listen="127.0.0.2"):
        for _ in range(240):
            if {p for _, p in _listening(tmp_path)} >= {port, admin_port}:
                break
            time.sleep(0.25)
        found = _listening(tmp_path)
    assert ("127.0.0.2", port) in found
    # What submits jobs, and what FLARE's own processes use among themselves.
    assert {address for address, other in found if other != port} == {"127.0.0.1"}
    assert ("127.0.0.1", port) not in found
    assert ("0.0.0.0", port) not in found
