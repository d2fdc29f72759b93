"""Ways to deal the records of one data set to clients: evenly, skewed by label, sorted, or by a column.

A partitioner takes (targets, clients, rng) and returns one array of record indices per client. Every partition is
a disjoint cover: each record goes to exactly one client, and no client is left without one. Names follow Flower
Datasets where it has the same partitioner.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tacit.errors import DataError, RequestError, count, positive

Indices: TypeAlias = list[npt.NDArray[np.int64]]
Values: TypeAlias = npt.NDArray[Any]

_DIRICHLET_ATTEMPTS = 1000


def iid(targets: Values, clients: int, rng: np.random.Generator) -> Indices:
    """Shuffled and cut into equal parts (sizes differ by at most one).

    >>> [len(part) for part in iid(np.zeros(7), 3, np.random.default_rng(0))]
    [3, 2, 2]
    """
    _check_clients("iid", len(targets), clients)
    return _cut(rng.permutation(len(targets)), clients)


def dirichlet(targets: Values, clients: int, rng: np.random.Generator, *, alpha: float) -> Indices:
    """Each class is divided among the clients in proportions drawn from Dirichlet(alpha, ..., alpha).

    A small `alpha` gives each class to few clients, a large one spreads it evenly (Hsu et al. 2019, "Measuring
    the effects of non-identical data distribution"). Drawn again until every client has a record.
    """
    positive("dirichlet alpha", alpha)
    _check_clients("dirichlet", len(targets), clients)
    members = _by_class("dirichlet", targets)
    for _ in range(_DIRICHLET_ATTEMPTS):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(members))
        cuts = [
            np.floor(np.cumsum(share[:-1]) * len(rows) + 0.5).astype(np.int64)
            for share, rows in zip(shares, members, strict=True)
        ]
        sizes = sum(np.diff(cut, prepend=0, append=len(rows)) for cut, rows in zip(cuts, members, strict=True))
        if np.min(sizes) > 0:
            parts = [np.split(rng.permutation(rows), cut) for rows, cut in zip(members, cuts, strict=True)]
            return [np.concatenate(own) for own in zip(*parts, strict=True)]
    raise RequestError(
        f"partition dirichlet:{alpha:g} left one of {clients} clients without any of {len(targets)} records, "
        f"{_DIRICHLET_ATTEMPTS} times: use a larger alpha or fewer clients"
    )


def shards(targets: Values, clients: int, rng: np.random.Generator, *, shards_per_client: int) -> Indices:
    """Sorted by target, cut into equal shards, `shards_per_client` of them to each client at random.

    With S shards a client holds about S classes: DP-NormFedAvg (Das et al. 2022), Appendix H, where S = 5.
    """
    count("shards per client", shards_per_client)
    total = clients * shards_per_client
    _check_clients(f"shards:{shards_per_client}", len(targets), total)
    pieces = _cut(np.argsort(targets, kind="stable"), total)
    dealt = rng.permutation(total).reshape(clients, shards_per_client)
    return [np.concatenate([pieces[piece] for piece in own]) for own in dealt]


def pathological(targets: Values, clients: int, rng: np.random.Generator, *, classes_per_client: int) -> Indices:
    """Each client holds records of exactly `classes_per_client` classes.

    The classes are dealt evenly, so none is left over; clients that hold the same class share its records
    equally.
    """
    setting = f"pathological:{count('classes per client', classes_per_client)}"
    members = _by_class("pathological", targets)
    if not len(members) / clients <= classes_per_client <= len(members):
        raise RequestError(
            f"partition {setting} with {clients} clients and {len(members)} classes: classes per client "
            f"must be {math.ceil(len(members) / clients)} to {len(members)}, so that every class has a client"
        )
    holders: list[list[int]] = [[] for _ in members]
    for client in range(clients):
        rarest_first = sorted(rng.permutation(len(members)), key=lambda label: len(holders[label]))
        for label in rarest_first[:classes_per_client]:
            holders[label].append(client)
    own: list[Indices] = [[] for _ in range(clients)]
    for rows, held_by in zip(members, holders, strict=True):
        if len(rows) < len(held_by):
            raise RequestError(
                f"partition {setting}: {len(held_by)} clients share a class of {len(rows)} records, so one "
                "would get none; use fewer clients or fewer classes per client"
            )
        for client, part in zip(held_by, _cut(rng.permutation(rows), len(held_by)), strict=True):
            own[client].append(part)
    return [np.concatenate(parts) for parts in own]


def sorted_equal(targets: Values, clients: int, rng: np.random.Generator) -> Indices:
    """Sorted by target and cut into equal parts (sizes differ by at most one): as unlike as possible.

    The experiments of SoteriaFL (Li et al. 2022) use this partition. Nothing is random.
    """
    _check_clients("sorted", len(targets), clients)
    return _cut(np.argsort(targets, kind="stable"), clients)


def sorted_target(targets: Values, clients: int, rng: np.random.Generator) -> Indices:
    """Sorted by target; all clients but the last get ceil(records / clients), the last one gets the rest.

    ISRL-DP (Lowy & Razaviyayn 2023), Appendix I.2. Nothing is random.
    """
    size = math.ceil(len(targets) / clients)
    if size * (clients - 1) >= len(targets):
        raise RequestError(
            f"partition sorted-target: {clients - 1} clients of {size} records leave nothing of "
            f"{len(targets)} for the last; use another number of clients, or the partition 'sorted'"
        )
    return np.split(np.argsort(targets, kind="stable"), size * np.arange(1, clients))


def digit_pairs(targets: Values, clients: int, rng: np.random.Generator) -> Indices:
    """25 clients, one for each pair of an odd and an even digit; the task becomes odd or even.

    ISRL-DP (Lowy & Razaviyayn 2023), Appendix I.1. There, a digit's records seem to be in all five clients that
    hold the digit (25 clients of 8673 + 2168 records are four times MNIST). Here they are divided evenly among
    the five: records held by five clients are exposed five times, which no guarantee for one client covers.
    """
    if clients != 25 or not np.array_equal(np.unique(targets), np.arange(10)):
        raise RequestError("partition digit-pairs needs 25 clients and targets that are the digits 0 to 9")
    parts = [_cut(rng.permutation(np.flatnonzero(targets == digit)), 5) for digit in range(10)]
    if min(len(part) for digit in parts for part in digit) == 0:
        raise RequestError("partition digit-pairs needs at least five records of every digit")
    return [
        np.concatenate([parts[2 * odd + 1][even], parts[2 * even][odd]]) for odd in range(5) for even in range(5)
    ]


def natural_id(ids: Values, clients: int, rng: np.random.Generator) -> Indices:
    """One client for each value of a column, in sorted order. Nothing is random.

    >>> [part.tolist() for part in natural_id(np.array(["b", "a", "b"]), 2, np.random.default_rng(0))]
    [[1], [0, 2]]
    """
    import pandas as pd

    codes, found = pd.factorize(ids, sort=True)
    if (codes < 0).any():
        raise DataError(f"partition natural-id: record {int((codes < 0).argmax())} has no value in that column")
    if clients != len(found):
        raise RequestError(f"partition natural-id makes {len(found)} clients here, not {clients}")
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])


def _cut(rows: npt.NDArray[np.int64], parts: int) -> Indices:
    return list(np.array_split(rows, parts))


def _check_clients(setting: str, records: int, needed: int) -> None:
    if needed > records:
        raise RequestError(
            f"partition {setting} needs at least {needed} records to give every client one, and there are "
            f"{records}: use fewer clients"
        )


def _by_class(setting: str, targets: Values) -> Indices:
    if targets.dtype.kind == "f":
        raise RequestError(
            f"partition {setting} divides by class, but these are regression targets: use iid, sorted, "
            "sorted-target, shards or natural-id"
        )
    return [np.flatnonzero(targets == label) for label in np.unique(targets)]
