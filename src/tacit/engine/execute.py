"""Runs a recipe once in a run directory: start it, resume it after a kill, or return the finished result.

A run directory holds recipe.toml (written first), ledger.jsonl and checkpoints/ (written during the run), then
history.csv, model.safetensors and summary.json (written last, so a directory with a summary is a finished run).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.engine.files import remove_leftovers, write_atomically
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.run import Run
from tacit.engine.simulate import Progress, simulate
from tacit.engine.together import ALONE, Together, usual_groups
from tacit.engine.watch import Watcher
from tacit.engine.workers import read_result
from tacit.errors import RequestError
from tacit.federation import Federation


def execute(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    data_dir: Path | None = None,
    federation: Federation | None = None,
    progress: Progress | None = None,
    watchers: Sequence[Watcher] = (),
    planned: Callable[[Plan], None] | None = None,
    together: Together = ALONE,
) -> dict[str, Any]:
    """Runs a recipe in a directory and returns its summary.

    `planned` is called with the plan before the first round, unless the run is already finished.

    `federation` holds the recipe's records (unweighted), if the caller has read them already.

    With `resume`, a killed run continues from its last checkpoint and a finished one is left as it is.

    Of several processes that compute `together`, only the first uses the directory; the others return nothing.
    """
    if not together.leads:
        plan = _planned(recipe, data_dir, federation, together)
        finished_already = together.from_first(None)
        if not finished_already:
            run_plan(plan, out=out, together=together)
        return {}
    if out.exists() and not out.is_dir():
        raise RequestError(f"--out {out} is a file, not a directory")
    place = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        raise RequestError(f"--out {out}: nothing can be written to {place}; choose another directory")
    if out.is_dir() and any(out.iterdir()):
        if not resume:
            raise RequestError(f"--out {out} is not empty; add --resume to continue, or choose another directory")
        remove_leftovers(out)
    plan, stored = _planned(recipe, data_dir, federation, together), stored_recipe(out)
    resolved = plan.recipe
    assert resolved is not None, "a plan of a recipe has one"
    if stored is None:
        write_atomically(out / "recipe.toml", resolved.to_toml().encode())
    elif stored != resolved:
        raise RequestError(f"{out} holds another run ({_differences(stored, resolved)}); choose another --out")
    finished = stored_summary(out)
    together.from_first(finished is not None)
    if finished is not None:
        return finished
    if planned is not None:
        planned(plan)
    run = run_plan(plan, out=out, progress=progress, watchers=watchers, together=together)
    run.save(out)
    return run.summary(out)


def _planned(recipe: Recipe, data_dir: Path | None, federation: Federation | None, together: Together) -> Plan:
    """The plan of a recipe, which says how many groups of clients the processes of torchrun share."""
    plan = make_plan(recipe, data_dir=data_dir, federation=federation)
    if not together.by_torchrun or plan.recipe is None or plan.recipe.client_groups is not None:
        return plan
    return replace(plan, recipe=replace(plan.recipe, client_groups=usual_groups(plan.federation.clients)))


def run_plan(
    plan: Plan,
    *,
    out: Path | None = None,
    progress: Progress | None = None,
    watchers: Sequence[Watcher] = (),
    together: Together = ALONE,
) -> Run:
    """Simulates the plan of a recipe, with the evaluation interval and memory limit of that recipe."""
    recipe = plan.recipe or Recipe()
    return simulate(
        plan,
        evaluate_every=recipe.evaluate_every,
        checkpoint_every=recipe.checkpoint_every,
        memory_limit_bytes=recipe.memory_limit_bytes,
        client_groups=recipe.client_groups or 1,
        together=together,
        device=recipe.device,
        out=out,
        progress=progress,
        watchers=watchers,
    )


def stored_recipe(out: Path) -> Recipe | None:
    """The recipe of a run directory, or None if it has none yet."""
    path = out / "recipe.toml"
    return Recipe.read(path) if path.is_file() else None


def stored_summary(out: Path) -> dict[str, Any] | None:
    """The summary of a finished run, or None if it is not finished."""
    return read_result(out / "summary.json")


def default_directory(recipe: Recipe) -> Path:
    """A new directory under runs/, named after its contents and starting time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{recipe.algorithm}-{recipe.data}-{stamp}"
    candidates = [base, *(base.with_name(f"{base.name}-{k}") for k in range(2, 1000))]
    return next(path for path in candidates if not path.exists())


def _differences(stored: Recipe, asked: Recipe) -> str:
    one, other = stored.flat(), asked.flat()
    names = [name for name in one | other if one.get(name) != other.get(name)]
    return ", ".join(f"{name} = {one.get(name)!r}, asked for {other.get(name)!r}" for name in names)
