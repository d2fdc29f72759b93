"""What `tacit plan` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tacit.cli.say import say, say_row

if TYPE_CHECKING:
    from tacit.planning.choice import Candidate
    from tacit.planning.needs import Need, Needs
    from tacit.planning.trusts import TrustRow

_SHOWN = 12
"""How many candidates are printed; --json has all of them."""

_FEW = 4
"""Of so many algorithms, noise by batch is printed too."""


def show_candidates(ranked: list[Candidate]) -> None:
    """The table of recipes that were considered, best first."""
    from rich.console import Console
    from rich.table import Table

    best = ranked[0]
    tried = sum(candidate.score is not None for candidate in ranked)
    title = "candidates, best first" + (f"; the first {tried} by trials" if tried else "")
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, collapse_padding=True
    )
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
    Console().print(table)
    more = len(ranked) - _SHOWN
    say(
        "trial: accuracy on synthetic records, or 1 - error / error of the mean. loss: what noise is predicted "
        "to add, roughly. kB: what each client sends. All keep the promise. Trials cannot tell the first few "
        "apart; of these, default settings come first."
    )
    if more > 0:
        say(
            f"{more} more, which take long or are predicted to be worse, are in --json. No private data was read."
        )
    else:
        say("No private data was read.")


def show_needs(needs: Needs) -> None:
    """The noise that each algorithm would need, and how it depends on the batch."""
    from tacit.cli.tables import show_table
    from tacit.engine.outlook import two_digits
    from tacit.planning.needs import Need, Refused

    recipe = needs.recipe
    found = [row for row in needs.planned if isinstance(row, Need)]
    rows = [
        {
            "algorithm": row.algorithm,
            "signal to noise": "" if row.outlook is None else two_digits(row.outlook.signal_to_noise),
            "noise multiplier": f"{row.noise_multiplier:.4g}",
            "noise std": f"{row.noise_std:.4g}",
            "rounds": str(row.rounds),
            "batch": "" if row.batch is None else f"{row.batch:g}",
            "kB each": f"{row.uplink_bits_per_client / 8000:.1f}",
        }
        for row in found
    ]
    title = f"noise for epsilon {_number(recipe.epsilon)} at delta {_number(recipe.delta)}, {recipe.adjacency}"
    show_table(rows, title=title, words=("algorithm",))
    for row in needs.planned:
        if isinstance(row, Refused):
            say_row("Refused", f"{row.algorithm}: {row.why}", colour="yellow")
    _say_expected(needs)
    if without := _without_trust(found):
        say_row("Trust", without)
    if len({row.batch is None for row in found}) > 1:
        say_row(
            "Caution",
            "Algorithms that protect records treat the number of records as public: do not publish their rows "
            "next to a promise to whole clients.",
        )
    say_row(
        "Columns",
        "signal to noise: how many times the noise the signal of all rounds together can be. noise std: on each "
        "number of a message (or of a local step); for the smallest client, if sizes are public. kB: what each "
        "client sends.",
    )
    if len(found) > _FEW:
        say_row("More", "--algorithm A,B shows how noise depends on the batch; --json has all of it.")
    elif needs.by_batch:
        print()
        show_table(_by_batch(needs), title="noise std by batch, at the same rounds", words=("algorithm",))


def _by_batch(needs: Needs) -> list[dict[str, str]]:
    """A row for each algorithm, with a column for each batch."""
    from tacit.planning.needs import Need

    cells: dict[str, dict[str, str]] = {}
    for fraction, row in needs.by_batch:
        heading = "full" if fraction == 1 else f"{fraction:.0%}"
        told = f"{row.noise_std:.4g}" if isinstance(row, Need) else "refused"
        cells.setdefault(row.algorithm, {"algorithm": row.algorithm})[heading] = told
    return list(cells.values())


def _without_trust(rows: Sequence[Need]) -> str:
    """What is left of promises that rely on other parties; empty if none does."""
    from tacit.privacy import Adversary
    from tacit.privacy.promises.protection import in_words

    alike: dict[str, list[str]] = {}
    for row in rows:
        if row.adversary != Adversary.SERVER:
            alike.setdefault(in_words(row.epsilon_without_trust), []).append(row.algorithm)
    told = "; ".join(f"{epsilon} ({', '.join(names)})" for epsilon, names in alike.items())
    return f"epsilon if all other parties help the server: {told}." if told else ""


def _say_expected(needs: Needs) -> None:
    """What can be learned with the recipe's algorithm, or the first, and which ones' noise hides everything."""
    from tacit.planning.needs import Need

    ahead = {
        row.algorithm: row.outlook for row in needs.planned if isinstance(row, Need) and row.outlook is not None
    }
    if not ahead:
        return
    first = needs.recipe.algorithm if needs.recipe.algorithm in ahead else next(iter(ahead))
    say_row("Outlook", f"{first}: {ahead[first].sentence}")
    hidden = [name for name, found in ahead.items() if found.verdict == "hidden" and name != first]
    if hidden and ahead[first].verdict != "hidden":
        say_row("", f"{', '.join(hidden)}: {ahead[hidden[0]].sentence}")


def show_trusts(rows: Sequence[TrustRow]) -> None:
    """What trust in others buys, at the same epsilon."""
    from tacit.cli.tables import show_table
    from tacit.engine.outlook import two_digits
    from tacit.privacy.promises.rounding import up_to

    metric = next((row.metric_name for row in rows if row.metric_name), "result")
    cells = [
        {
            "messages travel": row.travel,
            "relying on": row.relies_on,
            "noise of a mean": _short(row.noise_std) if row.refused is None else "refused",
            "signal to noise": "" if row.signal_to_noise is None else two_digits(row.signal_to_noise),
            f"{metric} on synthetic": _short(row.predicted_metric),
        }
        for row in rows
    ]
    print()
    title = f"what trust buys, with {rows[0].algorithm} at the same epsilon"
    show_table(cells, title=title, words=("messages travel", "relying on"))
    summed = next((row.own_epsilon for row in rows if row.travel == "summed"), None)
    if summed is not None:
        say(f"If all other silos help the server, a sum leaves epsilon {up_to(summed)}.")


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else "set per silo"
