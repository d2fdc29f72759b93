"""From a target to the noise of every client, and to the guarantee that this noise gives.

This is the only door through which noise enters a run. It takes a target, never a standard deviation, so
there is no way to run with less noise than the guarantee needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.client.work import Work
from tacit.errors import RequestError, count
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Guarantee, Target, accounting, calibrate_noise, events
from tacit.server.participation import Everyone

Privacy = Target | Literal["none"]
"""What a run promises: a target, or "none", which must be said in so many words."""


@dataclass(frozen=True)
class Calibration:
    """The noise of every client and what it is worth.

    `guarantee` is None for a run without privacy, whose multipliers are all zero.
    """

    work: Work
    noise_multipliers: Tensor
    """(clients,) double: the standard deviation on the sum of bounded contributions, over the bound"""
    noise_stds: Tensor
    """(clients,) double: the standard deviation on every coordinate of the vector that a client releases"""
    groups: tuple[tuple[int, float], ...]
    """the distinct (records, noise multiplier) of the clients"""
    guarantee: Guarantee | None

    def epsilon_after(self, releases: int) -> float | None:
        """What the client that spends most has spent after so many releases."""
        if self.guarantee is None:
            return None
        if releases == 0:
            return 0.0
        adjacency, delta = self.guarantee.adjacency, self.guarantee.delta
        spent = (self.work.event(size, multiplier, releases) for size, multiplier in self.groups)
        return max(accounting.epsilon(event, delta, adjacency) for event in spent)

    def facts(self, federation: Federation) -> dict[str, Any]:
        """Who releases what: the head of a ledger."""
        if self.guarantee is None:
            return {"privacy": "none"}
        groups = [
            {
                "clients": federation.ids[(federation.sizes == size).nonzero()[:, 0]].tolist(),
                "records": size,
                "noise_multiplier": multiplier,
                "release": events.to_dict(self.work.event(size, multiplier, 1)),
            }
            for size, multiplier in self.groups
        ]
        return {
            "unit": str(self.guarantee.unit),
            "adjacency": str(self.guarantee.adjacency),
            "adversary": str(self.guarantee.adversary),
            "delta": self.guarantee.delta,
            "public": list(self.guarantee.public),
            "groups": groups,
        }


def releases(algorithm: Algorithm, federation: Federation, rounds: int, randomness: Randomness) -> int:
    """The largest number of rounds in which any one client takes part.

    Who takes part follows from public coins that look at no record, so it may be counted in advance. More
    rounds than the sampling has batches for are refused.
    """
    algorithm.work.sampling.check_rounds(federation.sizes, count("rounds", rounds))
    if isinstance(algorithm.participation, Everyone):
        return rounds
    clients = federation.clients
    taken = torch.zeros(clients, dtype=torch.int64)
    for t in range(rounds):
        cohort = algorithm.participation.cohort(clients, t, randomness)
        if len(cohort) == clients:
            taken += 1
        else:
            taken[cohort] += 1
    return int(taken.max())


def calibrate(algorithm: Algorithm, federation: Federation, *, releases: int, privacy: Privacy) -> Calibration:
    """The least noise that keeps every client within the target over `releases` releases.

    Guarantee: the returned `guarantee` is computed from the algorithm's own events at the returned noise, and
    its epsilon is at most the target's.
    """
    count("releases", releases)
    work, sizes = algorithm.work, federation.sizes
    if privacy == "none":
        zeros = torch.zeros(federation.clients, dtype=torch.float64)
        return Calibration(work, zeros, zeros, tuple((size, 0.0) for size in torch.unique(sizes).tolist()), None)
    if not isinstance(privacy, Target):
        raise RequestError(f"privacy must be a Target(epsilon, delta) or 'none', not {privacy!r}")
    distinct, members = torch.unique(sizes, return_inverse=True)
    groups: list[tuple[int, float]] = []
    for size in distinct.tolist():
        multiplier = calibrate_noise(
            partial(work.event, size, rounds=releases),
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            adjacency=privacy.adjacency,
        )
        groups.append((size, multiplier))
    multipliers = torch.tensor([multiplier for _, multiplier in groups], dtype=torch.float64)[members]
    spent = [work.event(size, multiplier, releases) for size, multiplier in groups]
    guarantee = Guarantee(
        tuple(spent[group] for group in members.tolist()),
        delta=privacy.delta,
        adjacency=privacy.adjacency,
        public=("the number of records of every client", *federation.peeks),
    )
    return Calibration(work, multipliers, work.noise_stds(sizes, multipliers), tuple(groups), guarantee)
