"""ISRL-DP (Lowy & Razaviyayn 2023) behind a shuffler: section 5 and appendix G.

    shuffled-mb-sgd        Minibatch, Gaussian   Direct(Identity)   Averaged(Descent in W)   Theorems 5.1 and G.1
    shuffled-accelerated   CoinGradient          Direct(CoinBits)   Accelerated              Algorithms 4 to 6

The guarantee holds against a server that receives all messages shuffled. What remains against a server that
colludes with the shuffler is reported beside it: with Gaussian messages their own noise, with coins next to
nothing.
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
from tacit.federation import Federation
from tacit.models.model import Model, penalty_gradient
from tacit.server.accelerated import Accelerated, Stage
from tacit.server.projection import Everywhere, Projection
from tacit.server.self_tuned import Prospect
from tacit.server.update import ServerUpdate
from tacit.shuffle.coin_bits import CoinBits
from tacit.state import State

_MOST_COINS_A_ROUND = 2**30
"""Most coins of one client in a round; its message has several times as many bits, hundreds of megabytes."""


def shuffled_mb_sgd(
    model: Model,
    *,
    shuffler: Shuffler = Shuffler(),
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = WithoutReplacement(0.1),
    step: float | None = None,
    projection: Projection = Everywhere(),
    strong_convexity: float | None = None,
) -> Algorithm:
    """Noisy minibatch SGD behind a shuffler (Theorem 5.1, with K >= 1 records per batch).

    Args:
        model: the loss that is trained.
        shuffler: how many messages are shuffled together, and the records of the smallest client; by default
            taken from the federation.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        step: length of the server's steps.
        projection: the set that points are projected onto.
        strong_convexity: strong convexity mu of the loss; by default the strength of the model's ridge penalty.
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
    stages: tuple[Stage, ...] = (Stage(),),
    shuffler: Shuffler = Shuffler(),
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = OnePass(1),
    strong_convexity: float | None = None,
    projection: Projection = Everywhere(),
    regularisation: float = 0.0,
) -> Algorithm:
    """AC-SA on sums of shuffled bits (Algorithm 6; Theorem 5.2). `settled` fixes the number of coins.

    Args:
        model: the loss that is trained.
        stages: rounds and curvature of every stage; by default one stage of all rounds that suits the noise.
        shuffler: how many messages are shuffled together, and the records of the smallest client; by default
            taken from the federation.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        strong_convexity: strong convexity mu of the loss; by default the strength of the model's ridge penalty.
        projection: the set that points are projected onto.
        regularisation: strength of a ridge around the start, for losses that are only convex.
    """
    mu = known_strong_convexity(model, strong_convexity)
    server = WithPenalty(Accelerated(stages, mu, projection, regularisation), model)
    work = _coins_for(CoinGradient(model, sampling, bound), shuffler)
    return Algorithm("shuffled-accelerated", work, Direct(Identity()), server, trust=shuffler)


def _coins_for(work: CoinGradient, shuffler: Shuffler) -> CoinGradient:
    if work.batch or not shuffler.records:
        return work
    batch = int(work.sampling.batch_sizes(torch.tensor([shuffler.records]))[0])
    return replace(work, batch=batch, cohort=shuffler.cohort)


def fitted(algorithm: Algorithm, federation: Federation) -> Algorithm:
    """Fills in what a shuffler, and the work behind it, take from the federation: public numbers."""
    if not isinstance(algorithm.trust, Shuffler):
        return algorithm
    shuffler = algorithm.trust.fitted(algorithm.participation, federation)
    work = _coins_for(algorithm.work, shuffler) if isinstance(algorithm.work, CoinGradient) else algorithm.work
    return replace(algorithm, work=work, trust=shuffler)


def settled(algorithm: Algorithm, noise_multiplier: float) -> Algorithm:
    """Fixes everything the parties must agree on once the noise is known: the number of coins and of bits.

    Refuses more coins than a client could toss and send.
    """
    work = algorithm.work
    if not isinstance(work, CoinGradient) or noise_multiplier == 0:
        return algorithm
    coins = work.coins_for(noise_multiplier)
    if coins * work.model.dim > _MOST_COINS_A_ROUND:
        raise RequestError(
            f"each of {work.cohort} clients would have to toss {coins} coins for each of {work.model.dim} "
            f"coordinates in a round, and send a bit for each; the limit is {_MOST_COINS_A_ROUND} in total. "
            "This epsilon is too small for so few clients: use a larger epsilon, fewer rounds or more clients"
        )
    bits = CoinBits(work.levels, coins, work.bound.norm(work.model.dim))
    return replace(algorithm, work=replace(work, coins=coins), uplink=Direct(bits))


@dataclass(frozen=True)
class WithPenalty:
    """A server update that adds the gradient of the public penalty, for messages that cannot carry it."""

    update: ServerUpdate
    model: Model

    @property
    def is_open(self) -> bool:
        """Whether the wrapped update still has open steps."""
        return bool(getattr(self.update, "is_open", False))

    def settled(self, prospect: Prospect) -> Self:
        """This update with the wrapped one settled."""
        update: Any = self.update
        return replace(self, update=update.settled(prospect) if hasattr(update, "settled") else update)

    def init(self, point: Tensor) -> State:
        return self.update.init(point)

    def broadcast(self, state: State, round: int) -> State:
        """The point that the wrapped update sends to clients."""
        return self.update.broadcast(state, round)

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """Adds the penalty's gradient at the point where the clients computed theirs, then steps."""
        point = self.update.broadcast(state, round)["point"]
        return self.update.step(state, direction + penalty_gradient(self.model, point), round)

    def output(self, state: State) -> Tensor:
        return self.update.output(state)
