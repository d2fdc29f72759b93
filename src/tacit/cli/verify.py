"""`tacit verify`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.say import say

if TYPE_CHECKING:
    from tacit.deploy.verification import Verified

HELP = """Check a certificate: which keys signed it, and every number and sentence in it.

The keys come from the job. A job file next to the certificate was put there by whoever made the certificate, so
compare its digest with that of the job your silo joined, or give your own copy with --job."""


def verify(
    certificate: Annotated[Path, typer.Argument(help="The certificate.json of a silo or of a run.")],
    job: Annotated[
        Path | None,
        typer.Option(
            help="Your own copy of job.toml, with the keys to trust. [dim]Default: the one next to it.[/]"
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="The public key that must have signed it, 64 hexadecimal digits.")
    ] = None,
    unknown_keys: Annotated[
        bool,
        typer.Option("--unknown-keys", help="Check only that the numbers add up. Proves no identity."),
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            help="Where to write the page for a data protection officer. [dim]Default: report.html next to it.[/]"
        ),
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Check one certificate; exit with 1 if anything is wrong."""
    from tacit.cli.pages import PAGE
    from tacit.deploy.signatures import CertificateError
    from tacit.deploy.silo_checks import Trusted
    from tacit.deploy.statements import JOB_FILE
    from tacit.deploy.verification import BESIDE
    from tacit.deploy.verification import verify as check
    from tacit.errors import DataError

    if certificate.is_dir():
        raise DataError(f"{certificate} is a directory: name the certificate.json in it")
    try:
        content = certificate.read_bytes()
        paths = [path for name in BESIDE if (path := certificate.parent / name).is_file()]
        beside = {path.name: path.read_bytes() for path in paths}
        trusted = Trusted(None if job is None else job.read_bytes(), key, unknown_keys)
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
    files = {certificate.name: content, **beside, **({} if trusted.job is None else {JOB_FILE: trusted.job})}
    try:
        found = check(content, beside, trusted)
    except CertificateError as error:
        verified = {"valid": False, "reason": str(error)}
        if page is not None or _page_of_a_certificate(certificate.with_name(PAGE), content):
            _write_page(page or certificate.with_name(PAGE), verified, files, own_job=job is not None)
        if not as_json:
            raise CertificateError(f"{certificate} is not valid: {error}") from error
        print(json.dumps(verified))
        raise typer.Exit(1) from error
    verified = _as_values(found)
    written = _write_page(page or certificate.with_name(PAGE), verified, files, own_job=job is not None)
    if as_json:
        print(json.dumps(verified))
        return
    _show(found, own_job=job is not None)
    say("")
    say(written)


def _page_of_a_certificate(page: Path, content: bytes) -> bool:
    """Whether a page beside an invalid certificate is its own: one from before would still call it valid.

    A file that is none, such as a run's summary.json, may lie beside the page of a run.
    """
    from tacit.report.dossier import MADE_BY

    return MADE_BY in page.read_text(errors="replace") if page.is_file() else b"tacit-certificate" in content


def _write_page(page: Path, verified: dict[str, Any], files: Mapping[str, bytes], *, own_job: bool) -> str:
    """Write the page and say where it is. A certificate can be checked where nothing can be written, too."""
    from tacit.cli.pages import write_dossier

    try:
        write_dossier(page, verified, files, shlex.join(["tacit", *sys.argv[1:]]), own_job=own_job)
    except OSError as error:
        return f"No page was written: {page}: {error.strerror}. Choose another place with --page."
    return f"This as a page for a data protection officer, with fields to fill in: {page}"


def _as_values(found: Verified) -> dict[str, Any]:
    return {
        "valid": True,
        "identified": found.identified,
        "keys_checked_against": found.keys,
        "checked": found.checked,
        "only_stated": found.only_stated,
        "not_checked": found.not_checked,
        "held_against_others": found.held_against_others,
        "evaluation": found.evaluation,
        "correction": found.correction,
        "certificate": found.body,
    }


def _show(found: Verified, *, own_job: bool) -> None:
    from tacit.report.words import corrected_words, counted_in, evaluation_words, stated_words

    body = found.body
    if body["insecure_reproducible"]:
        say("TRIAL: the noise came from a seed. It protected nobody.")
    if not found.identified:
        say("The numbers add up, whoever signed them. Nobody vouches for the keys: anyone could have made this.")
    else:
        say(f"The certificate is valid. Its keys were checked against {found.keys}.")
    if found.identified and found.keys.startswith("job ") and not own_job:
        say(
            "Whoever made the certificate chose that job. Compare its digest with that of the job your silo "
            "joined, which `tacit silo` prints, or give your own copy with --job."
        )
    say("")
    for line in _promises(body):
        say(line)
    if found.correction is not None:
        say(f"Corrected after training: {corrected_words(found.correction)}.")
    if found.evaluation is not None:
        silos = [body] if body["kind"] == "silo" else [silo for silo in body["silos"].values() if silo]
        say(f"Evaluated on {evaluation_words(found.evaluation, counted_in(silos))}.")
    say("")
    _list("ATTENTION, evidence against other silos:", found.held_against_others)
    _list("Checked:", found.checked)
    _list("Not checked:", found.not_checked)
    _list("Stated only by the signer; nobody else can check it:", stated_words(found.only_stated))


def _promises(body: Mapping[str, Any]) -> Iterable[str]:
    if body["kind"] == "silo":
        yield f"{body['site']}, run {body['run']}: answered {body['rounds_answered']} rounds. {body['promise']}"
        return
    signed = {site: silo for site, silo in body["silos"].items() if silo is not None}
    yield (
        f"{body['algorithm']}, run {body['run']}: {body['rounds']} rounds, {len(signed)} of {len(body['silos'])} "
        f"silos signed what they released. The largest epsilon of a silo is {_rounded(body['largest_epsilon'])}."
    )
    yield from silo_promises(signed)


def silo_promises(silos: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """What each silo promised, from their certificates. Silos with the same promise share a sentence."""
    alike: dict[tuple[int, str], list[str]] = {}
    for site, silo in silos.items():
        alike.setdefault((silo["rounds_answered"], silo["promise"]), []).append(site)
    for (rounds, promise), sites in alike.items():
        yield f"{', '.join(sites)}: answered {rounds} rounds{' each' if len(sites) > 1 else ''}. {promise}"


def _rounded(epsilon: float | None) -> str:
    from tacit.privacy.promises.rounding import up_to

    return "unknown" if epsilon is None else up_to(epsilon, 4)


def _list(title: str, lines: Iterable[str]) -> None:
    lines = list(lines)
    if lines:
        say(title)
    for line in lines:
        say(line, "  - ", "    ")
