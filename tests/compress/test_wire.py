"""Messages: what is sent is what is read, and nothing else is ever read."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.compress import Compressor, Natural, Packets, Qsgd, RandK, parse_compressor
from tacit.compress.wire import Format
from tacit.errors import MessageError, RequestError

Generators = Callable[..., list[np.random.Generator]]
DIM = 11


def sent(compressor: Compressor, generators: Generators, clients: int = 2, dim: int = DIM) -> Packets:
    rows = generators(1, seed=9)[0].standard_normal((clients, dim), dtype=np.float32)
    return compressor.compress(torch.from_numpy(rows), generators(clients))


def format_of(compressor: Compressor, dim: int) -> Format:
    format: Format = compressor.format(dim)  # type: ignore[attr-defined]
    return format


def bits_of(values: torch.Tensor) -> torch.Tensor:
    """For comparing bit for bit: -0.0 and 0.0 differ."""
    return values.contiguous().view(torch.int32)


@pytest.mark.parametrize(("clients", "dim"), [(0, 7), (1, 1), (5, 2), (3, 200)])
def test_round_trip_bit_for_bit(spec: str, clients: int, dim: int, generators: Generators) -> None:
    compressor = parse_compressor(spec)
    packets = sent(compressor, generators, clients, dim)
    messages = packets.encode()
    read = compressor.decode(messages, dim)
    assert (packets.clients, packets.dim) == (read.clients, read.dim) == (clients, dim)
    assert torch.equal(bits_of(read.dense()), bits_of(packets.dense()))
    assert read.encode() == messages
    for message in messages:
        assert 8 * len(message) == packets.bits == read.bits == 8 * compressor.message_bytes(dim)


@pytest.mark.parametrize("magnitude", [1e-45, 1e-39, 1e-3, 5e36])
def test_round_trip_at_every_magnitude(spec: str, magnitude: float, generators: Generators) -> None:
    compressor = parse_compressor(spec)
    rows = magnitude * torch.tensor([[1.0, -2.0, 0.0, -0.0, 3.7, -1.1]]).repeat(4, 1)
    packets = compressor.compress(rows, generators(4))
    read = compressor.decode(packets.encode(), 6)
    assert torch.equal(bits_of(read.dense()), bits_of(packets.dense()))


@pytest.mark.parametrize(
    ("name", "header", "body", "values"),
    [
        (
            "identity",
            "c1 01 fb86dbf8",
            "0000803f 000000c0 00000000 00008040",
            [1.0, -2.0, 0.0, 4.0],
        ),
        (
            "rand-k:2",
            "c1 11 82fbf873",
            "9b59ccc691357569 000080c0 00000041",
            [0.0, -4.0, 0.0, 8.0],
        ),
        (
            "natural",
            "c1 03 b8ab6139",
            "7f00030804",
            [1.0, -2.0, 0.0, 4.0],
        ),
        (
            "qsgd:1",
            "c1 02 28b0d6db",
            "76a49240 95",
            [0.0, 0.0, 0.0, 4.582575798034668],
        ),
    ],
)
def test_messages_of_the_past_stay_readable(name: str, header: str, body: str, values: list[float]) -> None:
    """The format is a promise to silos that run another release: other bytes need another VERSION."""
    message = bytes.fromhex(header + body)
    packets = parse_compressor(name).decode([message], 4)
    assert packets.dense().tolist() == [values]
    assert packets.encode() == [message]


def test_sums_do_not_need_the_dense_rows(spec: str, generators: Generators) -> None:
    packets = sent(parse_compressor(spec), generators, clients=7, dim=50)
    dense = packets.dense()
    torch.testing.assert_close(packets.sum(), dense.sum(0))
    total = torch.ones(50)
    packets.add_sum_to(total)
    torch.testing.assert_close(total, 1 + dense.sum(0))
    rows = torch.ones(7, 50)
    packets.add_to(rows, -0.5)
    torch.testing.assert_close(rows, 1 - 0.5 * dense)
    rows, clients = torch.ones(9, 50), torch.tensor([8, 0, 3, 1, 2, 5, 7])
    packets.add_to(rows, 2.0, clients)
    expected = torch.ones(9, 50)
    expected[clients] += 2 * dense
    torch.testing.assert_close(rows, expected)


def test_sums_do_not_depend_on_chunks(spec: str, generators: Generators) -> None:
    compressor = parse_compressor(spec)
    messages = sent(compressor, generators, clients=23, dim=64).encode()
    total = torch.zeros(64)
    for chunk in (messages[:1], messages[1:9], messages[9:9], messages[9:]):
        compressor.decode(chunk, 64).add_sum_to(total)
    assert torch.equal(total, compressor.decode(messages, 64).sum())


def test_rows_do_not_depend_on_chunks(spec: str, generators: Generators) -> None:
    compressor = parse_compressor(spec)
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(3))
    alone = [compressor.compress(rows[i : i + 1], [generators(6)[i]]).encode()[0] for i in range(6)]
    assert alone == compressor.compress(rows, generators(6)).encode()


def test_every_flipped_byte_is_caught(spec: str, generators: Generators) -> None:
    compressor = parse_compressor(spec)
    good, message = sent(compressor, generators).encode()
    for position in range(len(message)):
        for flip in (1, 255):
            damaged = bytearray(message)
            damaged[position] ^= flip
            with pytest.raises(MessageError, match="message 1"):
                compressor.decode([good, bytes(damaged)], DIM)


def test_every_other_length_is_caught(spec: str, generators: Generators) -> None:
    compressor = parse_compressor(spec)
    (message,) = sent(compressor, generators, clients=1).encode()
    for length in range(len(message)):
        with pytest.raises(MessageError, match="exactly"):
            compressor.decode([message[:length]], DIM)
    with pytest.raises(MessageError, match="exactly"):
        compressor.decode([message + b"\0"], DIM)


@settings(max_examples=30)
@given(data=st.data())
def test_garbage_is_never_read(spec: str, data: st.DataObject) -> None:
    compressor = parse_compressor(spec)
    size = compressor.message_bytes(DIM)
    length = data.draw(st.one_of(st.just(size), st.integers(0, 2 * size)))
    with pytest.raises(MessageError):
        compressor.decode([data.draw(st.binary(min_size=length, max_size=length))], DIM)


@settings(max_examples=30)
@given(data=st.data())
def test_a_hostile_body_is_read_as_finite_numbers_or_refused(spec: str, data: st.DataObject) -> None:
    """Someone who computes the checksum can send any body: there is no other outcome than these two."""
    compressor = parse_compressor(spec)
    format = format_of(compressor, DIM)
    body = data.draw(st.binary(min_size=format.body_bytes, max_size=format.body_bytes))
    messages = format.seal(np.frombuffer(body, dtype=np.uint8).reshape(1, -1))
    try:
        packets = compressor.decode(messages, DIM)
    except MessageError:
        return
    assert packets.dense().isfinite().all()
    assert packets.encode() == messages


def forged(compressor: Compressor, body: bytes, dim: int) -> list[bytes]:
    return format_of(compressor, dim).seal(np.frombuffer(body, dtype=np.uint8).reshape(1, -1))


@pytest.mark.parametrize(
    ("name", "body", "says"),
    [
        ("identity", struct.pack("<2f", 1.0, math.nan), "not finite"),
        ("identity", struct.pack("<2f", math.inf, 1.0), "not finite"),
        ("rand-k:1", struct.pack("<Qf", 7, -math.inf), "not finite"),
        ("qsgd:4", struct.pack("<fB", math.nan, 0x44), "norm"),
        ("qsgd:4", struct.pack("<fB", math.inf, 0x44), "norm"),
        ("qsgd:4", struct.pack("<fB", -1.0, 0x44), "norm"),
        ("qsgd:4", struct.pack("<fB", 1.0, 0x49), "code above 8"),
        ("qsgd:3", struct.pack("<fB", 1.0, 0x40), "padding"),
        ("natural", struct.pack("<HB", 0x00FF, 0), "not finite"),
        ("natural", struct.pack("<HB", 0x01FF, 0), "not finite"),
        ("natural", struct.pack("<HB", 0, 0x04), "padding"),
        ("rand-k:1+qsgd:4", struct.pack("<QfB", 7, 1.0, 0x09), "code above 8"),
    ],
)
def test_each_thing_that_can_be_wrong_in_a_body(name: str, body: bytes, says: str) -> None:
    compressor = parse_compressor(name)
    with pytest.raises(MessageError, match=says):
        compressor.decode(forged(compressor, body, 2), 2)


@pytest.mark.parametrize(
    ("writer", "reader", "says"),
    [
        (Qsgd(9), Qsgd(10), "other settings"),
        (RandK(count=2), RandK(count=3), "bytes"),
        (parse_compressor("rand-k:2+qsgd:1"), parse_compressor("rand-k:3+qsgd:1"), "other settings"),
        (Natural(), Qsgd(8), "bytes"),
    ],
)
def test_another_compressors_messages(
    writer: Compressor, reader: Compressor, says: str, generators: Generators
) -> None:
    with pytest.raises(MessageError, match=says):
        reader.decode(sent(writer, generators).encode(), DIM)


@pytest.mark.parametrize(
    ("field", "value", "says"), [("dim", 12, "another dimension than 11"), ("codec", 3, "codec 3, expected 1")]
)
def test_another_format(field: str, value: int, says: str) -> None:
    expected = Format(codec=1, levels=0, dim=11, kept=11, body_bytes=44)
    changes: dict[str, Any] = {field: value}
    messages = replace(expected, **changes).seal(np.zeros((1, 44), dtype=np.uint8))
    with pytest.raises(MessageError, match=says):
        expected.open(messages)


def test_another_program_or_version(generators: Generators) -> None:
    compressor = parse_compressor("identity")
    (message,) = sent(compressor, generators, clients=1).encode()
    with pytest.raises(MessageError, match="not a tacit message"):
        compressor.decode([b"HTTP" + message[4:]], DIM)
    with pytest.raises(MessageError, match="version 2, expected 1"):
        compressor.decode([b"\xc2" + message[1:]], DIM)


def test_an_impossible_dimension_is_the_callers_mistake(spec: str) -> None:
    with pytest.raises(RequestError, match="dim"):
        parse_compressor(spec).decode([], 0)
