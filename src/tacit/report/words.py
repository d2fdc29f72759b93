"""Plain words for numbers: what a promise means to a person, how many bytes were sent."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tacit.privacy.promises.protection import NO_PROTECTION
from tacit.privacy.promises.rounding import up_to
from tacit.privacy.promises.terms import PERSONS, Adjacency

_THING = {
    "record": "one record",
    "person": "the rows of one person at a client",
    "client": "the data of one client",
}
_SEEN = {
    "server": "everything that was sent",
    "shuffler": "all messages in random order",
    "secure-sum": "all sums that the server could open",
    "cohort": "each round's sum and who took part",
    "sum": "each round's sum",
    "model": "the final model",
}
"""What the adversaries of a promise see: who sees more may guess better."""


def protected_unit(unit: str, public: Collection[str]) -> str:
    """Whom a promise protects: "record", "person" (with all rows at a client) or "client"."""
    return "person" if unit == "record" and PERSONS in public else unit


def without_trust(adversary: str, epsilon: float | None, run: str = "") -> tuple[str, ...]:
    """What is left of a promise if all other parties help the server; nothing to say if it relies on nobody.

    run: which run the epsilon is about, if others are promised something, too.

    >>> without_trust("secure-sum", 11.68), without_trust("server", None)
    (('If all other parties help the server, epsilon = 11.7 is left.',), ())
    """
    if adversary == "server":
        return ()
    left = "no protection" if epsilon is None else f"epsilon = {up_to(epsilon)}"
    empty = ", practically no protection" if epsilon is not None and epsilon >= NO_PROTECTION else ""
    return (f"If all other parties help the server, {left} is left{run}{empty}.",)


def plain_meaning(
    epsilon: float, delta: float, unit: str, adversary: str, adjacency: str = Adjacency.REPLACE_ONE
) -> str:
    """What an epsilon means to a person: how often a guess about one record can be right.

    Whoever tries to tell two equally likely neighbouring data sets apart is right with probability at most
    (e^epsilon + delta) / (e^epsilon + 1).

    >>> print(plain_meaning(1.0, 1e-5, "record", "server"))
    Suppose that somebody knows all data except which of two equally likely versions of one record was used.
    After seeing everything that was sent, they guess right at most 74% of the time, even in the worst case; a
    coin would be right half the time.
    """
    odds = math.exp(-epsilon)
    share = min(1.0, (1 + delta * odds) / (1 + odds))
    # The chance of a wrong guess is rounded down to two digits, so that no promise reads as 100%.
    wrong = 1 - share
    shown = f"{100 - 100 * _rounded_down(wrong):.12g}" if wrong > 1e-9 else "100"
    unknown = (
        f"which of two equally likely versions of {_THING[unit]} was used"
        if adjacency == Adjacency.REPLACE_ONE
        # How many there are is told exactly, so the count hides nothing.
        else f"whether {_THING[unit]} {'was' if unit == 'record' else 'were'} used or contributed nothing, "
        "counted either way, which is as likely as not"
    )
    return (
        f"Suppose that somebody knows all data except {unknown}. After seeing {_SEEN[adversary]}, they "
        f"guess right at most {shown}% of the time, even in the worst case; a coin would be right half the time."
    )


def not_covered(*, tested: bool) -> str:
    """That losses are outside of every promise, and test results too if they are `tested` on clients' records."""
    what = "Losses and test results" if tested else "Losses"
    return (
        f"{what} are measured on the clients' records without noise, for the researcher; no promise covers them."
    )


def counted(summary: Mapping[str, Any]) -> str:
    """What a run's numbers of records count: persons, if all rows of one are a record."""
    return str(summary.get("counted", "records"))


def counted_in(silos: Iterable[Mapping[str, Any]]) -> str:
    """The same for silos' certificates."""
    return "persons" if any(PERSONS in silo["public"] for silo in silos) else "records"


def evaluation_words(evaluation: Mapping[str, Any], units: str = "records") -> str:
    """The pooled numbers of a private evaluation with their 95% bars, on one line."""
    everyone = evaluation["all"]
    found = {
        name: one
        for name in ("accuracy", "auc", "calibration", "error", "loss")
        # An error is the loss of a regression in a unit that people know.
        if (one := everyone.get(name)) is not None and not (name == "loss" and "error" in everyone)
    }
    numbers = [
        f"{name} {one['value']:.3g} ({one['low']:.3g} to {one['high']:.3g})"
        for name, one in found.items()
        if one["value"] is not None
    ]
    hidden = [name for name, one in found.items() if one["value"] is None]
    told = [*numbers, f"noise hides {', '.join(hidden)}"] if hidden else numbers
    said = f". Error: {evaluation['error_is']}" if "error_is" in evaluation else ""
    return f"{everyone['records']} {units}, with 95% bars: {', '.join(told)}{said}"


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


def corrected_words(correction: Mapping[str, Any]) -> str:
    """How a trained regression was corrected, and what that would cost alone.

    >>> corrected_words({"epsilon_alone": 0.8, "shift": 285.6, "slope": 0.188})
    'predictions raised by 285.6 and spread by 18.8%, privately (alone epsilon 0.8; included above)'
    """
    shift, slope, alone = correction["shift"], correction["slope"], correction["epsilon_alone"]
    moved = f"{'raised' if shift > 0 else 'lowered'} by {abs(shift):.4g}" if shift else ""
    turned = f"{'spread' if slope > 0 else 'drawn together'} by {abs(slope):.1%}" if slope else ""
    what = " and ".join(part for part in (moved, turned) if part) or "left as they are"
    cost = "" if alone is None else f", privately (alone epsilon {up_to(alone, 2)}; included above)"
    return f"predictions {what}{cost}"


def learned_words(learned: dict[str, Any]) -> str:
    """The ranges, sizes or targets that were learned from the records, and what that would cost alone.

    >>> learned_words({"epsilon_alone": 0.5, "targets": {"centre": 210_300.0, "half": 48_000.0}})
    'what follows, privately (alone epsilon 0.5; included above): half of the targets within 48,000 of 210,000'
    """
    cost = f"alone epsilon {up_to(learned['epsilon_alone'], 2)}; included above"
    found = []
    if "sizes" in learned:
        few = ", ".join(f"{size:.2g}" for size in learned["sizes"][:8]) + (
            ", ..." if len(learned["sizes"]) > 8 else ""
        )
        found += [f"features of about {few}"]
    if "targets" in learned:
        centre, half = learned["targets"]["centre"], learned["targets"]["half"]
        near = "many targets close to" if half is None else f"half of the targets within {_rounded(half, 2)} of"
        found += [f"{near} {_rounded(centre, 3)}"]
    if found:
        return f"what follows, privately ({cost}): {'; '.join(found)}"
    ranges = "; ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in learned["ranges"].items())
    return f"ranges, privately ({cost}): {ranges}"


def _rounded(number: float, digits: int) -> str:
    return f"{float(f'{number:.{digits}g}'):,g}"


def stated_words(stated: Sequence[str]) -> tuple[str, ...]:
    """What nobody can check but whoever stated it, in a sentence for each party.

    >>> stated_words(["every silo: that it keeps no other ledger", "every silo: how many records it holds"])
    ('Every silo: that it keeps no other ledger; how many records it holds.',)
    """
    by: dict[str, list[str]] = {}
    for what in stated:
        who, _, said = what.partition(": ")
        by.setdefault(who, []).append(said)
    return tuple(f"{who[:1].upper()}{who[1:]}: {'; '.join(said)}." for who, said in by.items())
