"""Checking certificates of silos and of runs: what was checked against what, and what nobody can check.

Everything that follows from the job and from what a signer states is recomputed and must be the same. What only
the signer can know is reported as stated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.deploy.card_checks import check_card
from tacit.deploy.final_checks import FinalChecks, parameters_in
from tacit.deploy.parts import Part
from tacit.deploy.run_checks import CheckedRun, check_run
from tacit.deploy.signatures import CertificateError, read_signed
from tacit.deploy.silo_checks import Basis, Trusted, check_silo, read_basis
from tacit.deploy.stated import LEDGER_FILE, ONLY_STATED
from tacit.deploy.stated_reading import heads_of
from tacit.deploy.statements import JOB_FILE, MODEL_FILE, ONLY_STATED_BY_SERVER
from tacit.engine.model_card import CARD, SCHEMA
from tacit.errors import MessageError
from tacit.side.ranges import STEPS

BESIDE = (JOB_FILE, LEDGER_FILE, MODEL_FILE, SCHEMA, CARD)
"""Files that are used if they are next to a certificate."""


@dataclass(frozen=True)
class Verified:
    """A certificate that was found valid, and what was checked."""

    body: Mapping[str, Any]
    keys: str
    """what the signers' keys were compared with, in words"""
    identified: bool
    """whether anything vouches for the keys; if not, the numbers add up but anyone could have signed them"""
    checked: tuple[str, ...]
    only_stated: tuple[str, ...]
    """what its signers state and nobody else can check"""
    not_checked: tuple[str, ...]
    """what is missing, or could be checked with more files"""
    held_against_others: tuple[str, ...] = ()
    """evidence in a silo's certificate that another silo's ledger was set back"""
    evaluation: Mapping[str, Any] | None = None
    """what the silos' evaluations say, each and together (`JobEvaluation.read`), if the job asks for them"""
    correction: Mapping[str, Any] | None = None
    """how the trained model was corrected, if the job asks for that"""


def verify(content: bytes, files: Mapping[str, bytes] | None = None, trusted: Trusted | None = None) -> Verified:
    """Check a silo's certificate, or a run's certificate, which contains those of its silos.

    `files` are the files next to it, by name (`BESIDE`), and `trusted` is what the reader knows independently.
    Raises `CertificateError` if anything is wrong, or if nobody can tell whose keys signed, unless `trusted`
    accepts unknown keys.
    """
    files, trusted = files or {}, trusted or Trusted()
    body = read_signed(content)
    basis = read_basis(body, files.get(JOB_FILE), trusted)
    match body.get("kind"):
        case "run":
            return _of_run(body, basis, files)
        case "silo":
            return _of_silo(body, basis, files)
        case kind:
            raise CertificateError(f"it is neither a silo's certificate nor that of a run, but {kind!a:.60}")


_COMPUTED = "every epsilon and sentence, recomputed from the events"
_AGAINST_JOB = "unit, adversary, bound, sampling, noise and events, against the job"
_NO_JOB = "unit, adversary, bound, sampling and noise: there is no job here to compare them with"


def _of_silo(body: Mapping[str, Any], basis: Basis, files: Mapping[str, bytes]) -> Verified:
    ledger = files.get(LEDGER_FILE)
    silo = check_silo(body, basis, ledger)
    checked = [_signatures("the silo", basis), _COMPUTED]
    missing: list[str] = []
    (checked if basis.job else missing).append(_AGAINST_JOB if basis.job else _NO_JOB)
    if ledger is None:
        missing.append(f"events, points and what was spent before: {LEDGER_FILE} is not here")
    else:
        checked.append(f"events, points and what was spent before, against {LEDGER_FILE}")
    if basis.job is not None:
        learned = silo.stated.learned
        checked += check_card(basis.job, {} if learned is None else learned["ranges"], files)
    against = tuple(
        f"{site} signed ledgers of {pair[0].lines} and {pair[1].lines} lines that contradict each other: its "
        "ledger was set back to an older copy, or two copies of it were in use"
        for site, evidence in heads_of(silo.stated).items()
        if (pair := evidence.get("contradiction"))
    )
    says = tuple(f"the silo: {what}" for what in _only_stated([body]))
    asked = None if basis.job is None else basis.job.evaluation
    evaluation = None if asked is None or asked.trust is not None else asked.read({silo.stated.site: body})
    return Verified(body, basis.source, basis.known, tuple(checked), says, tuple(missing), against, evaluation)


