"""Turn one file that describes a consortium into one folder for each of its parties.

name = "heart"
recipe = "recipe.toml"               # a complete recipe, such as the one that `tacit run` writes
silos = ["berlin", "lyon", "porto"]
schema = "schema.toml"               # what the silos' tables look like; they must not differ (tacit schema draft)
feature_shape = [13]                 # without a schema: the shape of one record of prepared arrays
classes = 2                          # without a schema: the number of classes; leave it out for regression
quorum = 2                           # usable answers that a round needs; all by default, or the recipe's quorum
deadline_seconds = 120.0             # how long a round waits for its silos
min_records = 100                    # training records (or persons) that every silo has at least: steps and open
                                     # settings follow from it, and the noise behind a shuffler or with sums

[server]
host = "fl.example.org"              # where silos reach the server; "localhost" for a trial on one machine
port = 8002
listen = "10.0.0.7"                  # the only address it listens on; by default the host's

[report]                             # without this table, no silo reports its losses
every = 10                           # every 10th message of a silo comes with its mean loss
loss_bound = 4.0                     # each record's loss is clipped to this
epsilon = 0.5                        # the part of the recipe's epsilon that all reports of a run cost together
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

from tacit.data.schema import Schema, record_shape
from tacit.deploy.flare.kits import Network, write_kits
from tacit.deploy.guard import check_trust
from tacit.deploy.identities import SIGNING_KEY, Identities, read_signing_key
from tacit.deploy.job import Job, blank_records
from tacit.deploy.mixing import PublicKeys
from tacit.deploy.policy import Policy
from tacit.deploy.report import Report
from tacit.deploy.sealing import public_bytes, read_key, write_key
from tacit.deploy.shuffler import SHUFFLER
from tacit.engine.files import toml_values, write_atomically
from tacit.engine.plan import make_plan
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
    """Who takes part in which job, and how they reach each other."""

    name: str
    job: Job
    host: str = "localhost"
    port: int = PORT
    admin_port: int = PORT + 1
    quorum: int = 0
    """usable answers that a round needs; 0 means all, or the quorum of the recipe's sums"""
    deadline_seconds: float = DEADLINE_SECONDS
    listen: str = ""
    """the address that the server listens on; by default the host's"""

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise RequestError(f"name = {self.name!r} must be at most 63 letters, digits and hyphens")
        for silo in self.job.sites:
            if not _NAME.match(silo) or silo.lower() in _RESERVED or silo == self.host:
                raise RequestError(
                    f"silos: {silo!r} must be at most 63 letters, digits and hyphens, and neither the host nor "
                    f"one of {', '.join(sorted(_RESERVED))}"
                )
        for name in ("host", "listen"):
            if not isinstance(getattr(self, name), str):
                raise RequestError(f"{name} must be a string, not {getattr(self, name)!r}")
        if not _HOST.match(self.host) or self.host.replace(".", "").isdigit():
            raise RequestError(
                f"host = {self.host!r} must be a host name, because certificates name hosts; you can give an "
                "address a name in /etc/hosts"
            )
        for name in ("port", "admin_port"):
            if count(name, getattr(self, name)) > 65535:
                raise RequestError(f"{name} must be at most 65535, not {getattr(self, name)}")
        if self.port == self.admin_port:
            raise RequestError(f"port and admin_port must differ; both are {self.port}")
        check_trust(self.job)
        sites = len(self.job.sites)
        if count("quorum", self.quorum, at_least=0) > sites:
            raise RequestError(f"quorum = {self.quorum} is more than the number of silos, {sites}")
        if self.job.shuffled and self.quorum not in (0, sites):
            raise RequestError(
                f"quorum = {self.quorum}: with a shuffler a round needs all of its silos, because the promise "
                "relies on the noise of each; leave quorum out"
            )
        if self.job.summed and 0 < self.quorum < self.job.usual_quorum:
            raise RequestError(
                f"quorum = {self.quorum}: a sum cannot be opened with fewer silos than the recipe's quorum, "
                f"{self.job.usual_quorum}; leave quorum out"
            )
        positive("deadline_seconds", self.deadline_seconds)
        if self.listen and not _ADDRESS.match(self.listen):
            raise RequestError(f"listen = {self.listen!r} must be an IPv4 address, such as 10.0.0.7")

    @classmethod
    def read(cls, path: Path) -> Consortium:
        """Read a consortium from its file; the recipe's path is relative to that file."""
        values = _read_toml(path, "consortium")
        server = values.pop("server", {})
        report = Report.from_values(values.pop("report")) if "report" in values else None
        known = ["name", "recipe", "silos", "schema", "feature_shape", "classes", "min_records", "quorum"]
        _check_names(values, [*known, "deadline_seconds"], str(path))
        _check_names(server, ["host", "port", "admin_port", "listen"], f"[server] of {path}")
        schema = None
        if "schema" in values:
            schema = Schema.read(path.parent / str(values.pop("schema")))
            schema.check_confirmed(public_schema=False)
            values.setdefault("feature_shape", list(record_shape(schema)))
            values.setdefault("classes", schema.classes)
        for name, kind in (("name", str), ("recipe", str), ("silos", list), ("feature_shape", list)):
            if not isinstance(values.get(name), kind):
                raise RequestError(f"{path} must set {name} to a {kind.__name__}, not {values.get(name)!r}")
        recipe = deployed(Recipe.read(path.parent / values.pop("recipe")))
        sites, shape = values.pop("silos"), values.pop("feature_shape")
        optional = {name: values.pop(name, None) for name in ("classes", "min_records")}
        if schema is not None and optional["min_records"] is not None:
            recipe = _with_choices(recipe, sites, count("min_records", optional["min_records"]), schema)
        job = Job(recipe, tuple(sites), tuple(shape), **optional, report=report, schema=schema)
        return cls(job=job, **values, **server)


