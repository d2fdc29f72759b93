"""Writes report.html: gathers what a page needs from a directory of runs."""

from __future__ import annotations

import hashlib
import platform
import tomllib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tacit._version import __version__
from tacit.engine.compare import Outcome
from tacit.engine.files import write_atomically
from tacit.engine.history import History
from tacit.engine.identity import LIBRARIES, engine_digest
from tacit.report.comparison_page import comparison_page, label
from tacit.report.dossier import dossier, refused
from tacit.report.run_page import Repeat, run_page

PAGE = "report.html"


def write_run_page(directory: Path, places: Sequence[Path], summaries: Sequence[dict[str, Any]]) -> Path:
    """The page of a run, or of one run for each seed, in the directory that holds them all."""
    histories = [History.read(place / "history.csv").to_list() for place in places]
    seeds = "" if len(places) == 1 else f" --seeds {len(places)}"
    where = "" if places[0] == directory else f"{places[0].name}/"
    kept = ("recipe.toml", "schema.toml", "model.safetensors")
    files = {f"{where}{name}": places[0] / name for name in kept if (places[0] / name).exists()}
    repeat = Repeat(
        f"tacit run {where}recipe.toml{seeds} --out a-new-directory",
        {
            **{name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()},
            "the code of tacit": engine_digest(),
        },
        software(),
        (places[0] / "recipe.toml").read_text(),
    )
    described = places[0] / "schema.toml"
    schema = tomllib.loads(described.read_text()) if described.exists() else None
    return _write(directory, run_page(summaries, histories, repeat, schema))


def write_comparison_page(
    directory: Path,
    found: Sequence[Sequence[Outcome]],
    table: Sequence[Mapping[str, Any]],
    command: str,
    recipe: str,
) -> Path:
    """The page of a comparison. `found` has the outcomes at each value of the setting that is varied."""
    names = [label(row) for row in table]
    outcomes = [outcome for at in found for outcome in at]
    entries = [
        (name, outcome.summaries, [history.to_list() for history in outcome.histories])
        for name, outcome in zip(names, outcomes, strict=True)
    ]
    diverged = [
        ", ".join([name, *(f"{key} {value}" for key, value in point.tuned), f"seed {point.recipe.seed}"])
        for name, outcome in zip(names, outcomes, strict=True)
        for point in outcome.diverged
    ]
    repeat = Repeat(command, {"the code of tacit": engine_digest()}, software(), recipe)
    tuned = any(row["tuned"] for row in table)
    return _write(
        directory,
        comparison_page(entries, table, repeat, tuned=tuned, diverged=diverged, schema=compared_schema(outcomes)),
    )


def compared_schema(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """The schema of all runs. Ranges that each of them learned are open here, because they differ."""
    directories = (summary.get("run_dir") for outcome in outcomes for summary in outcome.summaries)
    path = next((Path(place) / "schema.toml" for place in directories if place is not None), None)
    if path is None or not path.exists():
        return None
    schema = tomllib.loads(path.read_text())
    for own in (schema["target"], *schema["columns"].values()):
        if "within" in own:
            own["range"] = "learn"
    return schema


def write_dossier(
    page: Path, verified: Mapping[str, Any], files: Mapping[str, bytes], command: str, *, own_job: bool
) -> None:
    """The page of a certificate that was checked: `verified` is what `tacit verify --json` prints."""
    job = files.get("job.toml", b"").decode(errors="replace")
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    repeat = Repeat(command, digests, software(), job)
    if verified["valid"]:
        text = dossier(
            verified, repeat, own_job=own_job, schema=_agreed_schema(job, verified["certificate"]["job"])
        )
    else:
        text = refused(verified["reason"], repeat)
    write_atomically(page, text.encode())


def _agreed_schema(job: str, digest: str) -> dict[str, Any] | None:
    """The schema of the job that was signed, if this is that job and it has one."""
    if hashlib.sha256(job.encode()).hexdigest() != digest:
        return None
    schema: dict[str, Any] | None = tomllib.loads(job).get("consortium", {}).get("schema")
    return schema


def software() -> dict[str, str]:
    """The versions of everything that a result depends on."""
    versions = {"tacit": __version__, "Python": platform.python_version()}
    return versions | {name: version(name) for name in LIBRARIES}


def _write(directory: Path, page: str) -> Path:
    write_atomically(directory / PAGE, page.encode())
    return directory / PAGE
