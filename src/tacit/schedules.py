"""How a step size changes from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tacit.errors import RequestError, probability


class Schedule(Protocol):
    """A public factor for every round, 1 in round 0."""

    def factor(self, round: int) -> float:
        """The factor on the step size in this round (0, 1, ...)."""
        ...

    def spec(self) -> str:
        """The schedule as text that `parse_schedule` can read."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same step in every round."""

    def factor(self, round: int) -> float:
        return 1.0

    def spec(self) -> str:
        return "constant"


@dataclass(frozen=True)
class Exponential:
    """decay^k in round k. DP-NormFedAvg (Das et al. 2022), appendix H, uses a decay of 0.99."""

    decay: float
    """the factor from round to round, above 0 and at most 1"""

    def __post_init__(self) -> None:
        probability("decay", self.decay)

    def factor(self, round: int) -> float:
        """decay^k."""
        return float(self.decay**round)

    def spec(self) -> str:
        return f"exponential:{self.decay!r}"


@dataclass(frozen=True)
class InverseSqrt:
    """1/sqrt(k + 1) in round k, as in Fed-SPA (Hu et al. 2021), section 5."""

    def factor(self, round: int) -> float:
        """1/sqrt(k + 1)."""
        return float((round + 1) ** -0.5)

    def spec(self) -> str:
        return "inverse-sqrt"


def parse_schedule(text: str) -> Schedule:
    """Read a schedule: `constant`, `exponential:DECAY` or `inverse-sqrt`.

    >>> parse_schedule("exponential:0.99").factor(2)
    0.9801
    >>> parse_schedule("linear")
    Traceback (most recent call last):
    tacit.errors.RequestError: schedule must be constant, inverse-sqrt or exponential:DECAY, not 'linear'
    """
    name, _, number = text.partition(":")
    if text == "constant":
        return Constant()
    if text == "inverse-sqrt":
        return InverseSqrt()
    try:
        if name == "exponential":
            return Exponential(float(number))
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
    raise RequestError(f"schedule must be constant, inverse-sqrt or exponential:DECAY, not {text!r}")
