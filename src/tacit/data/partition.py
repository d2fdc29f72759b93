"""Partitions by name, as written on the command line: `iid`, `dirichlet:0.5`, `natural-id:region`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tacit.data import partitioners as deal
from tacit.data.partitioners import Indices, Values
from tacit.errors import RequestError, count, positive, unknown_name


@dataclass(frozen=True)
class Argument:
    """The part of a partition's spelling after the colon."""

    shown_as: str
    read: Callable[[str], float | str]
    keyword: str | None
    """the partitioner's keyword for it; None if it names the values to pass in place of the targets"""


@dataclass(frozen=True)
class Partitioner:
    """The registry's entry for one way to deal records to clients."""

    split: Callable[..., Indices]
    summary: str
    argument: Argument | None = None
    clients: int | None = None
    """the number of clients it makes, if that is fixed"""

    def spelling(self, name: str) -> str:
        """How to write it: NAME or NAME:ARGUMENT."""
        return name if self.argument is None else f"{name}:{self.argument.shown_as}"


def _alpha(text: str) -> float:
    return positive("dirichlet alpha", float(text))


def _whole(text: str) -> int:
    return count("the argument", int(text))


PARTITIONERS: Mapping[str, Partitioner] = {
    "iid": Partitioner(deal.iid, "shuffled and cut into equal parts"),
    "dirichlet": Partitioner(
        deal.dirichlet,
        "each class divided in Dirichlet(ALPHA) proportions: the smaller ALPHA, the more skewed",
        Argument("ALPHA", _alpha, "alpha"),
    ),
    "shards": Partitioner(
        deal.shards,
        "sorted by target and cut into shards, S random ones for each client",
        Argument("S", _whole, "shards_per_client"),
    ),
    "pathological": Partitioner(
        deal.pathological, "C classes for each client", Argument("C", _whole, "classes_per_client")
    ),
    "sorted": Partitioner(deal.sorted_equal, "sorted by target and cut into equal parts"),
    "sorted-target": Partitioner(
        deal.sorted_target, "sorted by target; ceil(records / clients) each, the last client gets the rest"
    ),
    "digit-pairs": Partitioner(
        deal.digit_pairs,
        "an odd and an even digit for each of 25 clients; the task becomes odd or even",
        clients=25,
    ),
    "natural-id": Partitioner(
        deal.natural_id,
        "one client for each value of COLUMN; the column 'target' is the target itself",
        Argument("COLUMN", str, None),
    ),
}


@dataclass(frozen=True)
class Partition:
    """A partitioner and its argument: `parse_partition` reads it, `str` writes it."""

    name: str
    argument: float | str | None = None

    @property
    def partitioner(self) -> Partitioner:
        """The entry in the registry."""
        return PARTITIONERS[self.name]

    @property
    def column(self) -> str | None:
        """The column that identifies clients, for natural-id."""
        return str(self.argument) if self.name == "natural-id" else None

    def __str__(self) -> str:
        return self.name if self.argument is None else f"{self.name}:{self.argument}"

    def split(self, targets: Values, clients: int, rng: np.random.Generator) -> Indices:
        """One array of record indices per client, a disjoint cover; natural-id takes the column's values."""
        count("clients", clients)
        if self.partitioner.clients not in (None, clients):
            raise RequestError(f"partition {self} makes {self.partitioner.clients} clients, not {clients}")
        argument = self.partitioner.argument
        if argument is None or argument.keyword is None:
            return self.partitioner.split(targets, clients, rng)
        return self.partitioner.split(targets, clients, rng, **{argument.keyword: self.argument})


def parse_partition(text: str) -> Partition:
    """Parses a partition written as NAME or NAME:ARGUMENT.

    >>> parse_partition("dirichlet:0.5")
    Partition(name='dirichlet', argument=0.5)
    >>> parse_partition("shards")
    Traceback (most recent call last):
    tacit.errors.RequestError: partition 'shards' must be written shards:S: sorted by target and cut ...
    """
    name, colon, rest = text.partition(":")
    if name not in PARTITIONERS:
        raise unknown_name("partition", name, [entry.spelling(known) for known, entry in PARTITIONERS.items()])
    entry = PARTITIONERS[name]
    if (entry.argument is None) != (not colon) or (entry.argument is not None and not rest):
        raise RequestError(f"partition {text!r} must be written {entry.spelling(name)}: {entry.summary}")
    if entry.argument is None:
        return Partition(name)
    try:
        return Partition(name, entry.argument.read(rest))
    except ValueError as error:
        raise RequestError(
            f"partition {text!r} must be written {entry.spelling(name)}, a number above 0: {entry.summary}"
        ) from error
