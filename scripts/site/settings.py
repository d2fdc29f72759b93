"""The pages of settings: every setting with its meaning, default and unit, from signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
import types
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tacit.algorithms.registry import ALGORITHMS, AlgorithmEntry
from tacit.algorithms.settings import settings_of, usual_settings
from tacit.cli import recipe_options
from tacit.cli.list_names import _groups as listed_names
from tacit.client.bounds import BOUNDS
from tacit.data import from_files, load
from tacit.engine import evaluation
from tacit.engine.bound_source import find_bound
from tacit.engine.recipe import Recipe
from tacit.engine.records import NOT_SETTINGS
from tacit.models.quadratic import quadratic_federation
from tacit.models.registry import GIVEN_BY_THE_DATA, MODELS

UNITS = {
    "batch": "records, or a share below 1",
    "beta_1": "share",
    "beta_2": "share",
    "bits": "bits a coordinate",
    "checkpoint_every": "rounds",
    "client_delta": "probability",
    "client_epsilon": "epsilon",
    "clients": "clients",
    "clip_norm": "length of a gradient, or of a client's update",
    "clip_quantile": "share of the clients",
    "cohort": "clients",
    "colluding": "clients",
    "delta": "probability",
    "difference_bound": "times the bound",
    "dim": "parameters",
    "epsilon": "epsilon",
    "epsilon_share": "share of epsilon",
    "evaluate_every": "rounds",
    "feature_norm": "length of a record's features",
    "group_edges": "unit of the column",
    "held_back": "share of the records",
    "hidden": "units",
    "kappa": "length of a step",
    "local_step": "parameters per gradient",
    "local_steps": "steps",
    "loss_bound": "loss of a record",
    "memory_limit_mb": "MiB",
    "momentum": "share",
    "pca": "components",
    "quantile": "share",
    "quorum": "clients",
    "rank": "columns",
    "records_per_client": "records",
    "regularisation": "curvature",
    "ridge": "curvature",
    "rounds": "rounds",
    "shift_step": "share of a message",
    "smoothing": "curvature",
    "snapshot_probability": "probability",
    "stages": "stages, or [rounds, curvature] of each",
    "step": "parameters per gradient",
    "strength": "curvature",
    "strong_convexity": "curvature",
    "target_bound": "unit of the target",
    "test_fraction": "share of the records",
}
"""What the numbers are measured in. Settings that are not here have none: words, switches, seeds."""

TITLES = {
    "recipe": "Recipes",
    "algorithms": "Algorithms",
    "models": "Models",
    "data": "Data",
    "evaluation": "Evaluation",
    "names": "Names",
}

Row = tuple[str, str, Any, Any]
"""Name, meaning, default and type of a setting; a default of None means that it is chosen, or not set."""


def navigation() -> list[str]:
    """The entries of the navigation."""
    return [f"settings/{name}.md" for name in TITLES]


def pages() -> dict[str, str]:
    """Place and content of each page."""
    made = (_recipe(), _algorithms(), _models(), _data(), _evaluation(), _names())
    return {
        f"settings/{name}.md": f"# {title}\n\n{text}\n"
        for (name, title), text in zip(TITLES.items(), made, strict=True)
    }


def _recipe() -> str:
    told, kinds = attributes(Recipe), get_type_hints(Recipe)
    rows = [
        (f.name, told.get(f.name, ""), None if f.default is MISSING else f.default, kinds[f.name])
        for f in fields(Recipe)
        if not f.name.endswith("_settings")
    ]
    return (
        "The settings of a recipe (TOML) outside of its tables. On the command line, most have an option "
        "(`--epsilon 4`); all can be given as `--set NAME=VALUE`.\n\n" + _table(rows)
    )


def _algorithms() -> str:
    parts = [
        "Settings in the table `[algorithm]` of a recipe; on the command line `--set algorithm.NAME=VALUE`. A "
        "default that is *chosen* follows from public numbers ([what is chosen for you](../defaults.md)). `tacit "
        "run` also chooses batch, clip norm and compressor unless they are given; the defaults below are those "
        "of the Python functions."
    ]
    for name, entry in ALGORITHMS.items():
        mark = "" if entry.private else " **Not private**: for comparison."
        parts.append(
            f"## {name}\n\n{_sentence(entry.summary)} {entry.paper}.{mark}\n\n{_table(_of_algorithm(entry))}"
        )
    return "\n\n".join(parts)


def _of_algorithm(entry: AlgorithmEntry) -> list[Row]:
    told, usual = arguments(entry.make), usual_settings(entry.make)
    shared = {
        name: recipe_options.OF_A_RECIPE[name].__metadata__[0].help for name in recipe_options.OF_THE_ALGORITHM
    }
    shared["bound_from"] = (inspect.getdoc(find_bound) or "").partition("\n\n")[2].replace("\n", " ")
    return [
        (name, told.get(name) or re.sub(r"\[/?\w*\]", "", shared.get(name, "")), usual.get(name), kind)
        for name, kind in settings_of(entry.make).items()
    ]


def _models() -> str:
    parts = ["Settings in the table `[model]`; on the command line `--set model.NAME=VALUE`."]
    for name, entry in MODELS.items():
        rows = _of_function(entry.make, GIVEN_BY_THE_DATA)
        parts.append(f"## {name}\n\n{_sentence(entry.summary)} For {entry.task}.\n\n{_table(rows)}")
    return "\n\n".join(parts)


def _data() -> str:
    chapters = {
        "Named data sets": (load, "`digits`, `a9a`, ...: the names are listed [here](names.md#data)."),
        "Your own files": (from_files, "`--data north.csv,south.csv`; see [your own table](../tables.md)."),
        "quadratic": (quadratic_federation, "The synthetic problem of DP-NormFedAvg (Das et al. 2022)."),
    }
    parts = ["Settings in the table `[data]`; on the command line `--set data.NAME=VALUE`."]
    for title, (function, about) in chapters.items():
        parts.append(f"## {title}\n\n{about}\n\n{_table(_of_function(function, NOT_SETTINGS))}")
    return "\n\n".join(parts)


def _evaluation() -> str:
    told = re.findall(r"^    (\w+) = .*?  # (.*)$", evaluation.__doc__ or "", re.M)
    rows: list[Row] = [(name, said, evaluation.DEFAULTS.get(name), None) for name, said in told]
    return (
        "Settings in the table `[evaluation]`, which holds records back and evaluates on them privately "
        "([evaluate privately](../evaluation.md)); on the command line `--set evaluation.NAME=VALUE`.\n\n"
        + _table(rows)
    )


def _names() -> str:
    parts = ["Everything that is chosen by name, as `tacit list` prints it."]
    for title, entries in listed_names().items():
        lines = [f"| `{_cell(name)}` | {_cell(about)} |" for name, about in entries.items()]
        parts.append("\n".join([f"## {title}\n", "| name | what it is |", "| --- | --- |", *lines]))
    return "\n\n".join(parts)


def _of_function(function: Callable[..., Any], left_out: Iterable[str]) -> list[Row]:
    """The parameters of a function, or of a dataclass, as settings."""
    told = arguments(function) | (attributes(function) if inspect.isclass(function) else {})
    kinds = get_type_hints(function)
    return [
        (
            name,
            told.get(name, ""),
            None if parameter.default is parameter.empty else parameter.default,
            kinds.get(name),
        )
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in left_out and parameter.kind is not parameter.VAR_KEYWORD
    ]


def arguments(function: Callable[..., Any]) -> dict[str, str]:
    """The parameters that a docstring describes under `Args:`."""
    text = (inspect.getdoc(function) or "").partition("Args:\n")[2]
    section = re.match(r"(?:    .*\n?|\n)*", text)
    found = re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", section[0] if section else "", re.M)
    return {name: " ".join(said.split()) for names, said in found for name in names.split(", ")}


def attributes(kind: type) -> dict[str, str]:
    """The strings below the fields of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return {
        one.target.id: " ".join(after.value.value.split())
        for one, after in itertools.pairwise(body)
        if isinstance(one, ast.AnnAssign)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }


