"""The page of a simulated run, or of the same run with several seeds: report.html."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.privacy.promises.plain import plain_promise, strength
from tacit.privacy.promises.protection import NO_PROTECTION, in_words
from tacit.privacy.promises.rounding import MOST_DIGITS, round_up, up_to
from tacit.report.evaluation_blocks import evaluation_blocks
from tacit.report.page import (
    Block,
    Facts,
    Folded,
    FoldedText,
    Paragraph,
    Section,
    SortableTable,
    Verbatim,
    Verdict,
    render_page,
)
from tacit.report.results import Rows, Summary, measured_blocks, result_blocks
from tacit.report.table_blocks import SchemaTable, table_blocks
from tacit.report.terms import glossary
from tacit.report.words import (
    corrected_words,
    counted,
    in_bytes,
    learned_words,
    plain_meaning,
    protected_unit,
    without_trust,
)

_TO_WHOM = {
    "record": "To the people whose records the clients hold",
    "person": "To the people whose rows the clients hold",
    "client": "To every client",
}
_OUTLOOKS = {
    "clear": ("good", "Enough signal"),
    "fair": ("fair", "Enough signal for the main effects"),
    "noisy": ("fair", "Noisy"),
    "hidden": ("bad", "Hidden by noise"),
}


def correction_section(correction: Mapping[str, Any]) -> Section:
    """How a regression was corrected."""
    words = (
        f"Clipping pulls predictions towards the most usual ones. So the model was corrected: "
        f"{corrected_words(correction)}."
    )
    return Section("How the model was corrected after training", [Paragraph((words,))])


@dataclass(frozen=True)
class Repeat:
    """What somebody else needs to repeat a result."""

    command: str
    digests: Mapping[str, str]
    """SHA-256 by name of what was hashed"""
    versions: Mapping[str, str]
    recipe: str
    """the recipe, or the job, as TOML"""


def run_page(
    summaries: Sequence[Summary], histories: Sequence[Rows], repeat: Repeat, schema: SchemaTable | None = None
) -> str:
    """The page of a run, as HTML.

    Args:
        summaries: the summary of the run, or of each seed's run.
        histories: the history of each of them.
        repeat: how to repeat it.
        schema: what the table holds, if the run had a schema.
    """
    first = summaries[0]
    private = first["privacy"] != "none"
    seeds = "" if len(summaries) == 1 else f", {len(summaries)} seeds"
    tested = "test_metric" not in first.get("not_covered", ())
    sections = [
        Section("What was promised, and to whom", promise_blocks(summaries)),
        Section("The result", result_blocks(summaries, histories), covered=tested),
        Section("What was sent", [Facts(_sent(first))]),
    ]
    if schema is not None:
        sections.insert(1, Section("What the model predicts, and from what", table_blocks(schema)))
    if first.get("evaluation"):
        measured = evaluation_blocks(first["evaluation"], counted(first))
        sections.insert(-1, Section("How good it is for new records", measured))
    if first.get("learned"):
        sections.append(
            Section("What was learned before training", [Paragraph((learned_words(first["learned"]),))])
        )
    if first.get("correction"):
        sections.append(correction_section(first["correction"]))
    if private:
        sections.append(Section("What was taken as public", public_blocks(first)))
    if ahead := first.get("outlook"):
        tone, word = _OUTLOOKS[ahead["verdict"]]
        outlook = Verdict(tone, f"{word}, judging by public numbers", (ahead["sentence"],))
        sections.append(Section("What limits the result", [outlook]))
    sections.append(
        Section(
            "Only for the researcher who simulates" if private else "Training",
            measured_blocks(summaries, histories),
            covered=not private,
        )
    )
    sections.append(Section("How to repeat it", repeat_blocks(repeat)))
    if private:
        words = glossary(unit_of(first), first["adversary"], first["adjacency"])
        sections.append(Section("The words used here", [Facts(words)]))
    title = (
        f"{first['algorithm']} on {first['data']}"
        if schema is None
        else f"A model of {schema['target']['column']}"
    )
    return render_page(
        f"{title}{seeds}",
        f"A simulation of {first['clients']} clients: {first['rounds']} rounds of {first['algorithm']}, a model "
        f"of {first['dim']} parameters. Made by tacit.",
        sections,
    )


def promise_blocks(summaries: Sequence[Summary]) -> list[Block]:
    """The promise in plain words, then formally, and whom it protects against whom."""
    first = summaries[0]
    if first["privacy"] == "none":
        why = "Nothing is promised to anybody: the noise was switched off. Do not run this on real records."
        return [Verdict("bad", "Not private", (why,))]
    epsilon, delta, unit, adjacency = first["epsilon"], first["delta"], unit_of(first), first["adjacency"]
    tone, _ = strength(epsilon, delta)
    adversary = first["adversary"]
    lines = [
        plain_promise(epsilon, delta, unit, adversary, adjacency),
        plain_meaning(epsilon, delta, unit, adversary, adjacency),
        *without_trust(adversary, first.get("epsilon_without_trust")),
    ]
    if len(summaries) > 1:
        lines.append(f"This is the promise of each of the {len(summaries)} runs alone; together they cost more.")
    rows = tuple(
        (row["adversary"], row["protected"], shown_epsilon(row["epsilon"])) for row in first["protection"]
    )
    blocks: list[Block] = [
        Verdict(tone, f"{_TO_WHOM[unit]}: epsilon {up_to(epsilon)}", tuple(lines)),
        Verdict("fair", "A simulation", (f"The noise is {first['entropy']}.",))
        if str(first["entropy"]).startswith("seeded")
        else Paragraph((f"The noise is {first['entropy']}.",)),
        SortableTable(
            "who is protected against whom; smaller is better", ("against", "protected", "epsilon"), rows
        ),
        Folded("The same as an auditor would quote it", (first["promise"],)),
    ]
    if first.get("clients_own"):
        blocks.append(_own_budgets(first["clients_own"]))
    return blocks


def unit_of(summary: Summary) -> str:
    """Whom the promise of a run protects."""
    return protected_unit(summary["unit"], summary.get("public", ()))


def shown_epsilon(epsilon: float | None) -> float | str:
    """An epsilon rounded up to three digits, or words if it promises nothing.

    >>> shown_epsilon(3.9991), shown_epsilon(803_911.8), shown_epsilon(None)
    (4.0, 'no protection (804,000)', 'no protection')
    """
    if epsilon is None:
        return in_words(None)
    up = round_up(epsilon)
    return f"{in_words(epsilon)} ({up:,.0f})" if epsilon >= NO_PROTECTION else up


def public_blocks(summary: Summary) -> list[Block]:
    """What the promise takes as known to everybody."""
    given = "ranges (not those that were learned)" if "ranges" in (summary.get("learned") or {}) else "ranges"
    described = f", and the schema: columns, {given}, categories and classes" if summary.get("schema") else ""
    return [
        Paragraph(("The promise does not protect these; it takes them as known to everybody:",)),
        Paragraph((*summary.get("public", ()), f"the recipe, which is every setting of the run{described}")),
    ]


def repeat_blocks(repeat: Repeat, recipe: str = "The recipe, with every choice filled in") -> list[Block]:
    """Command, digests, versions and recipe."""
    return [
        Verbatim(repeat.command),
        Facts(tuple((f"SHA-256 of {name}", digest) for name, digest in repeat.digests.items())),
        Facts(tuple(repeat.versions.items())),
        FoldedText(recipe, repeat.recipe),
    ]


def _sent(first: Summary) -> tuple[tuple[str, Any], ...]:
    each, total = first["uplink_bits_per_client"], first["uplink_bits_total"]
    return (
        ("by each client, in all", in_bytes(each)),
        ("by each client, per round", in_bytes(each // max(1, first["rounds"]))),
        ("by all clients", in_bytes(total)),
        ("compressed by", "nothing" if first["compressor"] == "identity" else first["compressor"]),
        ("the model uncompressed, for comparison", in_bytes(32 * first["dim"])),
    )


def _own_budgets(rows: Sequence[Mapping[str, Any]]) -> SortableTable:
    columns = ("client", "budget", "epsilon", "delta", "noise multiplier")
    cells = tuple(
        (
            row["client"],
            row["epsilon_budget"],
            round_up(row["epsilon"]),
            up_to(row["delta"], MOST_DIGITS),
            row["noise_multiplier"],
        )
        for row in rows
    )
    return SortableTable("clients have budgets of their own", columns, cells)
