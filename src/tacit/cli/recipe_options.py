"""The options of commands that take a recipe, and the recipe that they describe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from tacit.cli import options as o
from tacit.errors import RequestError, similar_names

if TYPE_CHECKING:
    from tacit.engine.recipe import Recipe

OF_A_RECIPE = {
    "data": o.Data,
    "schema": o.SchemaFile,
    "public_schema": o.PublicSchema,
    "clients": o.Clients,
    "partition": o.Partition,
    "privacy": o.Privacy,
    "epsilon": o.Epsilon,
    "delta": o.Delta,
    "adversary": o.Adversary,
    "trust": o.Trust,
    "quorum": o.Quorum,
    "colluding": o.Colluding,
    "evaluate": o.Evaluate,
    "algorithm": o.Algorithm,
    "model": o.Model,
    "rounds": o.Rounds,
    "batch": o.Batch,
    "clip_norm": o.ClipNorm,
    "compressor": o.Compressor,
    "step": o.Step,
    "seed": o.Seed,
    "device": o.Device,
}
"""The options that set something in a recipe."""

GROUPS = {
    "Data": ("data", "schema", "public_schema", "data_dir", "clients", "partition", "records", "dim", "classes"),
    "Promise": ("privacy", "epsilon", "delta", "adversary", "trust", "quorum", "colluding", "evaluate", "report"),
    "Training": ("algorithm", "model", "rounds", "batch", "clip_norm", "compressor", "step", "seed", "device"),
    "Output": ("out", "resume", "as_json", "quiet", "log", "log_measured"),
}
"""How `--help` groups the options of a command that has those of a recipe; the others come first."""

OF_THE_ALGORITHM = ("adversary", "batch", "clip_norm", "compressor", "step")
"""Algorithm settings with an option of their own; any other is set by `--set algorithm.NAME=VALUE`."""

OF_THE_DATA = ("schema", "public_schema")
"""Settings of the data with an option of their own."""


def recipe_options(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options of a recipe, except those left out, to a command with a parameter `given`.

    `given` gets the settings that the user gave. A command may declare an option of the same name itself.
    """

    def added(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters
        hints = get_type_hints(command, include_extras=True)
        shared = {name: kind for name, kind in OF_A_RECIPE.items() if name not in {*left_out, *own}}

        def with_options(**options: Any) -> None:
            command(given=given_settings(**{name: options.pop(name) for name in shared}), **options)

        parameters: list[inspect.Parameter] = []
        for name, parameter in own.items():
            kinds = shared if name == "given" else {name: hints[name]}
            default = None if name == "given" else parameter.default
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters += [
                inspect.Parameter(n, keyword, default=default, annotation=_in_its_group(n, k))
                for n, k in kinds.items()
            ]
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for typer
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_options

    return added


def _in_its_group(name: str, kind: Any) -> Any:
    """The type of an option, with the group in which `--help` shows it."""
    group = next((title for title, names in GROUPS.items() if name in names), None)
    if group is None or get_origin(kind) is not Annotated:
        return kind
    plain, option = get_args(kind)
    option = copy(option)
    option.rich_help_panel = group
    return Annotated[plain, option]


def only_given(**options: Any) -> dict[str, Any]:
    """Only the options that the user gave."""
    return {name: value for name, value in options.items() if value is not None}


def given_settings(**options: Any) -> dict[str, Any]:
    """The options that the user gave, under the names of a recipe's settings."""
    own = {name: f"algorithm.{name}" for name in OF_THE_ALGORITHM}
    own |= {name: f"data.{name}" for name in OF_THE_DATA} | {"evaluate": "evaluation.held_back"}
    if not options.get("public_schema"):
        options.pop("public_schema", None)
    if options.get("schema") is not None:
        options["schema"] = str(options["schema"])
    if options.get("batch") is not None:
        options["batch"] = batch_of(options["batch"])
    return {own.get(name, name): value for name, value in only_given(**options).items()}


def parsed(settings: list[str] | None) -> dict[str, Any]:
    """Parse the `--set KEY=VALUE` options."""
    from tacit.engine.recipe import parse_setting

    return dict(parse_setting(text) for text in settings or [])


def recipe_from(
    file: Path | None, options: dict[str, Any], settings: list[str] | None, base: Recipe | None = None
) -> Recipe:
    """Read the recipe file (or take `base`, or the defaults), then apply the options, then `--set`."""
    from tacit.engine.recipe import Recipe

    overrides = {**options, **parsed(settings)}
    if overrides.get("privacy") == "none":
        if {"epsilon", "delta"} & overrides.keys():
            raise RequestError(
                "privacy = 'none' makes no promise: leave out epsilon and delta, or choose another privacy"
            )
        overrides |= {"epsilon": None, "delta": None}
    if file is not None:
        base = Recipe.read(file)
    return (base or Recipe()).with_settings(overrides)


def check_taken(keys: Iterable[str], algorithms: Iterable[str]) -> None:
    """Refuse an algorithm setting that none of these algorithms takes, since it would be ignored silently."""
    from tacit.algorithms.registry import algorithm_entry

    taken = {name: algorithm_entry(name).settings for name in algorithms}
    for key in keys:
        table, dot, name = key.partition(".")
        if dot and table == "algorithm" and not any(name.replace("-", "_") in own for own in taken.values()):
            if close := similar_names(name, set().union(*taken.values())):
                raise RequestError(
                    f"none of the chosen algorithms takes {name}; did you mean {' or '.join(map(repr, close))}?"
                )
            taken_by = "; ".join(
                f"{algorithm} takes {', '.join(sorted(own))}" for algorithm, own in taken.items()
            )
            raise RequestError(f"none of the chosen algorithms takes {name}: {taken_by}")


def batch_of(text: str) -> float:
    """A count of records or a fraction of them, from the command line. 1.0 could mean either, so it is refused.

    >>> batch_of("64"), batch_of("0.1"), batch_of("1")
    (64, 0.1, 1)
    """
    try:
        value = float(text)
    except ValueError:
        raise RequestError(f"--batch takes a count of records or a fraction below 1, not {text!r}") from None
    if value == 1 and text.strip() != "1":
        raise RequestError(
            f"--batch {text} can mean one record or all of them: write 1 for one record, or --set "
            "algorithm.sampling=full for all"
        )
    return int(value) if value >= 1 and value.is_integer() else value


def parse_list(name: str, text: str) -> list[str]:
    """Split comma-separated words; at least one is needed."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise RequestError(f"{name} needs at least one value")
    return words
