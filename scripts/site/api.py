"""The API pages: one for each group of names in `tacit/__init__.pyi`, filled by mkdocstrings."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import tacit

STUB = Path(tacit.__file__).with_suffix(".pyi")
ROOMS = "Rooms, for what has no name of its own here"
ESTIMATORS = ("FederatedLogisticRegression", "FederatedRidge", "FederatedEstimator")


def navigation() -> list[Any]:
    """The entries of the navigation."""
    return [f"api/{_file(title)}" for title in (*_groups(), "scikit-learn")]


def pages() -> dict[str, str]:
    """Place and content of each page."""
    groups = {**_groups(), "scikit-learn": [("tacit.sklearn", name) for name in ESTIMATORS]}
    return {f"api/{_file(title)}": _page(title, names) for title, names in groups.items()}


def _groups() -> dict[str, list[tuple[str, str]]]:
    """The comments of the stub, each with the names below it: where they are defined, and how they are called."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for line in STUB.read_text().splitlines():
        if line.startswith("# "):
            names = groups.setdefault(line.removeprefix("# ").partition(":")[0].removesuffix("."), [])
        elif found := re.fullmatch(r"from (\S+) import (\w+) as \w+", line):
            names.append((found[1], found[2]))
    return {title: names for title, names in groups.items() if title != ROOMS}


def _page(title: str, names: list[tuple[str, str]]) -> str:
    asked = [f"::: {_home(home, name)}" for home, name in names]
    called = f"`from tacit.sklearn import {names[0][1]}`" if title == "scikit-learn" else f"`tacit.{names[0][1]}`"
    return "\n\n".join([f"# {title}", f"Use every name on this page like this one: {called}.", *asked]) + "\n"


def _home(home: str, name: str) -> str:
    """Where a name is defined. mkdocstrings reads sources, which a package only passes on."""
    defined = str(getattr(getattr(importlib.import_module(home), name), "__module__", home))
    return f"{defined if defined.startswith('tacit.') else home}.{name}"


def _file(title: str) -> str:
    return "-".join(re.findall(r"[a-z]+", title.lower())) + ".md"
