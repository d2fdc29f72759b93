"""What a theory is asked: the settings that a recipe leaves open, and what its theorem promises for a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tacit.federation import Federation
from tacit.models.model import Model
from tacit.theory.utility import UtilityBound


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

    @property
    def smallest(self) -> int:
        """The records of the smallest client."""
        return int(self.federation.sizes.min())

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


@dataclass(frozen=True)
class PlannedRun:
    """A run as it will be: every setting is said, and the noise is the one that was derived for it."""

    asked: Asked
    noise_std: float
    """on a coordinate of a client's message (of each of its local gradients), root mean square over clients"""
    batch: float
    """the records of the smallest batch"""
    least_rate: float
    """the smallest share of its records that a client's batch is"""
    batch_variance: float
    """how far a batch's mean gradient is from its client's, mean square, in squared lengths of a gradient"""
    participants: float
    """how many clients take part in a round, or are expected to"""
    assumed: Mapping[str, float] = field(default_factory=dict)
    """constants that someone states about the data or the model (`tacit.theory.known.ASSUMABLE`)"""

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        return int(self.asked.value("rounds"))


CHOSEN = frozenset(["batch", "regularisation", "rounds", "snapshot_probability", "stages", "step"])
"""What theories choose. Where all of it is said, none is asked."""


def _nothing(asked: Asked) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Theory:
    """What a paper says about an algorithm."""

    bound: Callable[[PlannedRun], UtilityBound]
    """what its theorem promises for a run, with the noise that this run really has"""
    choose: Callable[[Asked], dict[str, Any]] = _nothing
    """the values that it prescribes, by setting, without those that it knows nothing about. What is given already
    may be among them, and counts for nothing there"""
