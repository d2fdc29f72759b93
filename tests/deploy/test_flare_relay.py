"""The socket between FLARE's processes and tacit's, the backend on top of it, and the steward's decisions."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")

from tacit.deploy.flare.backend import START_SECONDS, EngineError, FlareBackend
from tacit.deploy.flare.parties import _narrated
from tacit.deploy.flare.processes import QUICK_DEATHS, Keeper, kept_running, running
from tacit.deploy.flare.relay import (
    FRAME_LIMIT_BYTES,
    SOCKET_VARIABLE,
    answering,
    connect_to_owner,
    listening,
    receive_frame,
    send_frame,
)
from tacit.deploy.flare.steward import GATHER_SECONDS, NO_JOBS, SETTLE_SECONDS, Steward
from tacit.deploy.frames import Reply
from tacit.deploy.seam import Code, SiteError
from tacit.errors import MessageError


def test_answers_come_back_in_order_and_a_broken_connection_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda frame: frame[::-1]) as path:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        monkeypatch.setenv(SOCKET_VARIABLE, str(path))
        with connect_to_owner() as broken:
            broken.sendall((100).to_bytes(8, "big") + b"less than a hundred")
        with connect_to_owner() as connection:
            for frame in (b"abc", b"", bytes(100_000)):
                send_frame(connection, frame)
                assert receive_frame(connection) == frame[::-1]
    assert not path.exists()


def test_an_answer_leaves_although_nobody_can_be_told() -> None:
    class Silo:
        def step(self, request: bytes) -> bytes:
            return Reply(Code.FAILED, "lyon").encode()

    def full(words: str) -> None:
        raise OSError(28, "no space left on device")

    assert Reply.decode(_narrated(Silo(), full)(b""), body_limit=0).code is Code.FAILED


def test_a_refusal_that_is_repeated_is_said_once() -> None:
    codes = iter([Code.OTHER_SCHEMA, Code.OTHER_SCHEMA, Code.OK, Code.OK, Code.OTHER_SCHEMA])
    rounds = iter(range(5))

    class Silo:
        def step(self, request: bytes) -> bytes:
            return Reply(next(codes), "lyon", "0" * 32, next(rounds)).encode()

    said: list[str] = []
    answer = _narrated(Silo(), said.append)
    for _ in range(5):
        answer(b"")
    assert [line.split(":")[1] for line in said] == [" round 0", " round 2", " round 3", " round 4"]


def test_an_oversized_frame_is_refused_unread() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall((FRAME_LIMIT_BYTES + 1).to_bytes(8, "big"))
        with pytest.raises(MessageError, match="longer than the limit"):
            receive_frame(right)


def test_a_process_with_a_lifeline_ends_with_its_owner(tmp_path: Path) -> None:
    code = (
        "from tacit.deploy.flare.lifeline import hold_lifeline; import time; hold_lifeline(); "
        "print('up', flush=True); time.sleep(600)"
    )
    with listening(lambda connection: None) as path:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, SOCKET_VARIABLE: str(path)},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
    assert process.wait(30) < 0
    process.stdout.close()


OWNER = """
import pathlib, sys, time
from tacit.deploy.flare.processes import running
from tacit.deploy.flare.relay import listening
code = (
    "from tacit.deploy.flare.lifeline import hold_lifeline; import time; hold_lifeline(); "
    "print('up', flush=True); time.sleep(600)"
)
home = pathlib.Path(sys.argv[1])
with listening(lambda connection: None, home) as path:
    with running([sys.executable, "-c", code], relay=path, log=home / "log", read_output=True) as child:
        child.stdout.readline()
        print(child.pid, flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("also_the_child", [False, True])
def test_a_kill_leaves_nothing_in_the_folder_for_temporary_files(tmp_path: Path, also_the_child: bool) -> None:
    temporary, home = tmp_path / "temporary", tmp_path / "home"
    temporary.mkdir()
    home.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(home)],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
    )
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    assert len(list(temporary.iterdir())) == 1
    if also_the_child:
        os.kill(child, signal.SIGKILL)
    owner.kill()
    owner.wait(30)
    owner.stdout.close()
    if also_the_child:
        # Nobody is left to tidy up but the next party in the same folder; not where somebody still listens.
        with listening(lambda connection: None, home) as path:
            assert list(temporary.iterdir()) == []
            with listening(lambda connection: None, home):
                assert path.exists()
    else:
        while list(temporary.iterdir()):
            time.sleep(0.05)


