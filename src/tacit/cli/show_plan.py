"""What `tacit plan` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.planning.choice import Candidate
    from tacit.planning.needs import Need, Needs
    from tacit.planning.trusts import TrustRow

_SHOWN = 12
"""How many candidates are printed; --json has all of them."""


def show_candidates(ranked: list[Candidate]) -> None:
    """The table of recipes that were considered, best first."""
    from rich.console import Console
    from rich.table import Table

    best = ranked[0]
    tried = sum(candidate.score is not None for candidate in ranked)
    title = "candidates, best first" + (f"; the first {tried} by trials" if tried else "")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, collapse_padding=True)
    several = len({candidate.recipe.model for candidate in ranked}) > 1
    words = ["algorithm", "model"] if several else ["algorithm"]
    for heading in (*words, "compressor", "rounds", "batch", "clip", "kB", "loss", "trial"):
        left = heading in (*words, "compressor")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in ranked[:_SHOWN]:
        cells = row.to_dict()
        clip, batch = cells["clip_norm"], cells["batch"]
        table.add_row(
            *(str(cells[word]) for word in words), cells["compressor"] or "", str(cells["rounds"]),
            "full" if batch is None else f"{batch:g}", "" if clip is None else f"{clip:.3g}",
            f"{row.uplink_bits_per_client / 8000:.0f}", f"{row.excess:.3g}",
            "" if row.score is None else f"{row.score:.4g}",
            style="bold green" if row is best else None,
        )  # fmt: skip
    console = Console()
    console.print(table)
    console.print(
        f"[dim]{len(ranked)} candidates, all at the promised epsilon, with steps derived from their noise. loss: "
        "what noise is predicted to add, roughly. trial: accuracy on synthetic records, or 1 - error / error "
        "of the mean. Trials cannot tell the first few apart; among these, default settings come first. "
        "Candidates without a trial would take too long or are predicted to be worse. No private data was "
        "read.[/]",
        highlight=False,
    )


def show_needs(needs: Needs) -> None:
    """The noise that each algorithm would need, and how it depends on the batch."""
    from rich.console import Console
    from rich.table import Table

    from tacit.cli.tables import show_table
    from tacit.planning.needs import Need, Refused

    recipe, console = needs.recipe, Console()
    rows = [
        {
            "algorithm": row.algorithm,
            "S/N": "" if row.outlook is None else f"{row.outlook.signal_to_noise:.2g}",
            "noise multiplier": f"{row.noise_multiplier:.4g}",
            "noise std": f"{row.noise_std:.4g}",
            "rounds": str(row.rounds),
            "batch": "" if row.batch is None else f"{row.batch:g}",
            "kB each": f"{row.uplink_bits_per_client / 8000:.1f}",
            "sampling": row.sampling,
        }
        for row in needs.planned
        if isinstance(row, Need)
    ]
    title = f"noise for epsilon {_number(recipe.epsilon)} at delta {_number(recipe.delta)}, {recipe.adjacency}"
    show_table(rows, title=title, words=("algorithm", "sampling"), console=console)
    for row in needs.planned:
        if isinstance(row, Refused):
            console.print(f"[yellow]{row.algorithm}[/]: {row.why}")
    for sentence in _expected(needs):
        console.print(sentence, highlight=False)
    fractions = list(dict.fromkeys(fraction for fraction, _ in needs.by_batch))
    grid = Table(title="noise std by batch size, at the same rounds", title_justify="left")
    grid.add_column("algorithm")
    for fraction in fractions:
        grid.add_column("full" if fraction == 1 else f"{fraction:.0%}", justify="right")
    for name in dict.fromkeys(row.algorithm for _, row in needs.by_batch):
        cells = [
            f"{row.noise_std:.4g}" if isinstance(row, Need) else "[dim]refused[/]"
            for _, row in needs.by_batch
            if row.algorithm == name
        ]
        grid.add_row(name, *cells)
    if fractions:
        console.print(grid)
    note = "per coordinate of a message (or of a local step); for the smallest client, if sizes are public"
    console.print(f"[dim]{note}[/]")
    if without := _without_trust([row for row in needs.planned if isinstance(row, Need)]):
        console.print(f"[dim]{without}[/]", highlight=False)
    if len({row.batch is None for row in needs.planned if isinstance(row, Need)}) > 1:
        console.print(
            "[dim]Algorithms that protect records treat the number of records as public: do not publish their "
            "rows next to a promise to whole clients.[/]"
        )


def _without_trust(rows: Sequence[Need]) -> str:
    """What is left of promises that rely on other parties; empty if none does."""
    from tacit.privacy import Adversary
    from tacit.privacy.promises.protection import in_words

    alike: dict[str, list[str]] = {}
    for row in rows:
        if row.adversary != Adversary.SERVER:
            alike.setdefault(in_words(row.epsilon_without_trust), []).append(row.algorithm)
    told = "; ".join(f"{epsilon} ({', '.join(names)})" for epsilon, names in alike.items())
    return f"epsilon if all other parties help the server: {told}" if told else ""


def _expected(needs: Needs) -> list[str]:
    """What can be learned with the recipe's algorithm, or the first, and which ones' noise hides everything."""
    from tacit.planning.needs import Need

    ahead = {
        row.algorithm: row.outlook for row in needs.planned if isinstance(row, Need) and row.outlook is not None
    }
    if not ahead:
        return []
    first = needs.recipe.algorithm if needs.recipe.algorithm in ahead else next(iter(ahead))
    hidden = [name for name, found in ahead.items() if found.verdict == "hidden" and name != first]
    told = [f"{first}: {ahead[first].sentence}"]
    if hidden and ahead[first].verdict != "hidden":
        told.append(f"{', '.join(hidden)}: {ahead[hidden[0]].sentence}")
    return [*told, "[dim]S/N: how many times the noise the signal of all rounds together can be[/]"]


def show_trusts(rows: Sequence[TrustRow]) -> None:
    """What trust in others buys, at the same epsilon."""
    from rich.console import Console
    from rich.table import Table

    from tacit.privacy.promises.rounding import up_to

    table = Table(title="what trust buys, at the same epsilon", title_justify="left")
    table.add_column("messages travel")
    table.add_column("relies on")
    for heading in ("noise of a mean", "signal/noise", "synthetic"):
        table.add_column(heading, justify="right")
    for row in rows:
        if row.refused is None:
            cells = (row.noise_std, row.signal_to_noise, row.predicted_metric)
            table.add_row(
                row.travel, row.relies_on, *("" if value is None else f"{value:.3g}" for value in cells)
            )
        else:
            table.add_row(row.travel, row.relies_on, "[dim]refused[/]", "", "")
    console = Console()
    console.print(table)
    summed = next((row.own_epsilon for row in rows if row.travel == "summed"), None)
    note = "" if summed is None else f" If all other silos help the server, a sum leaves epsilon {up_to(summed)}."
    console.print(
        f"[dim]{rows[0].algorithm}; synthetic: its metric on made-up records of the same shape.{note}[/]",
        highlight=False,
    )


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "set per silo"
