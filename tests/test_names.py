"""One spelling of names: a class, or a type's alias, is defined in one file."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import tacit

SOURCES = Path(tacit.__file__).parent

NAMESPACED = {
    # `o.Algorithm` is the option of the command line that names an algorithm, and so on.
    "cli/options.py",
}


def _defined(source: Path) -> list[str]:
    names = []
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            # Types are written in CamelCase, constants are not.
            names += [
                t.id for t in targets if isinstance(t, ast.Name) and t.id[0].isupper() and not t.id.isupper()
            ]
    return names


def _is_type(name: str) -> bool:
    """Types are written in CamelCase, constants are not."""
    return name[0].isupper() and not name.isupper()


def test_every_class_is_defined_once() -> None:
    homes = defaultdict(list)
    for source in sorted(SOURCES.rglob("*.py")):
        place = str(source.relative_to(SOURCES))
        if place not in NAMESPACED:
            for name in _defined(source):
                homes[name].append(place)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
