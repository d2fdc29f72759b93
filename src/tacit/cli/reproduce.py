"""`tacit reproduce`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.errors import DataError, RequestError

if TYPE_CHECKING:
    from tacit.experiments.experiment import Experiment, Scale

HELP = """Run a table or figure of the papers: as published, with the epsilon that this really gives, and true.

Finished runs are kept in --out and never run again. With --all, an experiment whose data are not there is
skipped."""


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Of the experiment; see --list.")] = None,
    show: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, rounds and grid points.")] = False,
    charge_tuning: Annotated[
        bool, typer.Option("--charge-tuning", help="Tune the true mode by private selection, and count its cost.")
    ] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many; as the paper has unless given.")] = None,
    out: Annotated[Path, typer.Option(help="Where results, figures and pages go.")] = Path("reproduced"),
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one a core unless given.")] = None,
    data_dir: o.DataDir = None,
    as_json: o.Json = False,
) -> None:
    """Run experiments and write their pages."""
    from tacit.experiments.experiment import Scale
    from tacit.experiments.registry import EXPERIMENTS, experiment_named

    if show:
        _list(list(EXPERIMENTS.values()), as_json)
        return
    if (name is None) != everything:
        raise RequestError("name one experiment, or say --all; `tacit reproduce --list` lists them")
    chosen = list(EXPERIMENTS.values()) if name is None else [experiment_named(name)]
    if charge_tuning:
        refused = [one.name for one in chosen if not one.can_charge]
        if name is not None and refused:
            raise RequestError(f"{name} has no tuning that --charge-tuning could charge; leave it out")
        chosen = [one for one in chosen if one.can_charge]
    done = _run(
        chosen, Scale(quick, seeds, charge_tuning), out, workers, data_dir, as_json, everything=everything
    )
    if as_json:
        print(json.dumps(done))
    else:
        _show(done)
        if everything:
            print(f"All of them: {out / 'index.html'}")


def _run(
    chosen: list[Experiment],
    scale: Scale,
    out: Path,
    workers: int | None,
    data_dir: Path | None,
    as_json: bool,
    *,
    everything: bool,
) -> list[dict[str, Any]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tacit.experiments.cells import Runner
    from tacit.experiments.outputs import Made, write_outputs
    from tacit.experiments.overview import write_overview

    done: list[dict[str, Any]] = []
    columns = TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    quiet = as_json and not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("reproduce", total=None)

        def progress(finished: int, asked: int) -> None:
            bar.update(task, completed=finished, total=asked)

        with Runner(out / "cells", data_dir=data_dir, workers=workers, progress=progress) as runner:
            for experiment in chosen:
                bar.update(task, description=experiment.name)
                began = time.perf_counter()
                runner.costs.clear()
                try:
                    findings = experiment.run(runner, scale)
                except DataError as error:
                    if not everything:
                        raise
                    done.append({"experiment": experiment.name, "skipped": str(error)})
                    continue
                took = time.perf_counter() - began
                made = Made(experiment, scale, took, sum(runner.costs.values()))
                files = write_outputs(findings, made, out / experiment.name)
                claims = [
                    {"claim": c.text, "held": c.held, "verdict": c.verdict, "evidence": c.evidence}
                    for c in findings.claims
                ]
                done.append(
                    {
                        "experiment": experiment.name,
                        "title": experiment.title,
                        "seconds": made.seconds,
                        "processor_seconds": made.processor_seconds,
                        "claims": claims,
                        "files": files,
                    }
                )
    if everything:
        write_overview(done, out)
    return done


def _list(experiments: list[Experiment], as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    if as_json:
        print(
            json.dumps(
                [{"name": e.name, "title": e.title, "paper": e.paper, "data": e.data} for e in experiments]
            )
        )
        return
    table = Table()
    for heading in ("name", "what", "paper", "data"):
        table.add_column(heading)
    for experiment in experiments:
        table.add_row(experiment.name, experiment.title, experiment.paper, experiment.data or "made up")
    Console().print(table)


def _show(done: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for one in done:
        if "skipped" in one:
            console.print(Text.assemble((one["experiment"], "bold"), ": skipped: ", one["skipped"]))
            continue
        console.print(
            Text.assemble((one["experiment"], "bold"), f" ({one['seconds']:.0f} s): {one['files']['page']}")
        )
        for claim in one["claims"]:
            mark = (claim["verdict"], {True: "green", False: "red", None: "yellow"}[claim["held"]])
            console.print(Text.assemble("  ", mark, f": {claim['claim']}"))
