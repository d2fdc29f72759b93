"""What may happen to a silo between two starts: other records, a lost ledger, a kill, a full disk, a copy."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.in_process import Death

from tacit.deploy.frames import Reply
from tacit.deploy.guard import admit
from tacit.deploy.ledger import Ledger
from tacit.deploy.ledger_account import Account
from tacit.deploy.seam import Code
from tacit.deploy.silo import Silo
from tacit.deploy.silo_memory import Fingerprint
from tacit.errors import DataError, TacitError
from tacit.federation import Federation
from tacit.privacy.accountant.filter import least_epsilon

ONE_PASS = {
    "algorithm": "noisy-mb-sgd", "sampling": "one-pass", "batch": 4, "projection": "none",
    "compressor": "leave out", "snapshot_probability": "leave out",
}  # fmt: skip
SAGA = {"algorithm": "soteriafl-saga", "snapshot_probability": "leave out"}


KILLS = 40


def _code(answer: bytes) -> Code:
    return Reply.decode(answer, body_limit=10_000).code


def _body(answer: bytes) -> bytes:
    return Reply.decode(answer, body_limit=10_000).body


def _account(directory: Path) -> Account:
    with Ledger(directory / "ledger.sqlite").page() as page:
        return page.account


def _silo(made: Any, features: torch.Tensor, targets: torch.Tensor) -> Silo:
    records = Federation.from_clients([(features, targets)], classes=2)
    terms = admit(made.job, made.policies["site-0"], "site-0", records)
    return Silo(terms, made.directory / "site-0", key=made.signing["site-0"])


def _permuted(features: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return features.flip(0), targets.flip(0)


def _one_bit(features: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    corrected = features.clone()
    corrected[7, 3] = torch.nextafter(corrected[7, 3], torch.tensor(9.0))
    return corrected, targets


def _one_label(features: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return features, torch.cat((1 - targets[:1], targets[1:]))


@pytest.mark.parametrize("change", [_permuted, _one_bit, _one_label])
@pytest.mark.parametrize("settings", [{}, SAGA, ONE_PASS], ids=["svrg", "saga", "one-pass"])
def test_a_run_goes_on_only_with_the_records_of_its_beginning(
    consortium: Callable[..., Any],
    settings: dict[str, Any],
    change: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = consortium(**settings, policy={"epsilon": 9.0})
    own = made.federation.client(0)
    first = made.silo("site-0").step(made.request(0))
    assert _code(first) is Code.OK
    silo = _silo(made, *change(own.features, own.targets))
    # Said when it starts, with the way out, and nothing of it to the server but a code.
    (told,) = caplog.messages
    assert "other records" in told
    assert "Corrected records can take part in a new run" in told
    for round in (0, 1):
        reply = Reply.decode(silo.step(made.request(round)), body_limit=10_000)
        assert reply == Reply(Code.STATE_LOST, "site-0", "0123456789abcdef" * 2, round)
    assert _account(made.directory / "site-0").lines == 2
    # In a new run they may take part, and the old one goes on when the old records are back.
    assert _code(silo.step(made.request(0, run="b" * 32))) is Code.OK
    caplog.clear()
    restored = _silo(made, own.features, own.targets)
    assert _body(restored.step(made.request(0))) == _body(first)
    assert _code(restored.step(made.request(1))) is Code.OK
    (told,) = caplog.messages
    assert "b" * 32 in told


def test_a_fingerprint_is_of_content_and_order_and_says_nothing_without_its_key() -> None:
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(5, 2, generator=generator), torch.tensor([0, 1, 1, 0, 1])
    records = Federation.from_clients([(features, targets)], classes=2)
    mark = Fingerprint.of(records)
    assert mark.matches(records)
    assert mark != Fingerprint.of(records)
    assert len(mark.key) == 32
    others = [
        (features.flip(0), targets.flip(0)),
        (features.reshape(5, 1, 2), targets),
        (features.double(), targets),
        (features, 1 - targets),
        (torch.cat((features, features[:1])), torch.cat((targets, targets[:1]))),
    ]
    for other, labels in others:
        dtype = other.dtype
        assert not mark.matches(Federation.from_clients([(other, labels)], classes=2, dtype=dtype))


def test_no_trace_of_the_records_is_in_ledger_certificate_or_answers(consortium: Callable[..., Any]) -> None:
    made = consortium()
    silo = made.silo("site-0")
    left = [silo.step(made.request(0)), silo.step(made.request(0, kind="certify"))]
    home = made.directory / "site-0"
    (memory,) = home.glob("runs/*/*.safetensors")
    line = _account(home).run("0123456789abcdef" * 2)
    assert line is not None
    assert line.last is not None
    mark = silo._home.memories("0123456789abcdef" * 2).read(0, line.last["memory"]).records
    assert mark.digest in memory.read_bytes()
    elsewhere = [path for path in home.rglob("*") if path.is_file() and path != memory]
    content = b"".join([*left, *(path.read_bytes() for path in elsewhere)])
    for secret in (mark.key, mark.digest):
        assert secret not in content
        assert secret.hex().encode() not in content


def _finished(made: Any) -> Path:
    silo = made.silo("site-0")
    assert [_code(silo.step(made.request(round))) for round in range(6)] == [Code.OK] * 6
    assert _code(silo.step(made.request(5, kind="certify"))) is Code.OK
    return Path(made.directory / "site-0")


def _truncate(path: Path) -> None:
    os.truncate(path, 0)


def _replace_with_a_new_one(path: Path) -> None:
    path.unlink()
    Ledger(path)


def _delete_all_lines(path: Path) -> None:
    connection = sqlite3.connect(path)
    first = hashlib.sha256(b"tacit-ledger-2").hexdigest()
    connection.execute("DELETE FROM lines")
    connection.execute("UPDATE head SET lines = 0, hash = ?", (first,))
    connection.commit()
    connection.close()


@pytest.mark.parametrize("lose", [_truncate, Path.unlink, _replace_with_a_new_one, _delete_all_lines])
@pytest.mark.parametrize("left", ["everything", "runs", "certificates", "released"])
def test_a_lost_ledger_does_not_count_as_new_beside_any_trace_of_a_run(
    consortium: Callable[..., Any], lose: Callable[[Path], None], left: str
) -> None:
    made = consortium()
    home = _finished(made)
    traces = ("runs", "certificates", "released")
    if left == "runs":
        # As many memories as a crash in the first round leaves would prove nothing beside a ledger without lines.
        shutil.copytree(home / "runs" / ("0123456789abcdef" * 2), home / "runs" / ("f" * 32))
    for name in traces:
        if left not in ("everything", name):
            shutil.rmtree(home / name) if (home / name).is_dir() else (home / name).unlink()
    lose(home / "ledger.sqlite")
    with pytest.raises(DataError, match="messages have left this silo") as refused:
        made.silo("site-0")
    assert "provision a new folder" in str(refused.value)


def test_a_silo_whose_first_round_never_reached_the_ledger_may_start_again(
    consortium: Callable[..., Any],
) -> None:
    made = consortium()
    home = made.directory / "site-0"

    def die(moment: str) -> None:
        if moment == "before ledger":
            raise Death

    for run in "abc":
        with pytest.raises(Death):
            made.silo("site-0", die).step(made.request(0, run=run * 32))
        assert len(list(home.glob("runs/*/*"))) == 1
    assert _code(made.silo("site-0").step(made.request(0))) is Code.OK


def test_the_mark_is_there_before_the_first_answer_leaves(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consortium()
    silo, mark = made.silo("site-0"), made.directory / "site-0" / "released"

    def full(*arguments: Any, **settings: Any) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tacit.deploy.home.write_atomically", full)
        assert [_code(silo.step(made.request(0))) for _ in range(2)] == [Code.FAILED] * 2
    assert not mark.exists()
    assert _account(made.directory / "site-0").lines == 2
    assert _code(silo.step(made.request(0))) is Code.OK
    assert mark.exists()


def test_a_full_disk_at_the_first_start_leaves_nothing_behind(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consortium()
    home = made.directory / "site-0"
    real = sqlite3.connect

    def small(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection = real(*arguments, **settings)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", small)
        with pytest.raises(TacitError, match="full"):
            made.silo("site-0")
    assert list(home.iterdir()) == []
    assert _code(made.silo("site-0").step(made.request(0))) is Code.OK


WATCHED = (
    "deploy/silo.py",
    "deploy/silo_rounds.py",
    "deploy/home.py",
    "deploy/silo_memory.py",
    "deploy/ledger.py",
    "deploy/ledger_account.py",
    "engine/files.py",
)


def _killed_after(lines: int, request: bytes, made: Any) -> tuple[Reply | None, bool]:
    """What leaves a process that answers one request, and is killed when it has run so many lines of the silo."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        left = lines

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.endswith(WATCHED):
                return None
            left -= event == "line"
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        answer = made.silo("site-0").step(request)
        sys.settrace(None)
        os.write(writing, answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return Reply.decode(answer, body_limit=10_000) if answer else None, os.WIFSIGNALED(status)


def test_kills_at_random_moments_lose_no_charge_and_charge_nothing_twice(consortium: Callable[..., Any]) -> None:
    """Three runs are asked for, and the policy bears two."""
    made = consortium(rounds=3, policy={"epsilon": 7.0})
    # What takes long is known before the processes part.
    event = made.silo("site-0").terms.event(3)
    assert [least_epsilon([event] * runs, 1e-4) <= 7.0 for runs in (1, 2, 3)] == [True, True, False]
    generator = np.random.default_rng(4)
    left, kills = set(), 0
    at = dict.fromkeys(("a" * 32, "b" * 32, "c" * 32), 0)
    for _ in range(KILLS):
        run = list(at)[generator.integers(3)]
        reply, killed = _killed_after(
            int(generator.integers(1, 800)), made.request(min(at[run], 2), run=run), made
        )
        kills += killed
        if reply is not None and reply.code is Code.OK:
            left.add((run, reply.round, hashlib.sha256(reply.body).hexdigest()))
            at[run] = reply.round + 1
    assert kills > KILLS / 4
    home = made.directory / "site-0"
    made.silo("site-0")
    with Ledger(home / "ledger.sqlite").page() as page:
        account = page.account
        lines = [json.loads(row[0]) for row in page.connection.execute("SELECT body FROM lines").fetchall()]
    charged = [(line["run"], line["round"], line["message"]) for line in lines if line["kind"] == "release"]
    # Nothing left that is not charged, nothing is charged twice, and no more than the policy bears.
    assert left <= set(charged)
    assert len({(run, round) for run, round, _ in charged}) == len(charged) <= 6
    assert len(account.runs) == 2
    assert sorted(at.values()) == [0, 3, 3]


def test_a_copy_hears_that_another_one_has_answered(
    consortium: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = consortium()
    copy = replace(made, directory=made.directory / "copy")
    assert _code(made.silo("site-0").step(made.request(0))) is Code.OK
    silo = copy.silo("site-0")
    for _ in range(3):
        assert _code(silo.step(made.request(1, accepted={"site-0": 0}))) is Code.STATE_LOST
    (told,) = caplog.messages
    assert "another copy of this folder" in told
