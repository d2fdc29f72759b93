"""Measures what a promise relies on: the same trials with and without noise, and with either neighbour."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tacit.engine.audit.joint import JointStage
from tacit.engine.audit.stage import AuditStage, Tactic, coins_of, pulls_of
from tacit.privacy.accountant.pairs import Array
from tacit.privacy.audit import Check, draws_check, freshness_check, law_check, noise_check, others_check
from tacit.privacy.audit.checks import Counts

_NUMBERS, _MOST_TRIALS, _FEWEST_TRIALS = 8000, 1000, 60
"""Approximate number of values used to check the noise, and the most and fewest trials for it."""

_MOVED, _FEWEST_DRAWN, _MOST_BLOCKS = 60, 10, 20
"""Number of trials in which the canary's movement is measured; in how many of these it should be drawn; and how
many times as many trials are searched to find them."""

_HUGE = 1e33
"""A length so far beyond the bound that squared gradients overflow in single precision."""


def check_trials(stage: AuditStage) -> int:
    """Number of trials that the checks take. Releases besides a game's rounds are also checked alone."""
    if isinstance(stage, JointStage):
        stage = stage.game
    numbers = len(stage.direction) * stage.rounds * max(1.0, stage.messages / 4)
    return int(np.clip(_NUMBERS / numbers, _FEWEST_TRIALS, _MOST_TRIALS))


def measured(stage: AuditStage, first: int) -> tuple[Check, ...]:
    """All checks that apply to this stage, in trials numbered from `first`."""
    trials = check_trials(stage)
    present = coins_of(stage.randomness, trials, first)
    pulls = pulls_of(present, stage.adjacency)
    sent = stage.bare(pulls, first, stage.tactics[0])
    noise = sent - stage.signals(pulls, first, stage.tactics[0])
    stage = stage.followed
    draws = stage.draws(trials, first)
    groups = np.where(draws > 0, np.where(present, 1, 2)[:, None], 0)
    by_message = noise.reshape(trials, stage.rounds, -1)
    # For the freshness check, clients of one trial are as independent as those of different trials.
    by_client = noise if noise.ndim == 3 else noise.swapaxes(1, 2).reshape(-1, stage.rounds, noise.shape[-1])
    checks = [
        noise_check(*_movements(stage, draws, first), by_message, groups, unit=str(stage.unit)),
        law_check(noise, sent),
        freshness_check(by_client),
    ]
    expected = stage.expected_draws
    if expected is not None:
        drawn = draws[:, : expected.rounds]
        checks.append(draws_check(drawn, chance=expected.chance, most=expected.most, unit=str(stage.unit)))
    if stage.independent_draws:
        base = stage.signals(np.zeros(trials), first, Tactic(others=1.0)) @ stage.direction
        checks.append(others_check(base, draws))
    return tuple(checks)


def _movements(stage: AuditStage, draws: Counts, first: int) -> tuple[Array, Array]:
    """The farthest that the canary moved messages under any tactic, and the farthest it may: (trials, rounds)."""
    few = draws[:_MOVED]
    if (few > 0).sum() >= _FEWEST_DRAWN:
        return _moved(stage, first, len(few)), stage.allowed(few, first)
    # Where canaries are seldom drawn, search for trials in which they are.
    found: list[tuple[int, Counts]] = []
    for block in range(_MOST_BLOCKS):
        start = first + block * len(draws)
        drawn = draws if block == 0 else stage.draws(len(draws), start)
        found += [(start + int(n), drawn[n : n + 1]) for n in np.flatnonzero((drawn > 0).any(1))]
        if len(found) >= _FEWEST_DRAWN:
            break
    found = found[:_FEWEST_DRAWN] or [(first, draws[:1])]
    moved = [_moved(stage, trial, 1) for trial, _ in found]
    return np.concatenate(moved), np.concatenate([stage.allowed(drawn, trial) for trial, drawn in found])


def _moved(stage: AuditStage, first: int, trials: int) -> Array:
    own, neighbours = (pulls_of(np.full(trials, there), stage.adjacency) for there in (True, False))
    distances = []
    for tactic in (*stage.tactics, replace(stage.tactics[0], size=_HUGE)):
        there, here = (stage.signals(pulls, first, tactic) for pulls in (own, neighbours))
        # Where nothing was seen, nothing was moved.
        distances.append(np.linalg.norm(np.nan_to_num(there - here), axis=2))
    return np.asarray(np.max(distances, axis=0))
