"""`tacit predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.say import print_data, printable, say

HELP = """Predict for the rows of a table with the model of a finished run. Predictions cost no privacy.

The table needs the columns of the run's schema, in any order; gaps and unknown categories are fine. It says which
columns seem to be in other words, in another format or in another unit."""


def predict(
    run: Annotated[Path, typer.Argument(help="The directory of a run, or of a deployment's server.")],
    table: Annotated[Path, typer.Argument(help="A .csv file, or .parquet with tacit\\[parquet].")],
    out: Annotated[Path | None, typer.Option(help="Write a CSV file. [dim]Default: standard output.[/]")] = None,
    coefficients: Annotated[
        bool,
        typer.Option("--coefficients", help="Also show coefficients, in the columns' own units."),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(help="The run's model, if it is made by your own code (module:FILE:FUNCTION)."),
    ] = None,
) -> None:
    """Predict for a table."""
    import pandas as pd

    from tacit.data.files import read_table
    from tacit.data.schema.doubts import doubts
    from tacit.engine.files import write_atomically
    from tacit.engine.loaded import NO_PROBABILITIES, load_run
    from tacit.errors import RequestError

    if out is not None and out.resolve() == table.resolve():
        raise RequestError(f"--out {out} would replace the table itself: choose another name")
    loaded = load_run(run, model=model)
    rows = read_table(table)
    for doubt in [] if loaded.schema is None else doubts(rows, loaded.schema):
        say(doubt, err=True)
    target = "prediction" if loaded.schema is None else loaded.schema.target.column
    found = pd.DataFrame({f"predicted {target}": loaded.predict(rows)})
    if loaded.classes is not None and loaded.card.model not in NO_PROBABILITIES:
        for name, column in zip(loaded.classes, loaded.predict_proba(rows).T, strict=True):
            found[f"probability of {name}"] = column.round(6)
    if coefficients:
        typer.echo(printable(loaded.coefficients.to_string(float_format="%.4g")), err=True)
    text = found.to_csv(index=False)
    if out is None:
        print_data(text)
        return
    write_atomically(out, text.encode())
    typer.echo(f"{len(found)} predictions in {out}", err=True)
