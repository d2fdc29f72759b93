"""Derives the noise of every client from a privacy target, and the guarantee that this noise gives.

All noise of a run is set here. The input is a target, never a standard deviation, so a run cannot use less noise
than its guarantee needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from dp_accounting import dp_event
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.client.work import Work, looked_at, sizes_are_public
from tacit.compress.grid import WholeSteps
from tacit.errors import RequestError, count
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Guarantee, Target, events
from tacit.privacy.accountant import accounting
from tacit.privacy.accountant.calibrate import calibrate_noise
from tacit.privacy.accountant.cost import marks
from tacit.privacy.promises.terms import RECORD_COUNTS, Adversary
from tacit.server.participation import Attendance

Privacy = Target | Sequence[Target] | Literal["none"]
"""The privacy of a run: one target for all clients, one target per client, or "none" to turn privacy off."""


@dataclass(frozen=True)
class Group:
    """Clients with the same target and, where sizes are public, number of records; and the noise each adds."""

    records: int | None
    """records of each client; None where the promise protects this number"""
    target: Target | None
    noise_multiplier: float

    @property
    def size(self) -> int:
        """Number of records to pass to an event; if the promise protects it, the event does not depend on it."""
        return 1 if self.records is None else self.records


@dataclass(frozen=True)
class Calibration:
    """The noise of every client and the guarantee it gives.

    `guarantee` is None for a run without privacy, whose multipliers are all zero.
    """

    algorithm: Algorithm
    noise_multipliers: Tensor
    """(clients,) double: the standard deviation on the sum of bounded contributions, over the bound"""
    noise_stds: Tensor
    """(clients,) double: the standard deviation on every coordinate of the vector that a client sends; under a
    promise about sums, that of its share"""
    groups: tuple[Group, ...]
    group_of_client: Tensor
    guarantee: Guarantee | None
    releases: int
    """the number of releases per client that the guarantee covers"""
    beside: tuple[Guarantee, ...] = ()
    """the guarantees of the same noise against adversaries who see more than `guarantee` assumes"""
    also: dp_event.DpEvent | None = None
    """what every client releases besides its messages; charged from the start"""

    @property
    def work(self) -> Work:
        """The clients' part of the algorithm."""
        return self.algorithm.work

    @property
    def shows_sizes(self) -> bool:
        """Whether record counts, and anything derived from them, may be published beside the promise."""
        return self.guarantee is None or sizes_are_public(self.work)

    @property
    def without_trust(self) -> Guarantee | None:
        """What is left if all other parties help the server; None if the guarantee relies on nobody."""
        return next((one for one in self.beside if one.adversary is Adversary.SERVER), None)

    @property
    def epsilon_without_trust(self) -> float | None:
        """The largest epsilon of `without_trust`; None if it relies on nobody, or if nothing is left."""
        alone = self.without_trust
        return None if alone is None or math.isinf(alone.epsilon) else alone.epsilon

    def event(self, group: Group, releases: int) -> dp_event.DpEvent:
        """The event of `releases` releases by a client of the group, with anything released before the first."""
        if releases == 0:
            run = events.nothing() if self.work.before is None else self.work.before.event
        else:
            clients = len(self.group_of_client)
            run = self.algorithm.trust.event(self.work, clients, group.size, group.noise_multiplier, releases)
        return _with(self.also, run)

    def epsilon_after(self, releases: int) -> float | None:
        """The largest epsilon that any client has spent after `releases` releases."""
        if self.guarantee is None:
            return None
        adjacency = self.guarantee.adjacency
        return max(
            accounting.epsilon(self.event(group, releases), group.target.delta, adjacency)
            for group in self.groups
            if group.target is not None
        )

    def facts(self, federation: Federation) -> dict[str, Any]:
        """The head of a ledger: which clients release what.

        `events` are cumulative: an entry [n, event] covers all that a client has released up to its n-th release.
        `beside` is what the whole run is to adversaries who see more than the promise assumes.
        """
        if self.guarantee is None:
            return {"privacy": "none"}
        counts = [0, *marks(self.releases)]
        groups = [
            {
                "clients": federation.ids[(self.group_of_client == index).nonzero()[:, 0]].tolist(),
                **self._sizes_of(index, federation.most_released),
                "noise_multiplier": group.noise_multiplier,
                "delta": group.target.delta,
                "epsilon_budget": group.target.epsilon,
                "events": [[n, events.to_dict(self.event(group, n))] for n in counts],
                **self._beside_of(index),
            }
            for index, group in enumerate(self.groups)
            if group.target is not None
        ]
        return {
            "unit": str(self.guarantee.unit),
            "adjacency": str(self.guarantee.adjacency),
            "adversary": str(self.guarantee.adversary),
            **({"colluding": self.guarantee.colluding} if self.guarantee.colluding else {}),
            "delta": self.guarantee.delta,
            "public": list(self.guarantee.public),
            "groups": groups,
        }

    def _beside_of(self, index: int) -> dict[str, Any]:
        """What the run of a client of the group is to adversaries who see more, by their names."""
        one = int((self.group_of_client == index).nonzero()[0])
        seen = {str(other.adversary): events.to_dict(other.events[one]) for other in self.beside}
        return {"beside": seen} if seen else {}

    def _sizes_of(self, index: int, released: Tensor) -> dict[str, int]:
        """How many records clients of a group train on, and the most that are in any release, if that is more."""
        records = self.groups[index].records
        if records is None:
            return {}
        most = int(released[self.group_of_client == index].max())
        return {"records": records, **({"released_records": most} if most > records else {})}


