"""Real processes that are killed, stopped, cut off and meddled with: the run ends, and every ledger is true."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")

import psutil

from tacit.deploy.ledger import Ledger
from tacit.deploy.party_folder import PartyFolder
from tacit.deploy.policy import Policy
from tacit.engine.recipe import Recipe
from tacit.privacy.accountant.filter import least_epsilon

pytestmark = pytest.mark.slow

ROUNDS = 60


def _children(parties: Any, party: str, words: str = "") -> list[psutil.Process]:
    found = []
    for process in psutil.Process(parties.running[party].pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if words in " ".join(process.cmdline()):
                found.append(process)
    return found


def _cut_off(parties: Any, party: str) -> list[psutil.Process]:
    """Freeze a party with all its processes: its connections stay open, and nothing comes through."""
    frozen = [psutil.Process(parties.running[party].pid), *_children(parties, party)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    return frozen


def _fill_disk(parties: Any, party: str, full: bool) -> None:
    """Let no file of a silo's processes grow, FLARE's included, or let them grow again."""
    limit = 1 if full else resource.RLIM_INFINITY
    for process in (psutil.Process(parties.running[party].pid), *_children(parties, party)):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


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


def test_a_run_outlives_whatever_happens_to_its_parties(real_parties: Callable[..., Any], tmp_path: Path) -> None:
    """Every moment of a death is tried in one process; here a few, and what only real processes can show."""
    recipe = Recipe(
        algorithm="soteriafl-sgd",
        data="digits",
        clients=4,
        model="softmax",
        rounds=ROUNDS,
        noise="lattice",
        algorithm_settings={"batch": 20.0, "step": 0.5},
    )
    # A machine that does other things too may need a minute to start a party.
    parties = real_parties(recipe, quorum=2, deadline_seconds=60.0)
    dying, killed, frozen, spoilt = parties.sites
    parties.start(dying, TACIT_TEST_DIE="before ledger:3")
    parties.start(killed)
    parties.start(frozen)
    parties.start(spoilt, TACIT_TEST_SPOIL="1")
    parties.start("server", TACIT_TEST_DIE=f"collecting:{tmp_path / 'enough'}")

    parties.wait(lambda rounds: len(rounds) > 1)
    (job,) = _children(parties, killed, "site_job_process")
    job.kill()
    before = len(parties.rounds())
    parties.wait(lambda rounds: len(rounds) > before + 2 and killed in rounds[-1]["used"])
    # The disk is full: the silo goes on saying so, and goes on when there is room.
    _fill_disk(parties, killed, full=True)
    full = len(parties.rounds()) + 1
    parties.wait(lambda rounds: len(rounds) > full + 3)
    assert {line["problems"].get(killed) for line in parties.rounds()[full : full + 3]} == {"failed"}
    _fill_disk(parties, killed, full=False)
    stopped = _cut_off(parties, frozen)
    before = len(parties.rounds())
    parties.wait(lambda rounds: len(rounds) > before + 1)
    (tmp_path / "enough").touch()
    assert parties.running["server"].wait(300) == -signal.SIGKILL, parties.output("server")
    assert parties.running[dying].wait(300) == -signal.SIGKILL
    for process in stopped:
        process.send_signal(signal.SIGCONT)
    parties.start(dying)

    before = len(parties.rounds())
    # Quick rounds would all be over before a party that starts on a busy machine is there.
    parties.start("server", TACIT_TEST_SLOW=str(tmp_path / "all there"))
    parties.wait(lambda rounds: len(rounds) > before and set(rounds[-1]["used"]) >= {dying, killed, frozen})
    # Too few for a quorum: the server says soon who is missing, and goes on when they are back.
    said, missing = len(parties.output("server")), (dying, killed, spoilt)
    for party in missing:
        parties.kill(party)
    while not any(
        line.startswith("waiting for") and all(party in line for party in missing)
        for line in parties.output("server")[said:].replace("\n  ", " ").splitlines()
    ):
        assert parties.running["server"].poll() is None, parties.output("server")
        time.sleep(0.2)
    for party in missing:
        parties.start(party)
    parties.wait(lambda rounds: set(rounds[-1]["used"]) >= set(missing))
    assert len(parties.rounds()) < ROUNDS, "all of this was too late to show anything"
    (tmp_path / "all there").touch()
    assert parties.running["server"].wait(600) == 0, parties.output("server")

    noted = [line["round"] for line in parties.rounds()]
    assert noted == list(range(1, ROUNDS + 1))
    problems = {code for line in parties.rounds() for site, code in line["problems"].items() if site == spoilt}
    assert problems & {"rejected", "wrong-round", "replayed"}
    _check_ledgers(parties)
