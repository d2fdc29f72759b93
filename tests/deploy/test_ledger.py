"""The ledger keeps what was committed, forgets what was not, and shows what was changed."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.deploy.ledger import Ledger, LedgerBusyError, read_account
from tacit.deploy.ledger_account import read_export
from tacit.errors import DataError, RequestError
from tacit.privacy.events import gaussian, repeated, to_dict


def _opened(run: str, planned: int = 5) -> dict[str, Any]:
    event = to_dict(repeated(gaussian(10.0), planned))
    return {"kind": "open", "run": run, "event": event, "rounds_planned": planned}


def _release(run: str, releases: int) -> dict[str, Any]:
    return {"kind": "release", "run": run, "round": releases - 1, "releases": releases, "point": "10.0"}


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
    unsound = {**_opened("b"), "event": {"kind": "gaussian", "noise_multiplier": -1.0}}
    for line in (
        _release("a", 5),
        _release("a", 3),
        _release("b", 1),
        _opened("a"),
        unsound,
        {"kind": "x", "run": "a"},
    ):
        with ledger.page() as page, pytest.raises(RequestError):
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


def test_a_byte_that_is_no_text_is_a_damaged_ledger_and_not_a_traceback(disk: Path) -> None:
    _filled(disk / "ledger")
    connection = sqlite3.connect(disk / "ledger")
    connection.execute("UPDATE lines SET body = CAST(x'ff' || body AS TEXT) WHERE number = 2")
    connection.commit()
    connection.close()
    with pytest.raises(DataError, match="damaged") as refused:
        Ledger(disk / "ledger")
    assert "Restore the ledger" in str(refused.value)


def test_any_damaged_byte_is_found_or_harmless(disk: Path) -> None:
    _filled(disk / "ledger")
    content = (disk / "ledger").read_bytes()
    with Ledger(disk / "ledger").page() as page:
        whole = page.account
    generator = np.random.default_rng(0)
    found = 0
    for place in generator.permutation(len(content))[:400]:
        damaged = bytearray(content)
        damaged[place] = 0xFF if damaged[place] != 0xFF else 0x00
        (disk / "ledger").write_bytes(damaged)
        try:
            with Ledger(disk / "ledger", busy_seconds=0.0).page() as page:
                assert page.account == whole
        except DataError:
            found += 1
    assert found > 10


@pytest.mark.parametrize("length", [0, 100, 4096, 10_000])
def test_a_ledger_that_was_cut_is_not_taken_for_a_new_one(disk: Path, length: int) -> None:
    _filled(disk / "ledger")
    os.truncate(disk / "ledger", length)
    with pytest.raises(DataError, match="Restore the ledger"):
        Ledger(disk / "ledger")


def test_a_ledger_of_another_version_is_refused_with_the_way_out(disk: Path) -> None:
    _filled(disk / "ledger")
    connection = sqlite3.connect(disk / "ledger")
    connection.execute("PRAGMA user_version = 0")
    connection.close()
    with pytest.raises(DataError, match="another version of tacit"):
        Ledger(disk / "ledger")


def test_a_ledger_that_cannot_be_written_says_so(disk: Path) -> None:
    ledger = _filled(disk / "ledger")
    with pytest.raises(DataError, match="cannot be written"):
        Ledger(disk / "ledger" / "below")
    (disk / "ledger").unlink()
    with pytest.raises(DataError, match="is gone"), ledger.page():
        pass
    assert not (disk / "ledger").exists()


def test_a_full_disk_is_told_as_one_and_leaves_the_lines_that_were_there(disk: Path) -> None:
    ledger = _filled(disk / "ledger")
    with ledger.page() as page:
        (pages,) = page.connection.execute("PRAGMA page_count").fetchone()
        page.connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DataError, match=r"cannot be written: .* full"):
            page.append(_release("a", 4) | {"note": "x" * 10**5})
    assert Ledger(disk / "ledger").export() == ledger.export()
    with ledger.page() as page:
        page.append(_release("a", 4))
        page.commit()


def test_a_ledger_can_be_looked_at_while_a_silo_is_at_work_on_it(disk: Path) -> None:
    ledger = _filled(disk / "ledger")
    with ledger.page() as page:
        page.append(_release("a", 4))
        assert read_account(disk / "ledger").lines == 4
        page.commit()
    assert read_account(disk / "ledger").lines == 5


def test_no_more_is_released_than_was_planned(disk: Path) -> None:
    ledger = _filled(disk / "ledger", releases=5)
    with ledger.page() as page, pytest.raises(DataError, match="does not follow"):
        page.append(_release("a", 6))
