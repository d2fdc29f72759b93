"""How private vectors become messages, and messages become the server's direction.

An uplink has a client's half (`init`, `send`) and a server's half (`server_init`, `receive`). Their memories are
dictionaries of tensors. Methods take a memory and return the new one; the old one is consumed and may be changed
in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from tacit.compress.compressor import Compressor, Packets, check_unbiased
from tacit.compress.sparse import Choice, Sparsifier
from tacit.errors import RequestError, count, positive, probability
from tacit.state import State

Zeros = Callable[[tuple[int, ...]], Tensor]
"""Allocates a zero tensor of some shape."""


class Uplink(Protocol):
    """From the private vectors of a cohort to one direction at the server."""

    @property
    def compressor(self) -> Compressor:
        """The compressor that turns vectors into messages."""

    @property
    def shared(self) -> bool:
        """Whether all clients of a round send the same coordinates, so that their messages can be added up."""

    @property
    def alike(self) -> bool:
        """Whether a message depends on nothing but its vector: nobody remembers earlier ones."""

    @property
    def lags(self) -> bool:
        """Whether directions are about the points of several rounds ago, too, so that long steps overshoot."""

    @property
    def bits(self) -> int:
        """The bits of a coordinate that is not quantised."""

    def with_bits(self, bits: int) -> Self:
        """The same uplink, if messages are added up, with coordinates of this many bits."""

    def message_bytes(self, dim: int) -> int:
        """The exact length of every message."""

    def coordinates(self, dim: int, round: int, coins: Callable[[int], np.random.Generator]) -> Tensor | None:
        """The coordinates that all messages of a round carry, in increasing order; None if not just these.

        `coins` makes the public coins with a number.
        """

    def init(self, clients: int, dim: int, zeros: Zeros = torch.zeros) -> State:
        """The clients' memory before the first round; row i of every tensor belongs to client i.

        `zeros` allocates it.
        """

    def send(
        self, rows: Tensor, state: State, clients: Tensor, generators: Sequence[np.random.Generator]
    ) -> tuple[Packets, State]:
        """The messages for `rows`, the private vectors of these `clients` (their rows in the state)."""

    def told(self, state: State, clients: Tensor) -> State:
        """The parts of their own memory that these clients may use in their work, by name."""

    def choose(self, dim: int, generators: Sequence[np.random.Generator]) -> Choice | None:
        """The coordinates that the messages will carry, or None if they depend on the vectors.

        `choose` followed by `send_chosen` with the same generators (which continue where they are) gives the same
        message as `send`, without computing the other coordinates.
        """

    def send_chosen(
        self,
        values: Tensor,
        choice: Choice,
        state: State,
        clients: Tensor,
        generators: Sequence[np.random.Generator],
    ) -> tuple[Packets, State]:
        """The messages for vectors with these `values` at the chosen coordinates, (clients, k); consumes them."""

    def noise_factor(self, dim: int) -> float:
        """Estimate of the factor by which compression multiplies noise variance, from vectors to directions."""

    def server_init(self, dim: int) -> State:
        """The server's memory before the first round."""

    def broadcast(self, state: State) -> State:
        """The parts of the server's memory that the next round's clients get besides the point, by name."""

    def receive(
        self, total: Tensor, state: State, *, cohort: float, clients: int, at: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """The direction (d,), from the sum (d,) of all decoded messages of `cohort` out of `clients`.

        `cohort` is the number that sums are divided by: the clients that sent, or how many were expected to. `at`
        are the coordinates that all messages carried, if they shared them.
        """


@dataclass(frozen=True)
class CommonUplink:
    """What most uplinks answer: one compressor, no memory, nothing shared."""

    compressor: Compressor
    """how vectors are compressed"""
    shared = False
    alike = False
    lags = False
    bits = 32

    def __post_init__(self) -> None:
        check_unbiased(self.compressor)

    def with_bits(self, bits: int) -> Self:
        return self

    def message_bytes(self, dim: int) -> int:
        return self.compressor.message_bytes(dim)

    def coordinates(self, dim: int, round: int, coins: Callable[[int], np.random.Generator]) -> Tensor | None:
        return None

    def init(self, clients: int, dim: int, zeros: Zeros = torch.zeros) -> State:
        return {}

    def told(self, state: State, clients: Tensor) -> State:
        return {}

    def choose(self, dim: int, generators: Sequence[np.random.Generator]) -> Choice | None:
        return self.compressor.choose(dim, generators)

    def server_init(self, dim: int) -> State:
        return {}

    def broadcast(self, state: State) -> State:
        return {}


@dataclass(frozen=True)
class Direct(CommonUplink):
    """Compresses the vectors themselves, without memory: v_i = C(g_i), direction = mean of v_i.

    SoteriaFL (Li et al. 2022), Algorithm 1, lines 6 and 8; with `Identity`, plain averaging.
    """

    alike = True

    def send(
        self, rows: Tensor, state: State, clients: Tensor, generators: Sequence[np.random.Generator]
    ) -> tuple[Packets, State]:
        return self.compressor.compress(rows, generators), state

    def send_chosen(
        self,
        values: Tensor,
        choice: Choice,
        state: State,
        clients: Tensor,
        generators: Sequence[np.random.Generator],
    ) -> tuple[Packets, State]:
        return _sparsifier(self.compressor).pack(values, choice, generators), state

    def noise_factor(self, dim: int) -> float:
        return 1 + self.compressor.omega(dim)

    def receive(
        self, total: Tensor, state: State, *, cohort: float, clients: int, at: Tensor | None = None
    ) -> tuple[Tensor, State]:
        check_counts(cohort, clients)
        return total / cohort, state


@dataclass(frozen=True)
class Shifted(CommonUplink):
    """Compresses only what the server does not know yet: the difference to a shift that both sides keep.

    SoteriaFL (Li et al. 2022), Algorithm 2, lines 5 to 10, with shift step gamma and n clients:

        v_i = C(g_i - s_i),  s_i += gamma v_i,  direction = s + mean of v_i over the cohort,
        s += gamma (1/n) (sum of v_i over the cohort).

    The server's shift s stays the mean of all clients' shifts s_i even if only a cohort takes part, because its
    update divides by all clients while the direction divides by the cohort. The shifts are computed from earlier
    messages, which the server has, so subtracting them is post-processing.

    Without a `shift_step`, gamma is the value that Theorem 3 prescribes for the compressor's omega.
    """

    shift_step: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift_step is not None:
            probability("shift_step", self.shift_step)

    def gamma(self, dim: int) -> float:
        """The shift step in use for vectors of length `dim`."""
        return prescribed_shift_step(self.compressor.omega(dim)) if self.shift_step is None else self.shift_step

    def init(self, clients: int, dim: int, zeros: Zeros = torch.zeros) -> State:
        return {"shift": zeros((count("clients", clients), count("dim", dim)))}

    def send(
        self, rows: Tensor, state: State, clients: Tensor, generators: Sequence[np.random.Generator]
    ) -> tuple[Packets, State]:
        shift = state["shift"]
        if rows.dim() != 2 or rows.shape[1] != shift.shape[1]:
            raise RequestError(f"rows must have the shape (clients, {shift.shape[1]}), not {tuple(rows.shape)}")
        _check_members(clients, len(rows), shift)
        packets = self.compressor.compress_difference(rows, shift, clients, generators)
        packets.add_to(shift, self.gamma(packets.dim), clients)
        return packets, {"shift": shift}

    def send_chosen(
        self,
        values: Tensor,
        choice: Choice,
        state: State,
        clients: Tensor,
        generators: Sequence[np.random.Generator],
    ) -> tuple[Packets, State]:
        shift = state["shift"]
        _check_members(clients, len(values), shift)
        unknown = values.sub_(choice.of_memory(shift, clients))
        packets = _sparsifier(self.compressor).pack(unknown, choice, generators)
        packets.add_to(shift, self.gamma(packets.dim), clients)
        return packets, {"shift": shift}

    def noise_factor(self, dim: int) -> float:
        # A shift holds as much old noise as a vector has new noise, and the compressor multiplies both.
        return 1 + 2 * self.compressor.omega(dim)

    def server_init(self, dim: int) -> State:
        return {"shift": torch.zeros(count("dim", dim))}

    def receive(
        self, total: Tensor, state: State, *, cohort: float, clients: int, at: Tensor | None = None
    ) -> tuple[Tensor, State]:
        check_counts(cohort, clients)
        shift = state["shift"]
        direction = torch.add(shift, total, alpha=1 / cohort)
        return direction, {"shift": shift.add_(total, alpha=self.gamma(total.numel()) / clients)}


@dataclass(frozen=True)
class ControlVariates(Shifted):
    """Shifts that also steer the clients' local steps: SCAFFOLD's control variates (Karimireddy et al. 2020).

    Client i's shift is its control variate c_i; the server's is c, the mean of all of them. The server sends c
    with the point; each client adds c - c_i to each of its local gradients and sends C(mean gradient - c_i). Both
    of SCAFFOLD's messages can be computed from this one, so half as much is sent: without compression, c_i
    becomes the mean gradient (its option II), and the client has moved by -step K (c + mean gradient - c_i).

    Without a `shift_step`, gamma is 1/(1 + omega): 1 without compression.
    """

    def gamma(self, dim: int) -> float:
        return 1 / (1 + self.compressor.omega(dim)) if self.shift_step is None else self.shift_step

    def told(self, state: State, clients: Tensor) -> State:
        return {OWN_CONTROL: state["shift"][clients]}

    def broadcast(self, state: State) -> State:
        return {CONTROL: state["shift"]}


CONTROL = "control"
"""The server's control variate, (d,)."""
OWN_CONTROL = "own_control"
"""Each client's control variate, (clients, d)."""


def prescribed_shift_step(omega: float) -> float:
    """The shift step gamma = sqrt((1 + 2 omega) / (2 (1 + omega)^3)) of SoteriaFL, Theorem 3.

    >>> round(prescribed_shift_step(0.0), 4), round(prescribed_shift_step(19.0), 4)
    (0.7071, 0.0494)
    """
    if not (math.isfinite(omega) and omega >= 0):
        raise RequestError(f"omega must be a finite number of at least 0, not {omega!r}")
    return math.sqrt((1 + 2 * omega) / (2 * (1 + omega) ** 3))


def check_counts(cohort: float, clients: int) -> None:
    """Refuse a cohort of more clients than there are."""
    if positive("cohort", cohort) > count("clients", clients):
        raise RequestError(f"cohort must be at most the number of clients, {clients}, not {cohort}")


def _sparsifier(compressor: Compressor) -> Sparsifier:
    if not isinstance(compressor, Sparsifier):
        raise RequestError(f"{compressor.spec()} does not choose its coordinates in advance: use send")
    return compressor


def _check_members(clients: Tensor, rows: int, memory: Tensor) -> None:
    if clients.shape != (rows,) or clients.dtype != torch.int64:
        raise RequestError(f"clients must be {rows} int64 numbers, one for each row, not {clients!r}")
    if clients.numel() and not 0 <= int(clients.min()) <= int(clients.max()) < memory.shape[0]:
        raise RequestError(f"clients must be in [0, {memory.shape[0]}), not {clients.tolist()}")
    if len(set(clients.tolist())) != clients.numel():
        raise RequestError(f"clients must name each client once, not {clients.tolist()}")
