"""What the Tab key offers as the value of an option.

Names are read from the source of the tables that define them: importing those takes seconds (PyTorch), and
nobody waits that long for a key.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
FILES = (".csv", ".parquet", ".npz", ".svmlight")
"""Kinds of files that `--data` takes."""


def algorithms(incomplete: str) -> list[str]:
    """Algorithms; after a comma, another one."""
    return _another(incomplete, ",", _names("algorithms/registry.py", "ALGORITHMS"))


def models(incomplete: str) -> list[str]:
    """Models, and the beginning of one's own."""
    return _begins(incomplete, [*_names("models/registry.py", "MODELS"), "module:"])


def data(incomplete: str) -> list[str]:
    """Data sets, folders, and files that can be read; after a comma, another one."""
    typed = Path(incomplete.rpartition(",")[2])
    folder = typed if incomplete.endswith("/") else typed.parent
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    own = [f"{path}/" if path.is_dir() else str(path) for path in found if path.is_dir() or path.suffix in FILES]
    return _another(incomplete, ",", [*_names("data/datasets.py", "DATASETS"), "quadratic", *own])


def partitions(incomplete: str) -> list[str]:
    """Partitions; a colon follows where there is an argument."""
    table = _table("data/partition.py", "PARTITIONERS")
    return _begins(incomplete, [name + ":" * ("Argument" in ast.dump(value)) for name, value in table])


def compressors(incomplete: str) -> list[str]:
    """Compressors, as examples; after a plus sign, another one."""
    examples = [ast.literal_eval(value) for _, value in _table("compress/parse.py", "_EXAMPLES")]
    return _another(incomplete, "+", examples)


def benches(incomplete: str) -> list[str]:
    """Tasks of `tacit bench`."""
    return _begins(incomplete, _names("bench/registry.py", "BENCHES"))


def mechanisms(incomplete: str) -> list[str]:
    """Mechanisms whose labels `tacit check-label` knows."""
    return _begins(incomplete, _names("privacy/labels/__init__.py", "MECHANISMS"))


def experiments(incomplete: str) -> list[str]:
    """Experiments of `tacit reproduce`, in which a name is the first argument of each entry."""
    found = []
    for file in sorted((PACKAGE / "experiments").glob("*.py")):
        entries = getattr(_assigned(file, "EXPERIMENTS"), "elts", [])
        found += [ast.literal_eval(one.args[0]) for one in entries]
    return _begins(incomplete, found)


def samplings(incomplete: str) -> list[str]:
    """How batches are drawn."""
    return _begins(incomplete, [*_names("client/sampling.py", "SAMPLINGS"), "full"])


def papers(incomplete: str) -> list[str]:
    """Papers whose labels `tacit account --published` knows."""
    return _begins(incomplete, _names("theory/published/papers.py", "PAPERS"))


def words(*choices: str) -> Callable[[str], list[str]]:
    """A fixed choice."""
    return lambda incomplete: _begins(incomplete, choices)


def _begins(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _another(incomplete: str, separator: str, names: Iterable[str]) -> list[str]:
    before, between, last = incomplete.rpartition(separator)
    return [before + between + name for name in _begins(last, names)]


def _names(file: str, table: str) -> list[str]:
    return [name for name, _ in _table(file, table)]


def _table(file: str, table: str) -> Iterator[tuple[str, ast.expr]]:
    """The entries of a module's dictionary, by their names."""
    found = _assigned(PACKAGE / file, table)
    if isinstance(found, ast.Dict):
        for key, entry in zip(found.keys, found.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), entry


def _assigned(file: Path, name: str) -> ast.expr | None:
    """What a module assigns to a name."""
    text = file.read_text()
    for node in ast.parse(text).body if name in text else []:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return getattr(node, "value", None)
    return None
