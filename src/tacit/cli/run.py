"""`tacit run`."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tacit.cli import options as o
from tacit.errors import RequestError

if TYPE_CHECKING:
    from tacit.engine.recipe import Recipe

HELP = """Train one model over many clients, with differentially private and compressed messages.

Without arguments, run a demonstration on embedded data. Every run writes a complete recipe that reproduces it."""


@o.recipe_options()
def run(
    *,
    recipe_file: o.RecipeFile = None,
    given: dict[str, Any],
    data_dir: o.DataDir = None,
    seeds: int | None = typer.Option(None, help="Repeat with this many seeds, one run directory each."),
    out: o.Out = None,
    resume: o.Resume = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    log: o.Log = None,
    log_measured: o.LogMeasured = False,
    settings: o.Set = None,
) -> None:
    """Run one recipe."""
    from tacit.cli.pages import write_run_page
    from tacit.cli.show import RunProgress, show_guarantee, show_summary
    from tacit.engine.execute import default_directory, execute, stored_recipe
    from tacit.engine.watch import parse_watcher

    if resume and out is None:
        raise RequestError("--resume needs --out, the run directory to continue")
    stored = stored_recipe(out) if resume and out is not None else None
    if resume and stored is None and not (seeds is not None and out is not None and out.is_dir()):
        raise RequestError(f"--resume: there is no run in {out}; leave out --resume to start one")
    recipe = o.recipe_from(recipe_file, given, settings, base=stored if recipe_file is None else None)
    directory = out or default_directory(recipe)
    recipes = {directory: recipe} if seeds is None else _repeated(recipe, seeds, directory)
    summaries: list[dict[str, Any]] = []
    logs = [
        [
            parse_watcher(text, run=None if seeds is None else place.name, measured=log_measured)
            for text in log or []
        ]
        for place in recipes
    ]
    silent = quiet or (as_json and not sys.stderr.isatty())
    try:
        for (place, one), watchers in zip(recipes.items(), logs, strict=True):
            with RunProgress(one, quiet=silent) as progress:
                summaries.append(
                    execute(
                        one,
                        place,
                        resume=resume,
                        data_dir=data_dir,
                        progress=progress,
                        watchers=watchers,
                        planned=progress.show_plan,
                    )
                )
    except KeyboardInterrupt:
        typer.echo(f"Stopped. To continue from the last checkpoint: {_continued(out, directory)}", err=True)
        raise typer.Exit(130) from None
    write_run_page(directory, list(recipes), summaries)
    if as_json:
        print(json.dumps(summaries[0] if seeds is None else {"runs": summaries}))
        return
    if quiet:
        return
    for summary in summaries:
        show_summary(summary)
    show_guarantee(summaries[0])
    if len(summaries) > 1:
        print(f"This promise is for each of the {len(summaries)} runs alone; together they cost more.")


def _continued(out: Path | None, directory: Path) -> str:
    """The command that continues this one."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return shlex.join(["tacit", *words, *(() if out else ("--out", str(directory))), "--resume"])


def _repeated(recipe: Recipe, seeds: int, directory: Path) -> dict[Path, Recipe]:
    if seeds < 1:
        raise RequestError(f"--seeds must be at least 1, not {seeds}")
    numbers = range(recipe.seed, recipe.seed + seeds)
    return {directory / f"seed-{seed}": replace(recipe, seed=seed) for seed in numbers}
