"""A small consortium in one process and one directory: job, policies, records, keys."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from in_process import InProcessBackend

from tacit.deploy.guard import admit
from tacit.deploy.identities import Identities
from tacit.deploy.job import Job
from tacit.deploy.mixing import Covers, PublicKeys
from tacit.deploy.policy import Policy
from tacit.deploy.report import Report
from tacit.deploy.sealing import public_bytes
from tacit.deploy.server import Server
from tacit.deploy.shuffler import SHUFFLER, ShufflerParty
from tacit.deploy.silo import Silo
from tacit.deploy.terms import Terms
from tacit.engine.recipe import Recipe
from tacit.federation import Federation

RUN = "0123456789abcdef" * 2
FEATURES, RECORDS, SITES = 6, 24, ("berlin", "lyon", "porto")
SVRG: dict[str, Any] = {
    "algorithm": "soteriafl-svrg", "sampling": "poisson", "batch": 0.5, "snapshot_probability": 0.3,
    "compressor": "rand-k:0.5", "step": 0.5,
}  # fmt: skip
SAGA: dict[str, Any] = {
    "algorithm": "soteriafl-saga", "sampling": "poisson", "batch": 0.5, "compressor": "rand-k:0.5", "step": 0.5,
}  # fmt: skip
ACCELERATED: dict[str, Any] = {
    "algorithm": "accelerated-mb-sgd", "sampling": "poisson", "batch": 0.5, "step": 0.5, "stages": 2,
    "strong_convexity": 0.1, "projection": "ball:5",
}  # fmt: skip
FED_SPA: dict[str, Any] = {
    "algorithm": "fed-spa", "sampling": "poisson", "batch": 0.5, "compressor": "rand-k:0.5", "local_steps": 2,
    "local_step": 0.1, "step": 0.1, "schedule": "inverse-sqrt", "beta_1": 0.9, "beta_2": 0.99,
    "kappa": 0.001,
}  # fmt: skip
SHUFFLED: dict[str, Any] = {
    "algorithm": "shuffled-mb-sgd", "sampling": "without-replacement", "batch": 4.0, "epsilon": 2.0, "step": 0.5,
}  # fmt: skip
COINS: dict[str, Any] = {
    **SHUFFLED, "algorithm": "shuffled-accelerated", "epsilon": 8.0, "stages": 2, "strong_convexity": 0.1,
    "projection": "ball:5",
}  # fmt: skip
SUMS: dict[str, Any] = {
    "algorithm": "soteriafl-gd", "compressor": "rand-k:0.5", "step": 0.5, "trust": "sum",
    "quorum": 2, "colluding": 0,
}  # fmt: skip


def recipe(**settings: Any) -> Recipe:
    """A recipe with every choice made."""
    choices = {"model": "logistic", "rounds": 6, "epsilon": 4.0, "delta": 1e-4, "noise": "lattice", **settings}
    own = {f.name for f in fields(Recipe)}
    return Recipe(
        **{name: value for name, value in choices.items() if name in own},
        algorithm_settings={name: value for name, value in choices.items() if name not in own},
    )


@dataclass(frozen=True)
class Small:
    """Three silos of two dozen records."""

    recipe: Recipe
    directory: Path
    report: Report | None = None

    @cached_property
    def job(self) -> Job:
        """What they agreed to."""
        crowd = self.recipe.algorithm.startswith("shuffled-") or self.recipe.trust == "sum"
        known = Identities.of(self.signing["server"], {site: self.signing[site] for site in SITES})
        least = RECORDS - int(RECORDS * self.recipe.evaluation_settings.get("held_back", 0))
        return Job(self.recipe, SITES, (FEATURES,), 2, least if crowd else None, self.report, known)

    @cached_property
    def signing(self) -> dict[str, Ed25519PrivateKey]:
        """Private keys for certificates and ledger heads."""
        return {party: Ed25519PrivateKey.generate() for party in ("server", *SITES)}

    @cached_property
    def records(self) -> Federation:
        """Everybody's."""
        features = torch.randn(RECORDS * len(SITES), FEATURES, generator=torch.Generator().manual_seed(3))
        owners = [row // RECORDS for row in range(len(features))]
        return Federation.from_arrays(features, (features[:, 0] > 0).long(), owners, classes=2)

    @cached_property
    def sealing(self) -> dict[str, X25519PrivateKey]:
        """Private keys of all parties, where there is a shuffler."""
        parties = ("server", SHUFFLER, *SITES) if self.job.shuffled else ()
        return {party: X25519PrivateKey.generate() for party in parties}

    @property
    def keys(self) -> PublicKeys:
        """Their public halves."""
        public = {party: public_bytes(key) for party, key in self.sealing.items()}
        return PublicKeys(public.pop("server"), public.pop(SHUFFLER), public)

    def covers(self, site: str) -> Covers | None:
        """What a silo covers its messages with, where it does."""
        return Covers(site, self.sealing[site], self.keys) if self.sealing else None

    def policy(self, site: str) -> Policy:
        """What it allows: this job, once."""
        return Policy.for_job(self.job, site)

    def terms(self, site: str) -> Terms:
        """On which it takes part."""
        return admit(self.job, self.policy(site), site, self.records.client(SITES.index(site)))

    def silo(self, site: str, **others: Any) -> Silo:
        """One of them."""
        key = self.signing[site]
        return Silo(self.terms(site), self.directory / site, key=key, covers=self.covers(site), **others)

    def shuffler(self) -> ShufflerParty:
        """Who mixes."""
        return ShufflerParty(self.job, self.sealing[SHUFFLER], self.keys)

    def server(self, backend: Any = None, **settings: Any) -> Server:
        """A server over all of them in this process."""
        parties: dict[str, Any] = {site: lambda at, site=site: self.silo(site, at=at) for site in SITES}
        if self.sealing:
            parties[SHUFFLER] = lambda at: self.shuffler()
        options: dict[str, Any] = {
            "quorum": 1, "deadline_seconds": 0.01, "signer": self.signing["server"],
            "key": self.sealing.get("server"), **settings,
        }  # fmt: skip
        return Server(self.job, backend or InProcessBackend(parties), self.directory / "server", **options)
