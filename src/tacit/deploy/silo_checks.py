"""Checking a silo's certificate: which key signed it, and whether it follows from what it states.

A certificate is checked against a job, which names the parties' keys. A job file next to the certificate was put
there by whoever made the certificate, and shows only that the two belong together: its digest must be compared
with that of the job that a silo really joined. With one's own copy of the job (`Trusted.job`), that is not
needed.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.deploy.claims import accountant, claims, whole_site
from tacit.deploy.finals import Final
from tacit.deploy.identities import Identities
from tacit.deploy.job import Job
from tacit.deploy.ledger_account import read_export
from tacit.deploy.signatures import CertificateError
from tacit.deploy.spent import Spent, finals_in, learned_in
from tacit.deploy.stated import LEDGER_FILE, Stated
from tacit.deploy.stated_reading import event, heads_of, read_stated, table
from tacit.deploy.statements import JOB_FILE
from tacit.errors import TacitError
from tacit.models.registry import ENTRY_POINT
from tacit.privacy import Adversary, Unit
from tacit.privacy.accountant.groups import group_epsilon

_SLACK = 1e-6
"""The largest relative difference from the recomputed number: other processors round differently."""

_WRONG = (
    TacitError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The errors that computing with invented numbers may cause."""

_SIGNED_PARTS = frozenset({"format", "public_key", "signature"})


@dataclass(frozen=True)
class Trusted:
    """What the person who checks a certificate knows independently of it."""

    job: bytes | None = None
    """the job that this person, or their silo, agreed to"""
    key: str | None = None
    """the public key that must have signed the certificate itself, 64 hexadecimal digits"""
    unknown_keys: bool = False
    """continue although nobody can tell whose keys signed, and check only whether the numbers add up"""


@dataclass(frozen=True)
class Basis:
    """What a certificate is checked against."""

    job: Job | None
    keys: Mapping[str, str] | None
    """the silos' public keys by name; None if nobody can tell whose keys they are"""
    source: str
    """what vouches for the keys, in words"""
    known: bool = True
    """whether anything vouches for the keys"""


@dataclass(frozen=True)
class CheckedSilo:
    """A silo's certificate that was found valid."""

    body: Mapping[str, Any]
    stated: Stated


def read_basis(body: Mapping[str, Any], beside: bytes | None, trusted: Trusted) -> Basis:
    """The job and the keys for a certificate, after comparing its signer's key with them."""
    job, source = _job(body, beside, trusted)
    signer = body["public_key"]
    if trusted.key is not None and signer != trusted.key:
        raise CertificateError(f"it is signed with the key {signer}, not with {trusted.key}")
    if trusted.unknown_keys:
        return Basis(job, None, "nothing: they were not compared with any that are known", known=False)
    if job is not None and job.identities is not None:
        known = _known(job.identities, body)
        if signer != known:
            raise CertificateError(f"it is signed with the key {signer}, but the job names {known}")
        return Basis(job, job.identities.silos, f"job {job.digest}, {source}")
    if trusted.key is not None and body.get("kind") == "silo":
        return Basis(job, None, "the one key that you gave")
    missing = "its job names no keys" if job is not None else f"there is no {JOB_FILE} beside it"
    raise CertificateError(
        f"it is not known whose keys signed it: {missing}. Give your own copy of the job with --job, for the "
        "certificate of a silo its key with --key, or --unknown-keys to check only that the numbers add up"
    )


def _known(identities: Identities, body: Mapping[str, Any]) -> str:
    site = body.get("site")
    if body.get("kind") == "run":
        return identities.server
    if not isinstance(site, str) or site not in identities.silos:
        raise CertificateError(f"it is from {site!a:.60}, which is not a silo of the job")
    return identities.silos[site]


def _job(body: Mapping[str, Any], beside: bytes | None, trusted: Trusted) -> tuple[Job | None, str]:
    content, source = trusted.job, "the one that you gave"
    if content is None:
        content, source = beside, f"the {JOB_FILE} beside the certificate"
    if content is None:
        return None, ""
    if hashlib.sha256(content).hexdigest() != body.get("job"):
        raise CertificateError(f"{source} is not its job, {body.get('job')!a:.80}")
    try:
        text = content.decode()
        code = next((word for word in _words(tomllib.loads(text)) if word.startswith(ENTRY_POINT)), None)
        if trusted.job is None and code is not None:
            # Building it means running it, and whoever made the certificate may have written the job as well.
            raise CertificateError(
                f"its job names code of its own ({code!a:.60}), which is run only for a job that you trust: "
                "give your own copy of the job with --job"
            )
        job = Job.from_text(text, JOB_FILE)
        # A job that cannot be built cannot have been run either.
        if job.digest != body["job"] or not job.algorithm.name:
            raise CertificateError(f"{source} was not written by tacit")
    except CertificateError:
        raise
    except _WRONG as error:
        raise CertificateError(f"{source} is not a job: {error!s:.300}") from error
    return job, source


