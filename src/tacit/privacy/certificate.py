"""Certificates: what was promised and kept, as a signed file that anybody can check.

A certificate is one JSON object in one fixed spelling (sorted keys, two spaces, lower-case hexadecimal digits),
and its Ed25519 signature covers all of it but itself. So a flipped byte is either another spelling, which is
refused, or another content, which the signature does not cover. Its epsilons are recomputed from its events.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tacit.errors import DataError, TacitError
from tacit.privacy import accounting, events
from tacit.privacy.groups import group_epsilon
from tacit.privacy.ledger import read_export
from tacit.privacy.terms import Adjacency, Adversary

FORMAT = "tacit-certificate-1"
_SLACK = 1e-6
"""By so much, relatively, an epsilon may lie below the recomputed one: other processors round differently."""


class CertificateError(TacitError):
    """A certificate, or something that it vouches for, is not what it was when it was signed."""


def load_or_create_key(path: Path) -> Ed25519PrivateKey:
    """A signing key, made from the operating system's entropy at its first use, which only its owner can read."""
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        return key
    try:
        read = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a signing key: {error}") from error
    if not isinstance(read, Ed25519PrivateKey):
        raise DataError(f"{path} is not an Ed25519 key")
    return read


def public_key_hex(key: Ed25519PrivateKey) -> str:
    """The public half, 64 hexadecimal digits: what others know a party by."""
    return key.public_key().public_bytes_raw().hex()


def sign(body: Mapping[str, Any], key: Ed25519PrivateKey) -> bytes:
    """A certificate of this content."""
    content = {"format": FORMAT, **body, "public_key": public_key_hex(key)}
    return _spelled({**content, "signature": key.sign(_spelled(content)).hex()})


@dataclass(frozen=True)
class Verified:
    """A certificate that holds, and what was looked at."""

    body: Mapping[str, Any]
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]


def verify(
    content: bytes, files: Mapping[str, bytes] | None = None, *, public_key: str | None = None
) -> Verified:
    """Check a certificate: spelling, signature, every epsilon from its events, and the files that it names.

    `files` are those at hand, by the names that the certificate gives them. Without a `public_key` the signature
    shows that nothing was changed since, not who signed: compare `body["public_key"]` with one that you know.
    """
    body = _signed(content)
    if public_key is not None and body["public_key"] != public_key:
        raise CertificateError(f"it is signed with the key {body['public_key']}, not with {public_key}")
    checked = ["spelling", "signature"]
    if body.get("kind") == "run":
        for site, silo in _silos(body):
            _check_part_of_run(body, site, silo)
            checked.append(f"certificate of {site}")
        _check_summary(body)
    else:
        _check_epsilons(body)
        checked.append("epsilon")
    hashes = body.get("files", {})
    for name, digest in hashes.items():
        if files and name in files:
            if hashlib.sha256(files[name]).hexdigest() != digest:
                raise CertificateError(f"{name} is not the file that was signed")
            if name.startswith("ledger"):
                _check_ledger(body, files[name])
            checked.append(name)
    return Verified(body, tuple(checked), tuple(name for name in hashes if not files or name not in files))


def _spelled(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=True).encode() + b"\n"


