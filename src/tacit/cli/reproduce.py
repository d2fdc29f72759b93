"""`tacit reproduce`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import complete
from tacit.cli import options as o
from tacit.cli.interrupt import continued_by_repeating
from tacit.errors import DataError, RequestError

if TYPE_CHECKING:
    from tacit.experiments.cells import Runner
    from tacit.experiments.experiment import Experiment, Scale

HELP = """Reproduce a table or figure of a paper: as published (with its real epsilon), and at a true epsilon.

Finished runs are kept in --out and not repeated. Pages made with --quick or --charge-tuning go into separate
folders there. With --all, an experiment is skipped if its data is missing."""


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="The experiment's name; see --list.", autocompletion=complete.experiments),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show what has been run in --out: seeds, time, verdicts.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Run all experiments.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, rounds and grid points.")] = False,
    charge_tuning: Annotated[
        bool, typer.Option("--charge-tuning", help="Tune the true mode by private selection and charge its cost.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds. [dim]Default: as in the paper.[/]")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where results, figures and pages go.")] = Path("reproduced"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes. [dim]Default: one per core.[/]")
    ] = None,
    cluster: o.Cluster = None,
    data_dir: o.DataDir = None,
    as_json: o.Json = False,
) -> None:
    """Run experiments and write their pages."""
    from tacit.experiments.cells import Runner
    from tacit.experiments.experiment import Scale
    from tacit.experiments.overview import write_overview
    from tacit.experiments.registry import EXPERIMENTS, experiment_named

    if show:
        _list(list(EXPERIMENTS.values()), as_json)
        return
    if status:
        _status(list(EXPERIMENTS.values()), out / Scale(quick, charge_tuning=charge_tuning).folder, as_json)
        return
    if (name is None) != everything:
        raise RequestError(
            "give either the name of an experiment or --all; `tacit reproduce --list` lists the experiments"
        )
    chosen = list(EXPERIMENTS.values()) if name is None else [experiment_named(name)]
    uncharged = [one for one in chosen if charge_tuning and not one.can_charge]
    if name is not None and uncharged:
        raise RequestError(f"{name} has no tuning that could be charged; leave out --charge-tuning")
    scale = Scale(quick, seeds, charge_tuning)
    pages = out / scale.folder
    bar = _Bar(quiet=as_json and not sys.stderr.isatty())
    everywhere = Runner(out / "cells", data_dir=data_dir, workers=workers, cluster=cluster, progress=bar.progress)
    with continued_by_repeating(), bar, everywhere as runner:
        done = []
        for one in chosen:
            bar.name(one.name)
            done.append(
                {"experiment": one.name, "skipped": "it has no tuning that --charge-tuning could charge"}
                if one in uncharged
                else _one(one, runner, scale, pages, alone=name is not None)
            )
    if everything:
        write_overview(done, pages)
    if as_json:
        print(json.dumps(done))
    else:
        _show(done)
        if everything:
            print(f"Overview of all experiments: {pages / 'index.html'}")
    if any("failed" in one for one in done):
        raise typer.Exit(1)


class _Bar:
    """A progress bar over the runs of all experiments."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._bar = Progress(*columns, console=Console(stderr=True), disable=quiet)
        self._task = self._bar.add_task("reproduce", total=None)

    def __enter__(self) -> None:
        self._bar.start()

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def name(self, experiment: str) -> None:
        """Show the name of the experiment that is running."""
        self._bar.update(self._task, description=experiment)

    def progress(self, finished: int, asked: int) -> None:
        """Show that `finished` of the `asked` runs are done."""
        self._bar.update(self._task, completed=finished, total=asked)


def _one(experiment: Experiment, runner: Runner, scale: Scale, pages: Path, *, alone: bool) -> dict[str, Any]:
    """Run an experiment and write its page. Unless it runs `alone`, a failure is reported, not raised."""
    from tacit.experiments.outputs import Made, write_outputs

    began = time.perf_counter()
    runner.costs.clear()
    try:
        findings = experiment.run(runner, scale)
        made = Made(experiment, scale, time.perf_counter() - began, sum(runner.costs.values()))
        files = write_outputs(findings, made, pages / experiment.name)
    except DataError as error:
        if alone:
            raise
        return {"experiment": experiment.name, "skipped": str(error)}
    except Exception as error:
        if alone:
            raise
        return {"experiment": experiment.name, "failed": f"{type(error).__name__}: {error}"}
    claims = [
        {"claim": c.text, "held": c.held, "verdict": c.verdict, "evidence": c.evidence} for c in findings.claims
    ]
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "seconds": made.seconds,
        "processor_seconds": made.processor_seconds,
        "claims": claims,
        "files": files,
    }


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
    papers: dict[str, list[tuple[str, str]]] = {}
    for one in experiments:
        paper, _, place = one.paper.rpartition("), ")
        about = f"{one.title} ({place}; {one.data or 'synthetic'})"
        papers.setdefault(f"{paper})" if paper else one.paper, []).append((one.name, about))
    console = Console()
    for paper, rows in papers.items():
        table = Table(title=paper, title_justify="left", title_style="bold", box=None, show_header=False)
        table.add_column(style="cyan", no_wrap=True, min_width=max(len(one.name) for one in experiments) + 1)
        table.add_column()
        for row in rows:
            table.add_row(*row)
        console.print(table, "")


def _status(experiments: list[Experiment], pages: Path, as_json: bool) -> None:
    from tacit.cli.tables import show_table
    from tacit.experiments.status import COLUMNS, status

    rows = status(experiments, pages)
    if as_json:
        print(json.dumps(rows))
        return
    cells = [{name: "" if row.get(name) is None else str(row[name]) for name in COLUMNS} for row in rows]
    show_table(cells, title="experiments", words=("experiment", "run", "promise"))
    ran = [row for row in rows if row["run"] != "no"]
    print(f"{len(ran)} of {len(rows)} experiments have been run: {pages}")


def _show(done: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for one in done:
        if left := [(how, one[how]) for how in ("skipped", "failed") if how in one]:
            console.print(Text.assemble((one["experiment"], "bold"), f": {left[0][0]}: {left[0][1]}"))
            continue
        console.print(
            Text.assemble((one["experiment"], "bold"), f" ({one['seconds']:.0f} s): {one['files']['page']}")
        )
        for claim in one["claims"]:
            mark = (claim["verdict"], {True: "green", False: "red", None: "yellow"}[claim["held"]])
            console.print(Text.assemble("  ", mark, f": {claim['claim']}"))
