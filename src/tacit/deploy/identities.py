"""The identities in a consortium: the public signing keys (Ed25519) of its parties, as the job lists them.

`tacit provision` creates the keys and writes the public halves into the job. So the digest of the job, which is
in every request and every certificate, covers them: nobody can replace a key without everybody noticing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.deploy.signatures import public_key_hex
from tacit.errors import DataError, RequestError

SIGNING_KEY = "signing.key"
"""The file with a party's private key, in its folder."""

_KEY = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Identities:
    """The public keys by which the server and the silos are known, 64 hexadecimal digits each."""

    server: str
    silos: Mapping[str, str]

    @classmethod
    def of(cls, server: Ed25519PrivateKey, silos: Mapping[str, Ed25519PrivateKey]) -> Identities:
        """The public halves of these keys."""
        return cls(public_key_hex(server), {site: public_key_hex(key) for site, key in silos.items()})

    def check(self, sites: Sequence[str]) -> None:
        """Refuse anything but one key for the server and one for each of these sites, all different."""
        if set(self.silos) != set(sites):
            raise RequestError("identities must name exactly one key for each silo of the job")
        keys = [self.server, *self.silos.values()]
        if not all(isinstance(key, str) and _KEY.match(key) for key in keys):
            raise RequestError("identities must be public keys of 64 hexadecimal digits in lower case")
        if len(set(keys)) != len(keys):
            raise RequestError(
                "identities must be different keys: two parties with the same key could not be told apart"
            )

    def to_values(self) -> dict[str, Any]:
        """The keys as a TOML table."""
        return {"server": self.server, "silos": dict(self.silos)}

    @classmethod
    def from_values(cls, values: object) -> Identities:
        """The inverse of `to_values`."""
        if (
            not isinstance(values, Mapping)
            or set(values) != {"server", "silos"}
            or not isinstance(values["silos"], Mapping)
        ):
            raise RequestError(f"identities must be a table of server and silos, not {values!r}")
        return cls(values["server"], dict(values["silos"]))


def check_own_key(identities: Identities | None, party: str, key: Ed25519PrivateKey) -> Identities:
    """The identities of a job. Refused unless they name this party's key; the server's name is "server"."""
    if identities is None:
        raise RequestError(
            "the job names no signing keys, so nobody could tell who signed a certificate: provision the "
            "consortium with this version, which creates them"
        )
    known = identities.server if party == "server" else identities.silos[party]
    if public_key_hex(key) != known:
        raise RequestError(
            f"{SIGNING_KEY} is not the key that the job names for {party!r}: this folder belongs to another job"
        )
    return identities


def read_signing_key(path: Path) -> Ed25519PrivateKey:
    """Read a party's private signing key from the file that `tacit provision` wrote."""
    try:
        read = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise DataError(
            f"cannot read the signing key {path}: {error}; it comes with the folder from tacit provision"
        ) from error
    if not isinstance(read, Ed25519PrivateKey):
        raise DataError(f"{path} is not an Ed25519 key")
    return read
