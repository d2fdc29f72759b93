"""Charts as inline SVG. They take their colours from the page, so they are readable in light, dark and print."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 360, 220
"""About as wide as a phone, so that the words are never shrunk."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 10, 22, 40
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
_COLOURS = 6
_LINE_CHARACTERS = 52
"""What fits on one line of a chart."""
MOST_ROWS = 60
"""The most rows of a chart of intervals."""


@dataclass(frozen=True)
class Line:
    """A named curve; `low` and `high` are a band around it, if there is one."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Interval:
    """A named number with its error bar, which it lacks without `low` and `high`; None is an unknown number."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None


def line_chart(lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """Curves over a common x axis, with a legend if there are several; points that are not finite are left out.

    >>> svg = line_chart([Line("a<b", [0, 10], [1.0, 0.5]), Line("c", [0, 10], [1.0, 0.8])], "rounds", "loss")
    >>> "a&lt;b" in svg, svg.count("<polyline"), 'text-anchor="end">10<' in svg
    (True, 4, True)
    """
    xs = [float(x) for line in lines for x in line.x]
    ys = [y for line in lines for band in (line.y, line.low or (), line.high or ()) for y in band]
    across, up = _ticks(xs), _ticks([y for y in ys if math.isfinite(y)])
    legend = len(lines) if len(lines) > 1 else 0
    height = _HEIGHT + 18 * legend

    def place(x: float, y: float) -> tuple[float, float]:
        right, top = _WIDTH - _RIGHT, _TOP
        return (
            _LEFT + (x - across[0]) / (across[-1] - across[0]) * (right - _LEFT),
            _HEIGHT - _BOTTOM - (y - up[0]) / (up[-1] - up[0]) * (_HEIGHT - _BOTTOM - top),
        )

    parts = [_text_at(4, 11, y_label, "start")]
    for tick in up:
        _, y = place(across[0], tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(_text_at(_LEFT - 6, y + 4, _number(tick), "end"))
    for tick in across:
        x, _ = place(tick, up[0])
        # Centred, a long number at the right end would be cut off.
        anchor = "end" if tick == across[-1] else "middle"
        parts.append(_text_at(x, _HEIGHT - _BOTTOM + 16, _number(tick), anchor))
    parts.append(_text_at((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label, "middle"))
    for index, line in enumerate(lines):
        kind = f'class="c{index % _COLOURS}"'
        if line.low is not None and line.high is not None:
            there = _points(place, line.x, line.high)
            back = _points(place, line.x, line.low)
            parts.append(f'<polygon {kind} points="{" ".join([*there, *reversed(back)])}"/>')
        dash = _DASHES[index % len(_DASHES)]
        drawn = " ".join(_points(place, line.x, line.y))
        parts.append(f'<polyline {kind} stroke-dasharray="{dash}" points="{drawn}"/>')
        if legend:
            y = _HEIGHT + 18 * index + 6
            parts.append(f'<polyline {kind} stroke-dasharray="{dash}" points="{_LEFT},{y} {_LEFT + 26},{y}"/>')
            parts.append(_text_at(_LEFT + 34, y + 4, line.name, "start"))
    return _svg(height, parts, f"{y_label} against {x_label}")


def interval_chart(rows: Sequence[Interval], label: str, *, fixed: tuple[float, float] | None = None) -> str:
    """One row for each number: its name, the number, and its error bar on a common scale.

    `fixed` is the scale's range if the numbers have one, such as 0 to 1. Rows beyond the first `MOST_ROWS` are
    left out.
    """
    rows = rows[:MOST_ROWS]
    ends = [end for row in rows for end in (row.value, row.low, row.high) if end is not None]
    scale = _ticks([*ends, *(fixed or ())])
    height = 40 * len(rows) + 34

    def place(value: float) -> float:
        return 8 + (value - scale[0]) / (scale[-1] - scale[0]) * (_WIDTH - 16)

    parts = []
    for tick in scale:
        x = place(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} 4V{height - 30}"/>')
        anchor = "start" if tick == scale[0] else "end" if tick == scale[-1] else "middle"
        parts.append(_text_at(x, height - 16, _number(tick), anchor))
    for index, row in enumerate(rows):
        y = 40 * index + 16
        shown = "unknown" if row.value is None else f"{row.value:.4g}"
        if row.low is not None and row.high is not None:
            shown += f" ({row.low:.3g} to {row.high:.3g})"
            parts.append(f'<path class="whisker" d="M{place(row.low):.1f} {y + 13}H{place(row.high):.1f}"/>')
        parts.append(_text_at(8, y, _fitted(row.name, _LINE_CHARACTERS - len(shown)), "start"))
        parts.append(_text_at(_WIDTH - 8, y, shown, "end"))
        if row.value is not None:
            parts.append(f'<circle cx="{place(row.value):.1f}" cy="{y + 13}" r="4.5"/>')
    return _svg(height, parts, label)


def _points(
    place: Callable[[float, float], tuple[float, float]], xs: Sequence[float], ys: Sequence[float]
) -> list[str]:
    pairs = (place(float(x), y) for x, y in zip(xs, ys, strict=True) if math.isfinite(y))
    return [f"{x:.1f},{y:.1f}" for x, y in pairs]


def _ticks(values: Sequence[float]) -> list[float]:
    """About four round numbers whose range holds all values.

    >>> _ticks([0.13, 0.87])
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> _ticks([3.0])
    [2.0, 2.5, 3.0, 3.5, 4.0]
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if not high > low:
        low, high = (low - 1, high + 1) if low else (0.0, 1.0)
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def _fitted(name: str, room: int) -> str:
    """A name in so many characters: both ends, because the end often tells names apart.

    >>> _fitted("accelerated-mb-sgd, epsilon 0.5", 26)
    'accelerated-mb-s…silon 0.5'
    """
    return name if len(name) <= room else f"{name[: room - 10]}…{name[-9:]}"


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.0e}".replace("e+0", "e")


def _text_at(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(height: int, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
