"""From one file that describes a consortium to one folder for each of its parties.

name = "heart"
recipe = "recipe.toml"               # every choice made, such as the one that `tacit run` leaves behind
silos = ["berlin", "lyon", "porto"]
feature_shape = [13]                 # of one record
classes = 2                          # left out for regression
quorum = 2                           # usable answers that a round needs; all unless given
deadline_seconds = 120.0             # how long a round waits for its silos
min_records = 100                    # of every silo; needed where a shuffler mixes the messages, and only there

[server]
host = "fl.example.org"              # how silos reach it; "localhost" for a trial on one machine
port = 8002
listen = "10.0.0.7"                  # the one address it listens on; that of the host unless given

[report]                             # leave it out, and no silo says anything about its losses
every = 10                           # of a silo's messages, one has its mean loss
loss_bound = 4.0                     # no record's loss counts for more
epsilon = 0.5                        # what all reports of a run cost together, of the recipe's epsilon
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.deploy.flare.kits import Network, write_kits
from tacit.deploy.identities import SIGNING_KEY, Identities, read_signing_key
from tacit.deploy.job import Job
from tacit.deploy.mixing import PublicKeys
from tacit.deploy.policy import Policy
from tacit.deploy.report import Report
from tacit.deploy.sealing import public_bytes, read_key, write_key
from tacit.deploy.shuffler import SHUFFLER
from tacit.engine.files import toml_values, write_atomically
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError, count, positive, unknown_name

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\Z")
_ADDRESS = re.compile(r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}\Z")
_RESERVED = frozenset({"server", "admin", SHUFFLER})
_SEALING_KEY, _SEALING_KEYS = "sealing.key", "sealing.toml"
DEADLINE_SECONDS = 120.0
PORT = 8002


@dataclass(frozen=True)
class Consortium:
    """Who takes part, in what, and how they reach each other."""

    name: str
    job: Job
    host: str = "localhost"
    port: int = PORT
    admin_port: int = PORT + 1
    quorum: int = 0
    """usable answers that a round needs; 0 stands for all"""
    deadline_seconds: float = DEADLINE_SECONDS
    listen: str = ""
    """the address of the server's machine that it listens on; that of the host unless given"""

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise RequestError(f"name = {self.name!r} must be letters, digits and hyphens, at most 63")
        for silo in self.job.sites:
            if not _NAME.match(silo) or silo.lower() in _RESERVED or silo == self.host:
                raise RequestError(
                    f"silos: {silo!r} must be letters, digits and hyphens, at most 63, and neither the host nor "
                    f"one of {', '.join(sorted(_RESERVED))}"
                )
        for name in ("host", "listen"):
            if not isinstance(getattr(self, name), str):
                raise RequestError(f"{name} must be a word, not {getattr(self, name)!r}")
        if not _HOST.match(self.host) or self.host.replace(".", "").isdigit():
            raise RequestError(
                f"host = {self.host!r} must be a host name, because certificates name hosts; an address can be "
                "given a name in /etc/hosts"
            )
        for name in ("port", "admin_port"):
            if count(name, getattr(self, name)) > 65535:
                raise RequestError(f"{name} must be at most 65535, not {getattr(self, name)}")
        if self.port == self.admin_port:
            raise RequestError(f"port and admin_port must differ; both are {self.port}")
        sites = len(self.job.sites)
        if count("quorum", self.quorum, at_least=0) > sites:
            raise RequestError(f"quorum = {self.quorum} is more than the {sites} silos there are")
        if self.job.shuffled and self.quorum not in (0, sites):
            raise RequestError(
                f"quorum = {self.quorum}: behind a shuffler a round needs all of its silos, because its promise "
                "counts on the noise of each; leave quorum out"
            )
        positive("deadline_seconds", self.deadline_seconds)
        if self.listen and not _ADDRESS.match(self.listen):
            raise RequestError(f"listen = {self.listen!r} must be an IPv4 address, such as 10.0.0.7")

    @classmethod
    def read(cls, path: Path) -> Consortium:
        """A consortium from its file; the recipe is looked for beside it."""
        values = _read_toml(path, "consortium")
        server = values.pop("server", {})
        report = Report.from_values(values.pop("report")) if "report" in values else None
        known = ["name", "recipe", "silos", "feature_shape", "classes", "min_records", "quorum"]
        _check_names(values, [*known, "deadline_seconds"], str(path))
        _check_names(server, ["host", "port", "admin_port", "listen"], f"[server] of {path}")
        for name, kind in (("name", str), ("recipe", str), ("silos", list), ("feature_shape", list)):
            if not isinstance(values.get(name), kind):
                raise RequestError(f"{path} must say {name}, as a {kind.__name__}, not {values.get(name)!r}")
        recipe = deployed(Recipe.read(path.parent / values.pop("recipe")))
        sites, shape = values.pop("silos"), values.pop("feature_shape")
        optional = {name: values.pop(name, None) for name in ("classes", "min_records")}
        job = Job(recipe, tuple(sites), tuple(shape), **optional, report=report)
        return cls(job=job, **values, **server)


