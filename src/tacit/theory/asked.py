"""What a theory is asked for: the settings that a recipe leaves open, from numbers that everybody may know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tacit.federation import Federation
from tacit.models.model import Model


@dataclass(frozen=True)
class Asked:
    """A run whose settings are not all chosen, as the theorems see it.

    Of the records only their numbers are looked at.
    """

    algorithm: str
    model: Model
    federation: Federation
    given: Mapping[str, Any]
    """the settings that are said, "rounds" among them"""
    usual: Mapping[str, Any]
    """what they are where nobody says anything"""
    epsilon: float | None
    """the smallest of all clients; None without a promise"""
    delta: float | None
    gradient_bound: float
    """the longest that a record's bounded gradient can be"""
    omega: float
    """of the compressor"""
    diameter: float | None
    """of the set in which the model must lie; None where it may lie anywhere"""
    feature_norm: float | None
    """a public bound on the norm of a record's features"""
    target_bound: float | None
    """a public bound on the absolute target of a regression"""
    mean_cohort: float | None
    """M, where 1/M is the mean of 1/M_r; None if everyone takes part"""
    rate: Callable[[float | None], float]
    """the sampling rate of the smallest client for a batch"""
    disjoint_batches: Callable[[float | None], int]
    """how many disjoint batches the smallest client has"""
    noise_std: Callable[[int, float | None], float]
    """the noise on a coordinate of a client's message that the promise needs, for rounds and a batch"""

    @property
    def one_pass(self) -> bool:
        """Whether every record is looked at once."""
        return bool(self.value("sampling") == "one-pass")

    def value(self, setting: str) -> Any:
        """A setting as it is said, or as it usually is."""
        said = self.given.get(setting)
        return self.usual.get(setting) if said is None else said

    def batch(self) -> float | None:
        """The batch as it is said, or as it usually is; None for all records."""
        return None if self.value("sampling") in (None, "full") else self.value("batch")

    def is_open(self, *settings: str) -> bool:
        """Whether nobody has said any of these."""
        return all(self.given.get(setting) is None for setting in settings)


CHOSEN = frozenset(["batch", "regularisation", "rounds", "snapshot_probability", "stages", "step"])
"""What theories choose. Where all of it is said, none is asked."""

Theory = Callable[[Asked], dict[str, Any]]
"""Which values a paper prescribes, by setting; those that it knows nothing about are left out.

What is given already is none of its business: it may be among the result, and counts for nothing there.
"""