def attendance(algorithm: Algorithm, clients: int, rounds: int, randomness: Randomness) -> Attendance:
    """How often clients take part. Public coins depend on no record, so this can be counted in advance.

    Secret coins are never inspected.
    """
    count("rounds", rounds)
    who = algorithm.participation
    if who.secret or who.number_of(clients) == clients:
        return Attendance(rounds, rounds)
    taken = torch.zeros(clients, dtype=torch.int64)
    for t in range(rounds):
        taken[algorithm.participation.cohort(clients, t, randomness)] += 1
    return Attendance(rounds, int(taken.max()))


def releases(algorithm: Algorithm, attended: Attendance) -> int:
    """The rounds charged to a client: those it takes part in, or all of them if participation is secret."""
    return attended.rounds if algorithm.trust.charges_everyone else max(1, attended.most)


def calibrate(
    algorithm: Algorithm,
    federation: Federation,
    *,
    releases: int,
    privacy: Privacy,
    attended: Attendance | None = None,
    also: dp_event.DpEvent | None = None,
    exposed: dp_event.DpEvent | None = None,
) -> Calibration:
    """Finds the least noise that keeps every client within its own target over `releases` releases.

    `also` is an additional release that every client makes under the same budget; the noise leaves room for it.
    `exposed` is what it is to adversaries who see more than the promise assumes, if that differs.

    Guarantee: the returned `guarantee` is computed from the algorithm's own events at the returned noise, and
    the epsilon of every client is at most its target's. With `attended`, `beside` is filled in.
    """
    count("releases", releases)
    work, trust, clients = algorithm.work, algorithm.trust, federation.clients
    if federation.weights is not None and isinstance(algorithm.uplink.compressor, WholeSteps):
        raise RequestError(
            f"weights would move the messages of {algorithm.name!r} off their grid: leave them out"
        )
    if isinstance(privacy, str):
        if privacy != "none":
            raise RequestError(
                f"privacy must be a Target(epsilon, delta), one for each client, or 'none', not {privacy!r}"
            )
        zeros = torch.zeros(clients, dtype=torch.float64)
        distinct, members = torch.unique(federation.sizes, return_inverse=True)
        groups = tuple(Group(size, None, 0.0) for size in distinct.tolist())
        return Calibration(algorithm, zeros, zeros, groups, members, None, releases)
    targets = _targets(privacy, clients)
    if not math.isfinite(work.bound.norm(work.model.dim)):
        raise RequestError(
            f"{algorithm.name!r} bounds no client's influence, so it cannot be private: set privacy = 'none'"
        )
    adjacency = targets[0].adjacency
    trust.check(work, algorithm.uplink, algorithm.participation, federation)
    sizes = _sizes(work, federation)

    def event(size: int, noise_multiplier: float) -> dp_event.DpEvent:
        return _with(also, trust.event(work, clients, size, noise_multiplier, releases))

    needs = {
        (size, target): least_noise(partial(event, size or 1), target)
        for size, target in dict.fromkeys(zip(sizes, targets, strict=True))
    }
    needed = torch.tensor([needs[each] for each in zip(sizes, targets, strict=True)], dtype=torch.float64)
    numbers = torch.tensor([size or 1 for size in sizes])
    weights = 1.0 if federation.weights is None else federation.weights.double()
    multipliers = trust.levelled(needed, work.noise_stds(numbers, needed) * weights)
    keys: dict[tuple[int | None, Target, float], int] = {}
    members = torch.tensor(
        [keys.setdefault(key, len(keys)) for key in zip(sizes, targets, multipliers.tolist(), strict=True)]
    )
    groups = tuple(Group(*key) for key in keys)
    deltas = tuple(target.delta for target in targets)
    promise = partial(
        Guarantee,
        delta=max(deltas),
        deltas=deltas,
        adjacency=adjacency,
        unit=work.unit,
        public=tuple(
            dict.fromkeys((*work.public, *looked_at(work, federation), *getattr(work.model, "public", ())))
        ),
    )
    spent = [event(group.size, group.noise_multiplier) for group in groups]
    guarantee = promise(
        tuple(spent[index] for index in members.tolist()), adversary=trust.adversary, colluding=trust.colluding
    )
    for kept, target in zip(guarantee.epsilons, targets, strict=True):
        if kept > target.epsilon:
            raise RequestError(
                f"the noise found for epsilon = {target.epsilon!r} gives {kept!r}: refusing to run with it"
            )
    beside: tuple[Guarantee, ...] = ()
    if attended is not None:
        seen = [trust.exposures(work, clients, group.size, group.noise_multiplier, attended) for group in groups]
        beside = tuple(
            promise(
                tuple(_with(exposed or also, seen[index][k].event) for index in members.tolist()),
                adversary=exposure.adversary,
            )
            for k, exposure in enumerate(seen[0])
        )
    stds = work.noise_stds(numbers, trust.share(multipliers, 0))
    return Calibration(algorithm, multipliers, stds, groups, members, guarantee, releases, beside, also)


