"""What a silo, and the server, put into their certificates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from tacit._version import __version__
from tacit.deploy.guard import Terms
from tacit.deploy.job import Job
from tacit.engine.files import write_atomically
from tacit.engine.trained import Trained
from tacit.privacy import Guarantee, accounting, events
from tacit.privacy.certificate import load_or_create_key, sign
from tacit.privacy.ledger import Ledger, read_export


def testify(terms: Terms, ledger: Ledger, run: str, parameters: Tensor, state_dir: Path) -> tuple[bytes, int]:
    """The silo's certificate of a run, and how often it answered; written with all that it names.

    Everything in it is public: it follows from settings, the number of records, and who answered when.
    """
    exported = ledger.export()
    account = read_export(exported)
    mine = account.run(run)
    spent = {"run": mine.event if mine else events.nothing(), "collaboration": account.event()}
    policy = terms.policy
    costs = {name: accounting.epsilon(event, policy.delta, policy.adjacency) for name, event in spent.items()}
    directory = state_dir / "certificates" / run
    named = _written(directory, terms.job, parameters, {"ledger.jsonl": exported})
    body: dict[str, Any] = {
        **_preamble("silo", run, terms.job, named),
        "site": terms.site,
        **terms.facts(),
        "policy": {"epsilon": policy.epsilon, "delta": policy.delta},
        "delta": policy.delta,
        "epsilon": costs,
        "events": {name: events.to_dict(event) for name, event in spent.items()},
        "rounds_answered": mine.releases if mine else 0,
        "ledger": {"lines": account.lines, "hash": account.hash},
        "promise": _sentence(terms, account.event()),
    }
    certificate = sign(body, load_or_create_key(state_dir / "signing.key"))
    write_atomically(directory / "certificate.json", certificate)
    return certificate, mine.releases if mine else 0


def testify_run(
    job: Job,
    run: str,
    parameters: Tensor,
    silos: Mapping[str, bytes | None],
    facts: dict[str, Any],
    directory: Path,
) -> bytes:
    """The run's certificate, with those of all silos inside."""
    inner = {site: None if silo is None else json.loads(silo) for site, silo in silos.items()}
    named = _written(directory, job, parameters, {})
    costs = [silo["epsilon"]["collaboration"] for silo in inner.values() if silo is not None]
    body = {
        **_preamble("run", run, job, named),
        "algorithm": job.recipe.algorithm,
        "insecure_reproducible": job.insecure,
        "largest_epsilon": max(costs, default=None),
        "silos": inner,
        **facts,
    }
    certificate = sign(body, load_or_create_key(directory / "signing.key"))
    write_atomically(directory / "certificate.json", certificate)
    return certificate


def _preamble(kind: str, run: str, job: Job, files: dict[str, str]) -> dict[str, Any]:
    return {
        "kind": kind,
        "run": run,
        "job": job.digest,
        "files": files,
        "accountant": {
            "name": "tacit.privacy.accounting",
            "version": __version__,
            "dp_accounting": metadata.version("dp-accounting"),
        },
    }


def _written(directory: Path, job: Job, parameters: Tensor, others: dict[str, bytes]) -> dict[str, str]:
    """Write what a certificate names beside it, and return the hashes."""
    Trained(job.algorithm.work.model, parameters).save(directory / "model.safetensors")
    files = {**others, "job.toml": job.text.encode()}
    for name, content in files.items():
        write_atomically(directory / name, content, mode=0o600 if name.startswith("ledger") else 0o644)
    files["model.safetensors"] = (directory / "model.safetensors").read_bytes()
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def _sentence(terms: Terms, event: Any) -> str:
    if terms.job.insecure:
        return "No privacy: the noise follows from a seed that all parties know. This was a trial."
    policy = terms.policy
    guarantee = Guarantee(
        (event,),
        delta=policy.delta,
        adjacency=policy.adjacency,
        unit=policy.unit,
        adversary=terms.job.algorithm.trust.adversary,
        public=(*terms.job.algorithm.work.public, *terms.federation.peeks),
    )
    return guarantee.sentence()
