"""The digest of the code follows imports, and nothing but tacit's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.experiments import dependencies
from tacit.experiments.dependencies import ROOT, imports_digest, sources

MODULES = {
    "__init__.py": "",
    "work.py": "from toy.near import helper\nimport math\n",
    "near.py": "def helper():\n    from toy import far\n    return far\n",
    "far.py": "X = 1\n",
    "stranger.py": "Y = 1\n",
}


@pytest.mark.parametrize(
    ("edited", "counts"), [("work", True), ("near", True), ("far", True), ("stranger", False)]
)
def test_an_edit_changes_the_digest_of_who_imports_it(tmp_path: Path, edited: str, counts: bool) -> None:
    root = tmp_path / "toy"
    root.mkdir()
    for name, text in MODULES.items():
        (root / name).write_text(text)
    before = imports_digest(root / "work.py", root)
    (root / f"{edited}.py").write_text(MODULES[f"{edited}.py"] + "# edited\n")
    imports_digest.cache_clear()
    dependencies._imported.cache_clear()
    assert (imports_digest(root / "work.py", root) != before) is counts


def test_an_experiment_depends_on_the_simulator_and_not_on_the_pages() -> None:
    names = {str(path.relative_to(ROOT)) for path in sources(ROOT / "experiments" / "soteriafl_runs.py")}
    assert {"engine/simulate.py", "privacy/accountant/accounting.py", "experiments/soteriafl_runs.py"} <= names
    assert "report/page.py" not in names
