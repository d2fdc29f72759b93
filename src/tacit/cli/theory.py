"""`tacit theory`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import options as o
from tacit.cli.recipe_options import recipe_from, recipe_options
from tacit.cli.say import say
from tacit.errors import RequestError

if TYPE_CHECKING:
    from tacit.engine.utility import Utility

HELP = """Show what the algorithm's own theorem guarantees for a recipe, with the noise that the recipe needs.

Prints the bound term by term, the lower bound if there is one, and the epsilon above which privacy costs less
than sampling. Constants come from the model and public bounds (feature_norm or data.unit_norm, target_bound,
algorithm.projection), or from [bold]--assume[/]. If the theorem does not cover the run, the output says why."""


@recipe_options("seed", "evaluate")
def theory(
    *,
    recipe_file: o.RecipeFile = None,
    given: dict[str, Any],
    data_dir: o.DataDir = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="A constant that you vouch for: smoothness, lipschitz, loss_gap, distance, heterogeneity.",
        ),
    ] = None,
    as_json: o.Json = False,
    settings: o.Set = None,
) -> None:
    """Print the theorem's bound for a recipe."""
    from tacit.engine.bound_source import check_bound_unseen
    from tacit.engine.plan import make_plan
    from tacit.engine.utility import utility_of

    recipe = recipe_from(recipe_file, given, settings)
    check_bound_unseen(recipe)
    found = utility_of(make_plan(recipe, data_dir=data_dir, look=False), _assumed(assume))
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        _show(found)


def _assumed(pairs: list[str] | None) -> dict[str, float]:
    found = {}
    for pair in pairs or []:
        name, _, value = pair.partition("=")
        try:
            found[name.strip().replace("-", "_")] = float(value)
        except ValueError as error:
            raise RequestError(f"--assume needs NAME=NUMBER, not {pair!r}") from error
    return found


def _show(found: Utility) -> None:
    from rich.console import Console
    from rich.table import Table

    from tacit.privacy.promises.rounding import up_to
    from tacit.theory.utility import CAUSES

    console, bound = Console(), found.bound
    promise = "no promise" if found.epsilon is None else f"epsilon {up_to(found.epsilon)}"
    console.print(
        f"[bold]{found.algorithm}[/], {found.rounds} rounds, {promise}, noise std {found.noise_std:.4g}",
        highlight=False,
    )
    console.print(bound.theorem, highlight=False)
    if bound.terms:
        table = Table(box=None, pad_edge=False)
        for heading in ("term", "at most", "share", "due to"):
            table.add_column(heading, justify="right" if heading in ("at most", "share") else "left")
        for cause, value in bound.terms.items():
            share = f"{bound.shares[cause]:.1%}" if bound.shares else ""
            table.add_row(cause, f"{value:.4g}", share, CAUSES[cause], style="bold" * (cause == bound.dominant))
        table.add_row("all", f"{bound.value:.4g}", "", bound.quantity)
        console.print(table)
    for sentence in _sentences(found):
        say(sentence)
    why = "The theorem does not cover this run:" if bound.terms else "There is no bound for this run:"
    for title, lines in ((why, bound.gaps), ("Assumed:", bound.assumptions)):
        if lines:
            console.print(f"[{'yellow' if lines is bound.gaps else 'dim'}]{title}[/]")
            for line in lines:
                say(line, "  - ", "    ")


def _sentences(found: Utility) -> list[str]:
    """The numbers explained in sentences."""
    from tacit.privacy.promises.rounding import up_to

    bound = found.bound
    sentences = []
    if bound.value is not None and bound.dominant is not None:
        covers = "" if bound.gaps else "The theorem covers this run. "
        sentences.append(f"{covers}The largest term is {bound.dominant}.")
        if bound.trivial is not None and bound.value >= bound.trivial:
            sentences.append(f"The bound says nothing: {bound.trivial:.4g} holds even without any training.")
    if bound.lower is not None:
        factor = "" if bound.times_lower is None else f"; the bound is {bound.times_lower:.3g} times that"
        sentences.append(
            f"Lower bound ({bound.lower_theorem}, an order): no algorithm with this promise gets below "
            f"{bound.lower:.3g} on every such problem{factor}."
        )
        if bound.lower_unmet:
            sentences.append(f"This run lacks conditions of the lower bound: {'; '.join(bound.lower_unmet)}.")
    elif bound.terms:
        sentences.append("The paper has no lower bound for this.")
    if found.free_epsilon is not None:
        drawn, few = bound.terms.get("sampling", 0.0), bound.statistical or 0.0
        sentences.append(
            f"With these rounds and batches, privacy costs less than sampling once epsilon is above "
            f"{up_to(found.free_epsilon)}: {drawn:.3g} (the term above) and about {few:.3g} because the "
            "data are a sample."
        )
    return sentences
