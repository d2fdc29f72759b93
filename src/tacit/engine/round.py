"""One round: the functions that every engine calls.

The simulator calls them for whole cohorts, a deployed silo calls `client_round` for itself, and the deployed
server calls `server_round`. Algorithms are not implemented anywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.client.cohort import Cohort
from tacit.client.gradient_table import joined
from tacit.compress import Packets
from tacit.compress.sparse import Choice
from tacit.compress.uplink import Zeros
from tacit.federation import Federation
from tacit.noise.randomness import Purpose, Randomness
from tacit.state import State

POINT = "point"
"""The name of the point in a broadcast."""


@dataclass(frozen=True)
class ClientState:
    """What clients remember, for their work and for their uplink."""

    work: State
    uplink: State


@dataclass(frozen=True)
class ServerState:
    """What the server remembers, for its update and for the messages."""

    update: State
    uplink: State


def client_start(
    algorithm: Algorithm,
    point: Tensor,
    federation: Federation,
    zeros: Zeros = torch.zeros,
    parts: Sequence[Tensor] = (),
) -> ClientState:
    """The state of all clients before the first round.

    `zeros` allocates room for their shifts. `parts` are the positions of clients computed together, as in
    a round: the last bits of a product depend on who else is in it. By default all are.
    """
    uplink = algorithm.uplink.init(federation.clients, algorithm.length, zeros)
    if len(parts) < 2:
        return ClientState(algorithm.work.init(point, federation), uplink)
    first = algorithm.work.init(point, federation.part(parts[0]))
    # Most works remember nothing, and need not look at the others.
    others = [algorithm.work.init(point, federation.part(part)) for part in parts[1:]] if first else []
    return ClientState(joined([first, *others]), uplink)


def server_start(algorithm: Algorithm, point: Tensor) -> ServerState:
    """The state of the server before the first round."""
    return ServerState(algorithm.server.init(point), algorithm.uplink.server_init(algorithm.length))


def broadcast(algorithm: Algorithm, state: ServerState, round: int) -> State:
    """What the server sends to every client of a round: the point, and anything that its parts add."""
    return {**algorithm.server.broadcast(state.update, round), **algorithm.uplink.broadcast(state.uplink)}


def client_round(
    algorithm: Algorithm, received: State, cohort: Cohort, state: ClientState, noise_multipliers: Tensor
) -> tuple[Packets, ClientState]:
    """What the clients of a cohort send in a round, and their new state; `state` is consumed.

    `received` is what the server broadcast. Guarantee, whatever it contains: the packets are post-processing of
    what `algorithm.work` made private. A client of weight p_i counts N p_i times as much as the mean client
    (ISRL-DP (Lowy & Razaviyayn 2023), appendix H).
    """
    point = received[POINT]
    # Messages, and what is remembered of them, stay on the processor wherever gradients are computed.
    told = {**received, **algorithm.uplink.told(state.uplink, cohort.clients)}
    told = {name: tensor.to(point.device) for name, tensor in told.items()}
    cohort = replace(cohort, told=told)
    shared = algorithm.uplink.shared
    generators, choice = cohort.generators(Purpose.COMPRESS), None
    if shared:
        choice = _shared_choice(algorithm, cohort)
    elif algorithm.work.by_coordinate:
        choice = algorithm.uplink.choose(algorithm.length, generators)
    if choice is not None and algorithm.work.by_coordinate:
        # Only the coordinates that are sent need be computed: the message has the same distribution.
        cohort = replace(cohort, at=choice.indices)
    rows, work = algorithm.work.run(point, cohort, state.work, noise_multipliers)
    if not shared:
        # What is summed keeps the precision of its noise until it is on a lattice.
        rows = rows.to(point.dtype)
    rows = rows.cpu()
    if shared and choice is not None and cohort.at is None:
        rows = rows.gather(1, choice.indices)
    if cohort.weights is not None:
        rows = rows * cohort.weights.to(rows.device, rows.dtype)[:, None]
    if choice is None:
        packets, uplink = algorithm.uplink.send(rows, state.uplink, cohort.clients, generators)
    else:
        packets, uplink = algorithm.uplink.send_chosen(rows, choice, state.uplink, cohort.clients, generators)
    return packets, ClientState(work, uplink)


def add_messages(
    algorithm: Algorithm,
    received: State,
    cohort: Cohort,
    state: ClientState,
    noise_multipliers: Tensor,
    total: Tensor,
    *,
    quick: bool,
) -> ClientState:
    """Add the messages of some clients to `total`, in place, and return the clients' new state.

    With `quick`, messages have no noise of their own and are sent as they are. Then a work that has a cheaper way
    to their sum takes it (`Work.summed`).
    """
    whole = algorithm.work.summed(received[POINT], replace(cohort, told=received)) if quick else None
    if whole is not None:
        total += whole.to(total)
        return state
    packets, state = client_round(algorithm, received, cohort, state, noise_multipliers)
    packets.add_sum_to(total)
    return state


def summands(
    algorithm: Algorithm, received: State, cohort: Cohort, state: ClientState
) -> tuple[Tensor, ClientState]:
    """What each client of a cohort adds to a secure sum before its share of the noise: (clients, k) double.

    The part that no record influences is left out: everybody can compute it, and it has no bound.
    """
    silent = torch.zeros(len(cohort.clients), dtype=torch.float64)
    packets, state = client_round(algorithm, received, cohort, state, silent)
    at = shared_coordinates(algorithm, packets.dim, cohort.round, cohort.randomness)
    values = packets.dense() if at is None else packets.dense()[:, at]
    ones = torch.ones(len(silent)) if cohort.weights is None else cohort.weights
    public = _public_part(algorithm, received[POINT], at)
    return values.double() - ones.double()[:, None] * public, state


def opened_sum(algorithm: Algorithm, received: State, opened: Tensor, weight: float, at: Tensor | None) -> Tensor:
    """The sum of a round's messages (length,), from what the server opened, (k,): the inverse of `summands`.

    `weight` is the total weight of the clients in the sum, and `at` the `shared_coordinates` of the round.
    """
    point = received[POINT]
    values = (opened + weight * _public_part(algorithm, point, at)).to(point)
    whole = point.new_zeros(algorithm.length)
    return values if at is None else whole.index_copy_(0, at.to(point.device), values)


def _public_part(algorithm: Algorithm, point: Tensor, at: Tensor | None) -> Tensor:
    public = algorithm.work.public_part(point).double().cpu()
    return public if at is None else public[at]


def shared_coordinates(algorithm: Algorithm, dim: int, round: int, randomness: Randomness) -> Tensor | None:
    """The coordinates that all clients of a round send, if they share them and send only some."""
    return algorithm.uplink.coordinates(
        dim, round, lambda number: randomness.generator(Purpose.COORDINATES, round=number)
    )


def _shared_choice(algorithm: Algorithm, cohort: Cohort) -> Choice | None:
    at = shared_coordinates(algorithm, algorithm.length, cohort.round, cohort.randomness)
    if at is None:
        return None
    rows = len(cohort.clients)
    return Choice(algorithm.length, np.zeros(rows, dtype=np.uint64), at.expand(rows, -1))


def server_round(
    algorithm: Algorithm,
    total: Tensor,
    state: ServerState,
    *,
    round: int,
    cohort: int,
    clients: int,
    at: Tensor | None = None,
) -> ServerState:
    """The server's state after a round whose decoded messages add up to `total`.

    The server's update gets every part of the message by its name. `at` are the round's `shared_coordinates`.
    """
    divisor = algorithm.participation.divisor(cohort)
    mean, uplink = algorithm.uplink.receive(total.cpu(), state.uplink, cohort=divisor, clients=clients, at=at)
    mean = mean.to(algorithm.server.broadcast(state.update, round)[POINT].device)
    parts = dict(zip(algorithm.work.parts, mean.split(list(algorithm.work.parts.values())), strict=True))
    return ServerState(algorithm.server.step(state.update, round=round, **parts), uplink)
