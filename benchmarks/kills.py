"""Kills at random moments: how many releases were not charged, charged twice, or over a silo's policy.

    python benchmarks/kills.py                          1,000 kills of parties in one process
    python benchmarks/kills.py --kills 0 --real 100     100 kills of real processes over NVIDIA FLARE

In one process a death is an exception that nothing catches, at any write to the disk or between two of them; all
that is left of the party is its disk. Real processes get a kill -9: server, silos, and FLARE's own. After every
run the ledgers are compared with every byte that ever left a silo:

    uncharged       a message left, and the ledger has no line of its release with the digest of its bytes
    charged twice   a round has two lines in a ledger, or two different messages of one round left
    over a policy   all runs in the ledger need more than the policy has, or a run was charged for less than all
                    of its planned releases, or has more releases than that

Prints one JSON object; the exit code is 1 if any of the three happened, or a run could not be finished.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from in_process import Death, InProcessBackend
from small_consortium import ACCELERATED, COINS, FED_SPA, SAGA, SHUFFLED, SITES, SUMS, SVRG, Small, recipe

from tacit.deploy.frames import Reply
from tacit.deploy.ledger import Ledger
from tacit.deploy.report import Report
from tacit.deploy.seam import Party
from tacit.deploy.shuffler import SHUFFLER
from tacit.deploy.terms import Terms
from tacit.errors import TacitError
from tacit.privacy.accountant.filter import least_epsilon

KILLS = 1000
ROUNDS = 12
CHANCE = 0.04
"""of dying, at each of a party's moments"""

SCENARIOS: dict[str, dict[str, Any]] = {
    "svrg with shifts": SVRG,
    "saga": SAGA,
    "accelerated": ACCELERATED,
    "fed-spa": FED_SPA,
    "shuffled": SHUFFLED,
    "coins behind a shuffler": COINS,
    "sums": SUMS,
    "with reports": SVRG,
}
REPORTS = "with reports"
_FSYNC, _REPLACE = os.fsync, os.replace


@dataclass
class Left:
    """What left one silo: for every run and round, the digests of all messages."""

    messages: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def note(self, frame: bytes) -> None:
        """One more answer; only those with a message count: help with a sum is no release."""
        reply = Reply.decode(frame, body_limit=2**24)
        if reply.body and reply.releases and not reply.body.startswith(b"{"):
            digest = hashlib.sha256(reply.body).hexdigest()
            self.messages.setdefault((reply.run, reply.round), []).append(digest)


def check(ledger: Path, left: Left, terms: Terms) -> Counter[str]:
    """What is wrong with the ledger of a silo that took part on these terms."""
    with Ledger(ledger).page() as page:
        account = page.account
        rows = [json.loads(row[0]) for row in page.connection.execute("SELECT body FROM lines").fetchall()]
    lines = [row for row in rows if row["kind"] == "release"]
    charged = {(line["run"], line["round"]): line["message"] for line in lines}
    wrong: Counter[str] = Counter()
    for place, digests in left.messages.items():
        wrong["uncharged"] += any(digest != charged.get(place) for digest in digests)
        wrong["charged twice"] += len(set(digests)) > 1
    wrong["charged twice"] += len(lines) - len(charged)
    policy, whole = terms.policy, terms.event(terms.planned)
    wrong["over a policy"] += least_epsilon(account.events(), policy.delta, policy.adjacency) > policy.epsilon
    wrong["over a policy"] += any(event != whole for event in account.events())
    wrong["over a policy"] += max(Counter(line["run"] for line in lines).values(), default=0) > terms.planned
    return wrong


@dataclass
class Reaper:
    """Who dies when, by chance; and how often somebody has."""

    rng: random.Random
    chance: float
    most: int
    deaths: Counter[str] = field(default_factory=Counter)

    def at(self, who: str) -> Callable[[str], None]:
        """What a party calls at its moments."""

        def moment(name: str) -> None:
            if self.deaths.total() < self.most and self.rng.random() < self.chance:
                self.deaths[f"{who} {name}"] += 1
                raise Death(f"{who} {name}")

        return moment

    @contextmanager
    def at_every_write(self, who: str) -> Iterator[None]:
        """Deaths inside the writing of a file: before it is on the disk, before it has its name, and after."""
        moment = self.at(who)

        def synced(handle: int) -> None:
            moment("before a file is on the disk")
            _FSYNC(handle)

        def renamed(source: Any, target: Any) -> None:
            moment("before a file has its name")
            _REPLACE(source, target)
            moment("after a file has its name")

        with mock.patch("os.fsync", synced), mock.patch("os.replace", renamed):
            yield


@dataclass
class Mortal:
    """A party in this process that may die, and whose answers are noted as they leave it."""

    party: Party
    reaper: Reaper
    who: str
    left: Left

    def step(self, request: bytes) -> bytes:
        """Its answer, unless it dies."""
        moment = self.reaper.at(self.who)
        moment("with a request")
        with self.reaper.at_every_write(self.who):
            answer = self.party.step(request)
        self.left.note(answer)
        moment("with an answer")
        return answer


def one_run(scenario: str, directory: Path, reaper: Reaper) -> Counter[str]:
    """A whole run in which everybody dies now and then; what was wrong in the end."""
    report = Report(2, 4.0, 0.5) if scenario == REPORTS else None
    made = Small(recipe(**SCENARIOS[scenario], rounds=ROUNDS), directory, report)
    left = {site: Left() for site in (*SITES, SHUFFLER)}
    parties: dict[str, Any] = {
        site: lambda at, site=site: Mortal(made.silo(site, at=reaper.at("silo")), reaper, "silo", left[site])
        for site in SITES
    }
    if made.sealing:
        parties[SHUFFLER] = lambda at: Mortal(made.shuffler(), reaper, "shuffler", left[SHUFFLER])
    backend, finished = InProcessBackend(parties), None
    while finished is None:
        try:
            with reaper.at_every_write("server"):
                finished = made.server(backend, attempts=1000, at=reaper.at("server")).run()
        except Death:
            continue
        except TacitError:
            break
    wrong = Counter({"unfinished": int(finished is None)})
    for site in SITES:
        wrong += check(directory / site / "ledger.sqlite", left[site], made.terms(site))
    return +wrong


def in_process(kills: int, seed: int, *, chance: float = CHANCE, a_run: int | None = None) -> dict[str, Any]:
    """So many kills, at most `a_run` in each, over runs of all scenarios in turn."""
    rng, deaths, wrong, runs = random.Random(seed), Counter[str](), Counter[str](), 0
    quick, names = Path("/dev/shm"), list(SCENARIOS)
    with tempfile.TemporaryDirectory(dir=quick if quick.is_dir() else None) as place:
        while deaths.total() < kills:
            left = kills - deaths.total()
            reaper = Reaper(rng, chance, left if a_run is None else min(left, a_run))
            wrong += one_run(names[runs % len(names)], Path(place) / f"{runs}", reaper)
            deaths, runs = deaths + reaper.deaths, runs + 1
    return {"kills": deaths.total(), "runs": runs, "wrong": dict(wrong), "moments": dict(sorted(deaths.items()))}


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=KILLS, help="in one process")
    parser.add_argument("--real", type=int, default=0, help="of real processes")
    parser.add_argument("--minutes", type=float, default=25.0, help="for the real ones")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable()
    results: dict[str, Any] = {}
    if options.kills:
        results["in_process"] = in_process(options.kills, options.seed)
    if options.real:
        from real_kills import real_processes

        results["real_processes"] = real_processes(options.real, options.minutes * 60, options.seed)
    print(json.dumps(results, indent=1))
    return 1 if any(result["wrong"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
