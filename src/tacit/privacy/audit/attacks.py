"""The adversary's attacks on the messages: likelihood ratios, learnt in rehearsals.

An adversary who knows the algorithm can rehearse it: run its own clients with either record, with and without
noise, and so learn which vectors a client would have sent (signals) and how noise changes them. From this it
computes the likelihood ratio of what it really saw. No attack uses knowledge of a particular algorithm. The
statistics that judge its guesses are valid for any guesses, so a poor attack is weak but never wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from tacit.privacy.accountant.pairs import Array

Attack = Callable[[Array], Array]
"""Maps views (trials, rounds, dim), nan where nothing was seen, to one score per trial; high means "in"."""

_MOST_SIGNALS = 64
_MOST_PATHS = 256
_LEAST_NOISE = 1e-5
"""The noise assumed where there is none, relative to the largest signal; above the errors of float32."""

_ROUNDS_PER_REHEARSAL = 4
"""The noise of a path is learnt only if there are at least this many rehearsals per round."""


@dataclass(frozen=True)
class Rehearsal:
    """Practice runs in which the adversary knows everything."""

    views: Array
    """(trials, rounds, dim): the visible part of the private vectors, nan where nothing is visible"""
    signals: Array
    """(trials, rounds, dim): the same clients without noise and compression"""
    present: NDArray[np.bool_]
    """(trials,): whether the canary was in"""

    @cached_property
    def residuals(self) -> Array:
        """The change made by noise and compression: views minus signals."""
        return self.views - self.signals

    @cached_property
    def scales(self) -> Array:
        """(rounds,): the noise of each round, relative to the noise of all rounds."""
        axes = tuple(axis for axis in range(self.views.ndim) if axis != 1)
        seen = np.isfinite(self.residuals)
        squares = np.where(seen, self.residuals, 0.0) ** 2
        squares = squares.sum(axes) / np.maximum(seen.sum(axes), 1)
        return np.asarray(np.sqrt(squares / max(float(squares.mean()), np.finfo(float).tiny)))

    @cached_property
    def least_noise(self) -> float:
        """A standard deviation below which noise counts as rounding."""
        return _LEAST_NOISE * float(np.nanmax(np.abs(self.signals))) + float(np.finfo(np.float32).tiny)

    def noise_std(
        self, members: NDArray[np.bool_] | slice = slice(None), round: int | slice = slice(None)
    ) -> Array:
        """(dim,): the standard deviation of the noise on each coordinate in some rehearsals."""
        residuals = self.residuals[members, round].reshape(-1, self.views.shape[2])
        seen = np.isfinite(residuals)
        squares = np.where(seen, residuals, 0.0) ** 2
        stds: Array = np.sqrt(squares.sum(0) / np.maximum(seen.sum(0), 1))
        return np.maximum(stds, self.least_noise)


def rehearsed_attacks(rehearsal: Rehearsal, direction: Array) -> dict[str, Attack]:
    """The attacks that a rehearsal allows; `direction` is the canary's unit vector."""
    attacks = {
        "likelihood of each round": _each_round(rehearsal, noise_by_signal=False),
        "likelihood of each round, noise by signal": _each_round(rehearsal, noise_by_signal=True),
    }
    trials, rounds, _ = rehearsal.views.shape
    if 1 < rounds <= trials / _ROUNDS_PER_REHEARSAL:
        attacks["likelihood of the whole path"] = _whole_path(rehearsal, direction)
    return attacks


def _each_round(rehearsal: Rehearsal, *, noise_by_signal: bool) -> Attack:
    """log P/Q, round by round, of mixtures of Gaussians around the signals of either world.

    Exact if the rounds are independent given what is public. With `noise_by_signal` every signal has its own
    noise level, which detects noise that depends on the data.
    """
    rounds = rehearsal.views.shape[1]
    pooled = rehearsal.noise_std()
    grid = rehearsal.least_noise
    worlds = []
    for world in (True, False):
        members = rehearsal.present == world
        per_round = []
        for t in range(rounds):
            atoms, log_weights = _atoms(rehearsal.signals[members, t], grid)
            common = np.maximum(pooled * rehearsal.scales[t], grid)
            keys = np.round(rehearsal.signals[:, t] / grid)
            stds = [
                rehearsal.noise_std(members & (keys == np.round(atom / grid)).all(1), t)
                if noise_by_signal
                else common
                for atom in atoms
            ]
            per_round.append((atoms, log_weights, np.array(stds)))
        worlds.append(per_round)

    def scores(views: Array) -> Array:
        ratios = [
            _log_density(views[:, t], *worlds[0][t]) - _log_density(views[:, t], *worlds[1][t])
            for t in range(rounds)
        ]
        return np.asarray(np.sum(ratios, axis=0))

    return scores


