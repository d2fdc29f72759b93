"""A self-contained HTML file: text, embedded figures, sortable tables, and no network access."""

from __future__ import annotations

import base64
import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tacit.report.style import SCRIPT, STYLE


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; with several lines, a list."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Folded:
    """A line that unfolds to a list."""

    line: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class FoldedText:
    """A line that unfolds to text as it is, such as a file."""

    line: str
    text: str


@dataclass(frozen=True)
class Image:
    """An SVG image with a caption, which is also its text alternative."""

    svg: bytes
    caption: str


@dataclass(frozen=True)
class SortableTable:
    """A table; clicking a heading (or pressing Enter on it) sorts by that column."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Link:
    """A table cell that links to another page, given by its path relative to this one."""

    words: str
    path: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Verdict:
    """A judgement in colour and words: `tone` is "good", "fair" or "bad", `word` says it in a word or two."""

    tone: str
    word: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Marked:
    """A list whose lines each begin with a coloured word: (tone, word, text)."""

    lines: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    rows: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Form:
    """Fields for a person to fill in, on the screen or on paper: (name, hint)."""

    fields: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Charts:
    """Charts (`tacit.report.chart`) side by side where there is room, each with a caption."""

    charts: tuple[tuple[str, str], ...]
    """(SVG, caption); the SVG is not escaped"""


@dataclass(frozen=True)
class Verbatim:
    """Text to copy, such as a command."""

    text: str


Block = (
    Paragraph | Folded | FoldedText | Image | SortableTable | Verdict | Marked | Facts | Form | Charts | Verbatim
)
TONES = ("good", "fair", "bad")
_LONG_CHARACTERS = 40
"""Texts of this length or more may wrap; shorter ones stay on one line."""


@dataclass(frozen=True)
class Section:
    """A heading and its content."""

    heading: str
    blocks: Sequence[Block]
    covered: bool = True
    """whether the promise beside it covers all of it; otherwise the section is of the class not-covered"""


def render_page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The page as HTML.

    Guarantee: nothing is loaded from anywhere (a content security policy forbids it), and no text is interpreted
    as markup.

    >>> page = render_page("A < B", "why", [Section("Numbers", [SortableTable("few", ("n",), ((1,), (2,)))])])
    >>> "<h1>A &lt; B</h1>" in page, page.count("<tr>")
    (True, 3)
    """
    body = "\n".join(_section(section) for section in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n<title>{_text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
        f'<link rel="icon" href="data:,">\n<style>{STYLE}</style></head>\n'
        f"<body><main><h1>{_text(title)}</h1>\n<p>{_text(lead)}</p>\n{body}\n</main>\n"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def show_value(value: Any) -> str:
    """Formats a value for people.

    >>> [show_value(v) for v in (0.000123456, 12345.678, 3, None, True, "word")]
    ['0.0001235', '1.235e+04', '3', '', 'yes', 'word']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _section(section: Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    kind = "" if section.covered else ' class="not-covered"'
    return f"<section{kind}><h2>{_text(section.heading)}</h2>\n{blocks}</section>"


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        if len(block.lines) == 1:
            return f"<p>{_text(block.lines[0])}</p>"
        return _list(block.lines)
    if isinstance(block, Folded):
        return f"<details><summary>{_text(block.line)}</summary>{_list(block.lines)}</details>"
    if isinstance(block, FoldedText):
        return f"<details><summary>{_text(block.line)}</summary>{_block(Verbatim(block.text))}</details>"
    if isinstance(block, Verdict):
        said = "".join(f"<p>{_text(line)}</p>" for line in block.lines)
        return f'<div class="verdict {_tone(block.tone)}"><p class="word">{_text(block.word)}</p>{said}</div>'
    if isinstance(block, Marked):
        lines = (
            f'<li><span class="word {_tone(tone)}">{_text(word)}</span> {_text(text)}</li>'
            for tone, word, text in block.lines
        )
        return f'<ul class="marked">{"".join(lines)}</ul>'
    if isinstance(block, Facts):
        rows = (f"<dt>{_text(name)}</dt><dd>{_text(show_value(value))}</dd>" for name, value in block.rows)
        return f"<dl>{''.join(rows)}</dl>"
    if isinstance(block, Form):
        rows = (
            f'<dt>{_text(name)}</dt><dd><div class="field" contenteditable="plaintext-only" role="textbox" '
            f'aria-label="{_text(name)}"></div><small>{_text(hint)}</small></dd>'
            for name, hint in block.fields
        )
        return f"<dl>{''.join(rows)}</dl>"
    if isinstance(block, Charts):
        figures = (
            f"<figure>{svg}<figcaption>{_text(words)}</figcaption></figure>" for svg, words in block.charts
        )
        return f'<div class="charts">{"".join(figures)}</div>'
    if isinstance(block, Verbatim):
        # Browsers break lines after hyphens; an option stays in one piece.
        whole = re.sub(r"(?<!\S)--?[a-z][a-z-]*", r'<span class="name">\g<0></span>', _text(block.text))
        return f'<pre tabindex="0">{whole}</pre>'
    if isinstance(block, Image):
        data = base64.b64encode(block.svg).decode()
        caption = _text(block.caption)
        return (
            # Scrolling boxes can take the focus, so that the arrow keys scroll them.
            f'<figure><div class="wide" tabindex="0" role="region" aria-label="{caption}">'
            f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}"></div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    headings = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{_text(name)}</button></th>'
        for name in block.columns
    )
    numeric = [any(map(_is_number, column)) for column in zip(*block.rows, strict=True)]
    body = "\n".join(
        f"<tr>{''.join(_cell(value, among) for value, among in zip(row, numeric, strict=True))}</tr>"
        for row in block.rows
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(block.caption)}"><table>'
        f"<caption>{_text(block.caption)}</caption><thead><tr>{headings}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _tone(tone: str) -> str:
    if tone not in TONES:
        raise ValueError(f"a tone must be one of {TONES}, not {tone!r}")
    return tone


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _cell(value: Any, among_numbers: bool) -> str:
    number = _is_number(value)
    text = show_value(value)
    kind = f' data-key="{value!r}" class="number"'.replace("inf", "Infinity") if number else ""
    if len(text) >= _LONG_CHARACTERS:
        kind = ' class="long"'
    elif among_numbers and not number:
        kind = ' class="beside"'
    elif not number and "-" in text and " " not in text:
        kind = ' class="name"'
    shown = _text(text)
    if isinstance(value, Link):
        shown = f'<a href="{_text(value.path)}">{shown}</a>'
    return f"<td{kind}>{shown}</td>"


def _text(text: str) -> str:
    return html.escape(text, quote=True)
