"""What a model predicts and from which columns, as the schema says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.report.page import Block, Folded, Paragraph, SortableTable

SchemaTable = Mapping[str, Any]
"""A schema as its TOML says it."""

_MOST_NAMES = 12
"""Of more categories than these, a page names the first."""


def predicted_words(schema: SchemaTable) -> str:
    """What the model predicts.

    >>> predicted_words({"target": {"column": "ill", "task": "binary", "classes": ["no", "yes"]}})
    'ill (no or yes)'
    """
    target = schema["target"]
    return f"{target['column']} ({_values(target)})"


def table_blocks(schema: SchemaTable) -> list[Block]:
    """What is predicted, from which columns, whose rows belong together, and what was left out."""
    columns = schema["columns"]
    rows = tuple((name, own["type"], _values(own), _gaps(own)) for name, own in columns.items())
    many = f"{len(rows)} column{'s' if len(rows) > 1 else ''}"
    blocks: list[Block] = [
        Paragraph((f"The model predicts {predicted_words(schema)} from {many}.",)),
        SortableTable("columns that the model uses", ("column", "kind", "public values", "gaps"), rows),
    ]
    if person := schema.get("person"):
        words = f"All rows with the same {person['column']} at a client are one person's, and protected together."
        blocks.append(Paragraph((words,)))
    if left_out := schema.get("left_out"):
        said = tuple(f"{name}: {why}" for name, why in left_out.items())
        blocks.append(Folded(f"Columns that were left out, and why ({len(said)})", said))
    return blocks


def _values(own: Mapping[str, Any]) -> str:
    """The public range, classes or categories of a column."""
    if "classes" in own:
        return f"{', '.join(_few(own['classes'][:-1]))} or {own['classes'][-1]}"
    if "categories" in own:
        return ", ".join([*_few(own["categories"]), *(["any other"] if own.get("other") else [])])
    unit = f" {own['unit']}" if own.get("unit") else ""
    if own["range"] == "learn":
        return f"learned, within {_ends(own['within'])}{unit}"
    limits = f", counted as they are from {_ends(own['limits'])}" if "limits" in own else ""
    return f"{_ends(own['range'])}{unit}{limits}" + (" (learned)" if "within" in own else "")


def _few(names: Sequence[str]) -> list[str]:
    return [*names[:_MOST_NAMES], *([f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else [])]


def _ends(ends: Sequence[Any]) -> str:
    return " to ".join(f"{end:g}" if isinstance(end, int | float) else str(end) for end in ends)


def _gaps(own: Mapping[str, Any]) -> str:
    return "allowed, and marked" if own.get("missing") == "indicate" else "refused"
