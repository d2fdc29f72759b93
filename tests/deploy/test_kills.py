"""Parties in one process that die at any moment: every message is charged, once, and within the policy."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tacit.deploy import ledger, silo_rounds

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def kills() -> Iterator[ModuleType]:
    """`benchmarks/kills.py`."""
    sys.path.insert(0, str(BENCHMARKS))
    logging.disable()
    try:
        spec = importlib.util.spec_from_file_location("kills", BENCHMARKS / "kills.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up.
        sys.modules["kills"] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        logging.disable(logging.NOTSET)
        sys.path.remove(str(BENCHMARKS))
        sys.modules.pop("kills", None)


def test_eighty_kills_over_eight_kinds_of_runs(kills: ModuleType) -> None:
    done = kills.in_process(80, seed=1, chance=0.03, a_run=10)
    assert done["kills"] == 80
    assert done["runs"] >= len(kills.SCENARIOS)
    assert done["wrong"] == {}
    assert {who.partition(" ")[0] for who in done["moments"]} >= {"server", "silo"}
    assert len(done["moments"]) >= 12, done["moments"]


def _forgetful(page: Any) -> None:
    """A ledger that does not write down what is about to leave."""
    page.connection.execute("ROLLBACK")


def _drawing_again(honest: Any) -> Any:
    """A silo that answers a round that it has answered before with other bytes."""

    def again(self: Any, asked: Any, *others: Any) -> Any:
        return replace(honest(self, asked, *others), message=b"other bytes")

    return again


def test_a_ledger_that_forgets_is_found_out(kills: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger.Page, "commit", _forgetful)
    assert kills.in_process(3, seed=1)["wrong"]["uncharged"] > 0


def test_a_second_draw_is_found_out(kills: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silo_rounds.SiloRounds, "_again", _drawing_again(silo_rounds.SiloRounds._again))
    wrong = kills.in_process(20, seed=1, chance=0.1)["wrong"]
    assert wrong["charged twice"] > 0
    assert wrong["uncharged"] > 0
