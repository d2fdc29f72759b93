"""What `tacit run` prints: progress to standard error, results to standard output."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from tacit.engine.history import HistoryRow
from tacit.engine.plan import Plan
from tacit.engine.recipe import Recipe
from tacit.privacy.promises.protection import in_words
from tacit.privacy.promises.rounding import MOST_DIGITS, up_to
from tacit.report.words import corrected_words, evaluation_words, in_bytes, learned_words

_MOST_SILOS = 50

_SHOWN = (
    "algorithm",
    "model",
    "rounds",
    "sampling",
    "batch",
    "clip_norm",
    "compressor",
    "local_steps",
    "weights",
)
"""The settings that are printed before a run."""

_ROOM_FOR_A_NAME = 100
"""Columns of a terminal on which the progress of a run begins with its algorithm."""


class RunProgress:
    """A progress bar; call it after every round."""

    def __init__(self, recipe: Recipe, *, quiet: bool) -> None:
        self._quiet, self._console = quiet, Console(stderr=True)
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
        """Print what was chosen and what can be expected, before the first round."""
        from tacit.engine.outlook import outlook

        ahead, recipe = outlook(plan), plan.recipe
        if self._quiet or recipe is None:
            return
        self._bar.update(self._task, total=plan.rounds)
        rule = recipe.weights if isinstance(recipe.weights, str) else None
        own = {"algorithm": recipe.algorithm, "model": recipe.model, "rounds": recipe.rounds, "weights": rule}
        settings = {**own, **recipe.algorithm_settings}
        shown = ", ".join(f"{name} {_plain(settings[name])}" for name in _SHOWN if settings.get(name) is not None)
        free = "" if "step" in settings else ", step sizes computed from the messages"
        self._console.print(f"[dim]Settings: {escape(shown)}{free}.[/]")
        if ahead is not None:
            colour = {"clear": "green", "fair": "yellow", "noisy": "yellow", "hidden": "red"}[ahead.verdict]
            self._console.print(f"[{colour}]{escape(ahead.sentence)}[/]")

    def __call__(self, rounds: int, row: HistoryRow | None) -> None:
        # Starts only after the first round: a refused request should show an error and no bar.
        self._bar.start()
        self._bar.update(self._task, completed=rounds)
        if row is not None:
            spent = "" if row.epsilon is None else f"epsilon {up_to(row.epsilon)}  "
            metric = "" if row.test_metric is None else f"  test {row.test_metric:.3f}"
            # Evaluated rounds are some rounds apart, and more has been spent since the last one.
            self._bar.update(self._task, seen=f"at {row.round}: {spent}loss {row.train_loss:.3f}{metric}")


def show_summary(summary: dict[str, Any]) -> None:
    """Print one run as a small table."""
    private = summary["privacy"] != "none"
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    sizes = summary["records_per_client"]
    metric, rate = summary["test_metric"], summary["sampling_rate"]
    rows = {
        "algorithm": f"[bold]{summary['algorithm']}[/] on {summary['data']}",
        "federation": f"{summary['clients']} clients"
        + ("" if sizes is None else f" with {sizes[0]} to {sizes[1]} records")
        + f", {summary['dim']} parameters",
        "privacy": f"[bold green]epsilon {up_to(summary['epsilon'], 4)}[/] at delta {up_to(summary['delta'])}"
        if private
        else "[bold red]NOT PRIVATE[/] (privacy = none)",
        "noise": f"{summary['noise_multiplier']:.4g} times the clip norm {summary['clip_norm']:g}, "
        f"{summary['sampling']} batches" + ("" if rate is None else f" at rate {rate:.3g}")
        if private
        else "none",
        "result": f"training loss {summary['train_loss']:.4f}"
        + ("" if metric is None else f", [bold]test {summary['test_metric_name']} {metric:.4g}[/]")
        + ("" if (naive := summary.get("naive_metric")) is None else f" ({naive[1]}: {naive[0]:.4g})"),
        **({} if (found := summary.get("learned")) is None else {"learned": learned_words(found)}),
        **({} if (mended := summary.get("correction")) is None else {"corrected": corrected_words(mended)}),
        **({} if (told := summary.get("evaluation")) is None else {"held back": evaluation_words(told)}),
        "sent": f"{in_bytes(summary['uplink_bits_per_client'])} per client, "
        f"{in_bytes(summary['uplink_bits_total'])} in total ({summary['compressor']})",
        "time": f"{summary['rounds']} rounds in {summary['seconds']:.1f} s{_memory(summary)}",
        "files": f"{summary['run_dir']} (report.html: this as a page)",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    Console().print(table)
    if summary.get("findings"):
        limits = Table.grid(padding=(0, 1))
        for finding in summary["findings"]:
            limits.add_row("[yellow]•[/]", f"{escape(finding['what'])} [dim]{escape(finding['change'])}[/]")
        Console().print(
            Panel(
                limits,
                title="what limits this result, measured without noise",
                title_align="left",
                border_style="yellow",
            )
        )


def show_guarantee(summary: dict[str, Any]) -> None:
    """Print who is protected against whom: a row for each adversary, and the sentence an auditor can quote."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("against", "protected", "epsilon"):
        table.add_column(heading, justify="right" if heading == "epsilon" else "left", header_style="dim")
    for row in summary["protection"]:
        table.add_row(row["adversary"], row["protected"], in_words(row["epsilon"]))
    parts: list[RenderableType] = [table, ""] if summary["protection"] else []
    if summary.get("clients_own"):
        parts += [_own_budgets(summary["clients_own"]), ""]
    parts.append(Text(summary["promise"]))
    if summary["privacy"] != "none":
        parts.append(Text(f"Noise {summary['entropy']}.", style="dim"))
        tested = "Test results (on records of the clients), training" if _own_test(summary) else "Training"
        measured = (
            f"{tested} loss, gradient norms, signal-to-noise ratio, what limits the result, time and memory are "
            "measured without noise, for the researcher; the promise does not cover them."
        )
        parts.append(Text(measured, style="dim"))
    Console().print(Panel(Group(*parts), title="who is protected against whom", title_align="left"))


def _own_test(summary: dict[str, Any]) -> bool:
    """Whether the test metric was measured on records of the clients, and not on public ones."""
    return "test_metric" in summary["not_covered"] and summary["test_metric"] is not None


def _own_budgets(rows: list[dict[str, Any]]) -> Table:
    """For silos with individual budgets: what each was promised and what it gets."""
    table = Table(box=None, padding=(0, 2), show_edge=False)
    for heading in ("silo", "records", "budget", "epsilon", "delta", "noise multiplier"):
        table.add_column(heading, justify="left" if heading == "silo" else "right", header_style="dim")
    for row in rows[:_MOST_SILOS]:
        table.add_row(
            row["client"],
            str(row.get("records", "")),
            f"{row['epsilon_budget']:g}",
            up_to(row["epsilon"]),
            up_to(row["delta"], MOST_DIGITS),
            f"{row['noise_multiplier']:.4g}",
        )
    if len(rows) > _MOST_SILOS:
        table.add_row(f"... {len(rows) - _MOST_SILOS} more in summary.json")
    return table


def _plain(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _memory(summary: dict[str, Any]) -> str:
    peak = summary.get("peak_memory_mb")
    return "" if peak is None else f", at most {peak:,.0f} MiB of memory"
