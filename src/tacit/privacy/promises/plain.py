"""A promise in everyday words: what is hidden from whom, and how strong it is."""

from __future__ import annotations

import math

from tacit.privacy.promises.rounding import MOST_DIGITS, up_to
from tacit.privacy.promises.terms import Adjacency

STRONG, MODERATE, WEAK = 1.0, 5.0, 20.0
"""Up to these epsilons a promise is called strong, moderate and weak. No standard says so; NIST SP 800-226 and
Ponomareva et al. (2023) call epsilons up to 1 strong, and warn of those above 10."""

LARGE_DELTA = 1e-2
"""Above this delta no epsilon helps: a promise is kept by whoever publishes one record in a hundred as it is."""

_AGAINST = {
    "server": "nobody, not even the server and all other parties together,",
    "shuffler": "the server, as long as the shuffler is honest and no client helps it,",
    "secure-sum": "the server, as long as it can open nothing but sums over enough clients, and no more of them "
    "help it than agreed,",
    "cohort": "nobody who sees only each round's sum and who took part",
    "sum": "nobody who sees only each round's sum",
    "model": "nobody who sees only the final model",
}
_CONTENT = {
    "record": "what any one record contained",
    "person": "what the rows of any one person at a client contained",
    "client": "what the data of any one client contained",
}
_USE = {
    "record": "whether any one record was used or contributed nothing",
    "person": "whether the rows of any one person at a client were used or contributed nothing",
    "client": "whether the data of any one client were used or contributed nothing",
}
"""What is hidden if neighbours differ in one contribution that is left out: less than what it contained."""


def strength(epsilon: float | None, delta: float | None) -> tuple[str, str]:
    """How strong a promise is, as a tone ("good", "fair", "bad") and a word.

    >>> [strength(e, 1e-5)[1] for e in (0.5, 4, 8, 30, None)]
    ['strong', 'moderate', 'weak', 'nearly empty', 'empty']
    >>> strength(0.5, 0.1)
    ('bad', 'nearly empty')
    """
    if epsilon is None or delta is None or math.isinf(epsilon):
        return "bad", "empty"
    if delta > LARGE_DELTA:
        return "bad", "nearly empty"
    steps = ((STRONG, "good", "strong"), (MODERATE, "fair", "moderate"), (WEAK, "bad", "weak"))
    return next(((tone, word) for most, tone, word in steps if epsilon <= most), ("bad", "nearly empty"))


def plain_promise(
    epsilon: float | None, delta: float | None, unit: str, adversary: str, adjacency: str = Adjacency.REPLACE_ONE
) -> str:
    """A promise as one sentence for everyone.

    >>> print(plain_promise(2.0, 1e-5, "record", "server"))
    From what was sent, nobody, not even the server and all other parties together, can learn more about what any
    one record contained than epsilon = 2 at delta = 1e-05 allows (a moderate promise).
    """
    if epsilon is None or delta is None or math.isinf(epsilon):
        return "Nothing is promised to anybody."
    return f"{_limit(epsilon, delta, unit, adversary, adjacency)} (a {strength(epsilon, delta)[1]} promise)."


def signed_promise(epsilon: float, delta: float, unit: str, adversary: str, adjacency: str) -> str:
    """The same in the words that silos have signed: other words would make their certificates invalid.

    >>> print(signed_promise(2.0, 1e-5, "record", "sum", "replace-one"))
    From what was sent, nobody who sees only each round's sum can learn more about what any one record contained
    than epsilon = 2 at delta = 1e-05 allows. This is a moderate promise.
    """
    return (
        f"{_limit(epsilon, delta, unit, adversary, adjacency)}. This is a {strength(epsilon, delta)[1]} promise."
    )


def _limit(epsilon: float, delta: float, unit: str, adversary: str, adjacency: str) -> str:
    who, hidden = _AGAINST[adversary], (_CONTENT if adjacency == Adjacency.REPLACE_ONE else _USE)[unit]
    can = "cannot" if who.startswith("the ") else "can"
    return (
        f"From what was sent, {who} {can} learn more about {hidden} than epsilon = {up_to(epsilon)} at delta = "
        f"{up_to(delta, MOST_DIGITS)} allows"
    )
