"""Every code has a cause and a way out, the same in the program and in the docs."""

from __future__ import annotations

from pathlib import Path

from tacit.deploy.advice import ADVICE, advice
from tacit.deploy.seam import Code

DOCS = Path(__file__).parents[2] / "docs" / "deploy-problems.md"


def test_every_code_has_its_advice_and_the_docs_have_the_same() -> None:
    assert set(ADVICE) == set(Code) - {Code.OK}
    table = "\n".join(f"| `{code}` | {one.cause} | {one.way_out} |" for code, one in ADVICE.items())
    assert table in DOCS.read_text(), f"put this table into {DOCS.name}:\n{table}"


def test_sites_with_the_same_problem_share_a_sentence() -> None:
    said = advice({"porto": Code.BUSY, "berlin": Code.FAILED, "lyon": Code.BUSY})
    assert said.startswith("berlin: failed (")
    assert "lyon, porto: busy (another process has locked its ledger): " in said
