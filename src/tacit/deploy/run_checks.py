"""Checking the certificate of a run: its silos' certificates, and whether these agree with each other.

points   All silos that answered a round were asked at the same point: the server showed everybody one model.
heads    What silos have witnessed of each other's ledgers agrees with what each certifies about its own.
         For a ledger that was emptied, or set back to an older copy, it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

from tacit.deploy.finals import Final
from tacit.deploy.heads import Head, contradict
from tacit.deploy.seam import Code
from tacit.deploy.signatures import CertificateError, read_signed, spelled
from tacit.deploy.silo_checks import Basis, CheckedSilo, check_silo, compare
from tacit.deploy.stated_reading import digest, heads_of, software, table, whole, word
from tacit.deploy.statements import MODEL_FILE, run_body
from tacit.errors import TacitError


@dataclass(frozen=True)
class CheckedRun:
    """A run's certificate that was found valid."""

    silos: Mapping[str, CheckedSilo | None]
    rounds_agreed: int
    """the number of rounds in which at least two silos were asked, at the same point"""
    heads_agreed: int
    """the number of pairs in which one silo has witnessed the other's ledger in this run"""
    not_witnessed: tuple[str, ...]
    """which pairs are missing, in words"""


def check_run(body: Mapping[str, Any], basis: Basis) -> CheckedRun:
    """Check the certificate of a run whose signature is valid."""
    silos = body.get("silos")
    if not isinstance(silos, dict) or (basis.job is not None and set(silos) != set(basis.job.sites)):
        raise CertificateError("it is a run's certificate, but does not have one entry for each silo of its job")
    checked = {site: None if silo is None else _silo(body, site, silo, basis) for site, silo in silos.items()}
    signed = {site: silo for site, silo in checked.items() if silo is not None}
    _check_server(body, basis, signed)
    rounds = _check_points(signed)
    _check_ranges(signed)
    pairs, missing = _check_heads(signed)
    return CheckedRun(checked, rounds, pairs, missing)


def _silo(body: Mapping[str, Any], site: str, silo: object, basis: Basis) -> CheckedSilo:
    try:
        inner = read_signed(spelled(table(silo)))
        if inner.get("kind") != "silo" or any(inner.get(n) != v for n, v in _of_run(body, site).items()):
            raise CertificateError("it is about another site, run or job")
        if basis.keys is not None and inner["public_key"] != basis.keys[site]:
            raise CertificateError(
                f"it is signed with the key {inner['public_key']}, but the job names {basis.keys[site]}"
            )
        return check_silo(inner, basis)
    except (CertificateError, TypeError, ValueError) as error:
        raise CertificateError(f"certificate of {site!a:.60}: {error}") from error


def _of_run(body: Mapping[str, Any], site: str) -> dict[str, Any]:
    return {"site": site, "run": body.get("run"), "job": body.get("job")}


def _check_server(body: Mapping[str, Any], basis: Basis, signed: Mapping[str, CheckedSilo]) -> None:
    """Check that the server says of the silos what they signed, and that its own statements are well-formed."""
    try:
        stated: dict[str, Any] = {
            "accountant": software(body["accountant"]),
            "files": {MODEL_FILE: digest(table(body["files"])[MODEL_FILE])},
            "messages_used": {site: whole(n) for site, n in table(body["messages_used"]).items()},
            "problems": {_problem(what, body["silos"]): whole(n) for what, n in table(body["problems"]).items()},
            "rounds": whole(body["rounds"]),
            **{str(name): table(body[name]) for name in Final if name in body},
        }
        job, algorithm, insecure = body["job"], word(body["algorithm"]), body["insecure_reproducible"]
        run = word(body["run"])
    except (TacitError, KeyError, TypeError, ValueError) as error:
        raise CertificateError(f"what the server states is malformed: {error}") from error
    if basis.job is not None:
        job, algorithm, insecure = basis.job.digest, basis.job.recipe.algorithm, basis.job.insecure
        if stated["rounds"] > basis.job.rounds:
            raise CertificateError(f"it is about {stated['rounds']} rounds, but its job has {basis.job.rounds}")
    compare(body, run_body(job, algorithm, insecure, run, body["silos"], stated), whole=True)
    for site, used in stated["messages_used"].items():
        if site not in body["silos"]:
            raise CertificateError(f"it claims to use messages of {site!a:.60}, which is not a silo of the run")
        if site in signed and used > len(signed[site].stated.spent.points):
            raise CertificateError(f"it claims to use {used} messages of {site}, which did not send that many")
    last = max((round for silo in signed.values() for round in silo.stated.spent.points), default=-1)
    if last >= stated["rounds"]:
        raise CertificateError(f"it is about {stated['rounds']} rounds, but silos have answered round {last}")
    if any(silo.body["insecure_reproducible"] is not insecure for silo in signed.values()):
        raise CertificateError("it contradicts its silos about whether their noise protected anybody")


