"""A small consortium: a few silos with a handful of records each, on a disk that is quick where there is one."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.in_process import NO_FAULT, InProcessBackend
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from tests.deploy.meddling import meddled
from tests.warm import Warm

from tacit.algorithms.registry import algorithm_entry
from tacit.deploy.frames import Request, point_to_bytes
from tacit.deploy.guard import admit
from tacit.deploy.identities import Identities
from tacit.deploy.job import Job
from tacit.deploy.mixing import Covers, PublicKeys
from tacit.deploy.policy import Policy
from tacit.deploy.report import Report
from tacit.deploy.sealing import public_bytes
from tacit.deploy.seam import Party
from tacit.deploy.server import Server
from tacit.deploy.shuffler import SHUFFLER, ShufflerParty
from tacit.deploy.silo import Silo
from tacit.deploy.silo_checks import Trusted
from tacit.deploy.verification import Verified, verify
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.federation import Federation

RUN = "0123456789abcdef" * 2
FEATURES = 6


@dataclass
class Recorded:
    """A party of which everything is kept that leaves it."""

    party: Party
    left: list[bytes]

    def step(self, request: bytes) -> bytes:
        answer = self.party.step(request)
        self.left.append(answer)
        return answer


@dataclass(frozen=True)
class Consortium:
    """A job, the records of its sites, and where they keep their state."""

    job: Job
    federation: Federation
    directory: Path
    policies: dict[str, Policy]
    left: dict[str, list[bytes]] = field(default_factory=dict)
    """all bytes that ever left a site"""

    sealing: dict[str, X25519PrivateKey] = field(default_factory=dict)
    """private keys for sealed messages, where there is a shuffler"""
    signing: dict[str, Ed25519PrivateKey] = field(default_factory=dict)
    """private keys for certificates and ledger heads"""

    @property
    def keys(self) -> PublicKeys:
        public = {party: public_bytes(key) for party, key in self.sealing.items()}
        return PublicKeys(public.pop("server"), public.pop(SHUFFLER), public)

    def silo(self, site: str, at: Callable[[str], None] = lambda moment: None) -> Silo:
        records = self.federation.client(self.job.sites.index(site))
        covers = Covers(site, self.sealing[site], self.keys) if self.sealing else None
        terms = admit(self.job, self.policies[site], site, records)
        return Silo(terms, self.directory / site, key=self.signing[site], covers=covers, at=at)

    def shuffler(self) -> ShufflerParty:
        return ShufflerParty(self.job, self.sealing[SHUFFLER], self.keys)

    def backend(self, faults: Callable[[str], str] = lambda site: NO_FAULT) -> InProcessBackend:
        def maker(site: str) -> Callable[[Callable[[str], None]], Recorded]:
            return lambda at: Recorded(self.silo(site, at), self.left.setdefault(site, []))

        parties: dict[str, Any] = {site: maker(site) for site in self.job.sites}
        if self.sealing:
            parties[SHUFFLER] = lambda at: Recorded(self.shuffler(), self.left.setdefault(SHUFFLER, []))
        return InProcessBackend(parties, faults)

    def server(self, backend: Any = None, **settings: Any) -> Server:
        key = self.sealing.get("server")
        options: dict[str, Any] = {"quorum": 1, "deadline_seconds": 0.01, "key": key, **settings}
        options.setdefault("signer", self.signing["server"])
        return Server(self.job, backend or self.backend(), self.directory / "server", **options)

    def verified(self, certificate: bytes, files: dict[str, bytes] | None = None) -> Verified:
        """Checked against the job that everybody agreed to."""
        return verify(certificate, files, Trusted(job=self.job.text.encode()))

    def request(self, round: int = 0, *, point: float = 0.0, run: str = RUN, **others: Any) -> bytes:
        dim = self.job.algorithm.work.model.dim
        body = point_to_bytes(torch.full((dim,), point))
        asked = Request("round", run, round, self.job.digest, {}, body)
        return replace(asked, **others).encode()


@pytest.fixture
def disk() -> Iterator[Path]:
    """A directory whose syncs cost nothing where the machine has memory to offer for it."""
    quick = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=quick if quick.is_dir() else None) as place:
        yield Path(place)


@pytest.fixture
def consortium(disk: Path) -> Callable[..., Consortium]:
    """Makes a consortium; settings are the recipe's, `policy` those of every silo's policy."""

    def make(
        sites: int = 3,
        records: int = 24,
        dim: int = FEATURES,
        least: int | None = None,
        policy: dict[str, Any] | None = None,
        report: Report | None = None,
        **settings: Any,
    ) -> Consortium:
        choices: dict[str, Any] = {
            "algorithm": "soteriafl-svrg",
            "model": "logistic",
            "rounds": 6,
            "epsilon": 4.0,
            "delta": 1e-4,
            "sampling": "poisson",
            "batch": 0.5,
            "snapshot_probability": 0.3,
            "compressor": "rand-k:0.5",
            "step": 0.5,
            "noise": "lattice",
            **settings,
        }
        said = {name: value for name, value in choices.items() if value != "leave out"}
        takes = algorithm_entry(said["algorithm"]).settings
        recipe = Recipe(
            **{name: value for name, value in said.items() if name in {f.name for f in fields(Recipe)}},
            algorithm_settings={name: value for name, value in said.items() if name in takes},
        )
        generator = torch.Generator().manual_seed(3)
        features = torch.randn(sites * records, dim, generator=generator)
        targets = (features[:, 0] > 0).long()
        owners = [i // records for i in range(sites * records)]
        federation = Federation.from_arrays(features, targets, owners, classes=2)
        names = tuple(f"site-{i}" for i in range(sites))
        shuffled = choices["algorithm"].startswith("shuffled-")
        signing = {party: Ed25519PrivateKey.generate() for party in ("server", *names)}
        known = Identities.of(signing["server"], {site: signing[site] for site in names})
        crowd = shuffled or recipe.trust == "sum"
        job = Job(recipe, names, (dim,), 2, (least or records) if crowd else None, report, known)
        parties = ("server", SHUFFLER, *names) if shuffled else ()
        trial = {"insecure_reproducible": job.insecure, **(policy or {})}
        policies = {site: Policy.for_job(job, site, **trial) for site in job.sites}
        sealing = {party: X25519PrivateKey.generate() for party in parties}
        return Consortium(job, federation, disk, policies, sealing=sealing, signing=signing)

    return make


class RealParties:
    """A server and silos as processes, on loopback, that can be killed and started again."""

    def __init__(
        self,
        directory: Path,
        recipe: Recipe,
        quorum: int = 0,
        federation: Federation | None = None,
        deadline_seconds: float = 20.0,
    ) -> None:
        from tacit.deploy.consortium import Consortium as Agreement
        from tacit.deploy.flare.local import free_ports, party_command, write_shards
        from tacit.deploy.provision import provision

        plan = make_plan(recipe, federation=federation)
        self.sites = tuple(f"silo-{number + 1}" for number in range(plan.federation.clients))
        port, admin_port = free_ports(2)
        agreed = Agreement(
            "real", Job.from_plan(plan, self.sites), port=port, admin_port=admin_port, quorum=quorum,
            deadline_seconds=deadline_seconds,
        )  # fmt: skip
        self.folders = provision(agreed, directory)
        shards = write_shards(plan.federation, {site: self.folders[site] for site in self.sites})
        self._words = {
            # Without `python -m tacit`.
            **{party: party_command(folder, shards.get(party))[3:] for party, folder in self.folders.items()},
            "server": ["server", str(self.folders["server"]), "--json"],
        }
        self.running: dict[str, Warm] = {}

    def start(self, party: str, **environment: str) -> None:
        """Start a party, with orders for `meddling` in the environment, if any."""
        self.running[party] = Warm(
            meddled,
            *self._words[party],
            output=self.folders[party] / "output.txt",
            environment={**os.environ, **environment},
        )

    def kill(self, party: str) -> None:
        self.running[party].kill()
        self.running[party].wait()

    def rounds(self) -> list[dict[str, Any]]:
        path = self.folders["server"] / "state" / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, reached: Callable[[list[dict[str, Any]]], bool]) -> None:
        while not reached(self.rounds()):
            # A server that has ended will not get there.
            assert self.running["server"].poll() is None, self.output("server")
            time.sleep(0.2)

    def output(self, party: str) -> str:
        return (self.folders[party] / "output.txt").read_text()

    def stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)


@pytest.fixture
def real_parties(tmp_path: Path) -> Iterator[Callable[..., RealParties]]:
    made: list[RealParties] = []

    def make(recipe: Recipe, **settings: Any) -> RealParties:
        made.append(RealParties(tmp_path / "out", recipe, **settings))
        return made[-1]

    yield make
    for parties in made:
        parties.stop()
