"""The ledger keeps what was committed, forgets what was not, and shows what was changed."""

from __future__ import annotations

import json
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import DataError
from tacit.privacy import Target, accounting
from tacit.privacy.events import composed, gaussian, inexact_noise, non_private, repeated, to_dict
from tacit.privacy.ledger import Ledger, LedgerBusyError, affords, read_export


def _opened(run: str) -> dict[str, Any]:
    return {"kind": "open", "run": run}


def _release(run: str, releases: int, noise_multiplier: float = 10.0) -> dict[str, Any]:
    event = to_dict(repeated(gaussian(noise_multiplier), releases))
    return {"kind": "release", "run": run, "round": releases - 1, "releases": releases, "event": event}


def _filled(path: Path, releases: int = 3) -> Ledger:
    ledger = Ledger(path)
    for count in range(releases):
        with ledger.page() as page:
            if count == 0:
                page.append(_opened("a"))
            page.append(_release("a", count + 1))
            page.commit()
    return ledger


def test_committed_lines_are_there_for_the_next_process_and_others_are_not(disk: Path) -> None:
    ledger = _filled(disk / "ledger")
    with ledger.page() as page:
        page.append(_release("a", 4))
    with Ledger(disk / "ledger").page() as page:
        run = page.account.run("a")
    assert run is not None
    assert run.releases == 3
    assert page.account.lines == 4


def test_only_its_owner_can_read_it(disk: Path) -> None:
    _filled(disk / "ledger")
    assert stat.S_IMODE((disk / "ledger").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", ["synchronous", "journal_mode"])
def test_it_is_written_through_to_the_disk(disk: Path, mode: str) -> None:
    with _filled(disk / "ledger").page() as page:
        (value,) = page.connection.execute(f"PRAGMA {mode}").fetchone()
    assert value == {"synchronous": 3, "journal_mode": "delete"}[mode]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE lines SET body = replace(body, '10.0', '99.0') WHERE number = 3",
        "UPDATE lines SET hash = substr(hash, 2) || '0' WHERE number = 2",
        "DELETE FROM lines WHERE number = 4",
        "DELETE FROM lines WHERE number = 2",
        "UPDATE head SET lines = 3",
        "DELETE FROM head",
        "INSERT INTO lines SELECT 5, body, hash FROM lines WHERE number = 4",
    ],
)
def test_an_edited_removed_or_inserted_line_shows(disk: Path, change: str) -> None:
    _filled(disk / "ledger")
    connection = sqlite3.connect(disk / "ledger")
    connection.execute(change)
    connection.commit()
    connection.close()
    with pytest.raises(DataError):
        Ledger(disk / "ledger")


def test_lines_that_go_missing_while_it_runs_show_too(disk: Path) -> None:
    ledger = _filled(disk / "ledger")
    (disk / "ledger").unlink()
    with pytest.raises(DataError), ledger.page():
        pass


def test_releases_are_counted_without_gaps_and_runs_opened_once(disk: Path) -> None:
    ledger = _filled(disk / "ledger")
    for line in (_release("a", 5), _release("a", 3), _release("b", 1), _opened("a"), {"kind": "x", "run": "a"}):
        with ledger.page() as page, pytest.raises(DataError):
            page.append(line)


def test_somebody_elses_file_is_refused(disk: Path) -> None:
    (disk / "ledger").write_bytes(b"not a database, but long enough to be looked at" * 40)
    with pytest.raises(DataError, match="not a ledger"):
        Ledger(disk / "ledger")


def test_two_processes_cannot_write_at_once(disk: Path) -> None:
    _filled(disk / "ledger")
    first, second = Ledger(disk / "ledger"), Ledger(disk / "ledger", busy_seconds=0.0)
    with first.page(), pytest.raises(LedgerBusyError), second.page():
        pass


def test_an_export_has_the_same_account_and_its_chain_is_checked(disk: Path) -> None:
    ledger = _filled(disk / "ledger")
    content = ledger.export()
    with ledger.page() as page:
        assert read_export(content) == page.account
    lines = content.splitlines(keepends=True)
    edited = json.loads(lines[1])
    edited["body"] = edited["body"].replace("10.0", "11.0")
    for wrong in (lines[1:], [lines[0], json.dumps(edited).encode()], [b"{}\n"], [b"\xff\n"]):
        with pytest.raises(DataError):
            read_export(b"".join(wrong))


def test_the_budget_is_that_of_all_runs_together(disk: Path) -> None:
    ledger = _filled(disk / "ledger", releases=4)
    alone, more = repeated(gaussian(10.0), 4), repeated(gaussian(10.0), 5)
    both = accounting.epsilon(composed([alone, more]), 1e-5)
    with ledger.page() as page:
        page.append(_opened("b"))
        assert affords(Target(both, 1e-5), page.account, "b", more, more)
        assert not affords(Target(both * 0.999, 1e-5), page.account, "b", more, more)
        # What a run spends replaces what it had spent before, and leaves the other runs as they are.
        assert affords(Target(accounting.epsilon(more, 1e-5), 1e-5), page.account, "a", more, more)
        assert affords(Target(both, 1e-5), page.account, "b", more, repeated(gaussian(10.0), 500))


def test_an_event_without_a_proof_is_not_afforded(disk: Path) -> None:
    ledger = _filled(disk / "ledger")
    for hopeless in (non_private(), composed([gaussian(0.1), inexact_noise(1e-9, 1e-12)])):
        with ledger.page() as page:
            assert not affords(Target(1e9, 1e-5), page.account, "a", hopeless, hopeless)
