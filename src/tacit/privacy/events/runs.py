"""Several whole runs under one policy, as an event of their own: who has seen the earlier ones chose the next."""

from __future__ import annotations

from dataclasses import dataclass

from dp_accounting import DpEvent

from tacit.errors import RequestError, positive
from tacit.privacy.events.plain_numbers import keep_numbers


@dataclass(frozen=True)
class ChosenRunsDpEvent(DpEvent):  # type: ignore[misc]
    """Runs that a silo admitted one after the other, each in full, under a policy of `epsilon`.

    Not the same as a composition: whoever chose the second run may have seen what the first one gave, and whether
    there is a third may depend on both. `tacit.privacy.accountant.filter` says what that costs.
    """

    runs: tuple[DpEvent, ...]
    """the whole planned event of every run, in the order in which they were opened"""
    epsilon: float
    """that of the policy, which admits no further run"""

    def __post_init__(self) -> None:
        keep_numbers(self, "epsilon")
        positive("epsilon", self.epsilon)
        object.__setattr__(self, "runs", tuple(self.runs))
        if any(isinstance(run, ChosenRunsDpEvent) for run in self.runs):
            raise RequestError("chosen-runs holds single runs, not other chosen-runs")
