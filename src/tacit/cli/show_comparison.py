"""The table of a comparison: its rows as plain data, and what `tacit compare` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from tacit.cli.say import say_row

if TYPE_CHECKING:
    from tacit.engine.compare import Outcome


def table_rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """One row per algorithm: means over the seeds, at the end and at the same number of bits for all."""
    from tacit.engine.history import equal_bits

    common = equal_bits([history for outcome in outcomes for history in outcome.histories])
    return [_table_row(outcome, common) for outcome in outcomes]


def _table_row(outcome: Outcome, common: int | None) -> dict[str, Any]:
    first: dict[str, Any] = outcome.summaries[0] if outcome.summaries else {}
    same_bits = [] if common is None else [history.at_bits(common) for history in outcome.histories]
    rows = [row for row in same_bits if row is not None]
    values = {
        "algorithm": outcome.algorithm,
        "tuned": outcome.tuned,
        "seeds": len(outcome.summaries),
        "diverged": [{**dict(point.tuned), "seed": point.recipe.seed} for point in outcome.diverged],
        **{name: first.get(name) for name in ("epsilon", "epsilon_without_trust", "delta", "privacy")},
        **{name: first.get(name) for name in ("adversary", "noise_multiplier", "rounds")},
        "uplink_bits_per_client": first.get("uplink_bits_per_client"),
        "sampling_rate": first.get("sampling_rate"),
        **{
            name: _mean_or_none([summary[name] for summary in outcome.summaries])
            for name in ("train_loss", "grad_norm_sq_mean", "test_metric")
        },
        "test_metric_name": first.get("test_metric_name"),
        "naive_metric": first.get("naive_metric"),
        "equal_bits": common,
        "round_at_equal_bits": rows[0].round if rows else None,
        **{
            f"{name}_at_equal_bits": _mean_or_none([getattr(row, name) for row in rows])
            for name in ("grad_norm_sq_mean", "train_loss", "test_metric")
        },
    }
    bare = first.get("not_covered", [])
    # Settings of a grid are chosen by what is measured.
    chosen = ["tuned", "at_the_edge"] if bare and outcome.tuned else []
    measured = [name for name in values if name.removesuffix("_at_equal_bits") in bare]
    return {**values, "not_covered": [*measured, *chosen]}


def _mean_or_none(values: list[Any]) -> float | None:
    return mean(values) if values and None not in values else None


def edges(tuned: dict[str, Any], grid: dict[str, list[Any]]) -> list[str]:
    """What to say of chosen values at an end of their grid: the best may lie beyond.

    >>> edges({"algorithm.step": 1.0}, {"algorithm.step": [0.1, 0.3, 1.0]})
    ['step 1.0 is the largest of the grid; the best may be beyond it']
    >>> edges({"algorithm.step": 0.3}, {"algorithm.step": [0.1, 0.3, 1.0]})
    []
    """
    found = []
    for key, value in tuned.items():
        numbers = [one for one in grid.get(key, []) if isinstance(one, int | float)]
        if len(numbers) > 1 and value in (min(numbers), max(numbers)):
            end = "smallest" if value == min(numbers) else "largest"
            found.append(f"{short(key)} {value} is the {end} of the grid; the best may be beyond it")
    return found


def metric_name(rows: list[dict[str, Any]]) -> str:
    """The metric's name, from a run that did not diverge. If all diverged, the comparison failed earlier."""
    return str(next(row["test_metric_name"] for row in rows if row["seeds"]))


