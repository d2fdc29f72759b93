"""Hostile bytes and settings: whatever comes in, nothing but tacit's own errors, and no memory for a promise."""

from __future__ import annotations

import json
import socket
import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.warm import Warm

from tacit.data.files import from_files
from tacit.deploy.flare.relay import receive_frame
from tacit.deploy.frames import Reply
from tacit.deploy.guard import admit
from tacit.deploy.job import Job
from tacit.deploy.party_folder import PartyFolder
from tacit.deploy.policy import Policy
from tacit.deploy.rounds import RoundLog, RoundReport
from tacit.deploy.run_state import RunState
from tacit.deploy.seam import Code
from tacit.deploy.signatures import CertificateError, sign
from tacit.deploy.silo_memory import Memory
from tacit.engine.checkpoint import Checkpoint
from tacit.engine.recipe import Recipe, parse_setting
from tacit.errors import DataError, RequestError
from tacit.federation import Federation
from tacit.privacy import events

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _fuzz(*arguments: str) -> None:
    sys.argv = ["fuzz.py", *arguments]
    sys.path.insert(0, str(BENCHMARKS))
    from fuzz import main

    sys.exit(main())


def test_a_few_thousand_hostile_inputs_are_refused_as_they_should_be(tmp_path: Path) -> None:
    """`benchmarks/fuzz.py` does the same a million times."""
    output = tmp_path / "output.txt"
    code = Warm(_fuzz, "--messages=1500", "--settings=200", "--seed=3", output=output).wait()
    assert code == 0, output.read_text()
    counted = json.loads(output.read_text())
    assert counted["messages"]["inputs"] >= 1500
    assert counted["settings"]["inputs"] >= 200
    assert len(counted["messages"]["targets"]) >= 35
    # Some are not hostile enough to be refused: the readers behind the first checks are reached too.
    assert counted["settings"]["targets"]["sound job"][0] > 5


TOO_DEEP, TOO_LONG = "x = " + "[" * 5000, "x = " + "9" * 5000


@pytest.mark.parametrize("text", [TOO_DEEP, TOO_LONG])
@pytest.mark.parametrize("read", [Recipe.from_toml, Policy.from_toml, Job.from_text])
def test_toml_without_end_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(RequestError, match="not valid TOML"):
        read(text)


def test_a_setting_that_is_no_toml_is_a_word() -> None:
    assert parse_setting(TOO_DEEP) == ("x", "[" * 5000)
    assert parse_setting(TOO_LONG) == ("x", "9" * 5000)


def test_numbers_that_fit_into_no_float_are_refused(consortium: Callable[..., Any]) -> None:
    policy = consortium().policies["site-0"].to_toml()
    for line in ("epsilon = 4.0", "delta = 0.0001", "min_records = 1", "clip-norm = 1.0"):
        assert line in policy
        with pytest.raises(RequestError):
            Policy.from_toml(policy.replace(line, f"{line.partition('=')[0]} = 1{'0' * 400}"))
    with pytest.raises(RequestError, match="delta"):
        Policy.from_toml(policy.replace("delta = 0.0001", 'delta = "small"'))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("    6,\n]", "    4294967296,\n]", "feature_shape"),
        ("    6,\n]", "    6.0,\n]", "feature_shape"),
        ("    6,\n]", "    true,\n]", "feature_shape"),
        ("classes = 2", "classes = 4294967296", "classes"),
        ("rounds = 6", "rounds = 1000000000000000000", "rounds"),
        ("classes = 2", "classes = 2\nmin_records = 9223372036854775807", "min_records"),
        ('model = "logistic"', 'model = { name = "network", hidden = 1000000000000 }', "parameters"),
    ],
)
def test_a_job_that_no_machine_can_hold_is_refused(
    consortium: Callable[..., Any], before: str, after: str, reason: str
) -> None:
    text = consortium().job.text
    assert before in text
    with pytest.raises(RequestError, match=reason):
        Job.from_text(text.replace(before, after)).start()