def _signed(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
        spelled = _spelled(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise CertificateError("it is not a certificate: not JSON") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise CertificateError(f"it is not a certificate of format {FORMAT}")
    if spelled != content:
        raise CertificateError("its bytes are not those that were signed: it was reformatted or damaged")
    unsigned = {name: value for name, value in body.items() if name != "signature"}
    try:
        key, signature = (bytes.fromhex(body[name]) for name in ("public_key", "signature"))
        if (key.hex(), signature.hex()) != (body["public_key"], body["signature"]):
            raise ValueError("not in lower case")
        Ed25519PublicKey.from_public_bytes(key).verify(signature, _spelled(unsigned))
    except (InvalidSignature, KeyError, TypeError, ValueError) as error:
        raise CertificateError("its signature is wrong: it was changed after it was signed") from error
    return body


def _check_epsilons(body: Mapping[str, Any]) -> None:
    try:
        delta, adjacency = body["delta"], Adjacency(body["adjacency"])
        for name in ("run", "collaboration"):
            found = accounting.epsilon(events.from_dict(body["events"][name]), delta, adjacency)
            claimed = body["epsilon"][name]
            if not claimed >= found * (1 - _SLACK) or not math.isfinite(claimed):
                raise CertificateError(f"its events cost epsilon = {found:.6g} for the {name}, not {claimed!r}")
        for adversary, beside in body.get("run_if_others_help", {}).items():
            found = accounting.epsilon(events.from_dict(beside["event"]), delta, adjacency)
            claimed = math.inf if beside["epsilon"] is None else beside["epsilon"]
            if not claimed >= found * (1 - _SLACK):
                raise CertificateError(f"its events cost {found:.6g} against the {adversary}, not {claimed!r}")
        if whole := body.get("run_for_the_whole_site"):
            run = events.from_dict(body["events"]["run"])
            found = group_epsilon(run, body["records"], whole["delta"], adjacency)
            claimed = math.inf if whole["epsilon"] is None else whole["epsilon"]
            if not claimed >= found * (1 - _SLACK):
                raise CertificateError(f"its events cost the whole site {found:.6g}, not {claimed!r}")
        if not body["epsilon"]["collaboration"] <= body["policy"]["epsilon"]:
            raise CertificateError("its epsilon is larger than that of the silo's policy")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CertificateError(f"it lacks what an epsilon is computed from: {error}") from error


def finite_or_none(epsilon: float) -> float | None:
    """An epsilon as JSON has it: none where there is no promise."""
    return epsilon if math.isfinite(epsilon) else None


def _check_ledger(body: Mapping[str, Any], content: bytes) -> None:
    try:
        account = read_export(content)
    except DataError as error:
        raise CertificateError(str(error)) from error
    run = account.run(body["run"])
    head = {"lines": account.lines, "hash": account.hash}
    if head != body["ledger"] or (run.releases if run else 0) != body["rounds_answered"]:
        raise CertificateError("the ledger is not the one that was signed")
    # Of the adversary a certificate says what holds for all runs together.
    if body.get("adversary") == Adversary.SERVER and account.adversaries - {str(Adversary.SERVER)}:
        raise CertificateError("runs in the ledger relied on somebody beside the silo: it does not say so")
    if run and any(body.get(name) != run.opened[name] for name in set(run.opened) - {"kind", "adversary"}):
        raise CertificateError("the terms are not those of the run in the ledger")
    spent = events.to_dict(run.event if run else events.nothing()), events.to_dict(account.event())
    if spent != (body["events"]["run"], body["events"]["collaboration"]):
        raise CertificateError("the events are not those of the ledger")


def _silos(body: Mapping[str, Any]) -> list[tuple[str, Any]]:
    silos = body.get("silos")
    if not isinstance(silos, dict):
        raise CertificateError("it is the certificate of a run, but has no certificates of silos")
    return [(site, silo) for site, silo in silos.items() if silo is not None]


def _check_summary(body: Mapping[str, Any]) -> None:
    """What a server says in one line about all silos is what they have signed."""
    silos = [silo for _, silo in _silos(body)]
    if body.get("largest_epsilon") != max((silo["epsilon"]["collaboration"] for silo in silos), default=None):
        raise CertificateError("its largest epsilon is not that of its silos")
    if any(silo.get("insecure_reproducible") != body.get("insecure_reproducible") for silo in silos):
        raise CertificateError("it does not say of its silos' noise whether it protected anybody")


def _check_part_of_run(body: Mapping[str, Any], site: str, silo: Any) -> None:
    try:
        inner = verify(_spelled(silo)).body
    except (CertificateError, TypeError, ValueError) as error:
        raise CertificateError(f"certificate of {site}: {error}") from error
    same = all(inner.get(name) == body.get(name) for name in ("run", "job"))
    if inner.get("kind") != "silo" or inner.get("site") != site or not same:
        raise CertificateError(f"certificate of {site}: it is about another site, run or job")
    if inner.get("files", {}).get("model.safetensors") != body.get("files", {}).get("model.safetensors"):
        raise CertificateError(f"certificate of {site}: it is about another model")
