"""A server that looks at every answer before it chooses the next request gets no more than the policy allows.

All that a silo lets such a server do is explored on the silo itself: which run it may open next, and which it
may go on with. A dynamic programme then finds the best strategy, by backward induction over the privacy loss:

    worth(state, loss) = max{ (1 - exp(epsilon - loss))_+ , E worth(next state, loss + new loss) of any request }

Its value at the start is the largest H_exp(epsilon) that any strategy attains; a policy is kept if it is at most
delta. Losses are integrated over outcomes and rounded up to a grid, so that the value is an upper bound.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import signal, stats

from tacit.deploy.frames import Reply
from tacit.deploy.job import Job
from tacit.deploy.policy import Policy
from tacit.deploy.report import Report
from tacit.deploy.seam import Code

DELTA = 1e-5
STEP, MOST_LOSS = 0.0025, 16.0
LOSSES = np.arange(-round(MOST_LOSS / STEP), round(MOST_LOSS / STEP) + 1) * STEP

Array = NDArray[np.float64]
Run = tuple[int, int]
"""the number of its job, and how many releases it has made"""
State = tuple[Run, ...]
"""the first run, and all others in any order"""


@dataclass(frozen=True)
class Losses:
    """The law of the privacy loss of one release: masses on the grid, and what lies above it."""

    masses: Array
    above: float

    def expected(self, worth: Array) -> Array:
        """E worth(loss + new) for every loss of the grid; `worth` never falls, and is at most one."""
        padded = np.concatenate((np.full(len(LOSSES), worth[0]), worth, np.ones(len(LOSSES))))
        return signal.fftconvolve(padded, self.masses[::-1], mode="same")[len(LOSSES) : -len(LOSSES)] + self.above


def _losses(rate: float, noise_multiplier: float) -> Losses:
    """(1-q) N(0) + q N(1/z) against its mirror image; the loss grows with the outcome."""
    shift = 1 / noise_multiplier
    edges = np.linspace(-12.0 - shift, 12.0 + shift, 400_001)

    def mixed(distribution: Callable[..., Array], centre: float) -> Array:
        return (1 - rate) * distribution(edges) + rate * distribution(edges, centre)

    with np.errstate(divide="ignore"):
        loss = np.log(mixed(stats.norm.pdf, shift) / mixed(stats.norm.pdf, -shift))
    masses = np.diff(mixed(stats.norm.cdf, shift))
    places = np.ceil((loss[1:] + MOST_LOSS) / STEP).astype(int).clip(0)
    inside = places < len(LOSSES)
    return Losses(np.bincount(places[inside], masses[inside], len(LOSSES)), float(masses[~inside].sum()) + 1e-15)


class Explored:
    """What a silo admits, asked of the silo: one directory for every state that can be reached."""

    def __init__(self, made: Any, jobs: list[Job], epsilon: float) -> None:
        site = made.job.sites[0]
        policies = [Policy.for_job(job, site, insecure_reproducible=True, epsilon=epsilon) for job in jobs]
        self._places = [
            replace(made, job=job, policies={site: policy}) for job, policy in zip(jobs, policies, strict=True)
        ]
        self._site, self._root, self._numbers = site, made.directory, iter(range(10**6))
        self.terms = [place.silo(site).terms for place in self._places]
        self._known: dict[State, Path] = {(): self._root / "nothing"}
        (self._root / "nothing" / site).mkdir(parents=True)

    def requests(self, state: State) -> Iterator[tuple[State, int, int]]:
        """Every request that the silo answers: what it leads to, its job, and which release of its run it is."""
        openings = [(number, len(state), 0) for number in range(len(self._places))]
        for job, position, releases in dict.fromkeys(
            [*openings, *((job, position, releases) for position, (job, releases) in enumerate(state))]
        ):
            runs = [*state[:position], (job, releases + 1), *state[position + 1 :]]
            after = (runs[0], *sorted(runs[1:]))
            if releases < self.terms[job].planned and (
                after in self._known or self._ask(state, after, job, releases)
            ):
                yield after, job, releases

    def _ask(self, state: State, after: State, job: int, releases: int) -> bool:
        directory = self._root / f"state-{next(self._numbers)}"
        shutil.copytree(self._known[state], directory)
        place = replace(self._places[job], directory=directory)
        silo = place.silo(self._site)
        with silo.ledger.page() as page:
            runs = [
                name for name, run in page.account.runs
                if run.releases == releases and run.opened["job"] == place.job.digest
            ]  # fmt: skip
        name = runs[-1] if releases else f"{next(self._numbers):032x}"
        answered = Reply.decode(silo.step(place.request(releases, run=name)), body_limit=2**20).code is Code.OK
        if answered:
            self._known[after] = directory
        return answered

    @property
    def states(self) -> list[State]:
        """All that were reached."""
        return list(self._known)

    def largest_divergence(self, epsilon: float) -> float:
        """The dynamic programme."""
        stopped = np.maximum(0.0, -np.expm1(epsilon - LOSSES))
        message = [_losses(t.job.algorithm.work.sampling.rate(t.records), t.noise_multiplier) for t in self.terms]
        report = [_losses(1.0, t.report_noise) if t.job.report else None for t in self.terms]

        @cache
        def worth(state: State) -> Any:
            best = stopped
            for after, job, releases in self.requests(state):
                later, loss = worth(after), report[job]
                if loss is not None and self.terms[job].job.report.due(releases + 1):
                    later = loss.expected(later)
                best = np.maximum(best, message[job].expected(later))
            return best

        return float(worth(())[len(LOSSES) // 2])


def _job(made: Any, *, epsilon: float, batch: float, report: Report | None = None) -> Job:
    recipe = replace(made.job.recipe, delta=DELTA, rounds=2, epsilon=epsilon)
    return replace(made.job, recipe=recipe.with_algorithm_settings(batch=batch), report=report)


def _rare(made: Any) -> Job:
    """One of 1,000 records a round, and with the second message a report that costs nearly everything."""
    return _job(made, epsilon=1.0, batch=1.0, report=Report(2, 1.0, 0.9))


@pytest.fixture
def made(consortium: Callable[..., Any]) -> Any:
    plain = dict.fromkeys(("snapshot_probability", "compressor"), "leave out")
    return consortium(sites=1, records=1000, algorithm="ldp-sgd", noise="gaussian", **plain)


@pytest.mark.parametrize("epsilon", [1.61, 2.5])
def test_runs_of_one_job(made: Any, epsilon: float) -> None:
    explored = Explored(made, [_rare(made)], epsilon)
    assert explored.largest_divergence(epsilon) <= DELTA


@pytest.mark.parametrize(
    ("jobs", "epsilon"), [([(0.8, 300.0), (1.0, 1.0)], 1.6), ([(1.0, 999.0), (1.5, 1.0)], 1.9)]
)
def test_runs_of_several_jobs(made: Any, jobs: list[tuple[float, float]], epsilon: float) -> None:
    explored = Explored(made, [_job(made, epsilon=each, batch=batch) for each, batch in jobs], epsilon)
    # Several runs are let in, so that there is something to choose, and little is given away.
    assert 0.5 * DELTA < explored.largest_divergence(epsilon) <= DELTA
    assert max(map(len, explored.states)) >= 2


def test_one_run_costs_what_its_job_promises(made: Any) -> None:
    """The programme finds what an accountant does, but for the rounding of losses."""
    explored = Explored(made, [_rare(made)], 1.0)
    assert 0.95 * DELTA < explored.largest_divergence(1.0) < 1.05 * DELTA
    assert set(explored.states) == {(), ((0, 1),), ((0, 2),)}
