"""Plain words for numbers: how strong a promise is, what it means to a person, how many bytes were sent."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from tacit.privacy.promises.rounding import MOST_DIGITS, up_to
from tacit.privacy.promises.terms import PERSONS

STRONG, MODERATE, WEAK = 1.0, 5.0, 20.0
"""Up to these epsilons a promise is called strong, moderate and weak. No standard says so; NIST SP 800-226 and
Ponomareva et al. (2023) call epsilons up to 1 strong, and warn of those above 10."""

_AGAINST = {
    "server": "Nobody, not even the server and all other parties together,",
    "shuffler": "The server, as long as the shuffler is honest and no client helps it,",
    "secure-sum": "The server, which can open nothing but sums over enough clients,",
    "cohort": "Nobody who sees only each round's sum and who took part",
    "sum": "Nobody who sees only each round's sum",
    "model": "Nobody who sees only the final model",
}
_CONTENT = {
    "record": "any one record contained",
    "person": "the rows of any one person contained",
    "client": "the data of any one client are",
}
_THING = {"record": "one record", "person": "the rows of one person", "client": "the data of one client"}


def protected_unit(unit: str, public: Collection[str]) -> str:
    """Whom a promise protects: "record", "person" (with all rows at a client) or "client"."""
    return "person" if unit == "record" and PERSONS in public else unit


def strength(epsilon: float | None) -> tuple[str, str]:
    """How strong a promise of this epsilon is, as a tone ("good", "fair", "bad") and a word.

    >>> [strength(e)[1] for e in (0.5, 4, 8, 30, None)]
    ['strong', 'moderate', 'weak', 'nearly empty', 'empty']
    """
    if epsilon is None or math.isinf(epsilon):
        return "bad", "empty"
    steps = ((STRONG, "good", "strong"), (MODERATE, "fair", "moderate"), (WEAK, "bad", "weak"))
    return next(((tone, word) for most, tone, word in steps if epsilon <= most), ("bad", "nearly empty"))


def plain_promise(epsilon: float | None, delta: float | None, unit: str, adversary: str) -> str:
    """A promise as a sentence for everyone.

    >>> print(plain_promise(2.0, 1e-5, "record", "server"))
    Nobody, not even the server and all other parties together, can tell from what was sent what any one record
    contained, up to epsilon = 2 at delta = 1e-05. This is a moderate promise.
    """
    if epsilon is None or delta is None or math.isinf(epsilon):
        return "Nothing is promised to anybody."
    who = _AGAINST[adversary]
    can = "cannot tell" if who.startswith("The ") else "can tell"
    return (
        f"{who} {can} from what was sent what {_CONTENT[unit]}, up to epsilon = {up_to(epsilon)} at delta = "
        f"{up_to(delta, MOST_DIGITS)}. This is a {strength(epsilon)[1]} promise."
    )


def plain_meaning(epsilon: float, delta: float, unit: str) -> str:
    """What an epsilon means to a person: how often a guess about one record can be right.

    Whoever tries to tell two equally likely versions of a record apart is right with probability at most
    (e^epsilon + delta) / (e^epsilon + 1).

    >>> print(plain_meaning(1.0, 1e-5, "record"))
    Suppose that somebody knows everything except which of two equally likely versions of one record was
    used. After seeing everything that was sent, they guess right at most 74% of the time, even in the worst
    case; a coin would be right half the time.
    """
    odds = math.exp(-epsilon)
    share = min(1.0, (1 + delta * odds) / (1 + odds))
    # The chance of a wrong guess is rounded down to two digits, so that no promise reads as 100%.
    wrong = 1 - share
    shown = f"{100 - 100 * _rounded_down(wrong):.12g}" if wrong > 1e-9 else "100"
    return (
        f"Suppose that somebody knows everything except which of two equally likely versions of {_THING[unit]} "
        f"was used. After seeing everything that was sent, they guess right at most {shown}% of the time, even "
        "in the worst case; a coin would be right half the time."
    )


def evaluation_words(evaluation: Mapping[str, Any]) -> str:
    """The pooled numbers of a private evaluation with their bars, on one line."""
    everyone = evaluation["all"]
    numbers = [
        f"{name} {'unknown' if one['value'] is None else format(one['value'], '.3g')} "
        f"({one['low']:.3g} to {one['high']:.3g})"
        for name in ("accuracy", "auc", "calibration", "loss")
        if (one := everyone.get(name)) is not None
    ]
    return f"{everyone['records']} records: {', '.join(numbers)}"


def _rounded_down(value: float) -> float:
    scale = 10.0 ** (1 - math.floor(math.log10(value)))
    return math.floor(value * scale) / scale


def in_bytes(bits: int) -> str:
    """Bits as bytes with a unit.

    >>> in_bytes(80), in_bytes(80_000_000)
    ('10 bytes', '10.0 MB')
    """
    size = bits / 8
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")


def learned_words(learned: dict[str, Any]) -> str:
    """The ranges or sizes that were learned from the records, and what that would cost alone."""
    cost = f"alone epsilon {up_to(learned['epsilon_alone'], 2)}; included above"
    if "sizes" in learned:
        few = ", ".join(f"{size:.2g}" for size in learned["sizes"][:8]) + (
            ", ..." if len(learned["sizes"]) > 8 else ""
        )
        return f"how large features are, privately ({cost}): about {few}"
    ranges = "; ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in learned["ranges"].items())
    return f"ranges, privately ({cost}): {ranges}"
