"""The server side inside FLARE: who is asked, how often, and when a round is over."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply

from tacit.deploy.flare import controller
from tacit.deploy.flare.controller import serve_round
from tacit.deploy.flare.relay import receive_frame

SITES = ("silo-1", "silo-2", "silo-3")
Answering = Callable[[str, int], Any]


class _Cell:
    """A cell whose peers answer as `answering(site, attempt)` says."""

    def __init__(self, answering: Answering) -> None:
        self.core_cell, self._answering = self, answering
        self.asked: list[tuple[str, bool]] = []

    def send_request(self, *, target: str, request: Any, timeout: float, **others: Any) -> Any:
        site = target.split(".")[0]
        self.asked.append((site, "abort_signal" in others))
        return self._answering(site, sum(1 for one, _ in self.asked if one == site))


def _served(cell: _Cell, request: bytes = b"request", **header: Any) -> dict[str, bytes]:
    """The answers that the owner is handed before the round is over."""
    asked = {"quorum": 3, "deadline_seconds": 60.0, "grace_seconds": 60.0, **header}
    owner, here = socket.socketpair()
    with owner, here:
        targets = {site: f"{site}.job" for site in SITES}
        serve_round(here, cell, asked, request, targets, Signal())
        answers = {}
        while (site := json.loads(receive_frame(owner))["site"]) is not None:
            answers[site] = receive_frame(owner)
        return answers


def _ok(site: str) -> Any:
    return make_reply(ReturnCode.OK, body=site.encode())


def test_every_silo_is_asked_once_and_the_round_ends_with_the_last_answer() -> None:
    cell = _Cell(lambda site, attempt: _ok(site))
    assert _served(cell) == {site: site.encode() for site in SITES}
    assert sorted(cell.asked) == [(site, False) for site in SITES]


def test_a_silo_whose_job_is_still_starting_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_AGAIN_SECONDS", 0.0)

    def answering(site: str, attempt: int) -> Any:
        if site == "silo-2" and attempt == 1:
            return make_reply(ReturnCode.PROCESS_EXCEPTION)
        if site == "silo-2" and attempt == 2:
            raise OSError("no path")
        if site == "silo-3" and attempt == 1:
            return make_reply(ReturnCode.TIMEOUT)
        return _ok(site)

    assert set(_served(_Cell(answering))) == set(SITES)


def test_a_quorum_and_the_grace_after_it_end_a_round_and_later_answers_are_dropped() -> None:
    late = threading.Event()

    def answering(site: str, attempt: int) -> Any:
        if site == "silo-3":
            late.wait(60)
        return _ok(site)

    answers = _served(_Cell(answering), quorum=2, grace_seconds=0.01)
    late.set()
    assert set(answers) == {"silo-1", "silo-2"}


def test_a_deadline_ends_a_round() -> None:
    late = threading.Event()

    def answering(site: str, attempt: int) -> Any:
        late.wait(60)
        return _ok(site)

    assert _served(_Cell(answering), deadline_seconds=0.05) == {}
    late.set()


def test_what_is_not_bytes_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_AGAIN_SECONDS", 0.01)
    cell = _Cell(lambda site, attempt: make_reply(ReturnCode.OK, body={"not": "bytes"}))
    assert _served(cell, deadline_seconds=0.1) == {}


def test_long_requests_are_streamed() -> None:
    cell = _Cell(lambda site, attempt: _ok(site))
    _served(cell, request=bytes(controller._MOST_BYTES_AT_ONCE + 1))
    assert all(streamed for _, streamed in cell.asked)
