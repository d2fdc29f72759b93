"""What the pages of Fed-SPA (Hu et al. 2021) show: the table, the promise, the departures from the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from tacit.experiments.experiment import PUBLISHED, TRUE, Claim, Scale, Table
from tacit.experiments.fed_spa_runs import AT_A_TRUE_EPSILON, CLIP_NORM, LIMIT_RECORDS, Scheme
from tacit.experiments.verdicts import against, at_most
from tacit.privacy.promises.rounding import up_to


def table_of(
    caption: str,
    rows: Sequence[dict[str, Any]],
    schemes: Sequence[Scheme],
    printed: Mapping[tuple[str, float], float],
) -> tuple[Table, dict[Scheme, list[float]]]:
    """One line per scheme, with its cost in bytes; and the schemes' accuracies, seed by seed."""
    lines, seen = [], {}
    for scheme in schemes:
        own = [row for row in rows if (row["mode"], row["algorithm"], row["ratio"]) == scheme]
        mode, name, p = scheme
        seen[scheme] = [row["best_accuracy"] for row in own]
        bits = own[0]["uplink_bits_per_client"]
        lines.append(
            (
                p,
                name,
                mode,
                max((row["epsilon"] for row in own if row["epsilon"] is not None), default=None),
                fmean(seen[scheme]),
                printed.get((name, p)),
                bits and bits / 8e6,
            )
        )
    columns = (
        "p",
        "algorithm",
        "mode",
        "real epsilon",
        "accuracy",
        "paper",
        "MB a client",
    )
    return Table(caption, columns, tuple(lines)), seen


def promise(rows: Sequence[dict[str, Any]]) -> Claim:
    """Whether a true epsilon is as accurate as the published mode, scheme by scheme.

    It is compared with the same algorithm in the true mode, and with what was run at the same label with the
    defaults' settings: the most accurate of them counts.
    """
    accuracies: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = row["mode"], row["algorithm"], row["ratio"], row["label"]
        accuracies.setdefault(key, []).append(row["best_accuracy"])
    told, pairs = [], []
    for row in rows:
        if row["mode"] != PUBLISHED or row["seed"] != 0:
            continue
        own = row["algorithm"], row["ratio"], row["label"]
        ours = {
            (mode, name): values
            for (mode, name, ratio, label), values in accuracies.items()
            if label == own[2] and ((mode, name, ratio, label) == (TRUE, *own) or mode in AT_A_TRUE_EPSILON)
        }
        (mode, name), best = max(ours.items(), key=lambda one: fmean(one[1]))
        theirs = accuracies[PUBLISHED, *own]
        pairs.append((theirs, best))
        told.append(
            f"{own[0]} p {own[1]:g}, label {own[2]:g}, a real epsilon of {up_to(row['epsilon'] or math.nan)}, by "
            f"{name} ({mode}): {against(best, theirs, '.4f')}"
        )
    return Claim(
        "At the epsilon that the paper claims, the true or the summed mode is at least as accurate as the "
        "published mode at its real epsilon.",
        at_most(pairs),
        "; ".join(told),
        promise=True,
    )


def departures(scale: Scale, quick: str) -> tuple[str, ...]:
    """How the runs differ from the paper's."""
    return (
        "As published: every coordinate of a record's gradient is clipped to a median that is taken from the "
        "data without protection: here that of the coordinates that are not zero, in "
        f"{LIMIT_RECORDS} records' gradients at the start. (The median of all coordinates is zero.) No epsilon "
        "on this page covers that number.",
        "As published: the noise of Theorem 1 at its best order, as printed (7), for the average number of "
        "rounds in which an agent takes part; batches without replacement. The real epsilon is that of the "
        "busiest agent.",
        "True: the paper's batches, local steps and rounds, with the noise that makes the label true for the "
        f"busiest agent. Every record's gradient is clipped to norm {CLIP_NORM:g}, and on the coordinates that "
        "Fed-SPA keeps to the square root of their share of it.",
        "Steps are those that the paper's search ended with; nothing is tuned here.",
        "Accuracy is on the whole test set, the best of the evaluated rounds.",
        *((quick,) if scale.quick else ()),
    )