def test_a_model_that_is_not_listed_is_not_even_made(
    consortium: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be any function that is installed at the silo, such as one that runs a command."""
    made = consortium()
    shell = 'model = { name = "module:os:system", command = "touch was-here" }'
    job = Job.from_text(made.job.text.replace('model = "logistic"', shell))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="not among the models that the policy allows"):
        admit(job, made.policies["site-0"], "site-0", made.federation.client(0))
    assert list(tmp_path.iterdir()) == []


def test_a_length_alone_takes_no_memory() -> None:
    left, right = socket.socketpair()
    with right:
        left.sendall(struct.pack(">Q", 2**30) + b"a few bytes")
        left.close()
        tracemalloc.start()
        try:
            with pytest.raises(EOFError):
                receive_frame(right)
            assert tracemalloc.get_traced_memory()[1] < 2**24
        finally:
            tracemalloc.stop()


def test_what_is_no_memory_or_state_is_a_data_error() -> None:
    one = torch.zeros(1)
    for tensors in ({"strange": one, "message": one + 1}, {"message": one, "loss": torch.zeros(0)}):
        with pytest.raises(DataError, match="memory is corrupted"):
            Memory.from_bytes(safetensors.torch.save(tensors))
    facts: dict[str, Any] = {"run": "x", "accepted": {}, "digests": {}, "problems": {}, "answered": {}}
    for saved in (
        Checkpoint(0, "", {"strange.x": one}, facts),
        Checkpoint(0, "", {}, {}),
        Checkpoint(0, "", {}, {**facts, "accepted": 3}),
    ):
        with pytest.raises(DataError, match="does not hold a server"):
            RunState.from_checkpoint(saved)


def test_complex_numbers_and_single_numbers_are_no_records(tmp_path: Path) -> None:
    for features in (np.ones((4, 2), dtype=complex), np.float64(3.0)):
        np.savez(tmp_path / "own.npz", X=features, y=np.zeros(4, dtype=int))
        with pytest.raises(DataError):
            from_files([tmp_path / "own.npz"], classes=2)


def test_a_party_file_with_strange_values_is_refused(tmp_path: Path, consortium: Callable[..., Any]) -> None:
    (tmp_path / "job.toml").write_text(consortium().job.text)
    for quorum in ('"two"', "[2]", "nan", "1" + "0" * 400):
        (tmp_path / "party.toml").write_text(
            f'party = "server"\nquorum = {quorum}\ndeadline_seconds = 1.0\nhost = "localhost"\nlisten = ""\n'
        )
        with pytest.raises(RequestError):
            PartyFolder.open(tmp_path)


def test_a_certificate_that_a_silo_made_up_is_refused(consortium: Callable[..., Any]) -> None:
    """Signed with the silo's own key, so that everything in it is looked at."""
    made = consortium(rounds=2)
    run = json.loads(made.server().run().certificate)
    files = {"ledger.jsonl": made.silo("site-0").ledger.export()}
    silo = {n: v for n, v in run["silos"]["site-0"].items() if n not in ("signature", "public_key", "format")}
    key = made.signing["site-0"]
    made.verified(sign(silo, key), files)
    nested: dict[str, Any] = {"kind": "nothing"}
    for _ in range(300):
        nested = {"kind": "composed", "events": [nested]}
    for changes in ({"files": 7}, {"files": [1]}, {"events": {"run": nested, "collaboration": nested}}):
        with pytest.raises(CertificateError):
            made.verified(sign({**silo, **changes}, key), files)
    for missing in ("ledger", "run", "events"):
        with pytest.raises(CertificateError):
            made.verified(sign({n: v for n, v in silo.items() if n != missing}, key), files)


def test_an_event_inside_events_without_end_is_refused() -> None:
    event: dict[str, Any] = {"kind": "nothing"}
    for _ in range(60):
        event = {"kind": "composed", "events": [event]}
    with pytest.raises(RequestError, match="more than 50 levels deep"):
        events.from_dict(event)


def test_a_log_that_was_cut_off_is_gone_on_with_on_a_new_line(tmp_path: Path) -> None:
    log = RoundLog(tmp_path / "rounds.jsonl")
    reply = Reply(Code.OK, "lyon", releases=3, epsilon=1.5)
    report = RoundReport(3, 5, ("lyon",), {}, 0, {"lyon": reply}, 0.1, "a" * 32)
    log.note(report)
    log.path.write_bytes(log.path.read_bytes() + b'{"run": "aaa')
    log.note(report)
    assert [line[:8] for line in log.path.read_text().splitlines()] == ['{"run": '] * 3
    assert log.paid() == f"run {'a' * 32}: lyon 3 messages, epsilon 1.5 for the run"


def test_blank_records_cost_no_memory(consortium: Callable[..., Any]) -> None:
    """They stand for the records of all sites, which no party may see."""
    text = consortium().job.text.replace("    6,\n]", "    20000,\n    500,\n]")
    tracemalloc.start()
    try:
        blank = Job.from_text(text).blank()
    finally:
        tracemalloc.stop()
    assert isinstance(blank, Federation)
    assert blank.features.untyped_storage().nbytes() <= 4
