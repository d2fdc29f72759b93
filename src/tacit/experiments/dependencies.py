"""A digest of the code that a result depends on: a module and everything in tacit that it imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from tacit.engine.identity import ROOT, code_digest


@lru_cache(maxsize=64)
def imports_digest(source: Path, root: Path = ROOT) -> str:
    """Changes whenever the source file does, or any module below `root` that it imports, directly or indirectly.

    Imports inside functions count. Modules found only by name at run time do not.

    >>> imports_digest(ROOT / "errors.py") != imports_digest(ROOT / "schedules.py")
    True
    """
    return code_digest(sources(source, root), root)


def sources(source: Path, root: Path = ROOT) -> set[Path]:
    """The source file and all files below `root` that it imports, directly or indirectly."""
    seen: set[Path] = set()
    waiting = {source}
    while waiting:
        path = waiting.pop()
        seen.add(path)
        waiting |= _imported(path, root) - seen
    return seen


@lru_cache(maxsize=1024)
def _imported(path: Path, root: Path) -> frozenset[Path]:
    """The sources that a file imports; `from a import b` includes the module a.b, if there is one."""
    names: set[str] = set()
    for node in _statements(ast.parse(path.read_bytes()).body):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.split(".") for name in names if name.split(".")[0] == root.name]
    places = [root.joinpath(*rest) for _, *rest in parts]
    files = [place / "__init__.py" if place.is_dir() else place.with_suffix(".py") for place in places]
    return frozenset(file for file in files if file.is_file())


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """These statements and all within them. Imports are no part of expressions, of which there are far more."""
    for one in body:
        yield one
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(one, name, ()))
        for part in (*getattr(one, "handlers", ()), *getattr(one, "cases", ())):
            yield from _statements(part.body)
