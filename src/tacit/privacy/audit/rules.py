"""When to guess: a threshold on an attack's score, chosen on practice trials and used once on fresh ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.accountant.pairs import Array
from tacit.privacy.audit.findings import Finding
from tacit.privacy.audit.guesses import one_run_epsilon, repeated_runs_delta, repeated_runs_epsilon

_FEWEST_GUESSES, _RULES = 16, 12
"""The least number of guesses in practice, and how many numbers between it and all trials are tried."""

_ONE_RUN_SHARES = (0.02, 0.06, 0.2, 0.6, 1.0)
"""Fractions of the canaries that are guessed in one run; each gets a share of the error."""


@dataclass(frozen=True)
class ClaimedPoint:
    """One point of the claimed privacy curve."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Guesses:
    """The results of guesses in independent trials; `sides` counts the worlds that were ever guessed."""

    right: int
    number: int
    trials: int
    sides: int

    def epsilon(self, delta: float, confidence: float) -> float:
        """The largest epsilon that these guesses rule out at `delta`."""
        bound = repeated_runs_epsilon(
            self.right, self.number, self.trials, delta=delta, confidence=confidence, sides=self.sides
        )
        return max(0.0, float(bound))

    def delta(self, epsilon: float, confidence: float) -> float:
        """The largest delta that these guesses rule out at `epsilon`."""
        bound = repeated_runs_delta(
            self.right, self.number, self.trials, epsilon=epsilon, confidence=confidence, sides=self.sides
        )
        return float(bound)


@dataclass(frozen=True)
class Rule:
    """Guess "in" where the attack's score is at least `above`, "out" where it is at most `below`."""

    attack: str
    above: float
    below: float
    claim: ClaimedPoint
    margin: float
    """by how much practice expects the bound to exceed the claim"""

    def guess(self, scores: Mapping[str, Array], present: NDArray[np.bool_]) -> Guesses:
        """Guess in trials that were not used to choose the rule."""
        mine = scores[self.attack]
        guessed_in = mine >= self.above
        guessed_out = (mine <= self.below) & ~guessed_in
        right = int((guessed_in & present).sum() + (guessed_out & ~present).sum())
        number = int(guessed_in.sum() + guessed_out.sum())
        return Guesses(right, number, len(present), int(np.isfinite(self.above)) + int(np.isfinite(self.below)))

    def finding(self, guesses: Guesses, *, confidence: float) -> Finding:
        """What guesses by this rule say about its claim."""
        return Finding(
            claimed=self.claim.epsilon,
            delta=self.claim.delta,
            lower_bound=guesses.epsilon(self.claim.delta, confidence),
            confidence=confidence,
            trials=guesses.trials,
            guesses=guesses.number,
            right=guesses.right,
            attack=self.attack,
        )


def best_rule(
    scores: Mapping[str, Array],
    present: NDArray[np.bool_],
    claims: Sequence[ClaimedPoint],
    *,
    confidence: float,
) -> Rule:
    """The rule whose bound in these practice trials exceeds one of the claims by most.

    A high `confidence` avoids choosing rules that were merely lucky with a few guesses.
    """
    shares = np.geomspace(_FEWEST_GUESSES / len(present), 0.5, _RULES)
    best: Rule | None = None
    for attack, mine in scores.items():
        high, low = np.quantile(mine, 1 - shares), np.quantile(mine, shares)
        never = np.full_like(high, np.inf)
        for above, below in ((high, -never), (never, low), (high, low)):
            guessed_in, guessed_out = mine[:, None] >= above, mine[:, None] <= below
            clear = np.asarray(~(guessed_in & guessed_out).any(0))
            right = (guessed_in & present[:, None]).sum(0) + (guessed_out & ~present[:, None]).sum(0)
            guesses = guessed_in.sum(0) + guessed_out.sum(0)
            sides = int(np.isfinite(above[0])) + int(np.isfinite(below[0]))
            for claim in claims:
                bounds = repeated_runs_epsilon(
                    np.where(clear, right, 0),
                    np.where(clear, guesses, 0),
                    len(present),
                    delta=claim.delta,
                    confidence=confidence,
                    sides=sides,
                )
                k = int(np.argmax(bounds))
                margin = float(bounds[k]) - claim.epsilon
                if clear[k] and (best is None or margin > best.margin):
                    best = Rule(attack, float(above[k]), float(below[k]), claim, margin)
    assert best is not None, "one-sided rules are always clear"
    return best


def one_run_finding(
    scores: Array, present: NDArray[np.bool_], claim: ClaimedPoint, *, confidence: float, attack: str
) -> Finding:
    """The best bound from guessing the canaries of one run with the largest scores, in either direction.

    Several numbers of guesses are tried; each gets its share of the error, so that the best result is valid.
    """
    order = np.argsort(-np.abs(scores), kind="stable")
    right = np.cumsum((scores[order] > 0) == present[order])
    shared = 1 - (1 - confidence) / len(_ONE_RUN_SHARES)

    def finding(guesses: int) -> Finding:
        correct = int(right[guesses - 1])
        bound = one_run_epsilon(len(scores), guesses, correct, delta=claim.delta, confidence=shared)
        return Finding(claim.epsilon, claim.delta, bound, confidence, len(scores), guesses, correct, attack)

    numbers = {max(1, round(share * len(scores))) for share in _ONE_RUN_SHARES}
    return max((finding(number) for number in sorted(numbers)), key=lambda found: found.lower_bound)