def _with(also: dp_event.DpEvent | None, run: dp_event.DpEvent) -> dp_event.DpEvent:
    return run if also is None else events.composed([run, also])


def least_noise(make_event: Callable[[float], dp_event.DpEvent], target: Target) -> float:
    """The least noise multiplier whose event stays within the target."""
    return calibrate_noise(make_event, epsilon=target.epsilon, delta=target.delta, adjacency=target.adjacency)


def _sizes(work: Work, federation: Federation) -> list[int | None]:
    """The number of records of every client, or None where a client-level promise protects it.

    Refuses settings that would reveal the protected numbers anyway.
    """
    if sizes_are_public(work):
        return federation.sizes.tolist()
    if RECORD_COUNTS in federation.peeks:
        raise RequestError(
            "these weights follow from all clients' record counts, which a client-level promise protects: give "
            "one number per client, weights = 'equal', or set public_sizes = true if these numbers are not secret"
        )
    if work.sampling.once:
        raise RequestError(
            "sampling = 'one-pass' needs a fixed number of records from every client, and a client-level promise "
            "protects whether a client has them: use another sampling, or set public_sizes = true if record "
            "counts are not secret"
        )
    return [None] * federation.clients


def _targets(privacy: Target | Sequence[Target], clients: int) -> tuple[Target, ...]:
    if isinstance(privacy, Target):
        return (privacy,) * clients
    targets = tuple(privacy) if isinstance(privacy, Sequence) else ()
    if len(targets) != clients or not all(isinstance(target, Target) for target in targets):
        raise RequestError(
            f"privacy must be a Target, such as Target(epsilon=4, delta=1e-5), one for each of {clients} "
            f"clients, or 'none', not {privacy!r}"
        )
    if len({target.adjacency for target in targets}) > 1:
        raise RequestError("the targets of all clients must have the same adjacency")
    return targets
