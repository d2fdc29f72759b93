"""What a result depends on, as a digest: a stored result is used again only if nothing of it has changed."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import tacit
from tacit.engine.recipe import Recipe
from tacit.engine.records import names_files
from tacit.models.registry import ENTRY_POINT

ROOT = Path(tacit.__file__).parent

ABOVE = frozenset(["bench", "cli", "deploy", "experiments", "report", "sklearn"])
"""Rooms above the engine: what is in them cannot change the result of a run."""


EXECUTION = ("evaluate_every", "checkpoint_every", "memory_limit_mb", "device")
"""Settings that change nothing of what clients release, but for rounding."""

LIBRARIES = ("dp-accounting", "numpy", "scipy", "torch")
"""Whose versions may change a result."""


def result_digest(recipe: Recipe) -> str:
    """Equal for equal recipes under the same code, libraries, and content of the user's files that it names.

    Not part of it: what a model of the user's own imports, and named data sets, which do not change.
    """
    said = hashlib.sha256(f"{engine_digest()}|{libraries()}|{recipe.to_toml()}".encode())
    for path in _files_of_the_user(recipe):
        if path.is_file():
            state = path.stat()
            said.update(_content(path, state.st_size, state.st_mtime_ns))
    return said.hexdigest()


def own_stream(recipe: Recipe) -> Recipe:
    """The recipe with a stream of its seed that no other recipe has.

    Recipes that differ only in how they are run and watched release the same messages, and share it.
    """
    asked = replace(recipe, **{name: getattr(Recipe, name) for name in EXECUTION})
    return replace(recipe, stream=hashlib.sha256(asked.to_toml().encode()).hexdigest()[:16])


def libraries() -> list[str]:
    """The versions of the libraries that a result depends on."""
    return [version(name) for name in LIBRARIES]


@lru_cache(maxsize=1)
def engine_digest() -> str:
    """Changes with every source file of the engine and of all below it."""
    return code_digest(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] not in ABOVE)


def code_digest(paths: Iterable[Path], root: Path = ROOT) -> str:
    """Changes with every one of these source files; the same code in another place is the same."""
    said = hashlib.sha256()
    for path in sorted(paths):
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        said.update(f"{name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return said.hexdigest()


def _files_of_the_user(recipe: Recipe) -> list[Path]:
    """The user's files of records, and that of the user's model."""
    paths = [Path(name) for name in recipe.data.split(",")] if names_files(recipe) else []
    if recipe.model is not None and recipe.model.startswith(ENTRY_POINT):
        module = recipe.model.removeprefix(ENTRY_POINT).partition(":")[0]
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None  # Refused by the run itself, which knows how to say it.
        paths += [Path(found.origin)] if found is not None and found.origin is not None else []
    return paths


@lru_cache(maxsize=256)
def _content(path: Path, size: int, changed: int) -> bytes:
    """A digest of a file, read once for all points; its size and time say whether it is still the same."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
