"""Every epsilon of a silo's certificate, and its promise in words, computed from events alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from dp_accounting import DpEvent

from tacit._version import __version__
from tacit.privacy import Adjacency, Adversary, Guarantee, Unit, events
from tacit.privacy.accountant import accounting
from tacit.privacy.promises.terms import RECORD_COUNTS


def claims(
    run: DpEvent,
    together: DpEvent,
    beside: Mapping[str, DpEvent],
    *,
    delta: float,
    adjacency: Adjacency,
    unit: Unit,
    adversary: Adversary,
    public: tuple[str, ...],
    insecure: bool,
    colluding: int = 0,
) -> dict[str, Any]:
    """Every epsilon of a silo's certificate, and its promise in words, from the events alone."""

    def promise(event: DpEvent, against: Adversary) -> Guarantee:
        helpers = colluding if against is Adversary.SECURE_SUM else 0
        return Guarantee((event,), delta, adjacency, unit, against, public, colluding=helpers)

    whole = promise(together, adversary)
    weaker = {name: promise(event, Adversary(name)) for name, event in beside.items()}
    helper = "all other silos" if adversary is Adversary.SECURE_SUM else "the shuffler"
    sentences = [whole.sentence(), *(one.formal() for one in weaker.values())]
    return {
        "epsilon": {
            "run": _finite_or_none(accounting.epsilon(run, delta, adjacency)),
            "collaboration": _finite_or_none(whole.epsilon),
        },
        "run_if_others_help": {
            name: {"event": events.to_dict(beside[name]), "epsilon": _finite_or_none(one.epsilon)}
            for name, one in weaker.items()
        },
        "promise": "No privacy: the noise follows from a seed that all parties know. This was a trial."
        if insecure
        else f" Should {helper} help the server, of this run alone: ".join(sentences),
    }


def whole_site(cost: float, delta: float) -> dict[str, Any]:
    """The entry of a certificate. The noise depends on the number of records, so that number counts as public."""
    return {"epsilon": _finite_or_none(cost), "delta": delta, "public": [RECORD_COUNTS]}


def _finite_or_none(epsilon: float) -> float | None:
    """An epsilon for JSON: None if there is no promise."""
    return epsilon if math.isfinite(epsilon) else None


def accountant() -> dict[str, str]:
    """The software that computes epsilons here."""
    return {
        "name": "tacit.privacy.accountant.accounting",
        "version": __version__,
        "dp_accounting": metadata.version("dp-accounting"),
    }
