"""Several whole runs under one policy as one event; each may be chosen after seeing the earlier ones."""

from __future__ import annotations

from dataclasses import dataclass

from dp_accounting import DpEvent

from tacit.errors import RequestError, positive
from tacit.privacy.events.plain_numbers import keep_numbers


@dataclass(frozen=True)
class ChosenRunsDpEvent(DpEvent):  # type: ignore[misc]
    """Runs that a silo admitted one after the other, each in full, under a policy of `epsilon`.

    This is not a plain composition: the second run may have been chosen after seeing the results of the first,
    and whether there is a third may depend on both. `tacit.privacy.accountant.filter` computes the cost.
    """

    runs: tuple[DpEvent, ...]
    """the whole planned event of each run, in the order in which the runs were opened"""
    epsilon: float
    """the policy's epsilon"""

    def __post_init__(self) -> None:
        keep_numbers(self, "epsilon")
        positive("epsilon", self.epsilon)
        object.__setattr__(self, "runs", tuple(self.runs))
        if any(isinstance(run, ChosenRunsDpEvent) for run in self.runs):
            raise RequestError("chosen-runs must contain single runs, not other chosen-runs")
