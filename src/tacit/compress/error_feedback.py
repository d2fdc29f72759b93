"""Error feedback: what a biased compressor leaves out is sent later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.compress.compressor import Packets
from tacit.compress.sparse import Choice
from tacit.compress.uplink import Shifted, Zeros
from tacit.errors import count, probability
from tacit.state import State


@dataclass(frozen=True)
class ErrorFeedback(Shifted):
    """Compresses the difference between a moving average of the vectors and the server's copy of it.

    EF21-SGDM (Fatkhullin, Tyurin & Richtarik 2023, Algorithm 1), for n clients, with momentum eta:

        m_i += eta (g_i - m_i),  v_i = C(m_i - s_i),  s_i += gamma v_i,
        s += gamma (1/n) sum of v_i,  direction = s.

    For contractive C, E ||C(x) - x||^2 <= (1 - alpha) ||x||^2, biased or not: top-k with gamma = 1 (alpha = k/d),
    and unbiased compressors with gamma = 1/(1 + omega) = alpha. The average makes noisy vectors compressible:
    without it the server would follow the largest coordinates of the noise. The first 1/eta vectors of a client
    are averaged with equal weights. Everything here is post-processing of vectors that are already private.
    """

    lags = True
    momentum: float = 0.1
    """eta: the weight of a new vector in the moving average, above 0 and at most 1"""

    def __post_init__(self) -> None:
        probability("momentum", self.momentum)
        if self.shift_step is not None:
            probability("shift_step", self.shift_step)

    def gamma(self, dim: int) -> float:
        if self.shift_step is not None:
            return self.shift_step
        return 1 / (1 + self.compressor.omega(dim)) if self.compressor.unbiased else 1.0

    def init(self, clients: int, dim: int, zeros: Zeros = torch.zeros) -> State:
        return {
            **super().init(clients, dim, zeros),
            "average": zeros((clients, count("dim", dim))),
            "sent": torch.zeros(clients, 1),
        }

    def send(
        self, rows: Tensor, state: State, clients: Tensor, generators: Sequence[np.random.Generator]
    ) -> tuple[Packets, State]:
        average, sent = state["average"], state["sent"]
        weight = (1 / (1 + sent[clients])).clamp_(min=self.momentum)
        moved = average[clients].lerp_(rows, weight)
        average[clients] = moved
        sent[clients] += 1
        packets, shift = super().send(moved, {"shift": state["shift"]}, clients, generators)
        return packets, {**shift, "average": average, "sent": sent}

    def noise_factor(self, dim: int) -> float:
        # Directions are averages over time: each has little noise, but it persists and adds up to as much.
        return 1.0

    def choose(self, dim: int, generators: Sequence[np.random.Generator]) -> Choice | None:
        return None  # the average needs every coordinate

    def receive(
        self, total: Tensor, state: State, *, cohort: float, clients: int, at: Tensor | None = None
    ) -> tuple[Tensor, State]:
        _, state = super().receive(total, state, cohort=cohort, clients=clients)
        return state["shift"].clone(), state
