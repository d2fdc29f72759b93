"""The questions that a theory answers: values for open settings, and the bound of its theorem for a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tacit.federation import Federation
from tacit.models.model import Model
from tacit.theory.utility import UtilityBound


@dataclass(frozen=True)
class Asked:
    """A run with open settings, in the form that the theorems take.

    Only the numbers of records are used, never a record.
    """

    algorithm: str
    model: Model
    federation: Federation
    given: Mapping[str, Any]
    """the given settings; "rounds" is one of them"""
    usual: Mapping[str, Any]
    """the default values"""
    epsilon: float | None
    """the smallest epsilon of all clients; None without a promise"""
    delta: float | None
    gradient_bound: float
    """the largest norm of a record's gradient after it is bounded"""
    omega: float
    """omega of the compressor"""
    diameter: float | None
    """diameter of the set that contains the model; None if there is no such set"""
    feature_norm: float | None
    """a public bound on the norm of a record's features"""
    target_bound: float | None
    """a public bound on the absolute target of a regression"""
    mean_cohort: float | None
    """M, where 1/M is the mean of 1/M_r; None if everyone takes part"""
    shares: int
    """how many clients share the noise of a sum; 1 if each adds all of it"""
    rate: Callable[[float | None], float]
    """the sampling rate of the smallest client for a batch"""
    disjoint_batches: Callable[[float | None], int]
    """how many disjoint batches the smallest client has"""
    noise_std: Callable[[int, float | None], float]
    """the noise on a coordinate of a client's message that the promise needs, for given rounds and batch"""

    @property
    def one_pass(self) -> bool:
        """Whether every record is used only once."""
        return bool(self.value("sampling") == "one-pass")

    @property
    def smallest(self) -> int:
        """Number of records of the smallest client."""
        return int(self.federation.sizes.min())

    def value(self, setting: str) -> Any:
        """A setting as given, or its default."""
        said = self.given.get(setting)
        return self.usual.get(setting) if said is None else said

    def batch(self) -> float | None:
        """The batch as given, or its default; None for all records."""
        return None if self.value("sampling") in (None, "full") else self.value("batch")

    def is_open(self, *settings: str) -> bool:
        """Whether none of these settings is given."""
        return all(self.given.get(setting) is None for setting in settings)


@dataclass(frozen=True)
class PlannedRun:
    """A run with all settings chosen, and the noise that was derived for it."""

    asked: Asked
    noise_std: float
    """noise on a coordinate of a client's message (of each local gradient), root mean square over clients"""
    batch: float
    """number of records in the smallest batch"""
    least_rate: float
    """the smallest sampling rate of any client"""
    batch_variance: float
    """mean squared distance of a batch's mean gradient from its client's, in squared lengths of a gradient"""
    participants: float
    """actual or expected number of clients in a round"""
    assumed: Mapping[str, float] = field(default_factory=dict)
    """constants that someone states about the data or the model (`tacit.theory.known.ASSUMABLE`)"""

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return int(self.asked.value("rounds"))


CHOSEN = frozenset(["batch", "regularisation", "rounds", "snapshot_probability", "stages", "step"])
"""Settings that theories choose. If all of them are given, no theory is asked."""


def _nothing(asked: Asked) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Theory:
    """The results of a paper about an algorithm."""

    bound: Callable[[PlannedRun], UtilityBound]
    """the bound of its theorem for a run, with the noise that this run really has"""
    choose: Callable[[Asked], dict[str, Any]] = _nothing
    """the values that it prescribes, by setting, without those it says nothing about. Settings that are already
    given may be included; they are ignored"""
