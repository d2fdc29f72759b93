"""What all tests share: where the real data sets lie, and how hypothesis behaves."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline, for machines that are busy; no database, so that a run leaves nothing behind. Every run of the
# tests draws other examples, so there are fewer of them than hypothesis would take.
settings.register_profile("tacit", deadline=None, database=None, max_examples=60)
settings.load_profile("tacit")

# The user's cache is left alone. All processes of one run of the tests share the accountant's answers, so that
# each is computed once; the accountant's own tests compute them all.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _ANSWERS = tempfile.TemporaryDirectory(prefix="tacit-tests-")
    os.environ["TACIT_CACHE"] = _ANSWERS.name


# Half a million objects come of the imports and the list of tests, and all of them stay. Looking through them for
# garbage again and again would take longer than many a room's tests. (The process that hands out tests collects
# none, so it would never turn it on again.)
if "PYTEST_XDIST_WORKER" in os.environ:
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is collected as ever, among what the tests make."""
    gc.freeze()
    gc.enable()
    # Comparing two tensors would import all of PyTorch's distributed tensors, for seconds; nobody compares those.
    if (comparison := sys.modules.get("torch.testing._comparison")) is not None:
        comparison.__dict__["_HAS_DTENSOR"] = False


FORKING = (
    "test_killed_at_any_moment",
    "test_a_killed_sweep",
    "test_a_run_keeps_to_its_memory_limit",
    "test_a_few_thousand_hostile_inputs",
    "test_a_million_rows",
    "test_several_processes_give_the_same",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of processes come first, and share the process that theirs are forks of.

    They wait more than they compute. Whatever takes long in one piece comes early, so that nobody waits for it in
    the end.
    """
    first = ("test_flare_faults", "test_examples", "test_flare_", "test_site", "test_together", *FORKING)
    items.sort(key=lambda item: next((k for k, name in enumerate(first) if name in item.nodeid), len(first)))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, but their files stay empty, because drawing takes longer than most tests."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **how: Path(path).touch())


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """A tacit data directory with the real data sets; tests that need it are skipped where there is none."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    place = Path(os.environ["TACIT_DATA"]) if os.environ.get("TACIT_DATA") else beside
    if not place.is_dir():
        pytest.skip("data directory not found: set TACIT_DATA")
    return place