def deployed(recipe: Recipe) -> Recipe:
    """The recipe of a simulation as silos run it: with noise that nobody can compute."""
    return replace(recipe, noise="lattice")


def provision(consortium: Consortium, out: Path) -> dict[str, Path]:
    """Write the folder of every party, and return them by name ("server" among them, "shuffler" if there is one).

    The job that they all get names the public signing keys of the server and of every silo, which are made here.
    Guarantee: every folder is readable by its owner only and holds that party's private keys alone.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(f"--out {out} is not an empty directory: keys are never written over")
    signing = {party: Ed25519PrivateKey.generate() for party in ("server", *consortium.job.sites)}
    silos = {site: signing[site] for site in consortium.job.sites}
    job = replace(consortium.job, identities=Identities.of(signing["server"], silos))
    clients = (*job.sites, SHUFFLER) if job.shuffled else job.sites
    folders = {party: out / party for party in ("server", *clients)}
    policies = {site: Policy.for_job(job, site, insecure_reproducible=job.insecure) for site in job.sites}
    for folder in folders.values():
        folder.mkdir(mode=0o700, parents=True)
    network = Network(consortium.name, consortium.host, consortium.port, consortium.admin_port, clients)
    write_kits(network, {client: folders[client] for client in clients}, folders["server"])
    for party, key in signing.items():
        write_key(folders[party] / SIGNING_KEY, key)
    if job.shuffled:
        _write_sealing_keys(folders)
    settings = {f.name: getattr(consortium, f.name) for f in fields(Consortium) if f.name != "job"}
    for party, folder in folders.items():
        write_atomically(folder / "job.toml", job.text.encode())
        write_atomically(folder / "party.toml", tomli_w.dumps({"party": party, **settings}).encode())
        write_atomically(folder / "README.md", _readme(party, replace(consortium, job=job)).encode())
        if party in policies:
            write_atomically(
                folder / "policy.toml", (_POLICY_HEAD + policies[party].to_toml()).encode(), mode=0o600
            )
    return folders


def _write_sealing_keys(folders: dict[str, Path]) -> None:
    """To every party its own private key for sealed messages, and the public ones of all."""
    own = {party: X25519PrivateKey.generate() for party in folders}
    public = {party: public_bytes(key) for party, key in own.items()}
    keys = PublicKeys(public.pop("server"), public.pop(SHUFFLER), public)
    for party, folder in folders.items():
        write_key(folder / _SEALING_KEY, own[party])
        write_atomically(folder / _SEALING_KEYS, tomli_w.dumps(keys.to_values()).encode())


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
        """Read a folder that `provision` made; one that other users can enter is refused."""
        try:
            values = toml_values((folder / "party.toml").read_text(), str(folder / "party.toml"))
            job = Job.from_text((folder / "job.toml").read_text(), str(folder / "job.toml"))
            party, quorum = str(values["party"]), count("quorum", values["quorum"], at_least=0)
            deadline_seconds = positive("deadline_seconds", values["deadline_seconds"])
            host, listen = str(values["host"]), str(values["listen"])
        except (OSError, UnicodeDecodeError, KeyError) as error:
            raise RequestError(f"{folder} is not a party's folder from tacit provision: {error}") from error
        if os.stat(folder).st_mode & 0o077:
            raise RequestError(
                f"{folder} can be entered by other users, and holds private keys: chmod 700 {folder}"
            )
        return cls(folder.resolve(), party, job, quorum or len(job.sites), deadline_seconds, host, listen)

    def address(self) -> str:
        """Where the server listens, and nowhere else; an address that this machine does not have is refused."""
        try:
            address = self.listen or socket.gethostbyname(self.host)
            with socket.socket() as probe:
                probe.bind((address, 0))
        except OSError as error:
            raise RequestError(
                f"cannot listen where {self.listen or self.host!r} points to: {error}. Say listen in "
                f"{self.folder / 'party.toml'}: an address of this machine, or 0.0.0.0 for all of them"
            ) from error
        return address

    @property
    def clients(self) -> tuple[str, ...]:
        """All parties that the server speaks to."""
        return (*self.job.sites, SHUFFLER) if self.job.shuffled else self.job.sites

    def sealing(self) -> tuple[X25519PrivateKey, PublicKeys] | None:
        """The party's own key for sealed messages and everybody's public ones, where there is a shuffler."""
        if not self.job.shuffled:
            return None
        values = _read_toml(self.folder / _SEALING_KEYS, "the public keys")
        return read_key(self.folder / _SEALING_KEY), PublicKeys.from_values(values)

    def signing_key(self) -> Ed25519PrivateKey:
        """The party's own key for certificates and ledger heads."""
        return read_signing_key(self.folder / SIGNING_KEY)

    @property
    def state(self) -> Path:
        """Where the party keeps what must survive a restart."""
        return self.folder / "state"

    def policy_text(self) -> str:
        """The silo's own policy."""
        path = self.folder / "policy.toml"
        try:
            return path.read_text()
        except OSError as error:
            raise RequestError(f"cannot read the policy {path}: {error}") from error


