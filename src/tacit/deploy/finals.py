"""Final releases: what silos release once in a run, after the last round, about their records at a model.

There are two. Silos correct a regression (`tacit.deploy.correcting`), and evaluate the model that comes of it
(`tacit.deploy.held_back`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class Final(StrEnum):
    """The final releases of a run, in the order in which they are made."""

    CORRECTION = "correction"
    EVALUATION = "evaluation"

    @property
    def kind(self) -> Literal["correct", "evaluate"]:
        """The kind of the server's request for it, and of its line in the ledger."""
        return "correct" if self is Final.CORRECTION else "evaluate"

    @property
    def made(self) -> str:
        """Where it is in a silo's certificate once it was made; its terms are there under its name."""
        return "corrected" if self is Final.CORRECTION else "evaluated"
