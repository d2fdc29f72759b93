"""A self-contained HTML file: text, embedded figures, sortable tables, and no network access."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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


Block = Paragraph | Folded | Image | SortableTable
_LONG_CHARACTERS = 40
"""Texts of this length or more may wrap; shorter ones stay on one line."""


@dataclass(frozen=True)
class Section:
    """A heading and its content."""

    heading: str
    blocks: Sequence[Block]


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
        f'<link rel="icon" href="data:,">\n<style>{_STYLE}</style></head>\n'
        f"<body><main><h1>{_text(title)}</h1>\n<p>{_text(lead)}</p>\n{body}\n</main>\n"
        f"<script>{_SCRIPT}</script></body></html>\n"
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
    return f"<section><h2>{_text(section.heading)}</h2>\n{blocks}</section>"


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        if len(block.lines) == 1:
            return f"<p>{_text(block.lines[0])}</p>"
        return _list(block.lines)
    if isinstance(block, Folded):
        return f"<details><summary>{_text(block.line)}</summary>{_list(block.lines)}</details>"
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
    rows = "\n".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in block.rows)
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(block.caption)}"><table>'
        f"<caption>{_text(block.caption)}</caption><thead><tr>{headings}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>"


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    text = show_value(value)
    kind = f' data-key="{value!r}" class="number"'.replace("inf", "Infinity") if number else ""
    if len(text) >= _LONG_CHARACTERS:
        kind = ' class="long"'
    shown = _text(text)
    if isinstance(value, Link):
        shown = f'<a href="{_text(value.path)}">{shown}</a>'
    return f"<td{kind}>{shown}</td>"


def _text(text: str) -> str:
    return html.escape(text, quote=True)


_STYLE = """
:root{color-scheme:light dark;--ink:#1d2329;--soft:#5a6570;--line:#d5dbe1;--paper:#fff;--mark:#0072b2}
@media (prefers-color-scheme:dark){:root{
--ink:#e6eaee;--soft:#a3adb8;--line:#3a434c;--paper:#14181c;--mark:#56b4e9}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:64rem;margin:0 auto;padding:1.2rem}
h1{font-size:1.6rem;line-height:1.25}h2{font-size:1.15rem;margin-top:2.2rem}
p,li{max-width:46rem;overflow-wrap:anywhere}
figure{margin:1rem 0}figure img{max-width:100%;height:auto;background:#fff;border-radius:4px}
/* On a phone a figure scrolls: shrunk, its words could not be read. */
@media (max-width:40rem){figure img{max-width:none}}
summary{max-width:46rem;cursor:pointer}
figcaption,caption{color:var(--soft);font-size:.9rem;text-align:left}caption{padding:.3rem 0}
.wide{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.25rem .6rem;text-align:left;white-space:nowrap}
td.number{text-align:right}td.long{white-space:normal;min-width:16rem}
a{color:var(--mark)}
th button{font:inherit;font-weight:600;color:inherit;background:none;border:0;padding:.2rem 0;cursor:pointer}
th button::after{content:" \\2195";color:var(--soft)}
th[aria-sort=ascending] button::after{content:" \\2191"}th[aria-sort=descending] button::after{content:" \\2193"}
:focus-visible{outline:2px solid var(--mark);outline-offset:2px}
"""

_SCRIPT = """
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, row = heading.parentElement, table = heading.closest("table");
    const column = [...row.children].indexOf(heading);
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of row.children) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const cell = tr => tr.children[column], key = tr => cell(tr).dataset.key, blank = tr => !cell(tr).textContent;
    const compare = (a, b) => key(a) !== undefined && key(b) !== undefined ? key(a) - key(b)
      : (key(b) !== undefined) - (key(a) !== undefined) || cell(a).textContent.localeCompare(cell(b).textContent);
    const body = table.tBodies[0];
    // Blank cells stay last, whichever way.
    body.append(...[...body.rows].sort((a, b) => blank(a) - blank(b) || (down ? compare(b, a) : compare(a, b))));
  });
}
"""
