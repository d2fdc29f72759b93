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
from tacit.cli.imports import imports
from tacit.cli.recipe_options import recipe_from, recipe_options
from tacit.errors import RequestError

if TYPE_CHECKING:
    from tacit.engine.recipe import Recipe
    from tacit.engine.together import Together

HELP = """Train one model over many clients, with differentially private and compressed messages.

Without arguments, run a demonstration on embedded data. Every run writes a complete recipe that reproduces it."""


@recipe_options()
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
    with imports():
        from tacit.cli.pages import write_run_page
        from tacit.cli.show import RunProgress, show_summaries
        from tacit.engine.execute import execute, stored_recipe
        from tacit.engine.logs import parse_watcher
        from tacit.engine.together import joined

    silent = quiet or (as_json and not sys.stderr.isatty())
    with joined() as together:
        asked = _asked(recipe_file, given, settings, seeds, out, resume, together) if together.leads else None
        directory, recipes = _shared(together, asked)
        named = {place: None if seeds is None else place.name for place in recipes}
        logs = {
            place: [parse_watcher(text, run=name, measured=log_measured) for text in log or [] if together.leads]
            for place, name in named.items()
        }
        for some in logs.values():
            for each in some:
                each.check(resumed=resume)
        summaries: list[dict[str, Any]] = []
        try:
            for place, one in recipes.items():
                # All seeds have the same outlook, and JSON has it inside.
                ahead = not summaries and not as_json
                with RunProgress(one, quiet=silent or not together.leads, ahead=ahead) as progress:
                    summaries.append(
                        execute(
                            one,
                            place,
                            resume=resume,
                            data_dir=data_dir,
                            progress=progress,
                            watchers=logs[place],
                            planned=progress.show_plan,
                            together=together,
                        )
                    )
        except KeyboardInterrupt:
            if together.leads:
                begun = any(stored_recipe(place) for place in recipes)
                again = f"To continue from the last checkpoint:\n  {_continued(out, directory)}"
                typer.echo(f"Stopped. {again if begun else 'Nothing was begun.'}", err=True)
            raise typer.Exit(130) from None
        if not together.leads:
            return
    write_run_page(directory, list(recipes), summaries)
    if as_json:
        print(json.dumps(summaries[0] if seeds is None else {"runs": summaries}))
        return
    if quiet:
        return
    recipe = stored_recipe(next(iter(recipes)))
    assert recipe is not None, "every run has stored its recipe"
    show_summaries(summaries, recipe, str(directory))


AskedRuns = tuple[Path, dict[Path, "Recipe"]]
"""The run directory, and the recipe of every run in it."""


def _asked(
    recipe_file: Path | None,
    given: dict[str, Any],
    settings: list[str] | None,
    seeds: int | None,
    out: Path | None,
    resume: bool,
    together: Together,
) -> AskedRuns:
    from tacit.engine.execute import default_directory, stored_recipe

    if resume and out is None:
        raise RequestError("--resume needs --out, the run directory to continue")
    stored = stored_recipe(out) if resume and out is not None else None
    if resume and stored is None and not (seeds is not None and out is not None and out.is_dir()):
        raise RequestError(f"--resume: there is no run in {out}; leave out --resume to start one")
    recipe = recipe_from(recipe_file, given, settings, base=stored if recipe_file is None else None)
    if together.by_torchrun and stored is not None and stored.client_groups is None:
        raise RequestError(f"{out} was begun without torchrun, which rounds differently: resume it without")
    directory = out or default_directory(recipe)
    return directory, {directory: recipe} if seeds is None else _repeated(recipe, seeds, directory)


def _shared(together: Together, asked: AskedRuns | None) -> AskedRuns:
    """What the first process was asked to do: the others need neither the recipe's file nor the run directory."""
    from tacit.engine.recipe import Recipe

    if asked is not None:
        together.from_first([str(asked[0]), {str(place): recipe.to_toml() for place, recipe in asked[1].items()}])
        return asked
    directory, recipes = together.from_first(None)
    return Path(directory), {Path(place): Recipe.from_toml(text) for place, text in recipes.items()}


def _continued(out: Path | None, directory: Path) -> str:
    """The command that continues this one."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    return shlex.join(["tacit", *words, *(() if out else ("--out", str(directory))), "--resume"])


def _repeated(recipe: Recipe, seeds: int, directory: Path) -> dict[Path, Recipe]:
    if seeds < 1:
        raise RequestError(f"--seeds must be at least 1, not {seeds}")
    numbers = range(recipe.seed, recipe.seed + seeds)
    return {directory / f"seed-{seed}": replace(recipe, seed=seed) for seed in numbers}
