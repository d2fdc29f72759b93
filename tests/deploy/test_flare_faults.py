"""Real processes that are killed, stopped, cut off and meddled with: the run ends, and every ledger is true."""

from __future__ import annotations

import json
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")

import psutil

from tacit.deploy.policy import Policy
from tacit.deploy.provision import PartyFolder
from tacit.engine.recipe import Recipe
from tacit.privacy.filter import least_epsilon
from tacit.privacy.ledger import Ledger

pytestmark = pytest.mark.slow

ROUNDS = 90
SERVER_DEATHS = ("before asking", "collecting", "after answers", "before checkpoint", "after checkpoint")
SILO_DEATHS = ("before memory", "after memory", "before ledger", "after ledger")


def _children(parties: Any, party: str, words: str = "") -> list[psutil.Process]:
    own = psutil.Process(parties.running[party].pid).children(recursive=True)
    return [process for process in own if words in " ".join(process.cmdline())]


def _cut_off(parties: Any, party: str) -> list[psutil.Process]:
    """Freeze a party with all its processes: its connections stay open, and nothing comes through."""
    frozen = [psutil.Process(parties.running[party].pid), *_children(parties, party)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    return frozen


def _fill_disk(parties: Any, party: str, full: bool) -> None:
    """Let no file of a silo's own process grow, or let them grow again."""
    limit = 1 if full else resource.RLIM_INFINITY
    resource.prlimit(parties.running[party].pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def _check_ledgers(parties: Any) -> None:
    """No ledger over budget, no round charged twice, nothing used that was not charged."""
    for site in parties.sites:
        party = PartyFolder.open(parties.folders[site])
        policy = Policy.from_toml(party.policy_text())
        with Ledger(party.state / "ledger.sqlite").page() as page:
            lines = [json.loads(row[0]) for row in page.connection.execute("SELECT body FROM lines").fetchall()]
            spent = least_epsilon(page.account.events(), policy.delta, policy.adjacency)
        charged = [line["round"] for line in lines if line["kind"] == "release"]
        assert spent <= policy.epsilon
        assert len(charged) == len(set(charged))
        used = [line["round"] - 1 for line in parties.rounds() if site in line["used"]]
        assert used
        assert set(used) <= set(charged)


def test_a_run_outlives_whatever_happens_to_its_parties(real_parties: Callable[..., Any]) -> None:
    recipe = Recipe(
        algorithm="soteriafl-sgd",
        data="digits",
        clients=4,
        model="softmax",
        rounds=ROUNDS,
        noise="lattice",
        algorithm_settings={"batch": 20.0, "step": 0.5},
    )
    parties = real_parties(recipe, quorum=2)
    dying, killed, frozen, spoilt = parties.sites
    silo_deaths, happened = list(SILO_DEATHS), set()
    parties.start(dying, TACIT_TEST_DIE=f"{silo_deaths.pop(0)}:2")
    parties.start(killed)
    parties.start(frozen)
    parties.start(spoilt, TACIT_TEST_SPOIL="1")

    for number, moment in enumerate(SERVER_DEATHS):
        # The first checkpoint of a new run stands before its first round.
        parties.start("server", TACIT_TEST_DIE=f"{moment}:{4 if number == 3 else 3}")
        stopped: list[psutil.Process] = []
        began = len(parties.rounds())
        while parties.running["server"].poll() is None:
            time.sleep(0.1)
            if len(parties.rounds()) > began and moment not in happened:
                happened.add(moment)
                if number == 1:
                    jobs = _children(parties, killed, "site_job_process")
                    assert len(jobs) == 1
                    jobs[0].kill()
                elif number == 2:
                    stopped = _cut_off(parties, frozen)
                elif number == 3:
                    _fill_disk(parties, spoilt, full=True)
            if parties.running[dying].poll() is not None:
                assert parties.running[dying].returncode == -signal.SIGKILL
                parties.start(dying, TACIT_TEST_DIE=f"{silo_deaths.pop(0)}:2" if silo_deaths else "never:1")
        assert parties.running["server"].returncode == -signal.SIGKILL, parties.output("server")
        for process in stopped:
            process.send_signal(signal.SIGCONT)

    assert not silo_deaths
    parties.start("server")
    if parties.running[dying].poll() is not None:
        parties.start(dying)
    before = len(parties.rounds())
    # The disk is still full: the silo says so, and goes on when there is room.
    parties.wait(lambda rounds: any(line["problems"].get(spoilt) == "failed" for line in rounds[before:]))
    _fill_disk(parties, spoilt, full=False)
    parties.wait(lambda rounds: spoilt in rounds[-1]["used"])
    parties.kill(killed)
    missed = len(parties.rounds())
    parties.wait(lambda rounds: len(rounds) > missed and killed not in rounds[-1]["used"])
    parties.start(killed)
    parties.wait(lambda rounds: set(rounds[-1]["used"]) >= {killed, frozen})
    assert len(parties.rounds()) < ROUNDS, "all of this was too late to show anything"
    assert parties.running["server"].wait(600) == 0

    # A server that died after a checkpoint had no time to note that round.
    noted = [line["round"] for line in parties.rounds()]
    assert noted == sorted(set(noted))
    assert len(noted) >= ROUNDS - 1
    problems = {code for line in parties.rounds() for site, code in line["problems"].items() if site == spoilt}
    assert problems & {"rejected", "wrong-round", "replayed"}
    _check_ledgers(parties)