def _problem(what: str, silos: Mapping[str, Any]) -> str:
    site, _, code = what.partition(" ")
    if site not in silos:
        raise ValueError(f"a problem with {site!a:.60}, which is not a silo of the run")
    return f"{site} {Code(code)}"


def _check_points(signed: Mapping[str, CheckedSilo]) -> int:
    shown: dict[int, tuple[str, str]] = {}
    shared = set()
    for site, silo in signed.items():
        for round, point in silo.stated.spent.points.items():
            first, expected = shown.setdefault(round, (site, point))
            if point != expected:
                raise CertificateError(
                    f"in round {round} the server showed {site} another model than {first}: their certificates "
                    "state different points"
                )
            shared |= {round} if site != first else set()
    return len(shared)


def _check_ranges(signed: Mapping[str, CheckedSilo]) -> None:
    learned = {site: silo.stated.learned for site, silo in signed.items() if silo.stated.learned is not None}
    first = next(iter(learned), None)
    for site, ranges in learned.items():
        if first is not None and any(ranges[name] != learned[first][name] for name in ("point", "ranges")):
            raise CertificateError(
                f"the server told {site} other ranges than {first}: their certificates state different ones"
            )


def _check_heads(signed: Mapping[str, CheckedSilo]) -> tuple[int, tuple[str, ...]]:
    """Compare what silos have witnessed of each other with what each says about itself."""
    witnessed = {site: heads_of(silo.stated) for site, silo in signed.items()}
    pairs, missing = 0, []
    for witness, held in witnessed.items():
        for site, evidence in held.items():
            if pair := evidence.get("contradiction"):
                raise CertificateError(
                    f"{witness} holds two ledger heads signed by {site} that contradict each other, of "
                    f"{pair[0].lines} and {pair[1].lines} lines: the ledger of {site} was set back to an older "
                    "copy, or two copies of it were in use"
                )
    for witness, site in permutations(signed, 2):
        evidence = witnessed[witness].get(site, {})
        for when, heads in evidence.items():
            _check_head(witness, signed[site], heads[0], before_run=when == "before_run")
        in_run = any(head.run == signed[site].stated.run for head in evidence.get("newest", []))
        pairs += in_run
        if not in_run and min(len(signed[one].stated.spent.points) for one in (witness, site)) > 0:
            missing.append(f"{witness} was shown no ledger head of {site} in this run")
    for site in signed:
        seen = [(w, e) for w, held in witnessed.items() for heads in held.get(site, {}).values() for e in heads]
        for (one, first), (other, second) in combinations(seen, 2):
            if contradict(first, second):
                raise CertificateError(
                    f"{one} and {other} hold ledger heads signed by {site} that contradict each other, of "
                    f"{first.lines} and {second.lines} lines: the ledger of {site} was set back to an older copy"
                )
    return pairs, tuple(missing)


def _check_head(witness: str, silo: CheckedSilo, head: Head, *, before_run: bool) -> None:
    """Check one head that another silo has witnessed against the ledger that a silo certifies."""
    ledger, site = silo.stated.spent.ledger, silo.stated.site
    ends = {"when the run began": ledger["before_run"], "in the end": ledger}
    limit = "when the run began" if before_run else "in the end"
    for when, end in ends.items():
        if head.lines == end["lines"] and head.hash != end["hash"]:
            raise _set_back(witness, site, head, f"had another last line {when}")
    if head.lines > ends[limit]["lines"]:
        raise _set_back(witness, site, head, f"had {ends[limit]['lines']} lines {limit}")


def _set_back(witness: str, site: str, head: Head, says: str) -> CertificateError:
    return CertificateError(
        f"{witness} holds a ledger head signed by {site}, of {head.lines} lines (run {head.run[:8]}, round "
        f"{head.round}), but the ledger that {site} certifies {says}: it was emptied or set back to an older "
        "copy, or the server has run two runs at once; the ledger.jsonl of that silo shows which"
    )
