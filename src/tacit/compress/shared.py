"""An uplink for sums: all clients of a round send the same coordinates.

A server that can open only the sum of a round's messages cannot use vectors that were compressed one by one. But
if all clients send the same k coordinates, the sum of what they send is what they would send of the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tacit.compress.identity import Identity
from tacit.compress.rand_k import RandK
from tacit.compress.sparse import Choice
from tacit.compress.uplink import CommonUplink, Direct, Shifted, Uplink, check_counts, prescribed_shift_step
from tacit.compress.wire import OVERHEAD_BYTES
from tacit.errors import RequestError, count, probability
from tacit.state import State


@dataclass(frozen=True)
class SharedCoordinates(CommonUplink):
    """Every client sends its values at the round's k coordinates, which public coins choose for all of them.

    The coins shuffle all coordinates, and the next d/k rounds send them in this order, k at a time. (Were they
    drawn anew in every round, some would be left out for long: on a9a at 5% this costs several points.)

    The server keeps the shift of SoteriaFL (Li et al. 2022), Algorithm 2. With m the mean of the clients' vectors
    and C(x) = (d/k) x at the k coordinates, 0 elsewhere,

        v = C(m - s),    direction = s + v,    s += gamma v.

    This is the algorithm with a shift for every client: C is linear and the same for all clients, so only the
    mean s of their shifts matters, and that is known to the server. Clients need no memory, and one that misses
    rounds does no harm. With shift step 0 compression is direct, and without compression the direction is m.
    """

    shift_step: float | None = None
    """gamma; by default what Theorem 3 prescribes for the compressor"""
    bits: int = 32
    """bits of a coordinate on the wire"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.compressor, Identity | RandK):
            raise RequestError(
                f"compressor {self.compressor.spec()} rounds every message by itself, so a sum of its messages "
                "is not a message of the sum: with trust = 'sum' use rand-k or identity"
            )
        if self.shift_step:
            probability("shift_step", self.shift_step)

    @classmethod
    def like(cls, uplink: Uplink) -> SharedCoordinates:
        """The uplink for sums that does what `uplink` does for single messages; refused if there is none."""
        if type(uplink) is Shifted:
            return cls(uplink.compressor, uplink.shift_step)
        if type(uplink) is Direct:
            return cls(uplink.compressor, 0.0)
        raise RequestError(
            f"{type(uplink).__name__} remembers single messages, which nobody sees under trust = 'sum': use an "
            "algorithm of the SoteriaFL family, noisy-mb-sgd or accelerated-mb-sgd"
        )

    shared = True
    """the coins of all clients are the same"""

    def with_bits(self, bits: int) -> Self:
        return replace(self, bits=bits)

    def kept(self, dim: int) -> int:
        """The number of coordinates of a message."""
        return self.compressor.kept(dim)

    def message_bytes(self, dim: int) -> int:
        """The exact length of a message: `bits` for every coordinate, and a header."""
        return OVERHEAD_BYTES + (self.kept(dim) * self.bits + 7) // 8

    def coordinates(self, dim: int, round: int, coins: Callable[[int], np.random.Generator]) -> Tensor | None:
        """The coordinates of one round of a pass; None for all of them.

        The last round of a pass is filled up with coordinates of the first.
        """
        kept = self.kept(dim)
        if kept == dim:
            return None
        number, turn = divmod(round, -(-dim // kept))
        places = np.arange(turn * kept, (turn + 1) * kept)
        return torch.from_numpy(np.sort(coins(number).permutation(dim).take(places, mode="wrap")))

    def choose(self, dim: int, generators: Sequence[np.random.Generator]) -> Choice | None:
        """None: the round decides for all clients, see `coordinates`."""
        return None

    def send(
        self, rows: Tensor, state: State, clients: Tensor, generators: Sequence[np.random.Generator]
    ) -> tuple[Summands, State]:
        return Summands(rows, None, rows.shape[1], 8 * self.message_bytes(rows.shape[1])), state

    def send_chosen(
        self,
        values: Tensor,
        choice: Choice,
        state: State,
        clients: Tensor,
        generators: Sequence[np.random.Generator],
    ) -> tuple[Summands, State]:
        return Summands(values, choice.indices[0], choice.dim, 8 * self.message_bytes(choice.dim)), state

    def noise_factor(self, dim: int) -> float:
        omega = self.compressor.omega(dim)
        return 1 + (omega if self.shift_step == 0 else 2 * omega)

    def gamma(self, dim: int) -> float:
        """The shift step in use for vectors of length `dim`."""
        return prescribed_shift_step(self.compressor.omega(dim)) if self.shift_step is None else self.shift_step

    def server_init(self, dim: int) -> State:
        return {"shift": torch.zeros(count("dim", dim))}

    def receive(
        self, total: Tensor, state: State, *, cohort: float, clients: int, at: Tensor | None = None
    ) -> tuple[Tensor, State]:
        check_counts(cohort, clients)
        mean, shift, dim = total / cohort, state["shift"], total.numel()
        if at is None:
            return mean, state
        news = torch.zeros_like(mean)
        news[at] = (mean[at] - shift[at]) * (dim / len(at))
        return shift + news, {"shift": shift.add_(news, alpha=self.gamma(dim))}


@dataclass(frozen=True)
class Summands:
    """What the clients of a cohort add to a sum: (clients, k) values at coordinates that all of them share."""

    values: Tensor
    at: Tensor | None
    """(k,) the coordinates, or None for all"""
    dim: int
    bits: int

    @property
    def clients(self) -> int:
        return len(self.values)

    def dense(self) -> Tensor:
        if self.at is None:
            return self.values
        rows = self.values.new_zeros(self.clients, self.dim)
        rows[:, self.at] = self.values
        return rows

    def sum(self) -> Tensor:
        total = self.values.new_zeros(self.dim)
        self.add_sum_to(total)
        return total

    def add_sum_to(self, total: Tensor) -> None:
        # One client after another: chunks must not change a bit.
        for row in self.values.to(total.dtype).unbind():
            if self.at is None:
                total.add_(row)
            else:
                total.index_add_(0, self.at, row)

    def add_to(self, rows: Tensor, scale: float, clients: Tensor | None = None) -> None:
        rows[torch.arange(self.clients) if clients is None else clients] += scale * self.dense()

    def encode(self) -> list[bytes]:
        raise RequestError("messages of a sum have no noise of their own: they are sent masked, or not at all")
