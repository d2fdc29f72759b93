"""The theorems of ISRL-DP (Lowy & Razaviyayn 2023) that `isrl-rates` measures, and the problems it uses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Shape = tuple[float, float]
"""Signal and curvature of a problem."""
LINEAR: tuple[Shape, ...] = tuple((signal, 0.0) for signal in (0.03, 0.1, 0.2, 0.4, 1.0))
FLAT: tuple[Shape, ...] = tuple((0.5 * 4.0**-k, 4.0**-k) for k in range(7))
"""The flatter, the further away the minimum is for steps that suit the steepest."""
CURVED: tuple[Shape, ...] = ((0.25, 1.0), (0.5, 1.0))


def spread(imbalance: float) -> float:
    """sqrt(mean 1/n_i^2) relative to silos of one size: the factor that appendix H has in the place of 1/n."""
    return (1 + imbalance) / 2 * math.sqrt((1 + imbalance**-2) / 2)


@dataclass(frozen=True)
class Study:
    """A theorem, the problems that it is measured on, and the exponents that it states."""

    name: str
    theorem: str
    algorithm: str
    axes: Mapping[str, Sequence[float]]
    exponents: Mapping[str, float]
    shapes: tuple[Shape, ...] = LINEAR
    strongly_convex: bool = False
    base: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 5
    measured_against: Callable[[float], float] = float
    """what an axis stands for in the bound"""


BASE: dict[str, Any] = {"clients": 8, "records": 200, "epsilon": 1.0, "dim": 50, "rounds": None}
USUAL: dict[str, tuple[float, ...]] = {
    "records": (50, 100, 200, 400),
    "clients": (2, 4, 8, 16, 32),
    "epsilon": (0.25, 0.5, 1.0, 2.0),
    "dim": (12, 25, 50, 100),
}
LONGER = {**USUAL, "records": (500, 1000, 2000, 4000)}
QUIETER = {**LONGER, "clients": (4, 8, 16, 32), "dim": (4, 8, 16, 32)}
QUIETEST = {**QUIETER, "records": (2000, 4000, 8000, 16000), "epsilon": (0.5, 1.0, 2.0, 4.0)}
"""Where the noise is so large that no point is better than the start, nothing is measured. Stages need several
times less noise: otherwise one more or one less of them is what is measured."""


def _powers(of_the_cost: float) -> dict[str, float]:
    """The exponents of (sqrt(d) / (epsilon n sqrt(N)))^p."""
    p = of_the_cost
    return {"records": -p, "clients": -p / 2, "epsilon": -p, "dim": p / 2}


STUDIES = (
    Study("convex", "Theorem 4.1, eq. 8", "MB-SGD", USUAL, _powers(1)),
    Study(
        "strongly convex",
        "Theorem 4.1, eq. 9",
        "MB-SGD",
        LONGER,
        _powers(2),
        CURVED,
        True,
        {"records": 1000, "rounds": 100},
    ),
    Study(
        "multi-stage",
        "Theorem 4.1, eq. 9",
        "multi-stage",
        QUIETER,
        _powers(2),
        CURVED,
        True,
        {"records": 1000, "rounds": 400, "dim": 8},
    ),
    Study(
        "one-pass",
        "Theorem 3.1, eq. 6",
        "one-pass",
        LONGER,
        _powers(4 / 5),
        LINEAR + FLAT[:4],
        base={"records": 2000},
    ),
    Study(
        "one-pass multi-stage",
        "Theorem 3.1, eq. 7",
        "one-pass multi-stage",
        QUIETEST,
        _powers(2),
        CURVED,
        True,
        {"records": 4000, "dim": 8},
    ),
    Study(
        "shuffled",
        "Theorem 5.1",
        "shuffled",
        {"clients": (50, 100, 200, 400), "epsilon": (0.125, 0.25, 0.5)},
        {"clients": -1.0, "epsilon": -1.0},
        LINEAR[1:],
        base={"clients": 100, "records": 100, "epsilon": 0.25},
        seeds=3,
    ),
    Study(
        "unbalanced",
        "Theorem H.1",
        "MB-SGD",
        {"imbalance": (1.0, 2.0, 4.0, 8.0)},
        {"imbalance": 1.0},
        measured_against=spread,
    ),
    Study(
        "rounds, plain",
        "beta D^2/R, without acceleration",
        "plain, no noise",
        {"rounds": (4, 8, 16, 32)},
        {"rounds": -1.0},
        FLAT,
        seeds=1,
    ),
    Study(
        "rounds, accelerated",
        "beta D^2/R^2: Theorems 3.1 and 4.1",
        "accelerated, no noise",
        {"rounds": (4, 8, 16, 32)},
        {"rounds": -2.0},
        FLAT,
        seeds=1,
    ),
    Study(
        "unlike silos",
        "Theorem 4.1 with M = N: heterogeneity is free",
        "MB-SGD",
        {"heterogeneity": (0.1, 0.2, 0.4, 0.8)},
        {"heterogeneity": 0.0},
        LINEAR[1:],
    ),
    Study(
        "unlike silos, half absent",
        "Lemma E.3 with M = N/2",
        "MB-SGD",
        {"heterogeneity": (0.1, 0.2, 0.4, 0.8)},
        {},
        LINEAR[1:],
        base={"cohort": 4, "records": 2000, "rounds": 50},
    ),
)
