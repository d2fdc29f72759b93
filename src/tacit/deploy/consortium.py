"""A consortium: who takes part in which job, and how they reach each other. Its file:

name = "heart"
recipe = "recipe.toml"               # a complete recipe, such as the one that `tacit run` writes
silos = ["berlin", "lyon", "porto"]
schema = "schema.toml"               # what the silos' tables look like; they must not differ (tacit schema draft)
feature_shape = [13]                 # without a schema: the shape of one record of prepared arrays
classes = 2                          # without a schema: the number of classes; leave it out for regression
quorum = 2                           # usable answers that a round needs; all by default, or the recipe's quorum
deadline_seconds = 120.0             # how long a round waits for its silos
min_records = 100                    # training records (or persons) that every silo has at least: steps and open
                                     # settings follow from it, and the noise behind a shuffler or with sums; with
                                     # sums better { berlin = 1000, lyon = 200, porto = 400 }

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

import ipaddress
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.data.schema import Schema, record_shape
from tacit.deploy.guard import check_trust
from tacit.deploy.job import Job
from tacit.deploy.job_checks import check_least_records, check_record, check_sites
from tacit.deploy.report import Report
from tacit.deploy.shuffler import SHUFFLER
from tacit.deploy.site_records import blank_records
from tacit.engine.files import read_toml
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.weights import with_numbers
from tacit.errors import RequestError, count, positive, unknown_name
from tacit.federation import Federation

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\Z")
_RESERVED = frozenset({"server", "admin", SHUFFLER})
DEADLINE_SECONDS = 120.0
PORT = 8002
MOST_HOST = 64
"""The longest name that a certificate has room for."""


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
        if not _HOST.match(self.host) or self.host.replace(".", "").isdigit() or len(self.host) > MOST_HOST:
            raise RequestError(
                f"host = {self.host!r} must be a host name of at most {MOST_HOST} letters, because certificates "
                "name hosts; you can give an address a name in /etc/hosts"
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
        if self.listen and not _is_address(self.listen):
            raise RequestError(f"listen = {self.listen!r} must be an IPv4 address, such as 10.0.0.7")

    @classmethod
    def read(cls, path: Path) -> Consortium:
        """Read a consortium from its file; the recipe's path is relative to that file."""
        values = read_toml(path, "consortium")
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
        if "feature_shape" not in values:
            raise RequestError(
                f"{path} does not say what the silos' records look like: name a schema, as in schema = "
                '"schema.toml", or set feature_shape, such as [13], and classes'
            )
        for name, kind in (("name", str), ("recipe", str), ("silos", list), ("feature_shape", list)):
            if not isinstance(values.get(name), kind):
                raise RequestError(f"{path} must set {name} to a {kind.__name__}, not {values.get(name)!r}")
        recipe = deployed(Recipe.read(path.parent / values.pop("recipe")))
        sites, shape = values.pop("silos"), values.pop("feature_shape")
        optional = {name: values.pop(name, None) for name in ("classes", "min_records")}
        check_sites(sites)
        check_record(shape, optional["classes"])
        least, each = (
            check_least_records(optional["min_records"], sites),
            isinstance(optional["min_records"], dict),
        )
        if least and (schema is not None or (isinstance(recipe.weights, str) and each)):
            stand_in = blank_records(
                sites, [least[site] for site in sites], tuple(shape), optional["classes"], schema
            )
            recipe = _with_choices(recipe, stand_in, each=each)
        job = Job(recipe, tuple(sites), tuple(shape), **optional, report=report, schema=schema)
        return cls(job=job, **values, **server)


def _with_choices(recipe: Recipe, stand_in: Federation, *, each: bool) -> Recipe:
    """The recipe with what it leaves open chosen as for the stand-ins, which have the least numbers of records.

    Only public numbers are used: the schema, the silos and what they have at least. Without a schema, all but the
    weights of silos remain open; these are numbers if the least number of `each` silo is known.
    """
    plan = make_plan(recipe, federation=stand_in)
    chosen = recipe if stand_in.schema is None or plan.recipe is None else plan.recipe
    return with_numbers(chosen, plan.federation) if each else chosen


def deployed(recipe: Recipe) -> Recipe:
    """A simulation's recipe changed for real silos: with noise that nobody can recompute."""
    return replace(recipe, noise="lattice")


def _is_address(text: str) -> bool:
    try:
        return str(ipaddress.IPv4Address(text)) == text
    except ValueError:
        return False


def _check_names(values: Any, known: list[str], where: str) -> None:
    if not isinstance(values, dict):
        raise RequestError(f"{where} must be a table, not {values!r}")
    for name in values:
        if name not in known:
            raise unknown_name("setting", name, known, where)