def _with_choices(recipe: Recipe, sites: list[str], min_records: int, schema: Schema) -> Recipe:
    """The recipe with everything that it leaves open chosen, as for silos of the least number of records.

    Only public numbers are used: the schema, the silos and what they have at least.
    """
    stand_in = blank_records(sites, min_records, record_shape(schema), schema.classes, schema)
    return make_plan(recipe, federation=stand_in).recipe or recipe


def deployed(recipe: Recipe) -> Recipe:
    """A simulation's recipe changed for real silos: with noise that nobody can recompute."""
    return replace(recipe, noise="lattice")


def provision(consortium: Consortium, out: Path) -> dict[str, Path]:
    """Write a folder for each party and return them by name: silos, "server", "shuffler" if any.

    The keys are generated here. The job, which is the same for all, names the public signing keys of the server
    and of every silo. Guarantee: each folder is readable only by its owner and holds only that party's private
    keys.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(
            f"--out {out} is not an empty directory, and keys are never overwritten: choose another"
        )
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
    """Give each party its own private key for sealed messages, and everybody's public keys."""
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
        """Read a folder that `provision` made. A folder that other users can enter is refused."""
        try:
            values = toml_values((folder / "party.toml").read_text(), str(folder / "party.toml"))
            job = Job.from_text((folder / "job.toml").read_text(), str(folder / "job.toml"))
            party, quorum = str(values["party"]), count("quorum", values["quorum"], at_least=0)
            deadline_seconds = positive("deadline_seconds", values["deadline_seconds"])
            host, listen = str(values["host"]), str(values["listen"])
        except (OSError, UnicodeDecodeError, KeyError) as error:
            raise RequestError(f"{folder} is not a party's folder from tacit provision: {error}") from error
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
        values = _read_toml(self.folder / _SEALING_KEYS, "the public keys")
        return read_key(self.folder / _SEALING_KEY), PublicKeys.from_values(values)

    def signing_key(self) -> Ed25519PrivateKey:
        """The party's private key, which signs certificates and ledger heads."""
        return read_signing_key(self.folder / SIGNING_KEY)

    @property
    def state(self) -> Path:
        """The folder for everything that must survive a restart."""
        return self.folder / "state"

    def policy_text(self) -> str:
        """The text of the silo's policy.toml."""
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
# What this silo is willing to release. Only the silo decides. This draft was made from the job: read and edit it.
# epsilon and delta cover the whole collaboration: all runs that this folder's ledger will ever hold.
# A job that asks for less noise, a larger bound or anything not listed here is refused before it starts.

"""


def _bring(job: Job) -> str:
    """How a silo brings its records."""
    if job.schema is None:
        return "with your records as arrays X and y in a file:\n\n       tacit silo . --data records.npz"
    return f"""with your table, which must fit the schema in `job.toml`
   (its digest is {job.schema.digest}). Check it first; nothing is sent:

       tacit silo . --data records.csv --check
       tacit silo . --data records.csv"""


def _readme(party: str, consortium: Consortium) -> str:
    job = consortium.job
    if party == "server":
        return f"""\
# {consortium.name}: the server

The server coordinates the silos {", ".join(job.sites)} over port {consortium.port} of {consortium.host}.
It sees every message, and nobody has to trust it. Run it on that machine, after `pip install 'tacit[deploy]'`:

    tacit server .

Restarted after a crash, it continues where it stopped. This folder holds private keys: keep it to yourself.
"""
    if party == SHUFFLER:
        return f"""\
# {consortium.name}: the shuffler

The shuffler mixes the messages of {", ".join(job.sites)}, so that the server cannot tell who sent which.
It cannot read them. Run it on a different machine from the server's, operated by different people, after
`pip install 'tacit[deploy]'`:

    tacit shuffler .

It connects to {consortium.host}:{consortium.port} and opens no port to the network. Anyone who has both this
folder and what the server has seen can tell who sent which message, even later. Never give this folder away, and
delete it after the run.
"""
    return f"""\
# {consortium.name}: the silo {party}

1. Read `job.toml`, which all parties agreed to, and `policy.toml`, which is yours to change. The job's digest is

       {job.digest}

   Compare it with the other silos, over a channel that the server does not control. It covers the keys that sign
   everybody's certificates. `tacit verify` says which job a certificate is checked against.
2. On your machine, after `pip install 'tacit[deploy]'`, {_bring(job)}

The silo connects to {consortium.host}:{consortium.port} and opens no port to the network. Records stay on your
machine. Everything that leaves has noise added and is first written to `state/ledger.sqlite`. To see what is
spent of the policy's budget and what is left, run `tacit silo . --status`. Never restore `state/` from a backup,
and never run a copy of this folder: the ledger would forget what has left. The folder holds private keys: keep
it to yourself.
"""
