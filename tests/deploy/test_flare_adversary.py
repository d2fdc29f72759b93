"""A server that turns on its silos: what stock FLARE would give it, and what it gets from a silo of tacit's."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.sec.audit import Auditor, AuditService
from nvflare.private.admin_defs import Message
from nvflare.private.defs import SysCommandTopic, new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from tacit.deploy.flare.disk import outlive_full_disks
from tacit.deploy.flare.executor import RelayExecutor
from tacit.deploy.flare.relay import SOCKET_VARIABLE, answering
from tacit.deploy.flare.site import harden_site

SECRET = "patient 4711: positive"


class _Engine:
    """As much of a client's engine as the agent touches."""

    @contextlib.contextmanager
    def new_context(self) -> Iterator[FLContext]:
        yield FLContext()


class _Cell:
    def register_request_cb(self, **arguments: Any) -> None:
        pass


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "records.csv"
    path.write_text(SECRET)
    return path


def _asked(processors: list[Any], record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a site with these processors answers to a server that asks for a file, and leaves out the flag."""
    with open(tmp_path / "audit.log", "w") as log:
        auditor = Auditor.__new__(Auditor)
        monkeypatch.setattr(auditor, "add_event", lambda **arguments: log.write("asked\n"), raising=False)
        monkeypatch.setattr(AuditService, "get_auditor", staticmethod(lambda: auditor))
        agent = FedAdminAgent("site", _Cell(), _Engine())
        for processor in processors:
            agent.register_processor(processor)
        request = Message(topic=SysCommandTopic.SHELL, body=f"cat {record}")
        return str(agent._dispatch_request(new_cell_message({}, request)).payload.body)


def test_a_file_that_stock_flare_would_hand_over_stays(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = list(ClientRequestProcessors.request_processors)
    # Should this fail one day, FLARE has closed the door itself, and docs/deploy.md can say so.
    assert SECRET in _asked(stock, record, tmp_path, monkeypatch)
    assert SECRET not in _asked(harden_site(stock), record, tmp_path, monkeypatch)


def _request(payload: Any = b"request", origin: str | None = "server.job") -> CellMessage:
    return CellMessage({} if origin is None else {MessageHeaderKey.ORIGIN: origin}, payload)


def _code(reply: CellMessage) -> str:
    return str(reply.get_header(MessageHeaderKey.RETURN_CODE))


def test_no_exception_of_a_silos_process_reaches_the_executors_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(request: bytes) -> bytes:
        # No `Silo` raises; should one ever do, its connection just ends.
        raise EOFError(SECRET)

    with answering(fail) as path:
        monkeypatch.setenv(SOCKET_VARIABLE, str(path))
        reply = RelayExecutor().answer(_request())
    assert _code(reply) == "process_exception"
    assert SECRET not in repr((reply.headers, reply.payload))


def test_a_full_disk_keeps_no_request_from_being_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("add_event", "add_job_event"):
        # To be put back.
        monkeypatch.setattr(Auditor, name, getattr(Auditor, name))
    with open("/dev/full", "w") as full:
        auditor = Auditor.__new__(Auditor)
        auditor.audit_file, auditor._lock = full, threading.Lock()
        with pytest.raises(OSError, match="No space"):
            auditor.add_event("user", "train.check_status")
        outlive_full_disks()
        assert auditor.add_event("user", "train.check_status") == ""
        assert auditor.add_job_event("job", task_name="tacit_round") == ""
        auditor.audit_file = None
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_the_executor_answers_the_server_with_the_silos_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda request: request + b" answered") as path:
        monkeypatch.setenv(SOCKET_VARIABLE, str(path))
        executor = RelayExecutor()
        reply = executor.answer(_request())
        assert (_code(reply), reply.payload) == ("ok", b"request answered")
        assert _code(executor.answer(_request({"not": "bytes"}))) == "invalid_request"
    assert executor.execute("train", Shareable(), FLContext(), None).get_return_code() == "TASK_UNKNOWN"


@pytest.mark.parametrize("origin", ["silo-2.job", "silo-2", "servers.job", "", None])
def test_another_silo_gets_no_answer(origin: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE passes messages between silos, and whoever is answered has spent the silo's budget."""
    asked: list[bytes] = []
    with answering(lambda request: asked.append(request) or b"answered") as path:
        monkeypatch.setenv(SOCKET_VARIABLE, str(path))
        reply = RelayExecutor().answer(_request(origin=origin))
    assert (_code(reply), reply.payload, asked) == ("unauthenticated", None, [])