def _words(value: object) -> Iterator[str]:
    """Every string in a table, at any depth, because settings may be anywhere in it."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _words(inner)


def check_silo(body: Mapping[str, Any], basis: Basis, ledger: bytes | None = None) -> CheckedSilo:
    """Check a silo's certificate whose signature is valid, and compare it with its exported ledger if given."""
    stated, job = read_stated(body, basis.job), basis.job
    if job is not None and stated.site not in job.sites:
        raise CertificateError(f"it is from {stated.site!r}, which is not a silo of the job")
    try:
        rebuilt = _without_job(body, stated) if job is None else stated.body(job)
    except _WRONG as error:
        raise CertificateError(f"what it states is inconsistent: {error!s:.300}") from error
    compare(body, rebuilt, whole=job is not None)
    cost = body["epsilon"]["collaboration"]
    if cost is None or cost > stated.epsilon:
        raise CertificateError("its epsilon is larger than that of the silo's policy")
    for site, told in heads_of(stated).items():
        if site == stated.site or (basis.keys is not None and site not in basis.keys):
            raise CertificateError(f"it has ledger heads of {site!a:.60}, which is not another silo of the job")
        if basis.keys is not None and not all(
            head.is_of(site, basis.keys[site]) for heads in told.values() for head in heads
        ):
            raise CertificateError(f"it has a ledger head of {site} that {site} has not signed")
    if ledger is not None:
        _check_ledger(body, stated, ledger, job)
    return CheckedSilo(body, stated)


def compare(body: Mapping[str, Any], rebuilt: Mapping[str, Any], *, whole: bool) -> None:
    """Refuse a certificate that differs from its rebuilt content; unless `whole`, only in what was rebuilt."""
    for name in sorted(rebuilt.keys() | (body.keys() - _SIGNED_PARTS) if whole else rebuilt.keys()):
        if name not in body:
            raise CertificateError(f"it does not state {name}")
        if name not in rebuilt:
            raise CertificateError(f"it states {name!a:.60}, which does not belong in it")
        if not _same(body[name], rebuilt[name]):
            software = "" if body.get("accountant") == accountant() else f" (computed here with {accountant()})"
            raise CertificateError(
                f"its {name} does not follow from its events and the job: it is {body[name]!a:.200}, but must be "
                f"{rebuilt[name]!a:.200}{software}"
            )


def _same(one: object, other: object) -> bool:
    """Whether two values have equal types (True is not 1) and contents, up to the rounding of floats."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_SLACK)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other


def _without_job(body: Mapping[str, Any], stated: Stated) -> dict[str, Any]:
    """What follows from the events alone, trusting the certificate about what they belong to."""
    stated.check_together()
    insecure = body["insecure_reproducible"]
    if type(insecure) is not bool:
        raise TypeError("insecure_reproducible must be true or false")
    beside = {name: table(told)["event"] for name, told in table(body["run_if_others_help"]).items()}
    rebuilt = claims(
        stated.spent.run,
        stated.spent.together,
        {name: event(told) for name, told in beside.items()},
        delta=stated.delta,
        adjacency=stated.adjacency,
        unit=Unit(body["unit"]),
        adversary=Adversary(body["adversary"]),
        public=stated.also_public,
        insecure=insecure,
        colluding=stated.spent.colluding or 0,
    )
    if whole := body.get("run_for_the_whole_site"):
        delta = table(whole)["delta"]
        cost = group_epsilon(stated.spent.run, stated.records or 1, delta, stated.adjacency)
        rebuilt["run_for_the_whole_site"] = whole_site(cost, delta)
    return {**rebuilt, "delta": stated.delta, "rounds_answered": len(stated.spent.points)}


def _check_ledger(body: Mapping[str, Any], stated: Stated, exported: bytes, job: Job | None) -> None:
    """Check that what a certificate states about a ledger is what the ledger says."""
    if hashlib.sha256(exported).hexdigest() != stated.files[LEDGER_FILE]:
        raise CertificateError(f"{LEDGER_FILE} is not the file that was signed")
    try:
        found, run = Spent.read(exported, stated.run, stated.epsilon), read_export(exported).run(stated.run)
    except _WRONG as error:
        raise CertificateError(str(error)) from error
    said = stated.spent
    if found.ledger != said.ledger or found.points != said.points:
        raise CertificateError("the ledger is not the one that was signed")
    if found.colluding not in (None, said.colluding):
        raise CertificateError("its colluding is not that of the runs in the ledger")
    if found.events() != said.events():
        raise CertificateError("the events are not those of the ledger")
    if found.adversary not in (None, said.adversary):
        raise CertificateError(
            f"all runs in the ledger together hold against {found.adversary}, but it says {said.adversary}"
        )
    made = finals_in(exported, stated.run)
    for name in Final:
        if made.get(name) != stated.made.get(name):
            raise CertificateError(f"the {name} is not that of the ledger")
    if learned_in(exported, stated.run) != stated.learned:
        raise CertificateError("the ranges are not those of the ledger")
    if run is None:
        return
    named = body.keys() & run.opened.keys() - {"kind", "adversary", "colluding"}
    same = all(body[name] == run.opened[name] for name in named)
    if not same or (job is not None and not _same(dict(run.opened), stated.opening(job))):
        raise CertificateError("its terms are not those of the run in the ledger")
