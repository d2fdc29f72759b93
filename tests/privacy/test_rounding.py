"""Whatever people read of a promise is rounded up, and whatever an audit found is rounded down."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import pytest

import tacit
from tacit.privacy.promises.rounding import MOST_DIGITS, at_least, round_down, round_up, up_to

SOURCES = Path(tacit.__file__).parent

ROUNDED = re.compile(r"epsilon|delta\b|\bclaimed|lower_bound|\bspending.left|\bneeded\b")
"""expressions that stand for an epsilon or a delta"""

GIVEN = re.compile(
    r"^(self|target|policy|privacy|clients|whole|recipe|report|spending\.policy)\.(epsilon|delta)$|^verdict\.claimed$"
    r"|^row\[.epsilon_budget.\]$|^asked"
)
"""numbers that a user typed: nothing is promised by rounding them to six digits"""

ELSEWHERE = ("experiments/", "bench/", "theory/", "privacy/accountant/")
"""labels of figures and of papers, and questions to the accountant, which are typed in, too"""


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (0.0, 0.0, 0.0),
        (1.0, 1.0, 1.0),
        (1.2341, 1.24, 1.23),
        (99.91, 100.0, 99.9),
        (math.inf, math.inf, math.inf),
    ],
)
def test_both_ways(value: float, up: float, down: float) -> None:
    assert round_up(value) == up
    assert round_down(value) == down


def test_text_never_understates_a_promise_nor_overstates_a_finding() -> None:
    for value in (1.9991, 2.0004, 0.123456, 1234.9, 1 / 3, 2.5e-6):
        for digits in (2, 3, 4, MOST_DIGITS):
            assert float(at_least(value, digits)) <= value <= float(up_to(value, digits))


def _fields(tree: ast.AST) -> list[tuple[str, str]]:
    """Expression and format of every number that an f-string rounds to the nearest digit."""
    return [
        (
            ast.unparse(node.value),
            "".join(str(part.value) for part in node.format_spec.values if isinstance(part, ast.Constant)),
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr)
    ]


def test_no_promise_is_rounded_to_the_nearest_digit() -> None:
    wrong = []
    for source in sorted(SOURCES.rglob("*.py")):
        place = source.relative_to(SOURCES).as_posix()
        if place.startswith(ELSEWHERE):
            continue
        for what, how in _fields(ast.parse(source.read_text())):
            if how[-1:] in ("g", "f", "e") and ROUNDED.search(what) and not GIVEN.search(what):
                wrong.append(f"{place}: {what}:{how}")
    assert wrong == []
