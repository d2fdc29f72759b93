"""The options that several verbs share, and how they become a recipe."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.errors import RequestError

if TYPE_CHECKING:
    from tacit.engine.recipe import Recipe

RecipeFile = Annotated[Path | None, typer.Argument(help="A recipe in TOML. Options override what it says.")]
Algorithm = Annotated[str | None, typer.Option(help="Its name; see [bold]tacit list[/].")]
Data = Annotated[str | None, typer.Option(help="A data set's name; see [bold]tacit list[/].")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where data files are (else TACIT_DATA, the cache, download).")
]
Clients = Annotated[int | None, typer.Option(help="How many clients hold the records.")]
Partition = Annotated[str | None, typer.Option(help="How records go to clients: iid, dirichlet:0.5, sorted, ...")]
Model = Annotated[str | None, typer.Option(help="softmax, logistic, network, ...; see [bold]tacit list[/].")]
Privacy = Annotated[
    str | None,
    typer.Option(help="record or client (whichever the algorithm protects), or none, in so many words."),
]
Adversary = Annotated[
    str | None, typer.Option(help="For client-level algorithms: sum (an aggregator hides messages) or server.")
]
Epsilon = Annotated[float | None, typer.Option(help="The privacy that is promised to every record or client.")]
Delta = Annotated[float | None, typer.Option(help="The probability with which the promise may fail.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Step = Annotated[float | None, typer.Option(help="How long the steps are. [dim]by theory unless given[/]")]
Batch = Annotated[float | None, typer.Option(help="Records a client looks at: a count, or a fraction below 1.")]
ClipNorm = Annotated[float | None, typer.Option(help="The bound on every record's gradient.")]
Compressor = Annotated[
    str | None, typer.Option(help="identity, rand-k:0.05, rand-k:128, qsgd:16, natural, joined by +.")
]
Seed = Annotated[int | None, typer.Option(help="Of all randomness. Seeded noise is for research.")]
Report = Annotated[
    str | None,
    typer.Option(help="Noisy losses, paid for: EVERY,LOSS_BOUND,EPSILON. [dim]none unless given[/]"),
]
Out = Annotated[Path | None, typer.Option(help="The run directory. [dim]runs/... unless given[/]")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out after its last checkpoint.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as algorithm.momentum=0.9."),
]


OF_THE_ALGORITHM = ("adversary", "batch", "clip_norm", "compressor", "step")
"""Options that are settings of the algorithm; every other one has `--set algorithm.NAME=VALUE`."""


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def given_settings(**options: Any) -> dict[str, Any]:
    """The options that were given, by the names that a recipe's settings have."""
    own = {name: f"algorithm.{name}" for name in OF_THE_ALGORITHM}
    return {own.get(name, name): value for name, value in given(**options).items()}


def parsed(settings: list[str] | None) -> dict[str, Any]:
    """What `--set` says."""
    from tacit.engine.recipe import parse_setting

    return dict(parse_setting(text) for text in settings or [])


def recipe_from(
    file: Path | None, options: dict[str, Any], settings: list[str] | None, base: Recipe | None = None
) -> Recipe:
    """The recipe of a file (or else `base`), with options and then `--set` on top."""
    from tacit.engine.recipe import DEMONSTRATION, Recipe

    overrides = {**options, **parsed(settings)}
    if overrides.get("privacy") == "none":
        if {"epsilon", "delta"} & overrides.keys():
            raise RequestError(
                "privacy = 'none' goes without epsilon and delta: there is nothing that they promise"
            )
        overrides |= {"epsilon": None, "delta": None}
    if file is not None:
        return Recipe.read(file).with_settings(overrides)
    if base is None:
        # The demonstration's tuned choices fit its own data and model only.
        elsewhere = {"data", "model"} & overrides.keys()
        base = (
            Recipe()
            if elsewhere
            else DEMONSTRATION.for_algorithm(overrides.get("algorithm", DEMONSTRATION.algorithm))
        )
    return base.with_settings(overrides)


def check_taken(keys: Iterable[str], algorithms: Iterable[str]) -> None:
    """Refuse a setting of algorithms that none of these takes: it would silently count for nothing."""
    from tacit.algorithms.registry import algorithm_entry

    taken = {name: algorithm_entry(name).settings for name in algorithms}
    for key in keys:
        table, dot, name = key.partition(".")
        if dot and table == "algorithm" and not any(name.replace("-", "_") in own for own in taken.values()):
            said = "; ".join(f"{algorithm} takes {', '.join(sorted(own))}" for algorithm, own in taken.items())
            raise RequestError(f"no algorithm here takes {name}: {said}")


def parse_list(name: str, text: str) -> list[str]:
    """Comma-separated words."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise RequestError(f"{name} needs at least one value")
    return words
