"""The bounds of DP-NormFedAvg (Das et al. 2022) for a run: Theorems 6 and 7.

Letters: n `clients`, r the expected `participants` of a round (each joins with a coin of r/n), d `dim`, K
`rounds`, E `local_steps`, h `step` of clients and server, C `clip_norm` of an update, L `smoothness`, G the
longest gradient, D `distance` = ||w_0 - w*||, u_i a client's update in gradients, s `noise_std` of a coordinate
of the mean of a round. Losses are convex, local gradients are full, and the returned model is a random one of
those that were broadcast (or, by convexity, their mean). No update is longer than C = G E, so with C >= G E
clipping has no effect, and

    clipping      E f(w) - f*          <= [D^2/(h E K) + h d s^2/E + 2 a (c + 2a) gap] / (2 - 2 c a - 4 a^2)
    normalising   E mean_i (C/||u_i||) (f_i(w) - f_i(w*))
                                       <= [D^2/(h E K) + h d s^2/E + c h C^2/E + 4 a^2 gap] / (2 - 4 a^2)

for a = h L E <= 1/4. `gap` is the mean of f_i(w*) - min f_i, a measure of how unlike the clients are. c = 1 + 1/r
- 1/n is how far a sampled mean's square may exceed the mean of squares; eq. 12 of the paper has 1, which needs
exactly r clients. Normalising bounds f(w) - f* only if gap = 0. Otherwise it need not find w* however small noise
and steps are: with three clients at 0, 0 and 1 and f_i = sqrt(1 + (w - a_i)^2) it converges to 0, the median,
while w* = 0.30.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tacit.errors import RequestError, count, positive
from tacit.theory.asked import PlannedRun, Theory
from tacit.theory.checks import ROUND_OFF, not_negative
from tacit.theory.known import crowd_gaps, known, step_of
from tacit.theory.utility import UtilityBound

_PAPER = "DP-NormFedAvg (Das, Hashemi, Sanghavi & Dhillon 2022)"


@dataclass(frozen=True, kw_only=True)
class LocalRuns:
    """One setting of Algorithm 1: the same step for clients and server, full local gradients."""

    clients: int
    participants: float
    dim: int
    rounds: int
    local_steps: int
    step: float
    clip_norm: float
    noise_std: float
    smoothness: float
    distance: float

    def __post_init__(self) -> None:
        for setting in ("clients", "dim", "rounds", "local_steps"):
            count(setting, getattr(self, setting))
        for setting in ("participants", "step", "clip_norm", "smoothness"):
            positive(setting, getattr(self, setting))
        for setting in ("noise_std", "distance"):
            not_negative(setting, getattr(self, setting))
        if self.participants > self.clients:
            raise RequestError(
                f"participants must be at most the {self.clients} clients, not {self.participants!r}"
            )
        if self.step > self.longest_step * (1 + ROUND_OFF):
            raise RequestError(
                f"step must be at most 1/(4 smoothness local_steps) = {self.longest_step:.6g} for Theorems 6 and "
                f"7, not {self.step!r}: lower it, or use fewer local steps"
            )

    @property
    def longest_step(self) -> float:
        """1/(4 L E)."""
        return 1 / (4 * self.smoothness * self.local_steps)

    @property
    def travel(self) -> float:
        """a = h L E: how far a round carries a client, in units of the curvature."""
        return self.step * self.smoothness * self.local_steps

    @property
    def crowding(self) -> float:
        """c = 1 + 1/r - 1/n.

        E ||(1/r) sum_{i in S} x_i||^2 <= c (1/n) sum_i ||x_i||^2 when each i is in S with a coin of r/n, with
        equality for equal x_i.
        """
        return 1 + 1 / self.participants - 1 / self.clients


def clipping_terms(runs: LocalRuns, *, gap: float = 0.0) -> dict[str, float]:
    """Theorem 6 by cause, if no update is longer than C; `gap` is the mean of f_i(w*) - min f_i.

    >>> runs = LocalRuns(clients=10, participants=10, dim=4, rounds=100, local_steps=2, step=0.125, clip_norm=2.0,
    ...                  noise_std=0.1, smoothness=1.0, distance=1.0)
    >>> round(sum(clipping_terms(runs).values()), 6)
    0.034
    """
    a, c, unlike = runs.travel, runs.crowding, not_negative("gap", gap)
    near = 2 - 2 * c * a - 4 * a**2
    if near <= 0:
        raise RequestError(
            f"participants = {runs.participants!r} are too few for step = {runs.step!r}: the bound is vacuous; "
            "lower the step or expect more clients"
        )
    everyone = 2 - 2 * a - 4 * a**2
    right = _start_and_noise(runs) | {"heterogeneity": 2 * a * (1 + 2 * a) * unlike}
    total = (sum(right.values()) + 2 * a * (c - 1) * unlike) / near
    return _with_sampling({cause: value / everyone for cause, value in right.items()}, total)


def normalising_terms(runs: LocalRuns, *, gap: float = 0.0) -> dict[str, float]:
    """Theorem 7 by cause; `gap` is the mean of (C/||u_i||) (f_i(w*) - min f_i).

    >>> runs = LocalRuns(clients=10, participants=10, dim=4, rounds=100, local_steps=2, step=0.125, clip_norm=2.0,
    ...                  noise_std=0.1, smoothness=1.0, distance=1.0)
    >>> round(sum(normalising_terms(runs).values()), 6)
    0.167143
    """
    near = 2 - 4 * runs.travel**2
    right = _start_and_noise(runs) | {"heterogeneity": 4 * runs.travel**2 * not_negative("gap", gap)}
    length = runs.step * runs.clip_norm**2 / runs.local_steps
    right["optimisation"] += length
    total = (sum(right.values()) + (runs.crowding - 1) * length) / near
    return _with_sampling({cause: value / near for cause, value in right.items()}, total)


def _start_and_noise(runs: LocalRuns) -> dict[str, float]:
    return {
        "optimisation": runs.distance**2 / (runs.step * runs.local_steps * runs.rounds),
        "privacy": runs.step * runs.dim * runs.noise_std**2 / runs.local_steps,
    }


def _with_sampling(terms: dict[str, float], total: float) -> dict[str, float]:
    """The terms as if all clients took part, plus a term for what sampling clients adds."""
    more = total - sum(terms.values())
    return {**terms, "sampling": more if more > ROUND_OFF * total else 0.0}


def clipping_utility(run: PlannedRun) -> UtilityBound:
    """DP-FedAvg: Theorem 6 with the noise of the run."""
    return _utility(run, normalises=False)


def normalising_utility(run: PlannedRun) -> UtilityBound:
    """DP-NormFedAvg: Theorem 7 with the noise of the run."""
    return _utility(run, normalises=True)


def _utility(run: PlannedRun, *, normalises: bool) -> UtilityBound:
    asked, constants = run.asked, known(run, "distance", "heterogeneity", "lipschitz", "smoothness")
    unlike = run.assumed.get("heterogeneity")
    assumptions = constants.sources
    if unlike is None:
        assumptions += ("heterogeneity = 0: assumes that the best model is the best for every client",)
    gaps = (*constants.missing("smoothness", "distance"), *crowd_gaps(run, everyone=False))
    gaps += _differences(run, constants.convex)
    size, steps = asked.value("clip_norm"), asked.value("local_steps")
    if size is not None:
        if constants.lipschitz is None or asked.model.penalty is not None:
            assumptions += (f"no update is longer than clip_norm = {size:g}",)
        elif size < constants.lipschitz * steps:
            gaps += (
                f"clip_norm = {size:g} may shorten updates, which can be as long as "
                f"{constants.lipschitz * steps:.4g}; the terms assume that none is longer",
            )
    if normalises and unlike:
        gaps += (
            "where clients differ, normalising need not find the best model (Theorem 7 bounds another mean)",
        )
    quantity = "excess training loss"
    answer = UtilityBound(
        theorem=f"{_PAPER}, {'Theorem 7' if normalises else 'Theorem 6'}, with its sampling corrected",
        quantity=quantity,
        assumptions=assumptions,
        gaps=gaps,
    )
    if constants.smoothness is None or constants.distance is None:
        return answer
    step, other = step_of(run, 1 / (4 * constants.smoothness * steps))
    gaps += other
    runs = LocalRuns(
        clients=asked.federation.clients,
        participants=run.participants,
        dim=asked.model.dim,
        rounds=run.rounds,
        local_steps=steps,
        step=step,
        clip_norm=1.0 if size is None else size,
        # noise of the mean of a round's messages
        noise_std=run.noise_std / math.sqrt(run.participants),
        smoothness=constants.smoothness,
        distance=constants.distance,
    )
    try:
        terms = (normalising_terms if normalises else clipping_terms)(runs, gap=unlike or 0.0)
    except RequestError as error:
        return replace(answer, gaps=(*gaps, str(error)))
    slope = constants.lipschitz
    return replace(
        answer,
        terms=terms,
        gaps=gaps,
        trivial=constants.loss_gap,
        statistical=None if slope is None else slope * constants.distance / math.sqrt(runs.clients),
    )


def _differences(run: PlannedRun, convex: bool | None) -> tuple[str, ...]:
    """How the run differs from the assumptions of the theorems."""
    asked, gaps = run.asked, []
    if not convex:
        gaps.append("the loss is not known to be convex, but the theorem assumes convex losses")
    if asked.value("sampling") not in (None, "full"):
        gaps.append("local steps use batches, but the theorem assumes full local gradients")
    local, step = asked.value("local_step"), asked.value("step")
    if local is not None and step is not None and local != step:
        gaps.append(f"local_step = {local:g} is not the server's step {step:g}, but the theorem has one for both")
    if asked.value("clip_quantile"):
        gaps.append("the clip norm follows a quantile, but the theorem assumes a fixed one")
    if asked.value("momentum"):
        gaps.append("the server has momentum, but the theorem has none")
    if asked.value("schedule") != "constant":
        gaps.append(f"schedule = {asked.value('schedule')!r}, but the theorem assumes constant steps")
    if asked.value("output") == "last":
        gaps.append("the last model is kept, but the theorem needs the mean or a random one (output = 'average')")
    return tuple(gaps)


CLIPPING, NORMALISING = Theory(clipping_utility), Theory(normalising_utility)