def _of_run(body: Mapping[str, Any], basis: Basis, files: Mapping[str, bytes]) -> Verified:
    run, model = check_run(body, basis), files.get(MODEL_FILE)
    signed = [site for site, silo in run.silos.items() if silo is not None]
    checked = [_signatures(f"the server and {len(signed)} silos", basis), f"silos: {_COMPUTED}"]
    missing = [f"{site} gave no certificate" for site, silo in run.silos.items() if silo is None]
    (checked if basis.job else missing).append(f"silos: {_AGAINST_JOB if basis.job else _NO_JOB}")
    checked += _agreed(run)
    for found, words in _ranges(run, basis):
        (checked if found else missing).append(words)
    missing += run.not_witnessed
    if model is None:
        missing.append(f"the model: {MODEL_FILE} is not here")
    elif hashlib.sha256(model).hexdigest() != body["files"][MODEL_FILE]:
        raise CertificateError(f"{MODEL_FILE} is not the file that was signed")
    else:
        checked.append(f"{MODEL_FILE} is the file that the server named")
    bodies = {site: silo.body for site, silo in run.silos.items() if silo is not None}
    finals = None
    if basis.job is not None:
        # A file that nothing depends on may hold anything; it was compared with its digest.
        needed = None if model is None or not basis.job.finals else parameters_in(model, basis.job)
        finals = FinalChecks(basis.job, body, bodies, needed)
        finals.check()
        checked += finals.checked
        missing += finals.missing
        learned = [silo.stated.learned for silo in run.silos.values() if silo is not None and silo.stated.learned]
        checked += check_card(basis.job, learned[0]["ranges"] if learned else {}, files)
    says = [f"the server: {what}" for what in ONLY_STATED_BY_SERVER.values()]
    says += [f"every silo: {what}" for what in _only_stated(silo.body for silo in run.silos.values() if silo)]
    return Verified(
        body,
        basis.source,
        basis.known,
        tuple(checked),
        tuple(says),
        tuple(missing),
        evaluation=None if finals is None else finals.evaluation,
        correction=None if finals is None else finals.correction,
    )


def _only_stated(bodies: Iterable[Mapping[str, Any]]) -> list[str]:
    """What nobody but a silo knows, of what its certificate has."""
    had = {name for body in bodies for name in body}
    return [what for name, what in ONLY_STATED.items() if name.partition(".")[0] in had]


def _signatures(whose: str, basis: Basis) -> str:
    return f"signatures of {whose}" + ("" if basis.known else ", with keys that nobody vouches for")


def _ranges(run: CheckedRun, basis: Basis) -> list[tuple[bool, str]]:
    """What was checked about learned ranges, and what could not be."""
    learned = [silo.stated.learned for silo in run.silos.values() if silo is not None and silo.stated.learned]
    asked = None if basis.job is None else basis.job.ranges
    if not learned or asked is None:
        return []
    means = b""
    for step in map(str, range(STEPS)):
        parts = [Part(one["records"], one["steps"][step]) for one in learned if step in one["steps"]]
        means += asked.means(parts) if parts else b""
    same = hashlib.sha256(means).hexdigest() == learned[0]["point"]
    try:
        found = {name: list(pair) for name, pair in asked.found(means).items()} if same else learned[0]["ranges"]
    except MessageError:
        found = {}
    if found != learned[0]["ranges"]:
        raise CertificateError("its ranges do not follow from the sums that silos have signed")
    words = "learned ranges: the server told all silos the same, within the limits of the job"
    follow = "the learned ranges follow from the sums that silos signed"
    return [(True, words), (same, follow if same else f"that {follow}: not all of these sums are here")]


def _agreed(run: CheckedRun) -> list[str]:
    agreed = []
    if run.rounds_agreed:
        agreed.append(f"{run.rounds_agreed} rounds: the server showed all silos the same model")
    if run.heads_agreed:
        agreed.append(f"{run.heads_agreed} witnessed ledger heads, against the silos' own: none was set back")
    return agreed
