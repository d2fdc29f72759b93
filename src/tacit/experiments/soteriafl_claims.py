"""The claims about the figures of SoteriaFL (Li et al. 2022), and whether the runs support them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tacit.engine.workers import Result
from tacit.experiments.experiment import PUBLISHED, TRUE, Claim, against, at_most
from tacit.experiments.simulated import last
from tacit.experiments.soteriafl_runs import ALGORITHMS, OF_THE_PAPER, TRUE_FOR

Key = tuple[float, str, str]
"""Label, mode, algorithm."""


def utilities(results: Sequence[Result]) -> list[float]:
    """The mean squared gradient norm of every seed; infinite if it diverged."""
    return [last(result, "grad_norm_sq_mean") for result in results]


def after_bits(results: Sequence[Result], bits: float, column: str) -> list[float] | None:
    """For every seed, a column after the last round that a client can afford with this many bits.

    None if it affords no round, or one that was not evaluated: using an earlier one would be unfair to algorithms
    with long messages.
    """
    values = []
    for result in results:
        if "error" in result:
            values.append(math.inf)
            continue
        history = result["history"]
        affordable = math.floor(bits / (history["uplink_bits_per_client"][-1] / history["round"][-1]) + 1e-9)
        if affordable == 0 or affordable not in history["round"]:
            return None
        values.append(float(history[column][history["round"].index(affordable)]))
    return values


def equal_bits(found: dict[Key, list[Result]], label: float) -> float:
    """The bits that the compressed algorithms send in the whole run: the least of all algorithms."""
    return min(
        float(result["history"]["uplink_bits_per_client"][-1])
        for (at, _, _), results in found.items()
        if at == label
        for result in results
        if "error" not in result
    )


Compared = list[tuple[str, Sequence[float], Sequence[float]]]
"""Where, and the measurements of both sides, seed by seed."""


def claims_of(found: dict[Key, list[Result]], labels: Sequence[float]) -> tuple[Claim, ...]:
    promise: Compared = []
    frugal: Compared = []
    shifted: Compared = []
    compressed: Compared = []
    for label in labels:
        bits = equal_bits(found, label)
        at_bits: dict[str, list[float]] = {}
        for name in ALGORITHMS:
            ours, theirs = found.get((label, TRUE, TRUE_FOR[name])), found.get((label, PUBLISHED, name))
            if theirs is None:
                continue
            own = after_bits(theirs, bits, "grad_norm_sq")
            if own is not None and name in OF_THE_PAPER:
                at_bits[name] = own
            rounds, real = theirs[0]["settings"]["rounds"], theirs[0]["epsilon"]
            if ours is None:
                where = f"label {label:g}, {name}, of which no true run came to its end"
                promise.append((where, [math.inf], utilities(theirs)))
                continue
            more = ours[0]["settings"]["rounds"]
            where = f"label {label:g}, {name}, {more} rounds against {rounds} at a real epsilon of {real:.3g}"
            promise.append((where, utilities(ours), utilities(theirs)))
            budget = float(theirs[0]["history"]["uplink_bits_per_client"][-1])
            early = after_bits(ours, budget, "grad_norm_sq_mean")
            if early is not None:
                frugal.append((f"label {label:g}, {name}", early, utilities(theirs)))
        if {"soteriafl-sgd", "cdp-sgd"} <= at_bits.keys():
            shifted.append((f"label {label:g}", at_bits["soteriafl-sgd"], at_bits["cdp-sgd"]))
        plain = [name for name in at_bits if name.startswith("ldp")]
        squeezed = [name for name in at_bits if not name.startswith("ldp")]
        compressed += [(f"label {label:g}, {a} and {b}", at_bits[a], at_bits[b]) for a in squeezed for b in plain]
    return (
        _claim(
            "At the epsilon that the paper claims, the true mode reaches at least the utility of the published "
            "mode at its real epsilon (smaller is better).",
            promise,
        ),
        _claim(
            "It does so before it has sent more bits than the published mode.",
            frugal,
        ),
        _claim(
            "As published, shifted compression (SoteriaFL-SGD) ends with a smaller gradient than direct "
            "(CDP-SGD) at equal bits.",
            shifted,
        ),
        _claim(
            "As published, every compressed algorithm ends with a smaller gradient than every uncompressed one "
            "at equal bits.",
            compressed,
        ),
    )


def _claim(text: str, compared: Compared) -> Claim:
    told = "; ".join(f"{where}: {against(a, b)}" for where, a, b in compared)
    nothing = "nothing to compare: the bits pay for no round of longer messages, or for one where nobody looked"
    return Claim(text, at_most([(a, b) for _, a, b in compared]), told or nothing)
