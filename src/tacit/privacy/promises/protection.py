"""Who is protected against whom: one promise, stated for each adversary in words that an auditor can repeat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tacit.errors import RequestError, count
from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.groups import epsilon_between, group_epsilon
from tacit.privacy.events.crowds import alone
from tacit.privacy.promises.guarantee import ClientGroup, Guarantee, Target
from tacit.privacy.promises.rounding import MOST_DIGITS, round_up, up_to
from tacit.privacy.promises.terms import Adjacency, Adversary, Unit

NO_PROTECTION = 20.0
"""At this epsilon and above, tables and pages say "no protection": the factor exp(epsilon) rules nothing out."""

WHOLE_CLIENT = "all records of a client"
"""What the line about whole clients says is protected."""

_NO_GAIN = 1.01
"""Epsilons that differ by less than this factor are treated as equal."""


@dataclass(frozen=True)
class Protection:
    """One line of the protection table. An infinite epsilon means that nothing is promised."""

    adversary: str
    protected: str
    adjacency: str
    epsilon: float
    delta: float
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON. JSON has no infinity, so None means that nothing is promised."""
        return {**self.__dict__, "epsilon": None if math.isinf(self.epsilon) else self.epsilon}


def protection(
    guarantee: Guarantee,
    *,
    beside: Sequence[Guarantee] = (),
    records: Sequence[int] | None = None,
    groups: Sequence[int] = (2, 10),
    whole: Target | None = None,
) -> tuple[Protection, ...]:
    """The table of a guarantee: each adversary, the other adjacency, groups of records, whole clients.

    Every epsilon is the worst over all clients, at the guarantee's delta. Each holds on its own; they do not add
    up. `beside` are the guarantees of the same run against adversaries who see more. `records` is the number of
    records of every client, in client order; without it there is no line for a whole client, and groups are
    assumed to fit into every client. `whole` is the promise made to whole clients in addition to their records,
    if any; their line then uses its delta.

    >>> from tacit.privacy.events import gaussian, repeated
    >>> promise = Guarantee((repeated(gaussian(100.0), 30),) * 4, delta=1e-5)
    >>> for line in protection(promise, records=[50] * 4, groups=[2]):
    ...     print(f"{line.adversary:40} {line.protected:32} {up_to(line.epsilon)}")
    the server and all other parties         one record                       0.377
    another client                           one record                       0.377
    someone who sees only the final model    one record                       0.377
    the server and all other parties         whether a record is used         0.177
    the server and all other parties         2 records together               0.802
    the server and all other parties         all records of a client          37.7
    the client that holds the records        one record                       inf
    """
    if records is not None and len(records) != len(guarantee.events):
        raise RequestError(
            f"records must be one number for each of {len(guarantee.events)} clients, not {len(records)}"
        )
    unit = f"one {guarantee.whose}"
    rows = [_line(guarantee, _ADVERSARIES[guarantee.adversary], unit, guarantee.epsilon, guarantee.sentence())]
    rows += _stronger(guarantee, unit, beside)
    rows += _weaker(guarantee, unit, beside)
    rows.append(_other_adjacency(guarantee, unit))
    if guarantee.unit is Unit.RECORD:
        rows += [_group(guarantee, records, count("groups", size, at_least=2)) for size in groups]
        if records is not None:
            rows.append(_whole_client(guarantee, records, whole))
        own = "the client that holds the records"
        sentence = (
            f"There is no protection against {own}: it computes on them as they are, and is trusted by the "
            "people whose records they are."
        )
        rows.append(_line(guarantee, own, unit, math.inf, sentence))
    return tuple(rows)


def in_words(epsilon: float | None) -> str:
    """An epsilon as tables print it: rounded up to three digits, or words if it protects nobody.

    >>> in_words(3.9991), in_words(29_800.0), in_words(None)
    ('4', 'no protection', 'no protection')
    """
    if epsilon is None or epsilon >= NO_PROTECTION:
        return "no protection"
    return up_to(epsilon)


_ADVERSARIES = {
    Adversary.SERVER: "the server and all other parties",
    Adversary.SHUFFLER: "the server behind the shuffler",
    Adversary.COHORT: "someone who sees sums and who took part",
    Adversary.SECURE_SUM: "a server that opens only sums",
    Adversary.SUM: "someone who sees only sums over clients",
    Adversary.MODEL: "someone who sees only the final model",
}


def _line(guarantee: Guarantee, adversary: str, protected: str, epsilon: float, sentence: str) -> Protection:
    return Protection(adversary, protected, str(guarantee.adjacency), epsilon, guarantee.delta, sentence)


def _stronger(guarantee: Guarantee, unit: str, beside: Sequence[Guarantee]) -> list[Protection]:
    """Lines for adversaries who see more than the guarantee assumes."""
    if guarantee.adversary is Adversary.SHUFFLER and not beside:
        # A crowd's event also determines the protection that remains without the crowd.
        exposed = tuple(alone(event) for event in guarantee.events)
        beside = [replace(guarantee, events=exposed, adversary=Adversary.SERVER)]
    told = [_beside(guarantee, unit, g) for g in beside]
    if Adversary.SERVER in (guarantee.adversary, *(g.adversary for g in beside)):
        return told
    return [
        *told,
        _line(
            guarantee,
            _ADVERSARIES[Adversary.SERVER],
            unit,
            math.inf,
            f"Nothing is promised against a server that sees every single message: the promise holds against "
            f"{guarantee.against}, and falls with that assumption.",
        ),
    ]


