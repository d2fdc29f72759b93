"""Kills of real processes: a server and three silos over NVIDIA FLARE on loopback; see `kills.py`."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from kills import Left, check

from tacit.deploy.consortium import Consortium
from tacit.deploy.guard import admit
from tacit.deploy.party_folder import PartyFolder
from tacit.deploy.policy import Policy
from tacit.deploy.provision import provision
from tacit.engine.recipe import Recipe

ROUNDS, QUORUM, SILOS = 5000, 2, 3
PATIENCE_SECONDS, PAUSE_SECONDS = 10.0, 4.0
"""How long after a kill a round is waited for, and up to how long from then to the next kill."""

RECOVERY_SECONDS = 300.0
_RECORD = "left.jsonl"
_OTHERS = ("site_process", "site_job_process", "server_process", "steward", "runner_process")
"""FLARE's own, of which a party may have some."""


class Parties:
    """A server and silos as processes that can be killed and started again."""

    def __init__(self, place: Path) -> None:
        from tacit.deploy.flare.local import free_ports, party_command, write_shards
        from tacit.deploy.job import Job
        from tacit.engine.plan import make_plan

        recipe = Recipe(
            algorithm="soteriafl-sgd",
            data="digits",
            clients=SILOS,
            model="softmax",
            rounds=ROUNDS,
            noise="lattice",
            algorithm_settings={"batch": 20.0, "step": 0.2},
        )
        plan = make_plan(recipe)
        self.federation = plan.federation
        self.sites = tuple(f"silo-{number + 1}" for number in range(SILOS))
        port, admin_port = free_ports(2)
        job = Job.from_plan(plan, self.sites)
        agreed = Consortium("kills", job, port=port, admin_port=admin_port, quorum=QUORUM, deadline_seconds=20.0)
        self.folders = provision(agreed, place / "out")
        shards = write_shards(plan.federation, {site: self.folders[site] for site in self.sites})
        own = [sys.executable, str(Path(__file__).resolve())]
        self._commands = {
            site: [*own, *party_command(self.folders[site], shards[site])[3:]] for site in self.sites
        }
        self._commands["server"] = [
            sys.executable,
            "-m",
            "tacit",
            "server",
            str(self.folders["server"]),
            "--json",
        ]
        self.temporary = place / "temporary"
        self.temporary.mkdir()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, party: str) -> None:
        """Start it, or start it again."""
        environment = {**os.environ, "TMPDIR": str(self.temporary)}
        with (self.folders[party] / "output.txt").open("ab") as output:
            self.running[party] = subprocess.Popen(
                self._commands[party], stdout=output, stderr=output, env=environment
            )

    def victims(self) -> list[tuple[str, str, int]]:
        """(party, kind, process id) of all that can be killed now."""
        found = []
        for party, process in self.running.items():
            if process.poll() is not None:
                continue
            found.append((party, "main", process.pid))
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    words = " ".join(child.cmdline())
                except psutil.Error:
                    continue
                kind = next((kind for kind in _OTHERS if f".{kind}" in words), None)
                if kind is not None:
                    found.append((party, kind, child.pid))
        return found

    def rounds(self) -> list[dict[str, Any]]:
        """What the server has noted."""
        path = self.folders["server"] / "state" / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def revive(self) -> None:
        """Start whoever has ended."""
        for party, process in self.running.items():
            if process.poll() is not None:
                self.start(party)

    def wait_for_round(self, seconds: float) -> None:
        """Until one more round is done, or so long; whoever has ended is started again meanwhile."""
        before, latest = len(self.rounds()), time.monotonic() + seconds
        while len(self.rounds()) == before and time.monotonic() < latest:
            self.revive()
            time.sleep(0.1)

    def recovered(self, before: int) -> bool:
        """Whether a round since then had everybody in it."""
        return any(set(line["used"]) == set(self.sites) for line in self.rounds()[before:])

    def stop(self) -> None:
        """End everybody in order."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)

    def check(self) -> Counter[str]:
        """What is wrong with the ledgers."""
        wrong: Counter[str] = Counter()
        for site in self.sites:
            party, left = PartyFolder.open(self.folders[site]), Left()
            policy = Policy.from_toml(party.policy_text())
            record = party.folder / _RECORD
            for line in map(json.loads, record.read_text().splitlines() if record.exists() else ()):
                left.messages.setdefault((line["run"], line["round"]), []).append(line["digest"])
            own = self.federation.client(self.sites.index(site))
            terms = admit(party.job, policy, site, own)
            wrong += check(party.state / "ledger.sqlite", left, terms)
        return +wrong


def real_processes(kills: int, seconds: float, seed: int) -> dict[str, Any]:
    """As many kills as the time allows; then everybody must be back, and every ledger true."""
    rng, deaths, until = random.Random(seed), Counter[str](), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        parties = Parties(Path(place))
        try:
            for party in ("server", *parties.sites):
                parties.start(party)
            while deaths.total() < kills and time.monotonic() < until:
                parties.wait_for_round(PATIENCE_SECONDS if parties.rounds() else RECOVERY_SECONDS)
                time.sleep(rng.uniform(0, PAUSE_SECONDS))
                party, kind, pid = rng.choice(parties.victims())
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    deaths[f"{'server' if party == 'server' else 'silo'}: {kind}"] += 1
            before, latest = len(parties.rounds()), time.monotonic() + RECOVERY_SECONDS
            while not parties.recovered(before) and time.monotonic() < latest:
                parties.revive()
                time.sleep(1)
            wrong = Counter({"not recovered": int(not parties.recovered(before))})
        finally:
            parties.stop()
        wrong += parties.check()
        wrong["left in the temporary folder"] = len(list(parties.temporary.glob("tacit-*")))
        rounds = len(parties.rounds())
    return {
        "kills": deaths.total(),
        "rounds": rounds,
        "wrong": dict(+wrong),
        "moments": dict(sorted(deaths.items())),
    }


def _recorded() -> None:
    """`tacit` with every message of a silo noted before it leaves."""
    import hashlib

    from tacit.cli.app import main
    from tacit.deploy.flare import parties
    from tacit.deploy.frames import Reply

    honest = parties.answering

    def answering(answer: Any, home: Path) -> Any:
        def noted(request: bytes) -> bytes:
            frame: bytes = answer(request)
            reply = Reply.decode(frame, body_limit=2**24)
            if reply.body and not reply.body.startswith(b"{"):
                digest = hashlib.sha256(reply.body).hexdigest()
                with (home / _RECORD).open("a") as file:
                    file.write(json.dumps({"run": reply.run, "round": reply.round, "digest": digest}) + "\n")
            return frame

        return honest(noted, home)

    parties.answering = answering
    sys.argv[0] = "tacit"
    main()


if __name__ == "__main__":
    _recorded()