def test_a_process_that_dies_is_started_again_and_counted(tmp_path: Path) -> None:
    heard: list[str] = []
    twice = threading.Event()

    def hear(line: str) -> None:
        heard.append(line)
        if len(heard) == 2:
            twice.set()

    command = [sys.executable, "-c", "print('born')"]
    with kept_running(command, relay=tmp_path, log=tmp_path / "log", hear=hear) as keeper:
        assert twice.wait(30)
        assert keeper.quick_deaths >= 1
    assert set(heard) == {"born\n"}


def test_a_file_in_the_current_directory_does_not_shadow_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.py").write_text("raise RuntimeError('a user's notes')")
    command = [sys.executable, "-c", "import random"]
    with running(command, relay=tmp_path, log=tmp_path / "log") as process:
        assert process.wait(30) == 0, (tmp_path / "log").read_text()


def test_a_process_that_ignores_the_request_to_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.deploy.flare.processes.PATIENCE_SECONDS", 0.5)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    with running([sys.executable, "-c", code], relay=tmp_path, log=tmp_path / "log", read_output=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
    assert process.returncode == -9


def _controller(answers: Callable[[dict[str, Any], bytes], Mapping[str, bytes | None] | None]) -> socket.socket:
    """A controller as the backend sees one; None from `answers`, or of a site, is the end of its job."""
    ours, theirs = socket.socketpair()

    def play() -> None:
        with theirs:
            send_frame(theirs, json.dumps({"sites": []}).encode())
            while True:
                try:
                    header, request = json.loads(receive_frame(theirs)), receive_frame(theirs)
                except EOFError:
                    return
                given = answers(header, request)
                for site, answer in sorted((given or {}).items()):
                    send_frame(theirs, json.dumps({"site": site}).encode())
                    if answer is None:
                        return
                    send_frame(theirs, answer)
                if given is None:
                    return
                send_frame(theirs, json.dumps({"site": None}).encode())

    threading.Thread(target=play, daemon=True).start()
    return ours


@pytest.fixture
def backend() -> Iterator[FlareBackend]:
    backend = FlareBackend()
    yield backend
    if backend._controller is not None:
        backend._controller.close()


def test_a_round_returns_what_the_sites_sent(backend: FlareBackend) -> None:
    backend._greeted(_controller(lambda header, request: dict.fromkeys(header["sites"], request)))
    answers = backend.run_round(b"point", sites=["a", "b"], quorum=2, deadline_seconds=5)
    assert answers == {"a": b"point", "b": b"point"}


def test_a_job_that_ends_in_the_middle_is_asked_again_in_the_next(backend: FlareBackend) -> None:
    asked: list[list[str]] = []

    def second(header: dict[str, Any], request: bytes) -> dict[str, bytes]:
        asked.append(header["sites"])
        return dict.fromkeys(header["sites"], b"here")

    def first(header: dict[str, Any], request: bytes) -> None:
        backend._greeted(_controller(second))

    backend._greeted(_controller(first))
    assert backend.run_round(b"x", sites=["a", "b"], quorum=2, deadline_seconds=5) == {"a": b"here", "b": b"here"}
    assert asked == [["a", "b"]]


def test_only_what_is_missing_is_asked_for_again_until_there_is_a_quorum(backend: FlareBackend) -> None:
    asked: list[list[str]] = []

    def answers(header: dict[str, Any], request: bytes) -> dict[str, bytes]:
        asked.append(header["sites"])
        return {header["sites"][0]: b"late"} if len(asked) < 3 else {}

    backend._greeted(_controller(answers))
    given = backend.run_round(b"x", sites=["a", "b", "c"], quorum=2, deadline_seconds=30)
    assert given == {"a": b"late", "b": b"late"}
    assert asked == [["a", "b", "c"], ["b", "c"]]


def test_answers_outlive_the_job_that_brought_them(backend: FlareBackend) -> None:
    asked: list[list[str]] = []

    def second(header: dict[str, Any], request: bytes) -> dict[str, bytes]:
        asked.append(header["sites"])
        return dict.fromkeys(header["sites"], b"second")

    def first(header: dict[str, Any], request: bytes) -> dict[str, bytes | None]:
        threading.Timer(0.2, lambda: backend._greeted(_controller(second))).start()
        return {"a": b"first", "b": None}

    backend._greeted(_controller(first))
    given = backend.run_round(b"x", sites=["a", "b"], quorum=2, deadline_seconds=5)
    assert given == {"a": b"first", "b": b"second"}
    assert asked == [["b"]]


class _Clock:
    """Time that passes only where the backend waits; in the place of its clock and of its condition."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def _without_a_job(
    monkeypatch: pytest.MonkeyPatch, sighting: dict[str, Any], starts: int = 0
) -> tuple[FlareBackend, list[tuple[float, str]], _Clock]:
    """A backend that waits for a job, what it has people told and when, and its clock."""
    clock, told = _Clock(), list[tuple[float, str]]()
    monkeypatch.setattr("tacit.deploy.flare.backend.time", clock)

    def notify(text: str) -> None:
        told.append((clock.now, text))

    parties: Any = ("berlin", "lyon", "porto")
    backend = FlareBackend(parties, 2, notify=notify, _changed=clock)  # type: ignore[arg-type]  # as far as it goes
    backend._sighting = sighting
    backend._keepers = [Keeper([], Path(), Path(), starts=starts)]
    return backend, told, clock


def test_a_lost_quorum_is_told_early_and_often_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, told, clock = _without_a_job(monkeypatch, {"connected": ["berlin"]})
    answers = backend.run_round(b"x", sites=["berlin", "lyon", "porto"], quorum=2, deadline_seconds=120)
    assert answers == dict.fromkeys(["lyon", "porto"], SiteError(Code.NOT_CONNECTED))
    assert [when for when, _ in told] == [10, 40, 70, 100]
    assert {what for _, what in told} == {
        "waiting for lyon, porto: a round needs 2 connected, now connected: berlin"
    }
    assert clock.now == 120


def test_silos_have_longer_to_connect_to_an_engine_that_has_just_started(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _, clock = _without_a_job(monkeypatch, {"connected": []}, starts=1)
    ends = []
    for _ in range(2):
        backend.run_round(b"x", sites=["berlin"], quorum=1, deadline_seconds=20)
        ends.append(clock.now)
    assert ends == [START_SECONDS + 20, START_SECONDS + 40]
    backend._keepers[0].starts += 1
    backend.run_round(b"x", sites=["berlin"], quorum=1, deadline_seconds=20)
    assert clock.now == 2 * START_SECONDS + 60


@pytest.mark.parametrize("sighting", [{"connected": ["berlin", "lyon"]}, {"trouble": "no session"}])
def test_an_engine_that_starts_no_job_for_silos_that_are_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, sighting: dict[str, Any]
) -> None:
    backend, told, _ = _without_a_job(monkeypatch, sighting)
    with pytest.raises(EngineError, match=r"no job to run in 300 seconds.* porto"):
        backend.run_round(b"x", sites=["berlin", "lyon"], quorum=2, deadline_seconds=20)
    assert told[0] == (
        10,
        f"waiting for FLARE to start a job{'; its last error: no session' * ('trouble' in sighting)}",
    )


def test_an_engine_that_cannot_start_is_an_error_at_once_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend, _, clock = _without_a_job(monkeypatch, {})
    (tmp_path / "log.txt").write_text("Traceback\n" * 20 + "ImportError: no grpc\n")
    backend._keepers = [Keeper([], Path(), tmp_path / "log.txt", quick_deaths=QUICK_DEATHS)]
    with pytest.raises(EngineError, match=r"(?s)right after its start.*log.txt.*ImportError: no grpc"):
        backend.run_round(b"x", sites=["berlin", "lyon"], quorum=2, deadline_seconds=20)
    assert clock.now <= 1


def test_nobody_waits_for_parties_whose_processes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _, clock = _without_a_job(monkeypatch, {"connected": []}, starts=1)
    backend.ended = lambda: {"lyon": "killed"}
    backend.run_round(b"x", sites=["berlin", "porto"], quorum=2, deadline_seconds=20)
    assert clock.now == START_SECONDS + 20, "two of three are enough"
    backend.ended = lambda: {"lyon": "killed", "porto": "The last lines: no records"}
    with pytest.raises(EngineError, match=r"(?s)needs 2 of 3 parties. lyon has ended.*porto.*no records"):
        backend.run_round(b"x", sites=["berlin", "porto"], quorum=2, deadline_seconds=20)
    assert clock.now <= START_SECONDS + 21


def test_a_silo_that_is_connected_and_silent_is_named(
    backend: FlareBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.deploy.flare.backend.FIRST_NOTICE_SECONDS", 0.0)
    told: list[str] = []
    backend.notify, backend._sighting = told.append, {"connected": ["berlin", "lyon"]}
    backend._greeted(_controller(lambda header, request: {}))
    answers = backend.run_round(b"x", sites=["berlin", "lyon", "porto"], quorum=2, deadline_seconds=0.3)
    assert answers == {"porto": SiteError(Code.NOT_CONNECTED)}
    assert told == ["waiting for the answers of berlin, lyon, porto (not connected)"]


class _Session:
    """FLARE's session, as far as the steward uses it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []
        self.submitted: list[str] = []
        self.aborted: list[str] = []
        self.status = "RUNNING"

    def get_connected_client_list(self) -> list[dict[str, str]]:
        return self.rows

    def get_client_job_status(self) -> list[dict[str, str]]:
        return self.rows

    def get_job_status(self, job: str) -> str:
        return self.status

    def submit_job(self, folder: str) -> str:
        assert json.loads((Path(folder) / "meta.json").read_text())["min_clients"] == 2
        self.submitted.append(f"job-{len(self.submitted)}")
        return self.submitted[-1]

    def abort_job(self, job: str) -> None:
        self.aborted.append(job)


def _idle(*sites: str) -> list[dict[str, str]]:
    return [{"client_name": site, "status": NO_JOBS} for site in sites]


def _working(job: str, *sites: str) -> list[dict[str, str]]:
    return [{"client_name": site, "job_id": job, "status": "started"} for site in sites]


@pytest.fixture
def steward(tmp_path: Path) -> Steward:
    return Steward(_Session(), frozenset("abc"), 2, tmp_path / "job", waiting_since=0.0)


def test_the_steward_waits_for_everybody_and_then_for_a_quorum(steward: Steward) -> None:
    session = steward.session
    session.rows = _idle("a", "b", "stranger")
    assert steward.look(1.0)["connected"] == ["a", "b"]
    assert session.submitted == []
    steward.look(GATHER_SECONDS + 1)
    assert session.submitted == ["job-0"]


def test_the_steward_submits_at_once_when_all_are_there(steward: Steward) -> None:
    steward.session.rows = _idle("a", "b", "c")
    assert steward.look(0.5)["job"] == "job-0"


def test_a_finished_job_is_submitted_again_ever_more_slowly_if_it_never_ran(steward: Steward) -> None:
    session = steward.session
    session.rows, session.status = _idle("a", "b", "c"), "FINISHED:FAILED_TO_RUN"
    for second in range(60):
        steward.look(float(second))
    assert 3 <= len(session.submitted) <= 7


def test_a_silo_that_stands_outside_is_let_in_by_a_new_job(steward: Steward) -> None:
    session = steward.session
    session.rows = _idle("a", "b", "c")
    steward.look(0.0)
    session.rows = [*_working("job-0", "a", "b"), *_idle("c")]
    steward.look(SETTLE_SECONDS - 1)
    assert session.aborted == []
    steward.look(SETTLE_SECONDS + 1)
    assert session.aborted == ["job-0"]
    session.rows = _idle("a", "b", "c")
    assert steward.look(SETTLE_SECONDS + 2)["job"] == "job-1"


def test_a_silo_that_cannot_start_its_job_does_not_keep_the_others_from_theirs(steward: Steward) -> None:
    session = steward.session
    for second in range(3600):
        running = [*_working(str(steward.job), "a", "b"), *_idle("c")] if steward.job else _idle("a", "b", "c")
        session.rows = running
        steward.look(float(second))
    assert 5 <= len(session.aborted) <= 10
    # Once everybody takes part, the next one is let in at once again.
    session.rows = _working(str(steward.job), "a", "b", "c")
    steward.look(10_000.0)
    assert steward.in_vain == 0


def test_a_silo_that_does_not_reply_does_not_disturb_the_job(steward: Steward) -> None:
    session = steward.session
    session.rows = _idle("a", "b", "c")
    steward.look(0.0)
    session.rows = [*_working("job-0", "a", "b"), {"client_name": "c", "status": "no_reply"}]
    assert steward.look(10 * SETTLE_SECONDS)["connected"] == ["a", "b"]
    assert session.aborted == []
