"""The protocols of docs/architecture.md are those of the code: the same members with the same parameters."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import tacit

SOURCE = Path(tacit.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "architecture.md"
Members = dict[str, tuple[str, ...]]
"""A protocol's members, each with its parameters; none for attributes."""


@cache
def _on_the_page() -> dict[str, Members]:
    block = PAGE.read_text().partition("## The parts, as signatures")[2].partition("```python\n")[2]
    block = block.partition("```")[0].partition("@dataclass")[0]
    # Signatures are written without a body.
    code = re.sub(r"\s*#.*$", "", block, flags=re.M)
    code = re.sub(r"(?m)^(    def (?:[^\n]|\n            )*?-> [^\n]+)$", r"\1: ...", code)
    return {one.name: _members(one) for one in ast.parse(code).body if isinstance(one, ast.ClassDef)}


@cache
def _in_the_code() -> dict[str, Members]:
    return {
        one.name: _members(one)
        for path in SOURCE.rglob("*.py")
        for one in ast.parse(path.read_text()).body
        if isinstance(one, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in one.bases)
    }


def _members(protocol: ast.ClassDef) -> Members:
    found: Members = {}
    for one in protocol.body:
        if isinstance(one, ast.AnnAssign):
            found[ast.unparse(one.target)] = ()
        elif isinstance(one, ast.FunctionDef):
            read_only = any(ast.unparse(decorator) == "property" for decorator in one.decorator_list)
            named = [*one.args.args, *one.args.kwonlyargs][1:]
            found[one.name] = () if read_only else ("(", *(argument.arg for argument in named))
    return found


@pytest.mark.parametrize("protocol", _on_the_page())
def test_the_page_has_the_protocol_as_it_is(protocol: str) -> None:
    assert _on_the_page()[protocol] == _in_the_code()[protocol]


def _imported(path: Path) -> set[str]:
    """The modules of tacit that a file imports, anywhere in it."""
    names = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.ImportFrom)]
    return {one.module or "" for one in names} | {f"{one.module}.{a.name}" for one in names for a in one.names}


def test_from_the_command_to_the_noise_every_file_calls_the_next() -> None:
    text = PAGE.read_text().partition("### From `tacit run` to the noise")[2].partition("\n## ")[0]
    for line in text.split("\n- ")[1:]:
        files = re.findall(r"`([a-z_/]+\.py)`", line)
        assert len(files) > 4
        for one, following in pairwise(files):
            module = "tacit." + following.removesuffix(".py").replace("/", ".")
            # The round calls a work through its protocol.
            work = {"tacit.client.private_gradient"} if one == "engine/round.py" else set()
            reached = _imported(SOURCE / one) | work
            assert module in reached, f"{one} does not import {following}"