def _beside(guarantee: Guarantee, unit: str, other: Guarantee) -> Protection:
    """A guarantee of the same run against someone who sees more; says so if the shuffler gains nothing."""
    adversary, sentence = _ADVERSARIES[other.adversary], other.formal()
    gains_nothing = other.epsilon <= guarantee.epsilon * _NO_GAIN
    if guarantee.adversary is Adversary.SHUFFLER and gains_nothing:
        adversary = f"{adversary} (the shuffler gains nothing)"
        sentence += (
            " The shuffler gains nothing here: too few clients, or too little noise for one client to look like "
            "another. Each message is protected by its own noise, as it would be without a shuffler."
        )
    return _line(other, adversary, unit, other.epsilon, sentence)


def _weaker(guarantee: Guarantee, unit: str, beside: Sequence[Guarantee]) -> list[Protection]:
    """Lines for adversaries who see less: by post-processing, they learn no more than the guarantee allows."""
    if guarantee.adversary is Adversary.MODEL:
        return []
    bound = _told(guarantee.epsilon, guarantee.delta)
    return [
        _others(guarantee, unit, beside),
        _line(
            guarantee,
            _ADVERSARIES[Adversary.MODEL],
            unit,
            guarantee.epsilon,
            f"The final model is computed from protected messages: {bound}, by post-processing. Someone who sees "
            "only the model probably learns less, but that is neither proved nor promised.",
        ),
    ]


def _others(guarantee: Guarantee, unit: str, beside: Sequence[Guarantee]) -> Protection:
    """The other clients, who also know what they sent themselves."""
    if guarantee.adversary is Adversary.SERVER:
        bound = _told(guarantee.epsilon, guarantee.delta)
        sentence = (
            "Another client, or all others together, see the points that the server sends out, which are "
            f"computed from protected messages: {bound}, by post-processing."
        )
        return _line(guarantee, "another client", unit, guarantee.epsilon, sentence)
    # In a crowd, a client is hidden by the others' noise and messages, which the others know and can subtract.
    alone = next((g for g in beside if g.adversary is Adversary.SERVER), None)
    epsilon = math.inf if alone is None else alone.epsilon
    left = "nothing is promised"
    if alone is not None and not math.isinf(epsilon):
        left = f"a client has only its own noise, {_told(epsilon, guarantee.delta)}"
    sentence = (
        "All other clients together know their own noise and messages, and can take them off what the server "
        f"sends out: against them {left}."
    )
    return _line(guarantee, "all other clients together", unit, epsilon, sentence)


def _other_adjacency(guarantee: Guarantee, unit: str) -> Protection:
    replaces = guarantee.adjacency is Adjacency.REPLACE_ONE
    other = Adjacency.ADD_REMOVE if replaces else Adjacency.REPLACE_ONE
    epsilon = max(epsilon_between(group.event, group.delta, other) for group in guarantee.groups)
    noun = unit.removeprefix("one ")
    protected = f"whether a {noun} is used" if replaces else f"the content of a {noun}"
    what = "was used or contributed nothing" if replaces else "had this content or another one"
    return Protection(
        _ADVERSARIES[guarantee.adversary],
        protected,
        str(other),
        epsilon,
        guarantee.delta,
        f"Whether any one {noun} {what}, the same adversary learns no more than "
        f"{_told(epsilon, guarantee.delta)} ({other}).",
    )


def _group(guarantee: Guarantee, records: Sequence[int] | None, size: int) -> Protection:
    epsilon = _worst(guarantee, records, lambda group, held: group_epsilon(
        group.event, min(size, held or size), group.delta, guarantee.adjacency
    ))  # fmt: skip
    noun, such = ("persons", "a family") if guarantee.whose == "person" else ("records", "those of one person")
    return _line(
        guarantee,
        _ADVERSARIES[guarantee.adversary],
        f"{size} {noun} together",
        epsilon,
        f"For {size} {noun} of one client that belong together, {such} for instance, the same adversary learns "
        f"no more than {_told(epsilon, guarantee.delta)}.",
    )


def _whole_client(guarantee: Guarantee, records: Sequence[int], whole: Target | None) -> Protection:
    def cost(group: ClientGroup, held: int | None) -> float:
        delta = group.delta if whole is None else whole.delta
        return group_epsilon(group.event, held or 1, delta, guarantee.adjacency)

    epsilon, delta = _worst(guarantee, records, cost), guarantee.delta if whole is None else whole.delta
    why = (
        "record-level promises hide people, not institutions"
        if whole is None
        else f"the run was planned to keep it at most {whole.epsilon:g}"
    )
    return Protection(
        _ADVERSARIES[guarantee.adversary],
        WHOLE_CLIENT,
        str(guarantee.adjacency),
        epsilon,
        delta,
        f"For all records of a client at once the same adversary learns no more than {_told(epsilon, delta)}: "
        f"{why}. How many records the client has is taken as public.",
    )


def _worst(
    guarantee: Guarantee, records: Sequence[int] | None, cost: Callable[[ClientGroup, int | None], float]
) -> float:
    """The largest cost over all clients; infinite if the accountant cannot answer."""
    sizes = records if records is not None else [None] * len(guarantee.events)
    distinct = set(zip(guarantee.group_of_client, sizes, strict=True))
    try:
        return max(cost(guarantee.groups[group], held) for group, held in distinct)
    except CannotAnswerError:
        return math.inf


def _told(epsilon: float, delta: float) -> str:
    if math.isinf(epsilon):
        return "what anybody can: nothing is promised"
    said = f"epsilon = {up_to(epsilon)} at delta = {up_to(delta, MOST_DIGITS)}"
    return f"{said}, which is practically no protection" if round_up(epsilon) >= NO_PROTECTION else said
