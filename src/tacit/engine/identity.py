"""Digests of everything that a result depends on; a stored result is reused only if the digest is the same."""

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
"""Rooms above the engine: their code cannot change the result of a run."""


EXECUTION = ("evaluate_every", "checkpoint_every", "memory_limit_mb", "client_groups", "device")
"""Settings that do not change what clients release, except by rounding."""

LIBRARIES = ("dp-accounting", "numpy", "scipy", "torch")
"""Libraries whose versions may change a result."""


def result_digest(recipe: Recipe) -> str:
    """Equal for equal recipes with the same code, libraries and contents of the user's files that it names.

    It does not cover what a user's model imports, nor named data sets, which do not change.
    """
    digest = hashlib.sha256(f"{engine_digest()}|{libraries()}|{recipe.to_toml()}".encode())
    for path in _files_of_the_user(recipe):
        if path.is_file():
            state = path.stat()
            digest.update(_content(path, state.st_size, state.st_mtime_ns))
    return digest.hexdigest()


def own_stream(recipe: Recipe) -> Recipe:
    """The recipe with a stream of its seed that no other recipe has.

    Recipes that differ only in how they are executed and evaluated release the same messages, and share a stream.
    """
    asked = replace(recipe, **{name: getattr(Recipe, name) for name in EXECUTION})
    return replace(recipe, stream=hashlib.sha256(asked.to_toml().encode()).hexdigest()[:16])


@lru_cache(maxsize=1)
def libraries() -> tuple[str, ...]:
    """The versions of the libraries that a result depends on."""
    return tuple(version(name) for name in LIBRARIES)


@lru_cache(maxsize=1)
def engine_digest() -> str:
    """A digest of every source file of the engine and of all layers below it."""
    return code_digest(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] not in ABOVE)


def code_digest(paths: Iterable[Path], root: Path = ROOT) -> str:
    """A digest of these source files. It does not depend on where the code is stored."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _files_of_the_user(recipe: Recipe) -> list[Path]:
    """The user's data files, and the file of the user's model."""
    paths = [Path(name) for name in recipe.data.split(",")] if names_files(recipe) else []
    if isinstance(recipe.data_settings.get("schema"), str):
        paths.append(Path(recipe.data_settings["schema"]))
    if recipe.model is not None and recipe.model.startswith(ENTRY_POINT):
        module = recipe.model.removeprefix(ENTRY_POINT).partition(":")[0]
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            found = None  # The run itself refuses it, with a better message.
        paths += [Path(found.origin)] if found is not None and found.origin is not None else []
    return paths


@lru_cache(maxsize=256)
def _content(path: Path, size: int, changed: int) -> bytes:
    """A digest of a file, cached until its size or modification time changes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