def show_comparison(rows: list[dict[str, Any]], directory: Path, there: str, *, tuned: bool) -> None:
    """The table of a comparison, what a reader should know about it, and where its files are.

    there: how many of its runs were there already.
    """
    from tacit.cli.tables import show_table

    cells = [_cells(row, metric_name(rows)) for row in rows]
    seeds = max(row["seeds"] for row in rows)
    title = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    show_table(cells, title=title, words=("algorithm",))
    for row in rows:
        for point in row["diverged"]:
            where = ", ".join(f"{short(key)} {value}" for key, value in {**row.get("at", {}), **point}.items())
            say_row("Diverged", f"{row['algorithm']} diverged at {where}", colour="yellow")
    if tuned:
        for row in rows:
            say_row("Tuned", _tuned(row), colour="yellow" if row["at_the_edge"] else None)
    columns: list[str] = []
    # Rows may have test records of their own (--at clients=5,10), and each its own constant.
    known = [row["naive_metric"] for row in rows if row["naive_metric"]]
    naive = {f"{what.capitalize()} has {metric_name(rows)} {value:.4g}." for value, what in known}
    columns += naive if len(naive) == 1 else ()
    if "at" not in rows[0]:
        ran = [row for row in rows if row["seeds"]]
        if len({row["sampling_rate"] for row in ran}) > 1:
            rates = _alike({row["algorithm"]: _rate(row) for row in ran})
            say_row("Batches", f"they differ, as shares of a client's records: {rates}", colour="yellow")
        columns.append("utility: mean squared gradient norm, smaller is better. kB: per client.")
        columns.append(_equal_bits_sentence(rows))
    if columns:
        say_row("Columns", " ".join(columns))
    cautions = [
        measured_note(rows),
        "Each epsilon is that of one run: on the same records, all cost more." if measured_note(rows) else "",
        "Tuning read the data many times; these epsilons do not include its privacy cost." if tuned else "",
        without_trust(rows),
    ]
    if told := " ".join(filter(None, cautions)):
        say_row("Caution", told)
    say_row("Files", f"{directory}: report.html, comparison.png, comparison.csv; {there}")


def measured_note(rows: Sequence[Mapping[str, Any]]) -> str:
    """What of a comparison no promise covers; empty if nothing is promised anyway."""
    from tacit.report.words import not_covered

    bare = {name for row in rows for name in row["not_covered"]}
    return not_covered(tested="test_metric" in bare) if bare else ""


def without_trust(rows: Sequence[Mapping[str, Any]]) -> str:
    """What is left of promises that rely on other parties; empty if none does."""
    from tacit.privacy.promises.protection import in_words
    from tacit.report.comparison_page import label

    told = [
        f"{label(row)}: {in_words(row['epsilon_without_trust'])}"
        for row in rows
        if row.get("adversary") not in (None, "server")
    ]
    return f"Epsilon if all other parties help the server: {'; '.join(told)}." if told else ""


def _equal_bits_sentence(rows: list[dict[str, Any]]) -> str:
    if rows[0]["equal_bits"] is None:
        return "No rounds were evaluated at equal bits; --set evaluate_every=1 evaluates every round."
    paid = _alike({row["algorithm"]: str(row["round_at_equal_bits"]) for row in rows if row["seeds"]})
    return f"At equal bits: after {rows[0]['equal_bits'] / 8000:.1f} kB, which pays for rounds: {paid}."


def _alike(values: Mapping[str, str]) -> str:
    """Each value, with the names that have it.

    >>> _alike({"a": "0.5", "b": "all", "c": "0.5"})
    '0.5 (a, c), all (b)'
    """
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    return ", ".join(f"{value} ({', '.join(those)})" for value, those in names.items())


def _cells(row: dict[str, Any], metric: str) -> dict[str, str]:
    from tacit.privacy.promises.rounding import up_to

    bits, bought = row["uplink_bits_per_client"], row["grad_norm_sq_mean_at_equal_bits"]
    epsilon = "" if row["epsilon"] is None else up_to(row["epsilon"])
    cells = {
        "algorithm": row["algorithm"],
        "epsilon": "[red]not private[/]" if row["privacy"] == "none" else epsilon,
        "loss": _number(row["train_loss"], ".4g") if row["seeds"] else "[yellow]diverged[/]",
        metric: _number(row["test_metric"], ".4g"),
    }
    if "at" in row:
        cells = {f"at {short(key)}": str(value) for key, value in row["at"].items()} | cells
    else:
        cells |= {
            "utility": _number(row["grad_norm_sq_mean"], ".3g"),
            "kB": "" if bits is None else f"{bits / 8000:.1f}",
            **({} if row["equal_bits"] is None else {"at equal bits": _number(bought, ".3g")}),
        }
    return cells


def _tuned(row: dict[str, Any]) -> str:
    """What tuning chose for an algorithm, and whether that is at an end of the grid."""
    where = "".join(f" at {short(key)} {value}" for key, value in row.get("at", {}).items())
    values = ", ".join(f"{short(key)} {value}" for key, value in row["tuned"].items())
    edge = ", at the edge of the grid: the best may be beyond it" if row["at_the_edge"] else ""
    return f"{row['algorithm']}{where}: {values}{edge}"


def _rate(row: dict[str, Any]) -> str:
    rate = row["sampling_rate"]
    return "all" if rate is None or rate == 1 else f"{rate:.3g}"


def short(key: str) -> str:
    """A setting's name, without its table."""
    return key.removeprefix("algorithm.")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
