"""ISRL-DP behind a shuffler: Lowy & Razaviyayn 2023, section 5 and appendix G.

    shuffled-mb-sgd        Minibatch, Gaussian   Direct(Identity)   Averaged(Descent in W)   Theorems 5.1 and G.1
    shuffled-accelerated   CoinGradient          Direct(CoinBits)   Accelerated              Algorithms 4 to 6

The guarantee is against a server that gets all messages mixed. What is left against one that the shuffler helps
stands beside it: with Gaussian messages their own noise, with coins next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.isrl_dp import known_strong_convexity, noisy_mb_sgd
from tacit.algorithms.shuffler import Shuffler
from tacit.client.bounds import Bound, ClipNorm
from tacit.client.coin_gradient import CoinGradient
from tacit.client.sampling import OnePass, Sampling, WithoutReplacement
from tacit.compress import Direct, Identity
from tacit.errors import RequestError
from tacit.models.model import Model, penalty_gradient
from tacit.server.accelerated import Accelerated, Stage
from tacit.server.projection import Everywhere, Projection
from tacit.server.self_tuned import Prospect
from tacit.server.update import ServerUpdate
from tacit.shuffle.coin_bits import CoinBits
from tacit.state import State

_MOST_COINS_A_ROUND = 2**30
"""Of one client: its message is several times as many bits, hundreds of megabytes."""


def shuffled_mb_sgd(
    model: Model,
    *,
    shuffler: Shuffler,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = WithoutReplacement(0.1),
    step: float | None = None,
    projection: Projection = Everywhere(),
    strong_convexity: float | None = None,
) -> Algorithm:
    """Noisy minibatch SGD behind a shuffler (Theorem 5.1, with K >= 1 records a batch).

    Args:
        model: the loss that is trained.
        shuffler: how many messages are mixed, and the records of the smallest client.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        step: length of the server's steps.
        projection: the set that points are kept in.
        strong_convexity: that of the loss, mu; by default the strength of the model's ridge penalty.
    """
    parts = noisy_mb_sgd(
        model,
        bound=bound,
        sampling=sampling,
        step=step,
        projection=projection,
        strong_convexity=strong_convexity,
    )
    return replace(parts, name="shuffled-mb-sgd", trust=shuffler)


def shuffled_accelerated(
    model: Model,
    *,
    stages: tuple[Stage, ...],
    shuffler: Shuffler,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = OnePass(1),
    strong_convexity: float | None = None,
    projection: Projection = Everywhere(),
    regularisation: float = 0.0,
) -> Algorithm:
    """AC-SA on sums of mixed bits (Algorithm 6; Theorem 5.2). `settled` agrees on the number of coins.

    Args:
        model: the loss that is trained.
        stages: rounds and curvature of every stage, see `Stage`.
        shuffler: how many messages are mixed, and the records of the smallest client.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        strong_convexity: that of the loss, mu; by default the strength of the model's ridge penalty.
        projection: the set that points are kept in.
        regularisation: strength of a ridge around the start, for losses that are only convex.
    """
    batch = int(sampling.batch_sizes(torch.tensor([shuffler.records]))[0])
    work = CoinGradient(model, sampling, bound, batch, shuffler.cohort)
    mu = known_strong_convexity(model, strong_convexity)
    server = WithPenalty(Accelerated(stages, mu, projection, regularisation), model)
    return Algorithm("shuffled-accelerated", work, Direct(Identity()), server, trust=shuffler)


def settled(algorithm: Algorithm, noise_multiplier: float) -> Algorithm:
    """The algorithm with all that its parties must agree on once the noise is known: how many coins, and bits.

    More coins than a client could throw and send are refused.
    """
    work = algorithm.work
    if not isinstance(work, CoinGradient) or noise_multiplier == 0:
        return algorithm
    coins = work.coins_for(noise_multiplier)
    if coins * work.model.dim > _MOST_COINS_A_ROUND:
        raise RequestError(
            f"every one of {work.cohort} clients would have to throw {coins} coins for each of {work.model.dim} "
            f"coordinates in a round, and send a bit for each; at most {_MOST_COINS_A_ROUND} together will do. "
            "This epsilon is too small for so few clients: ask for a larger one, fewer rounds or more clients"
        )
    bits = CoinBits(work.levels, coins, work.bound.norm(work.model.dim))
    return replace(algorithm, work=replace(work, coins=coins), uplink=Direct(bits))


@dataclass(frozen=True)
class WithPenalty:
    """A server update that adds the gradient of the penalty, which is public, where messages cannot hold it."""

    update: ServerUpdate
    model: Model

    @property
    def is_open(self) -> bool:
        """The update's."""
        return bool(getattr(self.update, "is_open", False))

    def settled(self, prospect: Prospect) -> Self:
        """The update's."""
        update: Any = self.update
        return replace(self, update=update.settled(prospect) if hasattr(update, "settled") else update)

    def init(self, point: Tensor) -> State:
        """The update's."""
        return self.update.init(point)

    def broadcast(self, state: State, round: int) -> Tensor:
        """The update's."""
        return self.update.broadcast(state, round)

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """At the point that the clients computed their gradients at."""
        point = self.update.broadcast(state, round)
        return self.update.step(state, direction + penalty_gradient(self.model, point), round)

    def output(self, state: State) -> Tensor:
        """The update's."""
        return self.update.output(state)
