"""The rooms depend downwards only, and as the table of docs/architecture.md says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tacit

SOURCE = Path(tacit.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "architecture.md"
EVERYONES = {"errors", "state", "_deferred", "_version"}
PARTS = {"federation_checks": "federation", "federation_constructors": "federation"}
"""Files beside the rooms that belong to one of them."""


@cache
def _table() -> dict[str, set[str]]:
    """Which rooms each room may use, as the page says it."""
    text = PAGE.read_text().partition("| room | uses |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    direct: dict[str, set[str]] = {}
    inherits: dict[str, set[str]] = {}
    for rooms, uses in rows:
        named = set(re.findall(r"`([a-z_]+)`", re.sub(r"\([^)]*\)", "", uses)))
        for room in re.findall(r"`([a-z_]+)`", rooms):
            direct[room] = named
            inherits[room] = named if re.search(r"and what (it|they) uses?", uses) else set()
    for room in direct:
        for other in list(inherits[room]):
            direct[room] |= _closure(other, direct, inherits)
    return direct


def _closure(room: str, direct: dict[str, set[str]], inherits: dict[str, set[str]]) -> set[str]:
    found = set(direct.get(room, ()))
    for other in inherits.get(room, ()):
        found |= _closure(other, direct, inherits)
    return found


def _imports(path: Path, *, at_the_top: bool = False) -> Iterator[str]:
    """The rooms that a file imports, those for type checkers alone left out."""
    tree = ast.parse(path.read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in tree.body if at_the_top else ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "tacit":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit."):
            yield (node.module or "").split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("tacit."))


@cache
def _rooms() -> dict[str, list[Path]]:
    rooms: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        rooms.setdefault(PARTS.get(first, first), []).append(path)
    return {room: paths for room, paths in rooms.items() if room not in {"__init__", "__main__", *EVERYONES}}


@pytest.mark.parametrize("room", sorted(set(_rooms()) - {"cli"}))
def test_a_room_uses_what_the_page_says(room: str) -> None:
    allowed = _table()[room] | EVERYONES | {room}
    for path in _rooms()[room]:
        used = {PARTS.get(name, name) for name in _imports(path)}
        assert used <= allowed, f"{path.relative_to(SOURCE)} uses {used - allowed}"


def test_every_room_is_on_the_page() -> None:
    assert set(_rooms()) == set(_table())


def test_no_room_depends_on_itself_through_others() -> None:
    """The constructors of a federation ask `data`, from inside: that is the one way up."""
    table = {room: set(uses) for room, uses in _table().items()}
    table["federation"].discard("data")
    done: set[str] = set()
    while len(done) < len(table):
        ready = {room for room, uses in table.items() if room not in done and uses - EVERYONES <= done}
        assert ready, f"a cycle among {set(table) - done}"
        done |= ready
    for name in ("federation.py", "federation_constructors.py"):
        assert "data" not in set(_imports(SOURCE / name, at_the_top=True))
