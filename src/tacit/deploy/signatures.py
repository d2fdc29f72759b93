"""Signed statements: a JSON object that anybody can check against the signer's public key.

A certificate has one fixed spelling (sorted keys, two spaces, lower-case hexadecimal digits), and its Ed25519
signature covers everything except itself. So a flipped byte gives either another spelling, which is refused, or
another content, which the signature does not cover. Duplicate keys, NaN and numbers too large for a float have no
valid spelling and are therefore refused too.

What a certificate of tacit says, and how that is checked, is in `tacit.deploy.statements` and
`tacit.deploy.verification`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tacit.errors import TacitError

FORMAT = "tacit-certificate-2"
_DEEPEST = 32
"""Certificates nest to about half of this depth. Deeper ones could exhaust the stack of code that walks them."""


class CertificateError(TacitError):
    """A certificate, or something that it vouches for, is not valid."""


def public_key_hex(key: Ed25519PrivateKey) -> str:
    """The public key as 64 hexadecimal digits, by which others know a party."""
    return key.public_key().public_bytes_raw().hex()


def signed_by(public_key: str, signature: bytes, text: bytes) -> bool:
    """Whether the holder of a public key, given in hexadecimal digits, has signed this text."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def sign(body: Mapping[str, Any], key: Ed25519PrivateKey) -> bytes:
    """Sign this content as a certificate."""
    content = {"format": FORMAT, **body, "public_key": public_key_hex(key)}
    return spelled({**content, "signature": key.sign(spelled(content)).hex()})


def spelled(content: Mapping[str, Any]) -> bytes:
    """The only valid spelling of an object."""
    return json.dumps(content, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=True).encode() + b"\n"


def read_signed(content: bytes) -> dict[str, Any]:
    """Read a certificate and check its signature against the public key that the certificate itself names.

    This shows that nothing was changed after signing. It does not show who signed: compare `public_key` with a
    key that you know.
    """
    try:
        body = json.loads(content)
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise CertificateError(f"it is not a certificate of format {FORMAT}")
        if _deeper_than(body, _DEEPEST):
            raise CertificateError(f"it is not a certificate: it nests more than {_DEEPEST} levels")
        written = spelled(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise CertificateError("it is not a certificate: not JSON") from error
    if written != content:
        raise CertificateError("its bytes are not those that were signed: it was reformatted or damaged")
    unsigned = spelled({name: value for name, value in body.items() if name != "signature"})
    key, signature = _hex(body.get("public_key"), 32), _hex(body.get("signature"), 64)
    if not (key and signature and signed_by(key, bytes.fromhex(signature), unsigned)):
        raise CertificateError("its signature is wrong: it was changed after it was signed")
    return body


def _hex(value: object, length: int) -> str:
    """`value` if it is `length` bytes in lower-case hexadecimal digits, otherwise an empty string."""
    sound = isinstance(value, str) and len(value) == 2 * length and set(value) <= set("0123456789abcdef")
    return str(value) if sound else ""


def _deeper_than(value: object, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(layer)
