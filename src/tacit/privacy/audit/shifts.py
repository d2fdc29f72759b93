"""What an event promises about a single release when everything but its noise is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting
from dp_accounting import DpEvent

from tacit.errors import RequestError
from tacit.privacy import events
from tacit.privacy.accountant.dominate import leaves
from tacit.privacy.events.crowds import CoinSumDpEvent


@dataclass(frozen=True)
class Shifts:
    """How far one record may move a release compared with adding nothing, in standard deviations of the noise."""

    drawn: float
    """for each time that the record is drawn"""
    not_drawn: float = 0.0


def promised_shifts(event: DpEvent) -> Shifts:
    """The shifts of a run's rounds. Releases made once before the rounds come first in an event and are left out.

    >>> from tacit.privacy.events import poisson, repeated, two_level
    >>> promised_shifts(repeated(poisson(0.1, 4.0), 30)), promised_shifts(two_level(0.5, 2.0, 1.5, 0.5))
    (Shifts(drawn=0.25, not_drawn=0.0), Shifts(drawn=0.75, not_drawn=0.25))
    """
    found: Shifts | None = None
    for leaf, _ in leaves(event):
        match leaf:
            case dp_accounting.NoOpDpEvent() | events.InexactNoiseDpEvent():
                continue
            case CoinSumDpEvent(clients=clients, coins=coins, reach=reach):
                found = Shifts(reach / math.sqrt(clients * coins))
            case events.FixedSizeTwoLevelDpEvent(records, batch, _, z, difference, full, average):
                drawn = min(difference + full, average + (1 - batch / records) * difference)
                found = Shifts(drawn / z, full / z)
            case _ if hasattr(leaf, "inside"):
                found = Shifts(leaf.inside / leaf.noise_multiplier, leaf.outside / leaf.noise_multiplier)
            case _:
                noise = getattr(getattr(leaf, "event", leaf), "noise_multiplier", None)
                if noise is None:
                    raise RequestError(f"an audit does not know how far a record may move {leaf!r}")
                found = Shifts(1 / noise)
    if found is None:
        raise RequestError(f"{event!r} releases nothing that could be audited")
    return found
