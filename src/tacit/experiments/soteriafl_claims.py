"""The claims about the figures of SoteriaFL (Li et al. 2022), and whether the runs support them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from tacit.engine.workers import Result
from tacit.experiments.experiment import PUBLISHED, SUMMED, TRUE, Claim
from tacit.experiments.simulated import last
from tacit.experiments.soteriafl_runs import ALGORITHMS, OF_THE_PAPER
from tacit.experiments.verdicts import against, at_most
from tacit.privacy.promises.rounding import up_to

Key = tuple[float, str, str]
"""Label, mode, algorithm."""
ResultsByCell = dict[Key, list[Result]]

BitsPerRound = Callable[[Result], float]
"""How the bits that a client sends in a round are counted."""


def on_the_wire(result: Result) -> float:
    """Every byte of a message: values, the seed of its coordinates, envelope."""
    history = result["history"]
    return float(history["uplink_bits_per_client"][-1] / history["round"][-1])


def payload(result: Result) -> float:
    """The values alone, as the paper counts."""
    return float(result["payload_bits"])


NEARLY = 0.01
"""The share of a round that bits may fall short of it."""

COUNTS: dict[str, BitsPerRound] = {"bytes on the wire": on_the_wire, "payload alone": payload}
MEASURES = {"grad_norm_sq": "the gradient at that round", "grad_norm_sq_mean": "the mean squared gradient so far"}


def utilities(results: Sequence[Result]) -> list[float]:
    """The mean squared gradient norm of every seed; infinite if it diverged."""
    return [last(result, "grad_norm_sq_mean") for result in results]


def after_bits(
    results: Sequence[Result], bits: float, column: str, per_round: BitsPerRound = on_the_wire
) -> list[float] | None:
    """For every seed, a column after the last round that a client can afford with this many bits.

    A hundredth of a round is given away: a twentieth of the coordinates is rounded down to whole ones, so 20
    messages have a little less than a long one. None if it affords no round, or one that was not evaluated: an
    earlier one would be unfair to algorithms with long messages.
    """
    values = []
    for result in results:
        if "error" in result:
            values.append(math.inf)
            continue
        history = result["history"]
        affordable = math.floor(bits / per_round(result) + NEARLY)
        if affordable == 0 or affordable not in history["round"]:
            return None
        values.append(float(history[column][history["round"].index(affordable)]))
    return values


def equal_bits(found: ResultsByCell, label: float, per_round: BitsPerRound = on_the_wire) -> float:
    """The bits that the compressed algorithms send in the whole run as published: the least of all."""
    sent = [
        per_round(result) * float(result["history"]["round"][-1])
        for (at, mode, _), results in found.items()
        if at == label and mode == PUBLISHED
        for result in results
        if "error" not in result
    ]
    return min(sent, default=0.0)


Compared = list[tuple[str, Sequence[float], Sequence[float]]]
"""Where, and the measurements of both sides, seed by seed."""


def claims_of(
    found: ResultsByCell, labels: Sequence[float], stand_ins: Mapping[str, str] | None = None
) -> tuple[Claim, ...]:
    """The promise of tacit, what sums buy, and the paper's orders by both counts of bits and both measures."""
    ended = {key: results for key, results in found.items() if any("error" not in r for r in results)}
    return (
        *_promises(ended, labels, stand_ins or {}),
        *_orders(ended, labels),
    )


