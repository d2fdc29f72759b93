"""The papers by name: a table of each paper's own experiments, and a calculator for other numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tacit.errors import RequestError, unknown_name
from tacit.theory.published import fed_spa, isrl_dp, norm_fedavg, soteriafl
from tacit.theory.published.row import Row


@dataclass(frozen=True)
class Paper:
    """A paper's formula, the table of its own experiments, and a function for other numbers."""

    title: str
    table: Callable[[], tuple[Row, ...]]
    row: Callable[..., Row]
    takes_local_steps: bool = False


PAPERS = {
    "soteriafl": Paper(soteriafl.PAPER, soteriafl.table, soteriafl.row),
    "isrl-dp": Paper(isrl_dp.PAPER, isrl_dp.table, isrl_dp.row),
    "fed-spa": Paper(fed_spa.PAPER, fed_spa.table, fed_spa.row, takes_local_steps=True),
    "norm-fedavg": Paper(norm_fedavg.PAPER, norm_fedavg.table, norm_fedavg.row),
}


def paper(name: str) -> Paper:
    """A paper by name."""
    if name not in PAPERS:
        raise unknown_name("paper", name, PAPERS)
    return PAPERS[name]


def calculate(
    name: str,
    *,
    epsilon: float,
    delta: float,
    records: int,
    batch: int,
    rounds: int,
    local_steps: int | None = None,
) -> Row:
    """What a paper's noise for a label gives with these numbers.

    >>> found = calculate("fed-spa", epsilon=1.0, delta=1e-3, records=600, batch=10, rounds=1500)
    >>> round(found.factors["noise over what is needed"], 1)
    2.3
    """
    steps = {}
    if local_steps is not None:
        if not paper(name).takes_local_steps:
            raise RequestError(f"local_steps is for fed-spa, not for {name!r}; leave it out")
        steps["local_steps"] = local_steps
    return paper(name).row(
        "your numbers", epsilon=epsilon, delta=delta, records=records, batch=batch, rounds=rounds, **steps
    )
