"""`tacit theory`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from tacit.cli import options as o
from tacit.errors import RequestError

HELP = """What the theory prescribes and promises for a recipe: steps, batches, rounds, utility, Tables 1 and 2.

The constants come from the model and a public bound on the features (feature_norm, or data.unit_norm)."""


def theory(
    recipe_file: o.RecipeFile = None,
    data: o.Data = None,
    data_dir: o.DataDir = None,
    clients: o.Clients = None,
    partition: o.Partition = None,
    model: o.Model = None,
    epsilon: o.Epsilon = None,
    delta: o.Delta = None,
    clip_norm: o.ClipNorm = None,
    compressor: o.Compressor = None,
    as_json: o.Json = False,
    settings: o.Set = None,
) -> None:
    """Print prescriptions and tables."""
    given = o.given_settings(
        data=data, clients=clients, partition=partition, model=model, epsilon=epsilon, delta=delta,
        clip_norm=clip_norm, compressor=compressor,
    )  # fmt: skip
    recipe = o.recipe_from(recipe_file, given, settings)
    sheet = _sheet(recipe, data_dir)
    if as_json:
        print(json.dumps(sheet))
    else:
        _show(sheet)


def _sheet(recipe: Any, data_dir: Any) -> dict[str, Any]:
    from tacit.algorithms.registry import ALGORITHMS
    from tacit.engine.choices import question
    from tacit.engine.records import load_federation
    from tacit.models.registry import build_model, default_model
    from tacit.theory import soteriafl
    from tacit.theory.soteriafl.choices import choose, prescription, problem

    federation = load_federation(recipe, data_dir)
    model = build_model(recipe.model or default_model(federation), federation, recipe.model_settings)
    asked = problem(question(recipe, model, federation, "none"))
    if asked is None:
        raise RequestError(
            "the theory needs epsilon, delta, and a smoothness constant: a linear model with a public bound on "
            "the features (--set feature_norm=..., or --set data.unit_norm=true)"
        )
    own = {name: question(recipe.for_algorithm(name), model, federation, "none") for name in ALGORITHMS}
    prescriptions = {
        name: asdict(found)
        for name, one in own.items()
        if ALGORITHMS[name].theory is choose and (found := prescription(one)) is not None
    }
    return {
        "problem": asdict(asked),
        "prescriptions": prescriptions,
        "table_1": [asdict(row) for row in soteriafl.table_1(asked)],
        "table_2": [asdict(row) for row in soteriafl.table_2(asked)],
    }


def _show(sheet: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print("  ".join(f"[dim]{name}[/] {_number(value)}" for name, value in sheet["problem"].items()))
    titles = {
        "prescriptions": "prescribed (Theorems 1 and 3, Corollaries 1 to 3, c = 32)",
        "table_1": "Table 1: orders, constants 1",
        "table_2": "Table 2: gradients a client computes, order",
    }
    for key, title in titles.items():
        rows = sheet[key]
        if isinstance(rows, dict):
            rows = [{"algorithm": name, **values} for name, values in rows.items()]
        table = Table(title=title, title_justify="left")
        for heading in rows[0]:
            table.add_column(
                heading.replace("_", " "), justify="left" if isinstance(rows[0][heading], str) else "right"
            )
        for row in rows:
            table.add_row(*(_number(value) for value in row.values()))
        console.print(table)


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