def _table(rows: list[Row]) -> str:
    if not rows:
        return "No settings."
    silent = [name for name, told, *_ in rows if not told]
    if silent:
        raise ValueError(f"settings without a meaning: {', '.join(silent)}; document them where they are defined")
    lines = []
    for name, told, default, kind in rows:
        cells = (
            f"`{name}`",
            _cell(_sentence(told)),
            _default(default),
            _cell(_by_name(name) or _allowed(kind)),
            UNITS.get(name, ""),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        ["| setting | meaning | default | values | unit |", "| --- | --- | --- | --- | --- |", *lines]
    )


def _default(value: Any) -> str:
    if value is None:
        return "*chosen or none*"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _by_name(setting: str) -> str:
    """The names that a setting takes, or where they are listed; nothing if it is not chosen by name."""
    if setting == "bound":
        return ", ".join(BOUNDS)
    title = setting if setting == "data" else f"{setting}s"
    return f"[a name](names.md#{title})" if title in listed_names() else ""


def _allowed(kind: Any) -> str:
    """The type of a setting, in words."""
    if kind is None:
        return ""
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    said = {bool: "true, false", int: "whole number", float: "number", str: "text", list: "list", dict: "table"}
    words = []
    for one in members:
        if get_origin(one) is Literal:
            words += [str(word) for word in get_args(one)]
        elif one is not type(None):
            words.append(said.get(get_origin(one) or one, getattr(one, "__name__", str(one)).lower()))
    return " or ".join(dict.fromkeys(words))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
