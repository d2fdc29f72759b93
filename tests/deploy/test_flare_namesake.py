"""A party whose folder was copied and started elsewhere hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.deploy.flare.namesake import LogWatch

TIMEOUT = (
    "2026-11-17 05:51:49,970 - CoreCell - WARNING - [ME=silo-1 O=? D=server F=? T=? CH=task TP=heart_beat SCH=? "
    "STP=? SEQ=?] timeout on Request af18e6ca for ['heart_beat'] after 30.0 secs\n"
)
REFUSED = "2026-11-17 05:51:46,463 - Communicator - WARNING - get_task request authentication failed.\n"
SERVER_IS_GONE = (
    "2026-11-17 05:55:50,087 - Communicator - WARNING - Failed to get_task from server. Will try it again.\n"
    "2026-11-17 05:55:50,371 - CoreCell - WARNING - [ME=silo-2 CH=task TP=heart_beat] no connection to server\n"
)


@pytest.mark.parametrize("sign", [TIMEOUT, REFUSED])
def test_signs_of_another_process_under_the_name_are_seen_once_each(tmp_path: Path, sign: str) -> None:
    log = tmp_path / "log.txt"
    log.write_text(sign)
    # What was in the log before the start is of no interest.
    watch = LogWatch(log)
    assert not watch.sees_namesake()
    with log.open("a") as file:
        file.write(SERVER_IS_GONE + sign[:30])
    assert not watch.sees_namesake()
    with log.open("a") as file:
        file.write(sign[30:])
    assert watch.sees_namesake()
    assert not watch.sees_namesake()


def test_a_log_that_is_not_there_yet_says_nothing(tmp_path: Path) -> None:
    watch = LogWatch(tmp_path / "log.txt")
    assert not watch.sees_namesake()
    (tmp_path / "log.txt").write_text(TIMEOUT)
    assert watch.sees_namesake()
