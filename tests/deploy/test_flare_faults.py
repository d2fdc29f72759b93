"""Real processes that are killed in the middle of a run: it ends all the same, and every ledger is true."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")

import psutil

from tacit.deploy.flare.parties import free_ports, party_command, write_shards
from tacit.deploy.job import Job
from tacit.deploy.policy import Policy
from tacit.deploy.provision import Consortium, PartyFolder, provision
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.privacy import accounting
from tacit.privacy.ledger import Ledger

pytestmark = pytest.mark.slow

SITES = ("silo-1", "silo-2", "silo-3")
ROUNDS = 100


class _Parties:
    """A server and three silos as processes that can be killed and started again."""

    def __init__(self, folders: dict[str, Path], shards: dict[str, Path]) -> None:
        self.folders = folders
        self.commands = {site: party_command(folders[site], shards[site]) for site in shards}
        self.commands["server"] = [sys.executable, "-m", "tacit", "server", str(folders["server"]), "--json"]
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, party: str) -> None:
        with (self.folders[party] / "output.txt").open("ab") as output:
            self.running[party] = subprocess.Popen(self.commands[party], stdout=output, stderr=output)

    def kill(self, party: str) -> None:
        self.running[party].kill()
        self.running[party].wait()

    def rounds(self) -> list[dict[str, Any]]:
        path = self.folders["server"] / "state" / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, reached: Callable[[list[dict[str, Any]]], bool]) -> None:
        while not reached(self.rounds()):
            # A server that has ended will not get there.
            assert self.running["server"].poll() is None, (self.folders["server"] / "output.txt").read_text()
            time.sleep(0.2)


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[_Parties]:
    recipe = Recipe(
        algorithm="soteriafl-sgd",
        data="digits",
        clients=len(SITES),
        model="softmax",
        rounds=ROUNDS,
        batch=20.0,
        step=0.5,
        noise="lattice",
    )
    plan = make_plan(recipe)
    port, admin_port = free_ports(2)
    consortium = Consortium("faults", Job.from_plan(plan, SITES), port=port, admin_port=admin_port, quorum=2)
    folders = provision(consortium, tmp_path / "out")
    shards = write_shards(plan.federation, {site: folders[site] for site in SITES})
    made = _Parties(folders, shards)
    yield made
    for process in made.running.values():
        process.terminate()
    for process in made.running.values():
        process.wait(60)


def test_a_run_outlives_the_death_of_everybody(parties: _Parties) -> None:
    for party in ("server", *SITES):
        parties.start(party)
    parties.wait(lambda rounds: len(rounds) >= 3)

    own = psutil.Process(parties.running["silo-1"].pid).children(recursive=True)
    jobs = [process for process in own if "site_job_process" in " ".join(process.cmdline())]
    assert len(jobs) == 1
    jobs[0].kill()
    missed = len(parties.rounds())
    parties.wait(lambda rounds: len(rounds) > missed + 2 and "silo-1" in rounds[-1]["used"])

    parties.kill("silo-2")
    missed = len(parties.rounds())
    parties.wait(lambda rounds: len(rounds) > missed and "silo-2" not in rounds[-1]["used"])
    parties.start("silo-2")
    parties.wait(lambda rounds: "silo-2" in rounds[-1]["used"])

    parties.kill("server")
    before = len(parties.rounds())
    parties.start("server")
    assert parties.running["server"].wait(600) == 0
    assert before < ROUNDS, "the server was killed too late for this to show anything"
    assert [line["round"] for line in parties.rounds()] == list(range(1, ROUNDS + 1))

    for site in SITES:
        party = PartyFolder.open(parties.folders[site])
        policy = Policy.from_toml(party.policy_text())
        with Ledger(party.state / "ledger.sqlite").page() as page:
            lines = [json.loads(row[0]) for row in page.connection.execute("SELECT body FROM lines").fetchall()]
            spent = accounting.epsilon(page.account.event(), policy.delta, policy.adjacency)
        charged = [line["round"] for line in lines if line["kind"] == "release"]
        assert spent <= policy.epsilon
        assert len(charged) == len(set(charged))
        used = [line["round"] - 1 for line in parties.rounds() if site in line["used"]]
        assert set(used) <= set(charged)
