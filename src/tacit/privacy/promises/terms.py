"""The words of a privacy guarantee: between which data sets, for whom, and against whom it holds."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from tacit.errors import unknown_name

RECORD_COUNTS = "the number of records of every client"
"""Record-level promises treat this as public. Promises to whole clients protect it, unless they also name it."""

CLASS_LABELS = "which class labels occur"
"""Listed where the classes were found in the records instead of given."""

LARGEST_INDEX = "the largest index of a feature in the files"
"""Listed where LIBSVM files say how many features there are."""

PERSONS = "that all rows of one person at a client are one record"
"""Listed where the promise is to persons who may have several rows."""

PERSON_NAMES = "the names of the persons of every client"
"""Listed likewise: who is held back follows from the order of names. Promises to whole clients protect them."""


class _Word(enum.StrEnum):
    """A fixed set of words that can be read from text; the error for other words lists them."""

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise unknown_name(cls.__name__.lower(), str(value), [str(member) for member in cls])


class Adjacency(_Word):
    """Which two data sets must be hard to tell apart.

    `REPLACE_ONE`: one record has other content, as in the papers. `ADD_REMOVE`: one record contributes
    nothing (zero-out), the weaker promise that most published epsilons make. Every client has the same number of
    records in both. If the unit is a whole client, all records of one client are different, or contribute
    nothing, and their number may differ.

    >>> Adjacency("replace-one") is Adjacency.REPLACE_ONE
    True
    >>> Adjacency("replace")
    Traceback (most recent call last):
    tacit.errors.RequestError: unknown adjacency 'replace'; did you mean 'replace-one'? ...
    """

    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"


class Unit(_Word):
    """Whose presence is hidden: one record of a client, or a whole client."""

    RECORD = "record"
    CLIENT = "client"


class Adversary(_Word):
    """Against whom a guarantee holds: those named, even if they pool what they saw, but nobody who sees more."""

    SERVER = "server"
    SHUFFLER = "shuffler"
    COHORT = "cohort"
    SECURE_SUM = "secure-sum"
    SUM = "sum"
    MODEL = "model"

    @property
    def description(self) -> str:
        """Who the adversaries are and what they are assumed to see, in plain words.

        >>> Adversary.SUM.description
        "anyone who sees only each round's sum over clients, not who took part, and has no client's help"
        """
        return _DESCRIPTIONS[self]


def weakest(adversaries: Iterable[Adversary]) -> Adversary:
    """The adversary against whom several promises of deployed runs hold together: the one who sees the least.

    >>> weakest([Adversary.SERVER, Adversary.SECURE_SUM])
    <Adversary.SECURE_SUM: 'secure-sum'>
    """
    return min(adversaries, key=(Adversary.SECURE_SUM, Adversary.SHUFFLER, Adversary.SERVER).index)


_ALONE = "and has no client's help"

_DESCRIPTIONS = {
    Adversary.SERVER: "the server and all other parties, who see every message of every client",
    Adversary.SHUFFLER: f"a server that gets all messages in random order from a trusted shuffler {_ALONE}",
    Adversary.COHORT: f"anyone who sees each round's sum and who took part, not a message, {_ALONE}",
    Adversary.SECURE_SUM: "a server that can open nothing but each round's sum over enough clients",
    Adversary.SUM: f"anyone who sees only each round's sum over clients, not who took part, {_ALONE}",
    Adversary.MODEL: "anyone who sees only the final model, and trusts the server with everything else",
}
