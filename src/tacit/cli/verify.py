"""`tacit verify`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

HELP = """Check a certificate: its signature, its epsilons from its events, and the files beside it."""


def verify(
    certificate: Annotated[Path, typer.Argument(help="certificate.json, of a silo or of a run.")],
    key: Annotated[
        str | None, typer.Option(help="The public key that must have signed it, 64 hexadecimal digits.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")] = False,
) -> None:
    """Check one certificate; exit with 1 if anything is wrong."""
    import json

    from tacit.errors import DataError
    from tacit.privacy.certificate import verify as check

    try:
        content = certificate.read_bytes()
        beside = {path.name: path.read_bytes() for path in certificate.parent.iterdir() if _may_be_named(path)}
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error
    found = check(content, beside, public_key=key)
    if as_json:
        print(
            json.dumps({"valid": True, "checked": found.checked, "not_checked": found.not_checked, **found.body})
        )
        return
    body = found.body
    if body.get("insecure_reproducible"):
        print("TRIAL: its noise followed from a seed. It protected nobody.")
    print(body.get("promise") or _run_line(body))
    print(f"Holds. Checked: {', '.join(found.checked)}.")
    if found.not_checked:
        print(f"Not here, not checked: {', '.join(found.not_checked)}.")
    if key is None:
        print(f"Signed with the key {body['public_key']}: compare it with one that you know, or give --key.")


def _may_be_named(path: Path) -> bool:
    return path.is_file() and path.name in ("ledger.jsonl", "job.toml", "model.safetensors")


def _run_line(body: Mapping[str, Any]) -> str:
    from tacit.privacy.terms import Adversary

    signed = [silo for silo in body["silos"].values() if silo is not None]
    against = " or ".join(sorted({Adversary(silo.get("adversary")).description for silo in signed}))
    return (
        f"{body['algorithm']}: {body['rounds']} rounds of {len(body['silos'])} silos, {len(signed)} of which "
        f"signed what they released; the largest epsilon of a silo is {body['largest_epsilon']}, "
        f"against {against or 'nobody'}."
    )
