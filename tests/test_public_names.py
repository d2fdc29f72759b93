"""The names that a user can reach: all algorithms, all parts, documented, with what the docs say about them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests import consumer

import tacit
from tacit.algorithms.registry import ALGORITHMS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", tacit.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(tacit, name) is not None
    assert name in dir(tacit)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sotariafl'"):
        _ = tacit.sotariafl  # type: ignore[attr-defined]


def test_every_algorithm_is_a_public_name() -> None:
    for entry in ALGORITHMS.values():
        assert getattr(tacit, entry.make.__name__) is entry.make


def _subclasses_by_shape(protocol: type, homes: str) -> list[type]:
    """The public classes of a room that have all members of a protocol."""
    members = {name for name in vars(protocol) if not name.startswith("_")} | set(protocol.__annotations__)
    room = importlib.import_module(homes)
    found = []
    for path in sorted(Path(str(room.__file__)).parent.glob("*.py")):
        module = importlib.import_module(f"{homes}.{path.stem}") if path.stem != "__init__" else room
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind.__module__ == module.__name__ and kind is not protocol:
                fields = set(getattr(kind, "__dataclass_fields__", {}))
                if not kind.__name__.startswith("_") and members <= fields | set(dir(kind)):
                    found.append(kind)
    return found


@pytest.mark.parametrize(
    ("protocol", "home"),
    [
        (tacit.Bound, "tacit.client"),
        (tacit.Estimator, "tacit.client"),
        (tacit.Work, "tacit.client"),
        (tacit.ServerUpdate, "tacit.server"),
        (tacit.Participation, "tacit.server"),
        (tacit.Trust, "tacit.algorithms"),
    ],
)
def test_every_part_of_a_kind_is_a_public_name(protocol: type, home: str) -> None:
    kinds = _subclasses_by_shape(protocol, home)
    assert len(kinds) >= 3
    assert {kind.__name__ for kind in kinds} <= set(tacit.__all__)


def test_importing_tacit_waits_for_no_library() -> None:
    heavy = "[m for m in ('torch', 'numpy', 'scipy', 'sklearn', 'dp_accounting', 'typer') if m in sys.modules]"
    told = subprocess.run(
        [sys.executable, "-c", f"import sys, tacit; dir(tacit); print({heavy})"], capture_output=True, text=True
    )
    assert told.stdout.strip() == "[]", told.stderr


def test_a_users_code_runs() -> None:
    """`consumer.py` is type-checked beside the package; here it is run."""
    run = consumer.trained()
    assert run.guarantee is not None
    assert run.guarantee.epsilon <= 8
    model = tacit.models.softmax_regression(features=4, classes=2)
    assert [algorithm.name for algorithm in consumer.others(model)][:2] == ["fed-spa", "dp-fed"]


def _code(page: str, chapter: str) -> list[str]:
    """The Python blocks of a chapter, without the indent of the list that they stand in."""
    text = (ROOT / page).read_text()
    body = text.split(f"\n## {chapter}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```$", body, re.M | re.S)
    return [re.sub(rf"^{indent}", "", code, flags=re.M) for indent, code in blocks]


def test_the_chapter_on_new_algorithms_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.algorithms.registry.ALGORITHMS", dict(ALGORITHMS))
    blocks = _code("docs/architecture.md", "How a new algorithm is added")
    assert len(blocks) >= 4
    chapter = ModuleType("chapter")
    monkeypatch.setitem(sys.modules, "chapter", chapter)
    for block in blocks:
        exec(compile(block, "docs/architecture.md", "exec"), chapter.__dict__)
    assert chapter.run.algorithm.name == "averaged-sgd"
    assert chapter.run.guarantee.epsilon <= 8


def test_the_python_of_the_readme_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, *_ = _code("README.md", "In Python")
    names: dict[str, Any] = {}
    exec(compile(first.replace("rounds=100", "rounds=5"), "README.md", "exec"), names)
    assert names["run"].guarantee.epsilon <= 8
    assert (tmp_path / "run.png").is_file()
    assert (tmp_path / "runs" / "mine" / "summary.json").is_file()


@pytest.mark.parametrize("name", [name for name in tacit.__all__ if inspect.isfunction(getattr(tacit, name))])
def test_every_parameter_of_a_public_function_is_documented(name: str) -> None:
    function = getattr(tacit, name)
    args = (inspect.getdoc(function) or "").partition("Args:\n")[2]
    named = re.findall(r"^    (\w+(?:, \w+)*): \S", args, re.M)
    documented = {word for line in named for word in line.split(", ")}
    assert documented == set(inspect.signature(function).parameters)


PROTOCOLS = (tacit.Model, tacit.Sampling, tacit.Noise, tacit.Trust)
DOCUMENTED_BY_PROTOCOL = {
    name
    for kind in PROTOCOLS
    for name, member in vars(kind).items()
    if isinstance(member, property) and member.__doc__
}


def _documented_fields(kind: type) -> set[str]:
    """Fields with a string below them, and names that the docstring explains."""
    (body,) = (node for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    lines = zip(body.body, body.body[1:], strict=False)
    below = {
        line.target.id
        for line, text in lines
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(text, ast.Expr)
    }
    explained = re.findall(r"`(\w+)`|^ *(\w+) ?: \S", kind.__doc__ or "", re.M)
    return below | {name for pair in explained for name in pair}


@pytest.mark.parametrize("name", [name for name in tacit.__all__ if is_dataclass(getattr(tacit, name))])
def test_every_field_of_a_public_class_is_documented(name: str) -> None:
    kind = getattr(tacit, name)
    mine = [base for base in kind.__mro__ if base.__module__.startswith("tacit")]
    documented = DOCUMENTED_BY_PROTOCOL.union(*(_documented_fields(base) for base in mine))
    assert {field.name for field in fields(kind) if field.init} <= documented


def test_the_stub_has_one_name_a_line() -> None:
    """What `tacit` reads line by line is what a type checker reads."""
    stub = ast.parse(Path(str(tacit.__file__)).with_suffix(".pyi").read_text())
    names = [alias for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert [alias.asname for alias in names] == [alias.name for alias in names] == list(tacit.__all__)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_defaults(name: str) -> None:
    """`tacit.<name>(model)` is an algorithm that can be planned, whatever is left open."""
    entry = ALGORITHMS[name]
    federation = tacit.load("digits", clients=4, unit_norm=True)
    algorithm = getattr(tacit, entry.make.__name__)(tacit.build_model("softmax", federation))
    assert algorithm.name == name
    privacy: Any = tacit.Target(epsilon=8, delta=1e-5) if entry.private else "none"
    plan = tacit.plan(algorithm, federation, rounds=2, privacy=privacy)
    assert tacit.simulate(plan).history.rows[-1].round == 2
