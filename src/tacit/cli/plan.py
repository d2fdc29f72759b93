"""`tacit plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import complete
from tacit.cli import options as o
from tacit.cli.recipe_options import check_taken, parse_list, parsed, recipe_from, recipe_options
from tacit.cli.say import say, say_command
from tacit.cli.show_plan import show_candidates, show_needs, show_trusts
from tacit.errors import RequestError

if TYPE_CHECKING:
    from tacit.engine.recipe import Recipe
    from tacit.federation import Federation
    from tacit.planning.needs import Needs


YOUR_DATA = "fill-in-your-data"
"""The name of the data in a recipe that was planned without data."""

HELP = """Show how much noise each algorithm would need for a promise, before anything is run.

For a few algorithms (--algorithm A,B) also at other batches: smaller ones do not need less noise, and very small
ones need far more. With --choose, find a good recipe, by predictions from public numbers and by trials on
synthetic records, never on private ones. To plan without data, give the shape of the data instead: --clients,
--records and --dim."""


@recipe_options("privacy", "adversary", "seed")
def plan(
    *,
    recipe_file: o.RecipeFile = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            help="Names, repeated or separated by commas. [dim]Default: all.[/]",
            autocompletion=complete.algorithms,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="softmax, logistic, network, ...; with --choose several, repeated or separated by commas.",
            autocompletion=complete.models,
        ),
    ] = None,
    given: dict[str, Any],
    data_dir: o.DataDir = None,
    records: Annotated[int | None, typer.Option(help="Without data: the number of records per client.")] = None,
    dim: Annotated[int | None, typer.Option(help="Without data: the number of features per record.")] = None,
    classes: Annotated[
        int | None, typer.Option(help="Without data: the number of classes, unless the model implies it.")
    ] = None,
    choose: Annotated[
        bool,
        typer.Option(
            "--choose",
            help="Choose algorithm, model (of --model A,B), rounds, batch, compressor and clip norm. What is "
            "given is kept.",
        ),
    ] = False,
    bit_budget: Annotated[
        float | None, typer.Option(help="With --choose: the most bits a client may send in the whole run.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(help="With --choose: how many candidates to try on synthetic records. [dim]Default: 12.[/]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="With --choose: write the chosen recipe to this file.")] = None,
    as_json: o.Json = False,
    settings: o.Set = None,
) -> None:
    """Show the noise that every algorithm needs, or choose a recipe."""
    from tacit.algorithms.registry import ALGORITHMS
    from tacit.planning.needs import noise_needs
    from tacit.planning.trusts import what_trust_buys

    models = [name for text in model or [] for name in parse_list("--model", text)]
    if len(models) > 1 and not choose:
        raise RequestError("several models need --choose; name one")
    given = {**given, "model": models[0]} if models else given
    names = [name for text in algorithm or [] for name in parse_list("--algorithm", text)]
    check_taken([*given, *parsed(settings)], names or ALGORITHMS)
    stand_in = None
    if (records, dim, classes) == (None, None, None):
        recipe = recipe_from(recipe_file, given, settings)
    else:
        recipe = _recipe_without_data(recipe_file, given, settings)
        stand_in = _stand_in(recipe, records, dim, classes)
    if choose:
        _choose(recipe, names, models, bit_budget, trials, out, stand_in, data_dir, as_json)
        return
    if bit_budget is not None or trials is not None or out is not None:
        raise RequestError("--bit-budget, --trials and --out need --choose")
    needs = noise_needs(recipe, algorithms=names, federation=stand_in, data_dir=data_dir)
    # Rows about records take their number as public, so they must not stand beside plans for whole clients alone.
    compared = [name for name in names or ["noisy-mb-sgd"] if not ALGORITHMS[name].client_coins][:1]
    trusts = [
        row
        for name in compared
        for row in what_trust_buys(recipe, algorithm=name, federation=stand_in, data_dir=data_dir)
    ]
    if as_json:
        rows = [row.to_dict() for row in trusts]
        print(json.dumps({**_sheet(needs), "trust": rows, "shape": _shape(recipe, stand_in)}))
    else:
        show_needs(needs)
        if trusts:
            show_trusts(trusts)
        _say_shape(recipe, stand_in)


def _recipe_without_data(recipe_file: Path | None, given: dict[str, Any], settings: list[str] | None) -> Recipe:
    from tacit.engine.recipe import Recipe

    if recipe_file is not None or "data" in given or "partition" in given:
        raise RequestError(
            "--records, --dim and --classes are for a plan without data: leave out either these or the recipe "
            "file, --data and --partition"
        )
    recipe = recipe_from(None, given, settings, Recipe(data=YOUR_DATA, feature_norm=1.0))
    if recipe.data != YOUR_DATA or "bound_from" in recipe.algorithm_settings:
        raise RequestError("data and bound_from need records; leave them out of a plan without data")
    return recipe


def _stand_in(recipe: Recipe, records: int | None, dim: int | None, classes: int | None) -> Federation:
    from tacit.models.registry import MODELS
    from tacit.planning.shape import records_of_shape

    if recipe.clients is None or records is None or dim is None:
        raise RequestError("a plan without data needs --clients, --records and --dim")
    task = MODELS[recipe.model].task if recipe.model in MODELS else None
    if classes is None and task == "two classes":
        classes = 2
    elif classes is None and task != "regression":
        raise RequestError("a plan without data needs --classes, or a --model for two classes or regression")
    return records_of_shape(clients=recipe.clients, records=records, features=dim, classes=classes)


def _shape(recipe: Recipe, stand_in: Federation | None) -> dict[str, Any] | None:
    """The shape that was given in place of data, or None if there was data."""
    if stand_in is None:
        return None
    return {
        "clients": stand_in.clients,
        "records_per_client": int(stand_in.sizes[0]),
        "features": stand_in.feature_shape[0],
        "classes": stand_in.classes,
        "feature_norm": recipe.feature_norm,
    }


def _shape_sentence(recipe: Recipe, stand_in: Federation) -> str:
    labels = "real targets" if stand_in.classes is None else f"{stand_in.classes} classes"
    records, features = int(stand_in.sizes[0]), stand_in.feature_shape[0]
    return (
        f"Planned from a given shape; no data was read: {stand_in.clients:,} clients with {records:,} records "
        f"each, {features:,} features of norm at most {recipe.feature_norm:g} (feature_norm), {labels}."
    )


def _say_shape(recipe: Recipe, stand_in: Federation | None) -> None:
    if stand_in is not None:
        say(_shape_sentence(recipe, stand_in))


def _choose(
    recipe: Recipe,
    names: list[str],
    models: list[str],
    bit_budget: float | None,
    trials: int | None,
    out: Path | None,
    stand_in: Federation | None,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    from tacit.engine.files import write_atomically
    from tacit.planning.choice import TRIALS, choose
    from tacit.planning.command import command

    ranked = choose(
        recipe,
        algorithms=names,
        models=models or [None],
        trials=TRIALS if trials is None else trials,
        bit_budget=bit_budget,
        federation=stand_in,
        data_dir=data_dir,
    )
    best = ranked[0].recipe
    chosen = best.to_toml()
    if stand_in is not None:
        chosen = (
            f"# {_shape_sentence(recipe, stand_in)}\n"
            "# Before you run this, set data to a data set or your own files. Their sizes determine the noise.\n"
            f"{chosen}"
        )
    if out is not None:
        write_atomically(out, chosen.encode())
    if as_json:
        sheet = {"chosen": ranked[0].to_dict(), "recipe": chosen, "shape": _shape(recipe, stand_in)}
        rows = [candidate.to_dict() for candidate in ranked]
        print(json.dumps({**sheet, "command": command(best, data_dir), "candidates": rows}))
        return
    show_candidates(ranked)
    _say_shape(recipe, stand_in)
    if out is not None:
        say(
            f"The chosen recipe is in {out}"
            + (f"; replace data = {YOUR_DATA!r}" if stand_in is not None else ".")
        )
    say("To run it:" if stand_in is None else f"To run it, with your own data in place of {YOUR_DATA}:")
    say_command(command(best, data_dir))


def _sheet(needs: Needs) -> dict[str, Any]:
    recipe = needs.recipe
    return {
        "target": {"epsilon": recipe.epsilon, "delta": recipe.delta, "adjacency": recipe.adjacency},
        "clip_norm": recipe.algorithm_settings.get("clip_norm"),
        "algorithms": [row.to_dict() for row in needs.planned],
        "batches": [{"fraction": fraction, **row.to_dict()} for fraction, row in needs.by_batch],
    }
