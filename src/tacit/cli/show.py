"""What `tacit run` prints: progress to standard error, results to standard output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from types import TracebackType
from typing import Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tacit.cli.say import say_row, verbatim
from tacit.engine.history import HistoryRow
from tacit.engine.plan import Plan
from tacit.engine.recipe import Recipe
from tacit.engine.weights import BY_RECORDS
from tacit.privacy.promises.plain import plain_promise, strength
from tacit.privacy.promises.protection import WHOLE_CLIENT
from tacit.privacy.promises.rounding import MOST_DIGITS, up_to
from tacit.report.words import (
    corrected_words,
    counted,
    evaluation_words,
    in_bytes,
    learned_words,
    protected_unit,
    without_trust,
)

_MOST_SILOS = 20

_MOST_OF_PUBLIC = 150

_ROOM_FOR_A_NAME = 100
"""Columns of a terminal on which the progress of a run begins with its algorithm."""

_COLOURS = {"clear": "green", "fair": "yellow", "noisy": "yellow", "hidden": "red"}
_TONES = {"good": "green", "fair": "yellow", "bad": "red"}


class RunProgress:
    """A progress bar; call it after every round. With `ahead`, it first prints what can be expected."""

    def __init__(self, recipe: Recipe, *, quiet: bool, ahead: bool = True) -> None:
        self._ahead, self._console = ahead and not quiet, Console(stderr=True)
        # On a narrow terminal the numbers need the place of the name, which the summary has as well.
        name = [TextColumn("[bold]{task.description}")] if self._console.width >= _ROOM_FOR_A_NAME else []
        self._bar = Progress(
            *name,
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[seen]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=quiet,
        )
        self._task = self._bar.add_task(recipe.algorithm, total=recipe.rounds, seen="")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Stopping a bar that was never started prints an empty line.
        if self._bar.live.is_started:
            self._bar.stop()

    def show_plan(self, plan: Plan) -> None:
        """Print what can be expected, before the first round."""
        from tacit.engine.outlook import outlook

        self._bar.update(self._task, total=plan.rounds)
        ahead = outlook(plan) if self._ahead else None
        if ahead is not None:
            # What would help is among the findings, after the run.
            hopeless = "To know now what it would take, stop and run `tacit plan`."
            then = hopeless if ahead.verdict == "hidden" else ahead.assumed
            say_row("Outlook", f"{ahead.expected} {then}".strip(), colour=_COLOURS[ahead.verdict])

    def __call__(self, rounds: int, row: HistoryRow | None) -> None:
        # Starts only after the first round: a refused request should show an error and no bar.
        self._bar.start()
        self._bar.update(self._task, completed=rounds)
        if row is not None:
            spent = "" if row.epsilon is None else f"epsilon {up_to(row.epsilon)}  "
            metric = "" if row.test_metric is None else f"  test {row.test_metric:.3f}"
            # Evaluated rounds are some rounds apart, and more has been spent since the last one.
            self._bar.update(self._task, seen=f"at {row.round}: {spent}loss {row.train_loss:.3f}{metric}")


def show_summaries(summaries: Sequence[Mapping[str, Any]], recipe: Recipe, directory: str) -> None:
    """Print a run, or the runs of several seeds: what matters first, and nothing twice.

    Args:
        summaries: the summary of each seed's run.
        recipe: of the first of them, with every choice filled in.
        directory: where the files are.
    """
    first, several = summaries[0], len(summaries) > 1
    which = f"seed {first['seed']}: " if several else ""
    say_row("Result", _result(summaries))
    if (told := first.get("evaluation")) is not None:
        say_row("Held back", which + evaluation_words(told, counted(first)))
    _say_promise(summaries, recipe)
    limits = dict.fromkeys(f"{one['what']} {one['change']}" for each in summaries for one in each["findings"])
    for label, limit in zip(["Limits", *[""] * len(limits)], limits, strict=False):
        say_row(label, limit, colour="yellow")
    if first["privacy"] != "none":
        say_row("Public", _public(first["public"]))
        say_row("Caution", _caution(first))
    if first["clients_own"]:
        typer.echo()
        Console(width=80).print(_own_budgets(first["clients_own"]))
    typer.echo()
    say_row("Data", _data(first))
    say_row("Chosen", _chosen(recipe, first))
    if (found := first.get("learned")) is not None:
        say_row("Learned", which + learned_words(found))
    if (mended := first.get("correction")) is not None:
        say_row("Corrected", which + corrected_words(mended))
    by = "uncompressed" if first["compressor"] == "identity" else f"compressed by {first['compressor']}"
    each, total = first["uplink_bits_per_client"], first["uplink_bits_total"]
    say_row("Sent", f"{in_bytes(each)} per client, {in_bytes(total)} in total, {by}")
    say_row("Took", f"{sum(one['seconds'] for one in summaries):.1f} s{_memory(first)}")
    typer.echo()
    say_row("Files", directory)
    if first["privacy"] == "none":
        say_row("", "report.html there shows this as a page.")
        return
    say_row(
        "",
        "report.html there says in full against whom the promise holds, what it takes as public, and how to "
        "repeat this. `tacit account` with this directory recomputes the epsilon from the ledger.",
    )


def _result(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The test metric beside what always predicting the same gives; the loss if there are no test records."""
    first = summaries[0]
    tested = first["test_metric"] is not None
    name = f"test {first['test_metric_name']}" if tested else "training loss"
    values = [one["test_metric" if tested else "train_loss"] for one in summaries]
    spread = f" on average over {len(values)} seeds ({min(values):.4g} to {max(values):.4g})"
    naive = first.get("naive_metric") if tested else None
    beside = "" if naive is None else f"; {naive[1]}: {naive[0]:.4g}"
    return f"{name} {mean(values):.4g}{spread if len(values) > 1 else ''}{beside}"


