"""One round: the two functions that every engine calls.

The simulator calls them for whole cohorts, a deployed silo calls `client_round` for itself, and the deployed
server calls `server_round`. Algorithms are not implemented anywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.client.cohort import Cohort
from tacit.client.work import PrivateGradient
from tacit.compress import Packets
from tacit.compress.uplink import Zeros
from tacit.federation import Federation
from tacit.noise.randomness import Generators, Purpose, Randomness
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
    algorithm: Algorithm, point: Tensor, federation: Federation, zeros: Zeros = torch.zeros
) -> ClientState:
    """The state of all clients before the first round; `zeros` allocates room for their shifts."""
    uplink = algorithm.uplink.init(federation.clients, len(point), zeros)
    on_device = {name: tensor.to(point.device) for name, tensor in uplink.items()}
    return ClientState(algorithm.work.init(point, federation), on_device)


def server_start(algorithm: Algorithm, point: Tensor) -> ServerState:
    """The state of the server before the first round."""
    uplink = algorithm.uplink.server_init(len(point))
    on_device = {name: tensor.to(point.device) for name, tensor in uplink.items()}
    return ServerState(algorithm.server.init(point), on_device)


def broadcast(algorithm: Algorithm, state: ServerState, round: int) -> State:
    """What the server sends to every client of a round: the point, and anything that its uplink adds."""
    point = algorithm.server.broadcast(state.update, round)
    return {POINT: point, **algorithm.uplink.broadcast(state.uplink)}


def client_round(
    algorithm: Algorithm, received: State, cohort: Cohort, state: ClientState, noise_multipliers: Tensor
) -> tuple[Packets, ClientState]:
    """What the clients of a cohort send in a round, and their new state; `state` is consumed.

    `received` is what the server broadcast. Guarantee, whatever it contains: the packets are post-processing of
    what `algorithm.work` made private. A client of weight p_i counts N p_i times as much as the mean client
    (ISRL-DP (Lowy & Razaviyayn 2023), appendix H).
    """
    point = received[POINT]
    if told := algorithm.uplink.told(received, state.uplink, cohort.clients):
        cohort = replace(cohort, told=told)
    shared = algorithm.uplink.shared
    generators = cohort.shared_generators(Purpose.COORDINATES) if shared else cohort.generators(Purpose.COMPRESS)
    if isinstance(algorithm.work, PrivateGradient) and algorithm.work.by_coordinate:
        choice = algorithm.uplink.choose(len(point), generators)
        if choice is not None:
            # Only the coordinates that are sent need be computed: the message has the same distribution.
            rows, work = algorithm.work.run(point, cohort, state.work, noise_multipliers, at=choice.indices)
            values = _weighted(rows.to(point.dtype), cohort)
            packets, uplink = algorithm.uplink.send_chosen(
                values, choice, state.uplink, cohort.clients, generators
            )
            return packets, ClientState(work, uplink)
    rows, work = algorithm.work.run(point, cohort, state.work, noise_multipliers)
    values = _weighted(rows.to(point.dtype), cohort)
    packets, uplink = algorithm.uplink.send(values, state.uplink, cohort.clients, generators)
    return packets, ClientState(work, uplink)


def _weighted(rows: Tensor, cohort: Cohort) -> Tensor:
    return rows if cohort.weights is None else rows * cohort.weights.to(rows.device, rows.dtype)[:, None]


def shared_coordinates(algorithm: Algorithm, dim: int, round: int, randomness: Randomness) -> Tensor | None:
    """The coordinates that all clients of a round send, if they share them and send only some."""
    if not algorithm.uplink.shared:
        return None
    choice = algorithm.uplink.choose(dim, Generators(randomness, Purpose.COORDINATES, round=round))
    return None if choice is None else choice.indices[0]


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

    `at` are the `shared_coordinates` of the round.
    """
    divisor = algorithm.participation.divisor(cohort)
    direction, uplink = algorithm.uplink.receive(total, state.uplink, cohort=divisor, clients=clients, at=at)
    return ServerState(algorithm.server.step(state.update, direction, round), uplink)