def _promises(found: ResultsByCell, labels: Sequence[float], stand_ins: Mapping[str, str]) -> tuple[Claim, ...]:
    promise: Compared = []
    frugal: Compared = []
    trust: Compared = []
    for label in labels:
        for name in ALGORITHMS:
            theirs = found.get((label, PUBLISHED, name))
            if theirs is None:
                continue
            rounds, real = theirs[0]["settings"]["rounds"], _epsilon(theirs)
            own = stand_ins.get(name, name)
            ours = [(mode, found[label, mode, own]) for mode in (TRUE, SUMMED) if (label, mode, own) in found]
            if not ours:
                where = f"label {label:g}, {name}, of which no run at the label came to its end"
                promise.append((where, [math.inf], utilities(theirs)))
                continue
            mode, best = min(ours, key=lambda one: fmean(utilities(one[1])))
            more = best[0]["settings"]["rounds"]
            where = (
                f"label {label:g}, {name}, {mode}, {more} rounds against {rounds} at a real epsilon "
                f"of {up_to(real)}"
            )
            promise.append((where, utilities(best), utilities(theirs)))
            budget = rounds * next(on_the_wire(result) for result in theirs if "error" not in result)
            early = {mode: after_bits(own, budget, "grad_norm_sq_mean") for mode, own in ours}
            kept = [(mode, values) for mode, values in early.items() if values is not None]
            if kept:
                mode, values = min(kept, key=lambda one: fmean(one[1]))
                frugal.append((f"label {label:g}, {name}, {mode}", values, utilities(theirs)))
        for name in ALGORITHMS:
            both = found.get((label, SUMMED, name)), found.get((label, TRUE, name))
            if both[0] is not None and both[1] is not None:
                trust.append((f"label {label:g}, {name}", utilities(both[0]), utilities(both[1])))
    return (
        _claim(
            "At the epsilon that the paper claims, the true or the summed mode reaches at least the utility of "
            "the published mode at its real epsilon (smaller is better).",
            promise,
            promise=True,
        ),
        _claim("It does so before it has sent more bits than the published mode.", frugal),
        _claim("At the same true epsilon, secure sums reach a better utility than messages alone.", trust),
    )


def _epsilon(results: Sequence[Result]) -> float:
    return next((float(result["epsilon"]) for result in results if "error" not in result), math.nan)


def _orders(found: ResultsByCell, labels: Sequence[float]) -> list[Claim]:
    """The paper's orders: shifted over direct in every mode, compressed over uncompressed as published."""
    claims = []
    for mode, when in ((PUBLISHED, "As published"), (TRUE, "At a true epsilon"), (SUMMED, "Under secure sums")):
        for column, measure in MEASURES.items():
            shifted: Compared = []
            for label in labels:
                a, b = (found.get((label, mode, name)) for name in ("soteriafl-sgd", "cdp-sgd"))
                if a is not None and b is not None:
                    # Both send the same messages, so the same rounds are equal bits.
                    sides = [[last(result, column) for result in own] for own in (a, b)]
                    shifted.append((f"label {label:g}", sides[0], sides[1]))
            text = "shifted compression (SoteriaFL-SGD) is better than direct (CDP-SGD) at equal bits, by"
            claims.append(_claim(f"{when}, {text} {measure}.", shifted))
    for count, per_round in COUNTS.items():
        for column, measure in MEASURES.items():
            compressed: Compared = []
            for label in labels:
                bits = equal_bits(found, label, per_round)
                at_bits = {
                    name: after_bits(found[label, PUBLISHED, name], bits, column, per_round)
                    for name in OF_THE_PAPER
                    if (label, PUBLISHED, name) in found
                }
                kept = {name: values for name, values in at_bits.items() if values is not None}
                compressed += [
                    (f"label {label:g}, {a} and {b}", kept[a], kept[b])
                    for a in kept
                    for b in kept
                    if b.startswith("ldp") and not a.startswith("ldp")
                ]
            text = "As published, every compressed algorithm is better than every uncompressed one at equal bits"
            claims.append(_claim(f"{text} ({count}), by {measure}.", compressed))
    return claims


def _claim(text: str, compared: Compared, *, promise: bool = False) -> Claim:
    told = "; ".join(f"{where}: {against(a, b)}" for where, a, b in compared)
    nothing = (
        "nothing to compare: the bits pay for no round of longer messages, or for one that was not evaluated"
    )
    return Claim(text, at_most([(a, b) for _, a, b in compared]), told or nothing, promise)
