"""What a silo, and the server, put into their certificates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent
from torch import Tensor

from tacit._version import __version__
from tacit.algorithms.trust import Exposure
from tacit.deploy.guard import Terms
from tacit.deploy.job import Job
from tacit.engine.files import write_atomically
from tacit.engine.trained import Trained
from tacit.privacy import Adversary, Guarantee, accounting, events
from tacit.privacy.certificate import finite_or_none, load_or_create_key, sign
from tacit.privacy.groups import group_epsilon
from tacit.privacy.ledger import Ledger, read_export
from tacit.privacy.terms import RECORD_COUNTS

_WEAKEST_FIRST = (str(Adversary.SHUFFLER), str(Adversary.SERVER))
"""Promises of several runs together hold against whom all of them hold."""


def testify(terms: Terms, ledger: Ledger, run: str, parameters: Tensor, state_dir: Path) -> tuple[bytes, int]:
    """The silo's certificate of a run, and how often it answered; written with all that it names.

    Everything in it is public: it follows from settings, who answered when and, unless the promise is to whole
    sites and protects it, the number of records.
    """
    exported = ledger.export()
    account = read_export(exported)
    mine = account.run(run)
    spent = {"run": mine.event if mine else events.nothing(), "collaboration": account.event()}
    policy = terms.policy
    costs = {name: accounting.epsilon(event, policy.delta, policy.adjacency) for name, event in spent.items()}
    seen = terms.exposures(mine.releases) if mine and mine.releases else ()
    beside = {
        str(exposure.adversary): {
            "event": events.to_dict(exposure.event),
            "epsilon": finite_or_none(accounting.epsilon(exposure.event, policy.delta, policy.adjacency)),
        }
        for exposure in seen
    }
    against = min(account.adversaries or {str(terms.job.adversary)}, key=_WEAKEST_FIRST.index)
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
        "adversary": against,
        "run_if_others_help": beside,
        **_whole_site(terms, spent["run"]),
        "rounds_answered": mine.releases if mine else 0,
        "ledger": {"lines": account.lines, "hash": account.hash},
        "promise": _sentence(terms, account.event(), Adversary(against), seen),
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


def _whole_site(terms: Terms, event: DpEvent) -> dict[str, Any]:
    """What the run promises about all records of the site at once (papers/001, appendix D.3.5), if it does."""
    whole = terms.job.client_target()
    if whole is None:
        return {}
    cost = group_epsilon(event, terms.records, whole.delta, terms.policy.adjacency)
    # The messages' noise follows from the number of records, so that is no part of what they hide.
    said = {"epsilon": finite_or_none(cost), "delta": whole.delta, "public": [RECORD_COUNTS]}
    return {"run_for_the_whole_site": said}


def _sentence(terms: Terms, event: Any, against: Adversary, seen: Sequence[Exposure]) -> str:
    if terms.job.insecure:
        return "No privacy: the noise follows from a seed that all parties know. This was a trial."
    policy = terms.policy
    promise = partial(
        Guarantee,
        delta=policy.delta,
        adjacency=policy.adjacency,
        unit=policy.unit,
        public=terms.public,
    )
    sentences = [promise((event,), adversary=against).sentence()]
    weaker = [promise((one.event,), adversary=one.adversary).sentence() for one in seen]
    return " Should the shuffler help the server, of this run alone: ".join([*sentences, *weaker])
