"""A provisioned folder, as the party that owns it uses it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.deploy.identities import SIGNING_KEY, read_signing_key
from tacit.deploy.job import Job
from tacit.deploy.mixing import PublicKeys
from tacit.deploy.policy import Policy
from tacit.deploy.sealing import read_key
from tacit.deploy.shuffler import SHUFFLER
from tacit.engine.files import read_toml, toml_values
from tacit.errors import RequestError, count, positive, reason

SEALING_KEY, SEALING_KEYS = "sealing.key", "sealing.toml"


@dataclass(frozen=True)
class PartyFolder:
    """A provisioned folder, as its owner uses it."""

    folder: Path
    party: str
    job: Job
    quorum: int
    deadline_seconds: float
    host: str
    listen: str

    @classmethod
    def open(cls, folder: Path) -> PartyFolder:
        """Read a folder that `provision` made. A folder that other users can enter is refused."""
        try:
            values = toml_values(_text(folder / "party.toml"), str(folder / "party.toml"))
            party, quorum = str(values["party"]), count("quorum", values["quorum"], at_least=0)
            job = _read_job(folder, party)
            deadline_seconds = positive("deadline_seconds", values["deadline_seconds"])
            host, listen = str(values["host"]), str(values["listen"])
        except KeyError as error:
            raise RequestError(f"{folder / 'party.toml'} must set {error.args[0]}") from error
        except OSError as error:
            raise RequestError(
                f"{folder} is not a party's folder from tacit provision: {error.filename}: {reason(error)}. Name "
                "that folder, or run the command in it"
            ) from error
        if os.stat(folder).st_mode & 0o077:
            raise RequestError(f"{folder} holds private keys, but other users can enter it: chmod 700 {folder}")
        return cls(folder.resolve(), party, job, quorum or job.usual_quorum, deadline_seconds, host, listen)

    def address(self) -> str:
        """The only address the server listens on. An address that this machine does not have is refused."""
        try:
            address = self.listen or socket.gethostbyname(self.host)
            with socket.socket() as probe:
                probe.bind((address, 0))
        except OSError as error:
            raise RequestError(
                f"cannot listen on the address of {self.listen or self.host!r}: {error}. Set listen in "
                f"{self.folder / 'party.toml'} to an address of this machine, or to 0.0.0.0 for all of them"
            ) from error
        return address

    @property
    def clients(self) -> tuple[str, ...]:
        """All parties that connect to the server."""
        return (*self.job.sites, SHUFFLER) if self.job.shuffled else self.job.sites

    def sealing(self) -> tuple[X25519PrivateKey, PublicKeys] | None:
        """The party's private key for sealed messages and everybody's public keys; None without a shuffler."""
        if not self.job.shuffled:
            return None
        values = read_toml(self.folder / SEALING_KEYS, "the public keys")
        return read_key(self.folder / SEALING_KEY), PublicKeys.from_values(values)

    def signing_key(self) -> Ed25519PrivateKey:
        """The party's private key, which signs certificates and ledger heads."""
        return read_signing_key(self.folder / SIGNING_KEY)

    @property
    def state(self) -> Path:
        """The folder for everything that must survive a restart."""
        return self.folder / "state"

    def policy_text(self) -> str:
        """The text of the silo's policy.toml."""
        return _policy_text(self.folder)


def _read_job(folder: Path, party: str) -> Job:
    """The job of a folder. A silo builds no model that its policy does not list; others have no policy."""
    text, source = _text(folder / "job.toml"), str(folder / "job.toml")
    if party in ("server", SHUFFLER):
        return Job.from_text(text, source)
    return Job.from_text(text, source, check=Policy.from_toml(_policy_text(folder)).check_names)


def _policy_text(folder: Path) -> str:
    path = folder / "policy.toml"
    try:
        return _text(path)
    except OSError as error:
        raise RequestError(f"cannot read the policy {path}: {reason(error)}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: {reason(error)}") from error
