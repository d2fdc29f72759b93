"""Frames carry what was put in, and nothing that was damaged or made up gets through."""

from __future__ import annotations

import contextlib
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.deploy.frames import (
    Reply,
    Request,
    is_site_name,
    pack,
    point_from_bytes,
    point_to_bytes,
    state_from_bytes,
    state_to_bytes,
    unpack,
)
from tacit.deploy.heads import Head
from tacit.deploy.seam import Code
from tacit.errors import MessageError

RUN, JOB = "ab" * 16, "cd" * 32
SITES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)


@given(st.integers(0, 2**31 - 1), st.dictionaries(SITES, st.integers(0, 2**31 - 1)), st.binary(max_size=99))
def test_a_request_comes_back(round: int, accepted: dict[str, int], body: bytes) -> None:
    heads = {site: Head(JOB, RUN, round, last, JOB, "ef" * 64) for site, last in accepted.items()}
    request = Request("round", RUN, round, JOB, accepted, body, heads)
    assert Request.decode(request.encode()) == request


def test_ten_thousand_sites_fit_into_a_request() -> None:
    sites = [f"{number:063d}" for number in range(10_000)]
    heads = dict.fromkeys(sites, Head(JOB, RUN, 2**31 - 1, 2**53 - 1, JOB, "ef" * 64))
    request = Request("round", RUN, 0, JOB, dict.fromkeys(sites, 2**31 - 1), b"", heads)
    assert Request.decode(request.encode()) == request


@given(st.sampled_from(Code), SITES, st.integers(0, 2**31 - 1), st.floats(0, 1e299), st.binary(max_size=99))
def test_an_answer_comes_back_and_weighs_little(
    code: Code, site: str, round: int, epsilon: float, body: bytes
) -> None:
    for loss, head in ((None, b""), (0.0, bytes(104)), (-1.5, b"\xff" * 104)):
        reply = Reply(code, site, RUN, round, 3, 2**31 - 1, epsilon, True, body, loss, head)
        assert Reply.decode(reply.encode(), body_limit=99) == reply
        assert len(reply.encode()) == len(body) + 74 + len(head) + len(site)


@given(st.data())
def test_any_flipped_bit_is_noticed(data: st.DataObject) -> None:
    frame = Reply(Code.OK, "a", RUN, 7, body=b"message").encode()
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    flipped = bytearray(frame)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MessageError):
        Reply.decode(bytes(flipped), body_limit=99)


@given(st.binary(max_size=200))
def test_bytes_from_anyone_are_refused_quietly(frame: bytes) -> None:
    with pytest.raises(MessageError):
        Request.decode(frame)
    with pytest.raises(MessageError):
        Reply.decode(frame, body_limit=10)


def test_limits_hold_before_anything_is_read() -> None:
    with pytest.raises(MessageError, match="too long"):
        Reply.decode(Reply(Code.OK, "a", RUN, body=bytes(10_000)).encode(), body_limit=1000)
    with pytest.raises(MessageError, match="limits"):
        unpack(pack(b"", bytes(600)), header_limit=1000, body_limit=599)
    with pytest.raises(MessageError, match="truncated"):
        unpack(pack(b"", b"body") + b"more", header_limit=100, body_limit=100)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"kind": "pickle", "run": RUN, "round": 0, "job": JOB, "accepted": {}},
        {"kind": "round", "run": "../../x", "round": 0, "job": JOB, "accepted": {}},
        {"kind": "round", "run": RUN, "round": -1, "job": JOB, "accepted": {}},
        {"kind": "round", "run": RUN, "round": True, "job": JOB, "accepted": {}},
        {"kind": "round", "run": RUN, "round": 0, "job": "x", "accepted": {}},
        {"kind": "round", "run": RUN, "round": 0, "job": JOB, "accepted": {"../x": 1}},
        {"kind": "round", "run": RUN, "round": 0, "job": JOB, "accepted": {"a": 1.5}},
        {"kind": "round", "run": RUN, "round": 0, "job": JOB, "accepted": {}, "noise_multiplier": 0.0},
        {"kind": "round", "run": RUN, "round": 0, "job": JOB, "accepted": {}, "heads": []},
        {"kind": "round", "run": RUN, "round": 0, "job": JOB, "accepted": {}, "heads": {"a": "AAAA"}},
        {"kind": "round", "run": RUN, "round": 0, "job": JOB, "accepted": {}, "heads": {"a": 3}},
        {"kind": "round", "run": RUN, "round": 0, "job": JOB, "accepted": {}, "heads": {"../x": "A" * 208}},
    ],
)
def test_a_request_has_sound_fields_and_no_others(header: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        Request.decode(pack(json.dumps(header).encode(), b""))


@pytest.mark.parametrize("header", [b"", b"[1, 2]", b"{", b"3", b"[" * 5000])
def test_a_header_that_is_no_object_is_refused(header: bytes) -> None:
    with pytest.raises(MessageError):
        Request.decode(pack(header, b""))


@given(st.binary(max_size=220))
def test_an_answer_of_junk_under_a_sound_digest_is_refused_or_sound(header: bytes) -> None:
    with contextlib.suppress(MessageError):
        reply = Reply.decode(pack(header, b""), body_limit=10)
        assert is_site_name(reply.site)
        assert 0 <= reply.epsilon < 1e300


def test_points_are_finite_and_of_the_right_length() -> None:
    point = torch.tensor([1.0, -2.5, 3e7])
    assert torch.equal(point_from_bytes(point_to_bytes(point), 3), point)
    for wrong in ([1.0, 2.0], [1.0, 2.0, float("nan")], [1.0, float("inf"), 0.0], [1.0, 2.0, 1e30]):
        with pytest.raises(MessageError):
            point_from_bytes(point_to_bytes(torch.tensor(wrong)), 3)


def test_site_names_cannot_leave_their_folder() -> None:
    assert not any(is_site_name(name) for name in ("", "..", "a/b", "a\nb", "x" * 64, 3, None))


def test_named_tensors_travel_in_order_and_nothing_else_is_read() -> None:
    state = {"point": torch.tensor([1.0, -2.5, 3.0]), "control": torch.tensor([[0.5], [4.0]])}
    shapes = {name: tensor.shape for name, tensor in state.items()}
    body = state_to_bytes(state)
    read = state_from_bytes(body, shapes)
    assert list(read) == ["point", "control"]
    assert all(torch.equal(read[name], tensor) for name, tensor in state.items())
    # One tensor is written as it always was.
    assert state_to_bytes({"point": state["point"]}) == point_to_bytes(state["point"]) == body[:12]
    for wrong in (body[:-4], body + bytes(4), body[:12], b"", body[:-4] + b"\xff" * 4):
        with pytest.raises(MessageError):
            state_from_bytes(wrong, shapes)
