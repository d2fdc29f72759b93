"""A value that is replaced in place: whatever a crash leaves of a write, the old value or the new one is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tacit.engine.slots import TwoSlots


def test_the_last_value_is_read_whatever_the_lengths(tmp_path: Path) -> None:
    slots = TwoSlots(tmp_path / "value")
    assert slots.read() == b""
    for value in (b"", b"one", b"two, which is longer", b"3", b"", b"four" * 1000, b"five"):
        slots.write(value)
        assert TwoSlots(tmp_path / "value").read() == value
    assert (tmp_path / "value").stat().st_mode & 0o777 == 0o600


def test_values_of_a_length_stay_in_one_file_that_is_not_replaced(tmp_path: Path) -> None:
    slots = TwoSlots(tmp_path / "value")
    slots.write(b"00")
    file = (tmp_path / "value").stat().st_ino
    for n in range(1, 9):
        slots.write(b"%02d" % n)
    assert (tmp_path / "value").stat().st_ino == file


@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_crash_at_any_byte_leaves_the_old_value_or_the_new_one(tmp_path: Path, before: int) -> None:
    """A write that is cut off after any number of bytes, or of which any one bit is lost."""
    slots, path = TwoSlots(tmp_path / "value"), tmp_path / "value"
    for n in range(before):
        slots.write(b"old %d" % n)
    old, intact = b"old %d" % (before - 1), path.read_bytes()
    slots.write(b"new 0")
    written = path.read_bytes()
    changed = [n for n in range(len(written)) if written[n] != intact[n]]
    for end in range(changed[0], changed[-1] + 1):
        path.write_bytes(written[:end] + intact[end:])
        assert slots.read() == old
        path.write_bytes(written[:end] + bytes([written[end] ^ 1]) + written[end + 1 :])
        assert slots.read() == old
        # What follows overwrites the damaged slot and not the intact one.
        slots.write(b"later")
        assert slots.read() == b"later"


def test_a_value_is_synced_before_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.engine import slots as module

    slots, synced = TwoSlots(tmp_path / "value"), list[bytes]()
    slots.write(b"first")

    def watch(handle: int) -> Any:
        synced.append(slots.read())
        return os.fsync(handle)

    monkeypatch.setattr(module, "_sync", watch)
    slots.write(b"again")
    assert synced == [b"again"]
