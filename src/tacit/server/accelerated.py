"""Accelerated stochastic approximation, AC-SA: ISRL-DP (Lowy & Razaviyayn 2023), Algorithm 1, appendix E.1."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor

from tacit.errors import RequestError, count, known_step, positive
from tacit.server.projection import Everywhere, Projection
from tacit.server.self_tuned import Prospect, average_in
from tacit.state import State


@dataclass(frozen=True)
class Stage:
    """`rounds` rounds with alpha_r = 2/(r+1) and eta_r = 4 curvature / (r (r+1)), r counted from 1.

    `tacit.plan` fills in what is None.
    """

    rounds: int | None = None
    """None for all rounds of the run that the other stages leave"""
    curvature: float | None = None
    """None if it is derived from the noise"""

    def __post_init__(self) -> None:
        if self.rounds is not None:
            count("rounds of a stage", self.rounds)
        if self.curvature is not None:
            positive("curvature of a stage", self.curvature)


@dataclass(frozen=True)
class Accelerated:
    """AC-SA for a loss with strong convexity mu >= 0, in one stage or several.

    The server broadcasts w_md; the final model is w_ag. A stage starts at the w_ag of the previous one.

        w_md = [(1-a)(mu+e) w_ag + a((1-a) mu + e) w] / (e + (1-a^2) mu)                             (line 4)
        w   <- argmin over W of a (<g, v> + mu/2 ||w_md - v||^2) + ((1-a) mu + e)/2 ||w - v||^2      (line 9)
        w_ag <- a w + (1-a) w_ag                                                                    (line 10)

    The objective of line 9 is an isotropic quadratic, (mu+e)/2 ||v - c||^2 plus a constant, so its minimum over W
    is the point of W nearest to the centre c. (As printed, line 9 lacks the factor a before mu/2; the lemmas that
    the paper relies on, from Ghadimi & Lan 2012, have it.) With a `regularisation` lambda the objective is
    F(w) + (lambda/2) ||w - w_0||^2, whose second part is public: the convex case of Lemma E.1.

    If the curvature follows from the noise (`settled`), the final model is an average of all w_ag instead. Steps
    that grow with r forget noise slowly: along a direction of curvature c, w_ag swings about its goal with a
    variance of about step sigma^2 / c. Plain steps do too, and their average does not; nor does that of w_ag.
    """

    stages: tuple[Stage, ...]
    """rounds and curvature of every stage"""
    strong_convexity: float = 0.0
    """mu"""
    projection: Projection = field(default_factory=Everywhere)
    """the set W that points are projected onto"""
    regularisation: float = 0.0
    averaged: bool = False
    """whether the model is the average of all w_ag, with more weight on later ones"""

    def __post_init__(self) -> None:
        if not self.stages:
            raise RequestError("an accelerated update needs at least one stage")
        if sum(stage.rounds is None for stage in self.stages) > 1:
            raise RequestError("only one stage can take the rounds that are left: give the rounds of the others")
        if not self.strong_convexity >= 0:
            raise RequestError(f"strong_convexity must be at least 0, not {self.strong_convexity!r}")
        if not 0 <= self.regularisation < math.inf:
            raise RequestError(f"regularisation must be at least 0, not {self.regularisation!r}")
        least = min((stage.curvature for stage in self.stages if stage.curvature is not None), default=math.inf)
        if self._mu > least:
            raise RequestError(
                f"strong_convexity + regularisation = {self._mu:g} is more than the curvature {least:g}: "
                "a loss cannot have more strong convexity than smoothness"
            )

    @property
    def is_open(self) -> bool:
        """Whether a stage's rounds or curvature are still to be filled in."""
        return any(stage.rounds is None or stage.curvature is None for stage in self.stages)

    def settled(self, prospect: Prospect) -> Self:
        """The same update; open stages get the rounds that are left, and a curvature that suits the noise.

        Stages of m rounds and curvature b take w_ag about (m+1)^2 / (8 b) directions each. b makes T rounds of
        them cover the travel S that suits the noise. A single open stage is divided into stages as short as they
        can be without b falling below the curvature c of the loss: (m+1)^2 / m = 8 c S / (T length). With much
        noise S is so short that m = 1, which is plain descent: acceleration would only sum up noise. With little
        noise there is one stage.
        """
        total, travel = prospect.rounds, prospect.travel() / prospect.length
        least = max(prospect.curvature, 2 * self._mu)
        stages = self.stages
        if len(stages) == 1 and stages[0].curvature is None:
            length = min(total, max(1, round(8 * least * travel / total - 2)))
            stages = (Stage(length),) * (total // length) + ((Stage(),) if total % length else ())
        left = total - sum(stage.rounds or 0 for stage in stages)

        def filled(stage: Stage) -> Stage:
            rounds = left if stage.rounds is None else stage.rounds
            fitting = max(least, total * (rounds + 1) ** 2 / (8 * rounds * travel))
            return Stage(rounds, fitting if stage.curvature is None else stage.curvature)

        derived = any(stage.curvature is None for stage in stages)
        return replace(
            self,
            stages=tuple(filled(stage) for stage in stages),
            averaged=derived,
        )

    @property
    def _mu(self) -> float:
        """The strong convexity of the objective that is minimised."""
        return self.strong_convexity + self.regularisation

    @property
    def rounds(self) -> int:
        """The total number of rounds of all stages that have one."""
        return sum(stage.rounds or 0 for stage in self.stages)

    def _coefficients(self, round: int) -> tuple[float, float, bool]:
        """alpha_r, eta_r, and whether the stage ends with this round."""
        left = round
        for stage in self.stages:
            rounds = stage.rounds or 0
            if left < rounds:
                r = left + 1
                return 2 / (r + 1), 4 * known_step(stage.curvature) / (r * (r + 1)), r == rounds
            left -= rounds
        raise RequestError(f"round {round}, but the stages have only {self.rounds} rounds in total")

    def init(self, point: Tensor) -> State:
        """Start at w_0 = w_0^ag."""
        self.projection.check_start(point)
        state = {"point": point, "aggregate": point}
        if self.regularisation:
            state["start"] = point
        return state | ({"average": point.double()} if self.averaged else {})

    def broadcast(self, state: State, round: int) -> State:
        return {"point": self._middle(state, round)}

    def _middle(self, state: State, round: int) -> Tensor:
        a, e, _ = self._coefficients(round)
        mu = self._mu
        total = e + (1 - a * a) * mu
        old = (1 - a) * (mu + e) / total
        return old * state["aggregate"] + (1 - old) * state["point"]

    def step(self, state: State, direction: Tensor, round: int) -> State:
        """Lines 9 and 10; at the end of a stage, w restarts at w_ag."""
        a, e, last = self._coefficients(round)
        mu = self._mu
        middle = self._middle(state, round)
        if self.regularisation:
            direction = direction + self.regularisation * (middle - state["start"])
        centre = (a * mu * middle + ((1 - a) * mu + e) * state["point"] - a * direction) / (mu + e)
        point = self.projection.nearest(centre)
        aggregate = a * point + (1 - a) * state["aggregate"]
        moved = {**state, "point": aggregate if last else point, "aggregate": aggregate}
        if self.averaged:
            moved["average"] = average_in(state["average"], aggregate, round)
        return moved

    def output(self, state: State) -> Tensor:
        """w_ag, or the average of all w_ag if the steps follow from the noise."""
        return state["average"].to(state["point"].dtype) if self.averaged else state["aggregate"]
