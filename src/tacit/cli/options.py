"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli import complete

if TYPE_CHECKING:
    pass

RecipeFile = Annotated[Path | None, typer.Argument(help="A recipe in TOML. Options override it.")]
Algorithm = Annotated[
    str | None,
    typer.Option(help="The algorithm's name; see [bold]tacit list[/].", autocompletion=complete.algorithms),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="A data set's name (see [bold]tacit list[/]), or your own files, separated by commas.",
        autocompletion=complete.data,
    ),
]
SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema", help="The schema.toml of your own table; see [bold]tacit schema draft[/]."),
]
PublicSchema = Annotated[
    bool,
    typer.Option(
        "--public-schema", help="Accept as public what was taken from your table's records; it is listed by name."
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="The folder with data files. [dim]Default: TACIT_DATA, the cache or a download.[/]"),
]
Clients = Annotated[int | None, typer.Option(help="How many clients hold the records.")]
Partition = Annotated[
    str | None,
    typer.Option(
        help="How records are split: iid, dirichlet:0.5, sorted, ...", autocompletion=complete.partitions
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="softmax, logistic, network, ...; see [bold]tacit list[/].", autocompletion=complete.models
    ),
]
Privacy = Annotated[
    str | None,
    typer.Option(
        help="Whom a promise protects: record or client, as the algorithm defines it; none turns privacy off.",
        autocompletion=complete.words("record", "client", "none"),
    ),
]
Adversary = Annotated[
    str | None,
    typer.Option(
        help="For client-level algorithms: sum (sees only sums) or server (sees messages).",
        autocompletion=complete.words("sum", "server"),
    ),
]
Trust = Annotated[
    str | None,
    typer.Option(
        help="sum: the server opens only sums over clients. [dim]Default: as the algorithm says.[/]",
        autocompletion=complete.words("sum"),
    ),
]
Quorum = Annotated[
    int | None, typer.Option(help="With --trust sum: the fewest clients in a sum. [dim]Default: 4/5 of them.[/]")
]
Colluding = Annotated[
    int | None,
    typer.Option(help="With --trust sum: how many clients may help the server. [dim]Default: 1/5 of them.[/]"),
]
Epsilon = Annotated[float | None, typer.Option(help="The epsilon promised to every record or client.")]
Delta = Annotated[float | None, typer.Option(help="The delta of the promise.")]
Rounds = Annotated[int | None, typer.Option(help="Number of communication rounds.")]
Step = Annotated[float | None, typer.Option(help="The step size. [dim]Default: computed from public numbers.[/]")]
Batch = Annotated[
    str | None,
    typer.Option(
        metavar="COUNT|FRACTION",
        help="Records per client and step: a count, or a fraction below 1.",
    ),
]
ClipNorm = Annotated[float | None, typer.Option(help="The bound on the norm of each record's gradient.")]
Compressor = Annotated[
    str | None,
    typer.Option(
        help="identity, rand-k:0.05, rand-k:128, qsgd:16, natural, joined by +.",
        autocompletion=complete.compressors,
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of all randomness. Seeded noise is for research only.")]
Device = Annotated[
    str | None, typer.Option(help="Where gradients are computed: cpu, cuda, cuda:1. [dim]Default: cpu.[/]")
]
Evaluate = Annotated[
    float | None,
    typer.Option(
        help="Hold back this share of each client's records and evaluate on them, at a privacy cost. "
        "[dim]Default: none.[/]"
    ),
]
Report = Annotated[
    str | None,
    typer.Option(
        help="Noisy loss reports, charged to the budget: EVERY,LOSS_BOUND,EPSILON. [dim]Default: none.[/]"
    ),
]
Out = Annotated[Path | None, typer.Option(help="The run directory. [dim]Default: runs/...[/]")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out from its last checkpoint.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run on your own Dask cluster, such as tcp://host:8786, instead of on this machine.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output and nothing else.")]
Log = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND:PLACE", help="Log the run: csv:FILE, tensorboard:DIRECTORY, mlflow:URI; may be repeated."
    ),
]
LogMeasured = Annotated[
    bool,
    typer.Option("--log-measured", help="Also log loss and gradient norms, which are measured without noise."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only; the results are in the run directory.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as algorithm.momentum=0.9."),
]


def flowing(text: str) -> str:
    """Help without the line breaks of its source, so that it fills the terminal's width.

    >>> flowing("One\\nparagraph.\\n\\nAnother.")
    'One paragraph.\\n\\nAnother.'
    """
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
