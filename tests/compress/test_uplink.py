"""Uplinks: plain averaging, and shifts on which clients and server agree."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.compress import (
    Direct,
    Identity,
    Natural,
    RandK,
    Shifted,
    Uplink,
    parse_compressor,
    prescribed_shift_step,
)
from tacit.errors import DivergedError, RequestError
from tacit.noise.randomness import Purpose, Randomness

Generators = Callable[..., list[np.random.Generator]]
State = dict[str, torch.Tensor]


def vectors(clients: int, dim: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(clients, dim, generator=torch.Generator().manual_seed(seed))


def round_of(
    uplink: Uplink,
    rows: torch.Tensor,
    states: tuple[State, State],
    cohort: torch.Tensor,
    round: int,
    chunk: int,
    clients: int,
) -> tuple[torch.Tensor, tuple[State, State]]:
    """One round over the wire, in chunks: client half, bytes, server half."""
    state, server = states
    randomness = Randomness(4)
    total = torch.zeros(rows.shape[1])
    for part in cohort.split(chunk):
        generators = [randomness.generator(Purpose.COMPRESS, client=int(i), round=round) for i in part]
        packets, state = uplink.send(rows[part], state, part, generators)
        uplink.compressor.decode(packets.encode(), rows.shape[1]).add_sum_to(total)
    direction, server = uplink.receive(total, server, cohort=len(cohort), clients=clients)
    return direction, (state, server)


def test_direct_identity_is_the_mean(generators: Generators) -> None:
    uplink, rows = Direct(Identity()), vectors(5, 30)
    packets, state = uplink.send(rows, uplink.init(9, 30), torch.arange(5), generators(5))
    direction, server = uplink.receive(packets.sum(), uplink.server_init(30), cohort=5, clients=9)
    torch.testing.assert_close(direction, rows.mean(0))
    assert state == server == {}


@given(
    name=st.sampled_from(["identity", "rand-k:0.3", "qsgd:3", "natural", "rand-k:0.3+natural"]),
    cohorts=st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=6),
    chunk=st.integers(1, 6),
    step=st.sampled_from([None, 0.3, 1.0]),
)
@settings(max_examples=40)
def test_the_servers_shift_is_the_mean_of_all_clients_shifts(
    name: str, cohorts: list[set[int]], chunk: int, step: float | None
) -> None:
    clients, dim = 6, 17
    uplink = Shifted(parse_compressor(name), step)
    states = (uplink.init(clients, dim), uplink.server_init(dim))
    for t, members in enumerate(cohorts):
        cohort = torch.tensor(sorted(members, key=lambda i: (i * 5 + t) % 6))
        rows = vectors(clients, dim, seed=t)
        before, known = states[0]["shift"].clone(), states[1]["shift"].clone()
        direction, states = round_of(uplink, rows, states, cohort, t, chunk, clients)
        after = states[0]["shift"]
        torch.testing.assert_close(states[1]["shift"], after.mean(0), atol=1e-5, rtol=1e-4)
        # Algorithm 2, written the other way round: what moved a shift, over gamma, is the message.
        messages = (after - before)[cohort] / uplink.gamma(dim)
        torch.testing.assert_close(direction, known + messages.mean(0), atol=1e-4, rtol=1e-3)
        others = [i for i in range(clients) if i not in members]
        assert torch.equal(after[others], before[others])


@pytest.mark.parametrize("name", ["rand-k:0.2", "qsgd:2", "rand-k:0.5+natural"])
def test_shifts_learn_constant_vectors(name: str) -> None:
    """With gradients that stay the same, compression stops costing anything: direct never gets there."""
    clients, dim = 4, 40
    rows = vectors(clients, dim)
    shifted, direct = Shifted(parse_compressor(name)), Direct(parse_compressor(name))
    states: tuple[State, State] = (shifted.init(clients, dim), shifted.server_init(dim))
    for t in range(300):
        direction, states = round_of(shifted, rows, states, torch.arange(clients), t, 4, clients)
    unshifted, _ = round_of(direct, rows, ({}, {}), torch.arange(clients), 0, 4, clients)
    torch.testing.assert_close(states[0]["shift"], rows, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(direction, rows.mean(0), atol=1e-3, rtol=1e-3)
    assert (unshifted - rows.mean(0)).norm() > 0.1


def test_a_run_does_not_depend_on_chunks(spec: str) -> None:
    clients, dim = 7, 33
    uplink = Shifted(parse_compressor(spec))
    directions = []
    for chunk in (1, 3, 7):
        states: tuple[State, State] = (uplink.init(clients, dim), uplink.server_init(dim))
        for t in range(3):
            direction, states = round_of(
                uplink, vectors(clients, dim, t), states, torch.arange(clients), t, chunk, clients
            )
        directions.append(direction)
    assert torch.equal(directions[0], directions[1])
    assert torch.equal(directions[0], directions[2])


def test_a_difference_is_compressed_as_if_it_had_been_computed(spec: str, generators: Generators) -> None:
    compressor = parse_compressor(spec)
    rows, memory, clients = vectors(3, 40), vectors(8, 40, seed=2), torch.tensor([6, 0, 3])
    quick = compressor.compress_difference(rows, memory, clients, generators(3))
    plain = compressor.compress(rows - memory[clients], generators(3))
    assert quick.encode() == plain.encode()


def test_the_prescribed_shift_step() -> None:
    assert prescribed_shift_step(0) == math.sqrt(1 / 2)
    assert prescribed_shift_step(19) == math.sqrt(39 / (2 * 20**3))
    assert Shifted(RandK(count=5)).gamma(100) == prescribed_shift_step(19)
    assert Shifted(RandK(count=5), 0.25).gamma(100) == 0.25
    assert Shifted(Natural()).gamma(3) == prescribed_shift_step(0.125)


@given(omega=st.floats(0, 1e6))
def test_the_prescribed_shift_step_is_a_step(omega: float) -> None:
    assert 0 < prescribed_shift_step(omega) <= min(1.0, 1 / (1 + omega))


def test_rows_with_a_bad_coordinate_leave_the_memory_alone(spec: str, generators: Generators) -> None:
    uplink = Shifted(parse_compressor(spec))
    state = uplink.init(2, 10)
    rows = torch.ones(2, 10)
    rows[0, 9] = math.nan
    with pytest.raises(DivergedError, match="finite"):
        uplink.send(rows, state, torch.arange(2), generators(2))
    assert not state["shift"].any()


@pytest.mark.parametrize(
    ("rows", "clients", "says"),
    [
        (torch.zeros(2, 4), torch.arange(2), "shape"),
        (torch.zeros(2, 5), torch.arange(3), "one for each row"),
        (torch.zeros(2, 5), torch.tensor([0.0, 1.0]), "int64"),
        (torch.zeros(2, 5), torch.tensor([0, 3]), r"\[0, 3\)"),
        (torch.zeros(2, 5), torch.tensor([-1, 0]), r"\[0, 3\)"),
        (torch.zeros(2, 5), torch.tensor([1, 1]), "once"),
    ],
)
def test_members_that_do_not_fit_the_memory(
    rows: torch.Tensor, clients: torch.Tensor, says: str, generators: Generators
) -> None:
    uplink = Shifted(RandK(count=2))
    with pytest.raises(RequestError, match=says):
        uplink.send(rows, uplink.init(3, 5), clients, generators(2))


@pytest.mark.parametrize("uplink", [Direct(Identity()), Shifted(Identity())])
def test_counts_that_make_no_sense(uplink: Uplink) -> None:
    for cohort, clients in ((0, 3), (4, 3), (1, 0)):
        with pytest.raises(RequestError, match=r"cohort|clients"):
            uplink.receive(torch.zeros(2), uplink.server_init(2), cohort=cohort, clients=clients)


@pytest.mark.parametrize("step", [0.0, -1.0, 1.5, math.nan])
def test_shift_steps_out_of_range(step: float) -> None:
    with pytest.raises(RequestError, match="shift_step"):
        Shifted(Identity(), step)


def test_an_empty_chunk_sends_nothing(spec: str) -> None:
    uplink = Shifted(parse_compressor(spec))
    packets, state = uplink.send(torch.zeros(0, 5), uplink.init(3, 5), torch.arange(0), [])
    assert packets.encode() == []
    assert not packets.sum().any()
    assert not state["shift"].any()