def _atoms(signals: Array, grid: float) -> tuple[Array, Array]:
    """The most frequent signals of (trials, dim), and the logs of their shares; one zero if there are none."""
    signals = signals[np.isfinite(signals).all(1)]
    if not len(signals):
        return np.zeros((1, signals.shape[1])), np.zeros(1)
    keys, weights = np.unique(np.round(signals / grid), axis=0, return_counts=True)
    often = np.argsort(-weights, kind="stable")[:_MOST_SIGNALS]
    return keys[often] * grid, np.log(weights[often] / weights.sum())


def _log_density(views: Array, signals: Array, log_weights: Array, stds: Array) -> Array:
    """log-density of Gaussians around the signals, up to a constant, from the coordinates that were seen."""
    distances = (views[:, None, :] - signals) / stds
    terms = np.where(np.isfinite(distances), -0.5 * distances**2 - np.log(stds), 0.0)
    return np.asarray(logsumexp(terms.sum(2) + log_weights, axis=1))


def mixed_attacks(rehearsal: Rehearsal) -> dict[str, Attack]:
    """The attack on messages in random order; views and signals have an axis for clients, the canary's first.

    Given the others' law g and the canary's client's law f_1 or f_0, the likelihood ratio of a round is the mean
    of f_1/g over all messages, divided by that of f_0/g: any of them may be the canary's.
    """
    signals, rounds = rehearsal.signals, rehearsal.signals.shape[1]
    grid = rehearsal.least_noise
    residuals = rehearsal.residuals.reshape(-1, signals.shape[-1])
    std = np.maximum(np.sqrt((residuals**2).mean(0)), grid)

    def law(members: Array) -> tuple[Array, Array, Array]:
        atoms, log_weights = _atoms(members.reshape(-1, members.shape[-1]), grid)
        return atoms, log_weights, np.broadcast_to(std, atoms.shape)

    worlds = [[law(signals[rehearsal.present == world, t, 0]) for t in range(rounds)] for world in (True, False)]
    others = [law(signals[:, t, 1:]) if signals.shape[2] > 1 else worlds[1][t] for t in range(rounds)]

    def scores(views: Array) -> Array:
        trials, _, clients, dim = views.shape
        total = np.zeros(trials)
        for t in range(rounds):
            messages = views[:, t].reshape(-1, dim)
            common = _log_density(messages, *others[t])
            ratios = [
                logsumexp((_log_density(messages, *world[t]) - common).reshape(trials, clients), axis=1)
                for world in worlds
            ]
            total += ratios[0] - ratios[1]
        return total

    return {"likelihood of mixed messages": scores}


def _whole_path(rehearsal: Rehearsal, direction: Array) -> Attack:
    """log P/Q of all rounds at once, along the canary's direction, with the noise's covariance over the rounds.

    It detects what only the rounds together reveal: client memory, or noise that was used twice.
    """
    noise = _along(rehearsal.residuals, direction)
    rounds = noise.shape[1]
    covariance = noise.T @ noise / len(noise) + rehearsal.least_noise**2 * np.eye(rounds)
    whiten = np.linalg.inv(np.linalg.cholesky(covariance)).T
    paths = _along(rehearsal.signals, direction) @ whiten
    worlds = [paths[rehearsal.present == world][:_MOST_PATHS] for world in (True, False)]

    def scores(views: Array) -> Array:
        seen = _along(views, direction) @ whiten
        # The square of the seen path is the same in both worlds and cancels.
        logs = [
            logsumexp(seen @ members.T - 0.5 * (members**2).sum(1), axis=1) - np.log(len(members))
            for members in worlds
        ]
        return np.asarray(logs[0] - logs[1])

    return scores


def _along(rows: Array, direction: Array) -> Array:
    """The least-squares component along the direction, from the coordinates that were seen."""
    seen = np.isfinite(rows)
    weights: Array = np.maximum((seen * direction**2).sum(-1), np.finfo(float).tiny)
    return np.asarray((np.where(seen, rows, 0.0) * direction).sum(-1) / weights)
