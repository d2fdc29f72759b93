"""Writes a recipe as a `tacit run` command."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from tacit.engine.recipe import Recipe, parse_setting

OPTIONS = (
    "algorithm", "clients", "partition", "model", "privacy", "epsilon", "delta", "rounds", "batch", "clip_norm",
    "compressor", "seed",
)  # fmt: skip
"""Settings that are options of `tacit run`; others are written as --set NAME=VALUE."""


def command(recipe: Recipe, data_dir: Path | None = None) -> str:
    """The `tacit run` command of a recipe, to be pasted into a shell."""
    usual = Recipe().flat()
    words = ["tacit", "run", "--data", recipe.data]
    for name, value in recipe.flat().items():
        # The algorithm was chosen, even if it is the usual one, and a command should show its promise.
        said = ("algorithm", "epsilon")
        if name == "data" or value is None or (value == usual.get(name) and name not in said):
            continue
        option = name.removeprefix("algorithm.")
        if option in OPTIONS and not isinstance(value, list | dict):
            # A whole number of records is written without its point: --batch 1.0 could mean all of them.
            plain = f"{value:.0f}" if option == "batch" and value >= 1 and value == round(value) else str(value)
            words += [f"--{option.replace('_', '-')}", plain]
        else:
            words += ["--set", f"{name}={_as_toml(value)}"]
    return shlex.join([*words, *([] if data_dir is None else ["--data-dir", str(data_dir)])])


def _as_toml(value: object) -> str:
    """A value as `--set` reads it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_as_toml(one)}" for key, one in value.items()) + "}"
    # A word is quoted only if it would be read as something else, such as a column that is called 2024.
    bare = isinstance(value, str) and parse_setting(f"it={value}")[1] == value
    return str(value) if bare else json.dumps(value)
