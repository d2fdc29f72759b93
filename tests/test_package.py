"""The wheel and the source distribution: what they hold, and that the demonstration runs from the wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tacit

ROOT = Path(__file__).parents[1]
TAKEN = ("src", "tests", "docs", "README.md", "LICENSE", "pyproject.toml", "MANIFEST.in", "SECURITY.md",
         "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt", "conftest.py")  # fmt: skip
BUILD = "import setuptools.build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"


@pytest.mark.slow
def test_what_is_built_holds_everything_and_runs(tmp_path: Path) -> None:
    copy = tmp_path / "project"
    copy.mkdir()
    for name in TAKEN:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.png", "*.svg")
        source = ROOT / name
        shutil.copytree(source, copy / name, ignore=ignore) if source.is_dir() else shutil.copy(
            source, copy / name
        )
    subprocess.run([sys.executable, "-c", BUILD], cwd=copy, check=True, capture_output=True)
    (wheel,), (archive,) = (copy / "dist").glob("*.whl"), (copy / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"SECURITY.md", "CITATION.cff", "CHANGELOG.md", "tests/consumer.py", "docs/privacy.md"} <= inside
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        packed.extractall(tmp_path / "installed")
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "tacit").rglob("*.py")}
    assert modules | {"tacit/py.typed", "tacit/__init__.pyi"} <= names
    assert not any(name.startswith("tests") for name in names)
    done = subprocess.run(
        [sys.executable, "-m", "tacit", "run", "--rounds", "2", "--out", "run", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 < json.loads(done.stdout)["epsilon"] <= 8


def test_the_citation_names_this_version() -> None:
    assert f'version: "{tacit.__version__}"' in (ROOT / "CITATION.cff").read_text()
