"""The file of a job, which its parties exchange and sign.

A job file is a complete recipe plus a table that says who takes part and what a record looks like, because no
party can see another's records:

    [algorithm]
    name = "soteriafl-sgd"
    ...
    [consortium]
    sites = ["hospital-a", "hospital-b"]
    feature_shape = [64]
    classes = 10
    min_records = 100       # with a shuffler or sums: every site has at least this many, and counts as having
                            # no more; with sums also by site: { hospital-a = 1000, hospital-b = 200 }
    [consortium.schema]     # what the silos' tables look like (`tacit.data.schema`); every silo checks its own
    ...
    [consortium.identities]
    server = "5b7e..."      # public signing keys, made by `tacit provision`, which identify who signs
    silos = { hospital-a = "90ac...", hospital-b = "17d3..." }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tomli_w

from tacit.data.schema import Schema
from tacit.deploy.identities import Identities
from tacit.deploy.report import Report, report_values
from tacit.engine.files import toml_values
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError, unknown_name

if TYPE_CHECKING:
    from tacit.deploy.job import Job

_NEEDED = ("sites", "feature_shape")
_KNOWN = (*_NEEDED, "classes", "min_records", "report", "schema", "identities")


def job_text(job: Job) -> str:
    """A job as TOML."""
    table: dict[str, Any] = {"sites": list(job.sites), "feature_shape": list(job.feature_shape)}
    least = dict(job.min_records) if isinstance(job.min_records, Mapping) else job.min_records
    optional = {"classes": job.classes, "min_records": least}
    table |= {name: value for name, value in optional.items() if value is not None}
    table |= report_values(job.report)
    table |= {} if job.schema is None else {"schema": job.schema.to_values()}
    table |= {} if job.identities is None else {"identities": job.identities.to_values()}
    return job.recipe.to_toml() + "\n" + tomli_w.dumps({"consortium": table})


def fields_of_job(text: str, source: str, check: Callable[[Recipe], None]) -> dict[str, Any]:
    """The inverse of `job_text`: the fields of `Job`. `check` may refuse the recipe before anything is built."""
    values = toml_values(text, source)
    table = values.pop("consortium", None)
    if not isinstance(table, dict):
        raise RequestError(f"{source} has no table [consortium] with sites and feature_shape")
    for name in table:
        if name not in _KNOWN:
            raise unknown_name("setting", name, _KNOWN, f"[consortium] of {source}")
    for name in _NEEDED:
        if not isinstance(table.get(name), list):
            raise RequestError(f"{name} in [consortium] of {source} must be a list, not {table.get(name)!r}")
    recipe = Recipe.from_toml(tomli_w.dumps(values), source)
    check(recipe)
    return {
        "recipe": recipe,
        "sites": tuple(table["sites"]),
        "feature_shape": tuple(table["feature_shape"]),
        "classes": table.get("classes"),
        "min_records": table.get("min_records"),
        "report": Report.from_values(table["report"]) if "report" in table else None,
        "identities": Identities.from_values(table["identities"]) if "identities" in table else None,
        "schema": Schema.from_values(table["schema"]) if "schema" in table else None,
    }
