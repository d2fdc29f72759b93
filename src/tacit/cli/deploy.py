"""`tacit deploy --local`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.recipe_options import recipe_from, recipe_options
from tacit.cli.say import say
from tacit.cli.server import StatusPort, show_finished, watched
from tacit.errors import RequestError

if TYPE_CHECKING:
    from tacit.deploy.party_folder import PartyFolder
    from tacit.engine.recipe import Recipe

HELP = """Rehearse a deployment: a server and N silos as separate processes on this machine, over mutual TLS.

Takes the options of [bold]tacit run[/]. One Ctrl-C stops everything; --resume continues."""

DEADLINE_SECONDS = 60.0


@recipe_options("clients", "privacy", "adversary")
def deploy(
    *,
    recipe_file: o.RecipeFile = None,
    local: Annotated[
        int,
        typer.Option(show_default=False, help="The number of silos, needed; each runs in its own process."),
    ] = 0,
    insecure_reproducible: Annotated[
        bool,
        typer.Option(
            "--insecure-reproducible",
            help="Use seeded noise, as the simulator does, to compare the two. Protects nobody.",
        ),
    ] = False,
    given: dict[str, Any],
    data_dir: o.DataDir = None,
    quorum: Annotated[
        int,
        typer.Option(
            show_default=False,
            help="Usable answers that a round needs. [dim]Default: all, or with --trust sum a fifth fewer.[/]",
        ),
    ] = 0,
    report: o.Report = None,
    out: o.Out = None,
    resume: o.Resume = False,
    status_port: StatusPort = 0,
    as_json: o.Json = False,
    settings: o.Set = None,
) -> None:
    """Run a consortium on this machine."""
    from tacit.deploy.flare.local import local_parties
    from tacit.deploy.flare.parties import require_flare, stopping_in_order
    from tacit.engine.execute import default_directory

    require_flare()
    if resume:
        if out is None or given or recipe_file is not None or local:
            raise RequestError("--resume needs --out, the directory to continue, and no option about what to run")
        party, shards = _stored(out)
    else:
        if local < 0:
            raise RequestError(f"--local must be at least 1, not {local}")
        if local == 0:
            raise RequestError("--local is missing: the number of silos to rehearse with, such as --local 3")
        noise = "gaussian" if insecure_reproducible else "lattice"
        recipe = recipe_from(recipe_file, {**given, "clients": local}, settings)
        recipe = replace(recipe, noise=noise)
        if quorum and recipe.trust == "sum":
            # One quorum is enough: that of the sums, from which their noise follows.
            recipe, quorum = replace(recipe, quorum=quorum), 0
        place = out or default_directory(recipe)
        party, shards = _provisioned(recipe, place, data_dir, quorum, report)
    folders = {client: party.folder.parent / client for client in party.clients}
    with stopping_in_order(), local_parties(folders, shards) as ended:
        finished = watched(party, status_port, quiet=as_json, ended=ended)
    show_finished(party, finished, as_json)


def _provisioned(
    recipe: Recipe, out: Path, data_dir: Path | None, quorum: int, report: str | None
) -> tuple[PartyFolder, dict[str, Path]]:
    from tacit.deploy.consortium import Consortium
    from tacit.deploy.flare.local import free_ports, write_shards, write_tables
    from tacit.deploy.job import Job
    from tacit.deploy.party_folder import PartyFolder
    from tacit.deploy.provision import provision
    from tacit.deploy.records import open_tables
    from tacit.deploy.report import Report
    from tacit.engine.fronts import GIVEN
    from tacit.engine.outlook import outlook
    from tacit.engine.plan import make_plan
    from tacit.engine.records import load_federation, names_files

    tables = open_tables(recipe)
    if tables is None and names_files(recipe):
        # Silos take arrays as they are: sizes and targets are learned in simulations and estimators alone.
        recipe = replace(recipe, data_settings={"features": GIVEN, **recipe.data_settings})
        if recipe.target_bound is None and "schema" not in recipe.data_settings:
            recipe = replace(recipe, target_bound=0.0)
    plan = make_plan(recipe, data_dir=data_dir, federation=None if tables is None else tables.wide)
    ahead = outlook(plan)
    if ahead is not None:
        say(ahead.sentence, err=True)
    sites = [f"silo-{number + 1}" for number in range(plan.federation.clients)]
    port, admin_port = free_ports(2)
    job = replace(Job.from_plan(plan, sites), report=None if report is None else Report.parse(report))
    consortium = Consortium(
        "local",
        job if tables is None else replace(job, schema=tables.schema),
        port=port,
        admin_port=admin_port,
        quorum=quorum,
        deadline_seconds=DEADLINE_SECONDS,
    )
    folders = provision(consortium, out)
    silos = {site: folders[site] for site in sites}
    if tables is not None:
        return PartyFolder.open(folders["server"]), write_tables(tables, silos)
    # Silos hold records back for an evaluation themselves.
    records = plan.federation if plan.evaluation is None else load_federation(recipe, data_dir)
    return PartyFolder.open(folders["server"]), write_shards(records, silos)


def _stored(out: Path) -> tuple[PartyFolder, dict[str, Path]]:
    from tacit.deploy.party_folder import PartyFolder

    party = PartyFolder.open(out / "server")
    kind = "npz" if party.job.ranges is None else "csv"
    return party, {site: out / site / f"records.{kind}" for site in party.job.sites}
