"""The privacy that a user asks for, and the guarantee that a run provably gives."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from dp_accounting import DpEvent

from tacit.errors import DataError, positive
from tacit.privacy.accountant.accounting import check_delta, epsilon
from tacit.privacy.events import to_dict
from tacit.privacy.events.runs import ChosenRunsDpEvent
from tacit.privacy.promises.plain import signed_promise
from tacit.privacy.promises.rounding import MOST_DIGITS, round_up, up_to
from tacit.privacy.promises.terms import PERSONS, RECORD_COUNTS, Adjacency, Adversary, Unit


@dataclass(frozen=True)
class Target:
    """The privacy that a user asks for.

    >>> Target(epsilon=1.0, delta=1e-5).adjacency
    <Adjacency.REPLACE_ONE: 'replace-one'>
    >>> Target(epsilon=0.0, delta=1e-5)
    Traceback (most recent call last):
    tacit.errors.RequestError: epsilon must be a finite number above 0, not 0.0
    """

    epsilon: float
    """the most that a run may cost, above 0"""
    delta: float
    """the probability that epsilon may not cover, above 0 and below 1"""
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    """which data sets the promise compares: one record replaced, or added or removed"""

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        check_delta(self.delta)
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))


@dataclass(frozen=True)
class ClientGroup:
    """Clients with the same event and delta, and the epsilon of each of them."""

    event: DpEvent
    delta: float
    clients: int
    epsilon: float


@dataclass(frozen=True)
class Guarantee:
    """What is promised to every client. The epsilon is always computed from events and cannot be set by hand.

    `events` holds the whole run of each client, in client order. Equal events are accounted for once. If clients
    have their own budgets, `deltas` has the delta of each, and `delta` is the largest of them.

    >>> from tacit.privacy.events import gaussian, poisson, repeated
    >>> run = repeated(poisson(0.1, 4.0), 30)
    >>> promise = Guarantee((*[run] * 9, repeated(gaussian(20.0), 30)), delta=1e-5)
    >>> [(group.clients, round(group.epsilon, 2)) for group in promise.groups]
    [(9, 1.02), (1, 2.21)]
    >>> round(promise.epsilon, 2)
    2.21
    """

    events: tuple[DpEvent, ...] = field(repr=False)
    delta: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    """which data sets it compares"""
    unit: Unit = Unit.RECORD
    """who is protected: a record, or a whole client"""
    adversary: Adversary = Adversary.SERVER
    """against whom"""
    public: tuple[str, ...] = (RECORD_COUNTS,)
    """what it treats as public"""
    deltas: tuple[float, ...] | None = field(default=None, repr=False)
    colluding: int = 0
    """how many other clients may help the adversary; only secure sums say so, others in the adversary's words"""
    groups: tuple[ClientGroup, ...] = field(init=False)
    group_of_client: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        store = partial(object.__setattr__, self)
        store("events", tuple(self.events))
        store("delta", check_delta(self.delta))
        store("adjacency", Adjacency(self.adjacency))
        store("unit", Unit(self.unit))
        store("adversary", Adversary(self.adversary))
        store("public", (self.public,) if isinstance(self.public, str) else tuple(self.public))
        if not self.events:
            raise DataError("a guarantee needs the event of at least one client; there are no clients")
        deltas = (self.delta,) * len(self.events) if self.deltas is None else tuple(self.deltas)
        if len(deltas) != len(self.events) or max(deltas) != self.delta:
            raise DataError("deltas must be one for each client, and delta the largest of them")
        distinct: dict[object, int] = {}
        pairs = tuple(zip(self.events, deltas, strict=True))
        indices = tuple(distinct.setdefault((_key(event), d), len(distinct)) for event, d in pairs)
        clients = Counter(indices)
        firsts = dict(zip(reversed(indices), reversed(pairs), strict=True))
        store("group_of_client", indices)
        store(
            "groups",
            tuple(
                ClientGroup(event, check_delta(d), clients[g], epsilon(event, d, self.adjacency))
                for g, (event, d) in sorted(firsts.items())
            ),
        )

    @property
    def epsilon(self) -> float:
        """The largest epsilon, that of the least protected client."""
        return max(group.epsilon for group in self.groups)

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The epsilon of every client."""
        return tuple(self.groups[index].epsilon for index in self.group_of_client)

    @property
    def whose(self) -> str:
        """Whom it protects: a record, a person with all of their rows at a client, or a client."""
        return "person" if self.unit is Unit.RECORD and PERSONS in self.public else str(self.unit)

    @property
    def against(self) -> str:
        """Who the adversaries are and what they are assumed to see, in plain words."""
        return against(self.adversary, self.colluding)

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self) -> str:
        """The guarantee for the people whose data are protected: in everyday words, then formally.

        >>> from tacit.privacy.events import gaussian
        >>> print(Guarantee((gaussian(10.0),), delta=1e-5).sentence())
        From what was sent, nobody, not even the server and all other parties together, can learn more about what
        any one record contained than epsilon = 0.726 at delta = 1e-05 allows. This is a strong promise.
        Formally: against the server and all other parties, ...
        """
        if math.isinf(self.epsilon):
            return self.formal()
        plain = signed_promise(self.epsilon, self.delta, self.whose, self.adversary, self.adjacency)
        formal = self.formal()
        return f"{plain} Formally: {formal[0].lower()}{formal[1:]}"

    def formal(self) -> str:
        """The guarantee as one exact sentence. Numbers are rounded up.

        >>> from tacit.privacy.events import gaussian
        >>> print(Guarantee((gaussian(10.0),), delta=1e-5).formal())
        Against the server and all other parties, who see every message of every client: whatever the whole
        run shows them is at most exp(0.726) = 2.07 times as likely, plus 1e-05, as it would be if any one
        record of a client had been a different one (epsilon = 0.726, delta = 1e-05, per record, replace-one, for
        1 client). Taken as public: the number of records of every client.
        """
        number = len(self.events)
        if math.isinf(self.epsilon):
            return (
                f"Against {self.against}: there is no guarantee. "
                f"What at least one of {number} clients releases is not protected by noise."
            )
        if self.whose == "person":
            one, other = "all rows of any one person at a client", "been different ones"
        elif self.unit is Unit.RECORD:
            one, other = "any one record of a client", "been a different one"
        elif RECORD_COUNTS in self.public:
            one, other = "all records of any one client", "been different ones, as many of them"
        else:
            one, other = "all the data of any one client", "been different, their number included"
        change = other if self.adjacency is Adjacency.REPLACE_ONE else "contributed nothing"
        worst, least = round_up(self.epsilon), round_up(min(group.epsilon for group in self.groups))
        factor = f" = {up_to(math.exp(worst))}" if worst < 20 else ""
        runs = max((len(event.runs) for event in self.events if isinstance(event, ChosenRunsDpEvent)), default=1)
        shown = f"all {runs} runs under the policy show" if runs > 1 else "the whole run shows"
        clients = "1 client" if number == 1 else f"each of {number} clients"
        delta = up_to(self.delta, MOST_DIGITS)
        best = "" if least == worst else f", {least:g} for the best protected one"
        return (
            f"Against {self.against}: whatever {shown} them is at most "
            f"exp({worst:g}){factor} times as likely, plus {delta}, as it would be if {one} had {change} "
            f"(epsilon = {worst:g}, delta = {delta}, per {self.whose}, {self.adjacency}, "
            f"for {clients}{best}). Taken as public: {'; '.join(self.public) or 'nothing'}."
        )


def against(adversary: Adversary, colluding: int) -> str:
    """Who the adversaries are and what they see, in plain words, if `colluding` clients may help them."""
    if adversary is not Adversary.SECURE_SUM:
        return adversary.description
    if not colluding:
        return f"{adversary.description}, without any client's help"
    help_it = "helps it" if colluding == 1 else "help it"
    return f"{adversary.description}, even if {colluding} of the other clients {help_it}"


def _key(event: DpEvent) -> object:
    """A hashable key that is equal for equal events; compositions hold lists, which are not hashable."""
    try:
        hash(event)
    except TypeError:
        return json.dumps(to_dict(event))
    return event