def _read_toml(path: Path, what: str) -> dict[str, Any]:
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {what} {path}: {error}") from error
    return toml_values(text, f"{what} {path}")


def _check_names(values: Any, known: list[str], where: str) -> None:
    if not isinstance(values, dict):
        raise RequestError(f"{where} must be a table, not {values!r}")
    for name in values:
        if name not in known:
            raise unknown_name(f"setting in {where}", name, known)


_POLICY_HEAD = """\
# What this silo is willing to release, decided here and by nobody else. Drafted from the job: read and change it.
# epsilon and delta hold for the whole collaboration: for all runs that this folder's ledger will ever see.
# A job that asks for less noise, a larger bound or anything that is not listed is refused before it starts.

"""


def _readme(party: str, consortium: Consortium) -> str:
    job = consortium.job
    if party == "server":
        return f"""\
# {consortium.name}: the server

It coordinates the silos {", ".join(job.sites)} over port {consortium.port} of {consortium.host}.
It sees every message and is trusted with nothing. On that machine, with `pip install 'tacit[deploy]'`:

    tacit server .

Started again after a crash, it goes on where it was. This folder holds private keys: keep it to yourself.
"""
    if party == SHUFFLER:
        return f"""\
# {consortium.name}: the shuffler

It mixes the messages of {", ".join(job.sites)}, which it cannot read, so that the server cannot tell whose is
whose. On a machine that is not the server's, run by people who do not work for it, with
`pip install 'tacit[deploy]'`:

    tacit shuffler .

It reaches {consortium.host}:{consortium.port} and opens no port to the network. Whoever holds this folder and
what the server has seen knows whose a message is, also later: never give it away, delete it after the run.
"""
    return f"""\
# {consortium.name}: the silo {party}

1. Read `job.toml`, which all parties agreed to, and `policy.toml`, which is yours to change. The job's digest is

       {job.digest}

   Compare it with the other silos, over a channel that the server does not control: it covers the keys by which
   everybody's certificates are known. `tacit verify` says on which job a certificate rests.
2. On your machine, with `pip install 'tacit[deploy]'` and your records in a file or behind a Python function:

       tacit silo . --data records.csv --target COLUMN

It reaches {consortium.host}:{consortium.port} and opens no port to the network. Records stay on your machine;
what leaves is noised, and written into `state/ledger.sqlite` first; `tacit silo . --status` shows what is spent
and left of the policy. Never restore `state/` from a backup, and
never run a copy of this folder: the ledger would forget what has left. It holds private keys: keep it for you.
"""