def _say_promise(summaries: Sequence[Mapping[str, Any]], recipe: Recipe) -> None:
    """The promise in one sentence, and what it does not include."""
    first = summaries[0]
    if first["privacy"] == "none":
        say_row("Promise", "NOT PRIVATE: the noise was switched off (privacy = none).", colour="red")
        return
    epsilon, delta = first["epsilon"], first["delta"]
    whose = protected_unit(first["unit"], first["public"])
    lines = [
        plain_promise(epsilon, delta, whose, first["adversary"], first["adjacency"]),
        *without_trust(first["adversary"], first["epsilon_without_trust"]),
    ]
    if recipe.client_epsilon is not None:
        # A promise to whole clients in addition, which the run was planned to keep.
        lines += [row["sentence"] for row in first["protection"] if row["protected"] == WHOLE_CLIENT]
    if len(summaries) > 1:
        lines.append(f"This is for each of the {len(summaries)} runs alone; together they cost more.")
    say_row("Promise", " ".join(lines), colour=_TONES[strength(epsilon, delta)[0]])


def _public(taken: Sequence[str]) -> str:
    """What the promise takes as known to everybody, in about two lines."""
    shown = [one for k, one in enumerate(taken) if len("; ".join(taken[: k + 1])) <= _MOST_OF_PUBLIC]
    more = len(taken) - len(shown)
    rest = [f"{more} more in report.html"] if more else []
    return "; ".join([*shown, *rest]) or "nothing"


def _caution(first: Mapping[str, Any]) -> str:
    """What the promise does not cover, and on whom it relies not to look."""
    tested = "The test result (on records of the clients), training" if _own_test(first) else "Training"
    return (
        f"{tested} loss, gradient norms, signal-to-noise ratio, limits, time and memory are measured without "
        f"noise, for the researcher; the promise does not cover them. The noise is {first['entropy']}."
    )


def _own_test(summary: Mapping[str, Any]) -> bool:
    """Whether the test metric was measured on records of the clients, and not on public ones."""
    return "test_metric" in summary["not_covered"] and summary["test_metric"] is not None


def _data(first: Mapping[str, Any]) -> str:
    """Whose records; their number is left out where the promise protects it."""
    sizes, name = first["records_per_client"], first["data"]
    held = "" if sizes is None else f" with {_between(sizes[0], sizes[1], ',')} {counted(first)}"
    return f"{'' if name == 'custom' else f'{name}: '}{first['clients']:,} clients{held}"


def _chosen(recipe: Recipe, first: Mapping[str, Any]) -> str:
    """The settings of a run that matter most; the recipe has them all."""
    settings = recipe.algorithm_settings
    batch, sampling, local = settings.get("batch"), first["sampling"], settings.get("local_steps")
    bound, (low, high) = first["clip_norm"], first["noise_multiplier_range"]
    parts = [
        str(recipe.algorithm),
        f"{recipe.model} ({first['dim']:,} parameters)",
        f"{first['rounds']:,} rounds",
        None if local is None else f"{local} local steps",
        f"{sampling} batches" + ("" if batch is None else f" of {_share(batch, counted(first))}"),
        None if bound is None else f"clip norm {bound:.3g}",
        None if bound is None or first["privacy"] == "none" else f"noise {_between(low, high, '.3g')} times that",
        _weights(recipe.weights) if isinstance(recipe.weights, str) else None,
        f"step {_plain(settings['step'])}" if settings.get("step") else "steps computed from the messages",
    ]
    return ", ".join(part for part in parts if part)


def _weights(rule: str) -> str:
    return "weights by records" if rule == BY_RECORDS else f"{rule} weights"


def _own_budgets(rows: list[dict[str, Any]]) -> Table:
    """For silos with individual budgets: what each was promised and what it gets."""
    table = Table(box=None, padding=(0, 2), show_edge=False)
    for heading in ("silo", "records", "budget", "epsilon", "delta", "noise multiplier"):
        table.add_column(heading, justify="left" if heading == "silo" else "right", header_style="dim")
    for row in rows[:_MOST_SILOS]:
        table.add_row(
            verbatim(row["client"]),
            str(row.get("records", "")),
            f"{row['epsilon_budget']:g}",
            up_to(row["epsilon"]),
            up_to(row["delta"], MOST_DIGITS),
            f"{row['noise_multiplier']:.4g}",
        )
    if len(rows) > _MOST_SILOS:
        table.add_row(f"... {len(rows) - _MOST_SILOS} more in summary.json")
    return table


def _share(batch: float, units: str) -> str:
    """A batch, which is a count or a share of a client's records or persons."""
    return f"{100 * batch:.3g}% of the {units}" if batch < 1 else f"{batch:g} {units}"


def _between(least: float, most: float, form: str) -> str:
    """A range of numbers, or the number that all of them read as."""
    low, high = format(least, form), format(most, form)
    return low if low == high else f"{low} to {high}"


def _plain(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _memory(summary: Mapping[str, Any]) -> str:
    peak = summary.get("peak_memory_mb")
    return "" if peak is None else f", at most {peak:,.0f} MiB of memory"
