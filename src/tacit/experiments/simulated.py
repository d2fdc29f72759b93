"""A simulated run as plain data, and the privacy of noise that a paper printed.

Here too, noise is derived from targets and never set directly. A run "as published" asks for the epsilon that the
paper's noise really gives, computed by the accountant from the same events as everything else. Deriving the noise
for that epsilon gives the paper's noise back, to within the precision of calibration (1e-4, upwards).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import attendance, releases
from tacit.engine.history import HistoryRow
from tacit.engine.plan import Plan
from tacit.engine.simulate import MEMORY_LIMIT_BYTES, simulate
from tacit.engine.simulation import Simulation
from tacit.engine.workers import Result
from tacit.errors import DivergedError, RequestError
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Target
from tacit.privacy.accountant import accounting
from tacit.privacy.events import to_dict

KEPT = (
    "round",
    "train_loss",
    "grad_norm_sq",
    "grad_norm_sq_mean",
    "test_metric",
    "uplink_bits_per_client",
    "signal_to_noise",
)
"""The columns of a history that experiments use."""

BySize = Callable[[int], float]
"""A number that depends on how many records a client has."""


@dataclass(frozen=True)
class SimulatedRun:
    """Everything that a simulated run needs."""

    plan: Plan
    evaluate_every: int
    facts: dict[str, Any] = field(default_factory=dict)
    """further values to include in the result"""
    hopeless_above: float | None = None
    """a mean squared gradient norm that another run has; `simulated` stops once it cannot be reached any more"""

    @property
    def evaluations(self) -> int:
        """The number of rows in the history of a whole run."""
        return 1 + math.ceil(self.plan.rounds / self.evaluate_every)


class _HopelessError(Exception):
    """A run that cannot become the best any more."""


def simulated(job: SimulatedRun) -> dict[str, Any]:
    """Runs a job; a run that diverges is a result too, and so is one that was stopped because it is hopeless."""

    def watch(round: int, row: HistoryRow | None) -> None:
        if row is None or job.hopeless_above is None:
            return
        # Squares that are still to come are at least zero.
        seen = 1 + math.ceil(round / job.evaluate_every)
        if row.grad_norm_sq_mean * seen / job.evaluations > job.hopeless_above * (1 + 1e-9):
            raise _HopelessError(f"stopped after round {round}: the mean squared gradient is no longer the least")

    try:
        run = simulate(job.plan, evaluate_every=job.evaluate_every, progress=watch)
    except (DivergedError, _HopelessError) as error:
        return {**job.facts, "error": str(error)}
    return {
        **job.facts,
        **_promise(job.plan),
        "rounds": job.plan.rounds,
        "history": {name: [_finite(getattr(row, name)) for row in run.history] for name in KEPT},
        "seconds": run.seconds,
    }


def watched(job: SimulatedRun, look: Callable[[Tensor], Any]) -> dict[str, Any]:
    """Runs a job and evaluates only the point: for models whose full objective costs more than the rounds."""
    began, plan = time.perf_counter(), job.plan
    simulation = Simulation(plan, plan.randomness(), MEMORY_LIMIT_BYTES)
    state = simulation.start()
    rounds, seen = [], []
    try:
        while True:
            if state.round % job.evaluate_every == 0 or state.round == plan.rounds:
                rounds.append(state.round)
                seen.append(look(plan.algorithm.server.output(state.server.update)))
            if state.round == plan.rounds:
                break
            state = simulation.advance(state, simulation.cohort(state.round))
    except DivergedError as error:
        return {**job.facts, "error": str(error)}
    return {
        **job.facts,
        **_promise(plan),
        "rounds": plan.rounds,
        "history": {"round": rounds, "seen": seen},
        "uplink_bits_per_client": state.uplink_bits / plan.federation.clients,
        "seconds": time.perf_counter() - began,
    }


def priced(job: SimulatedRun) -> dict[str, Any]:
    """What a run of the job would promise, without running it; only the numbers of records are used."""
    return {**job.facts, **_promise(job.plan)}


def _promise(plan: Plan) -> dict[str, Any]:
    calibration, guarantee = plan.calibration, plan.guarantee
    beside = {str(other.adversary): other.epsilon for other in calibration.beside}
    return {
        "epsilon": None if guarantee is None else guarantee.epsilon,
        "adjacency": None if guarantee is None else str(guarantee.adjacency),
        "beside": {name: _finite(value) for name, value in beside.items()},
        "public": [] if guarantee is None else list(guarantee.public),
        "events": [
            {"event": to_dict(calibration.event(group, plan.releases)), "delta": group.target.delta}
            for group in calibration.groups
            if group.target is not None
        ],
        "noise_multiplier": float(calibration.noise_multipliers.max()),
        "noise_std": float(calibration.noise_stds.max()),
    }


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def as_published(
    algorithm: Algorithm,
    federation: Federation,
    *,
    rounds: int,
    seed: int,
    noise_multiplier: BySize,
    delta: BySize,
) -> tuple[Target, ...]:
    """The epsilon that noise of these multipliers gives every client, as targets to request.

    Guarantee: each epsilon is the accountant's for the algorithm's own events over the rounds in which a client
    takes part, whatever label the paper gave the noise.
    """
    times = releases(algorithm, attendance(algorithm, federation.clients, rounds, Randomness(seed)))
    targets: dict[int, Target] = {}
    for size in dict.fromkeys(federation.sizes.tolist()):
        event = algorithm.trust.event(algorithm.work, federation.clients, size, noise_multiplier(size), times)
        epsilon = accounting.epsilon(event, delta(size))
        if not math.isfinite(epsilon):
            raise RequestError(
                f"noise_multiplier = {noise_multiplier(size):.3g} gives clients of {size} records no finite "
                f"epsilon at delta = {delta(size):.3g}: there is nothing to ask for"
            )
        targets[size] = Target(epsilon, delta(size))
    return tuple(targets[size] for size in federation.sizes.tolist())


def promised(epsilon: float, federation: Federation, delta: BySize) -> tuple[Target, ...]:
    """The same epsilon for every client, with the delta for its size."""
    return tuple(Target(epsilon, delta(size)) for size in federation.sizes.tolist())


def taken_as_public(found: Iterable[Sequence[Result]]) -> dict[str, str]:
    """What the promises treat as public, which no epsilon covers: a line for a page."""
    named = dict.fromkeys(what for results in found for result in results for what in result.get("public", ()))
    return {"taken as public": "; ".join(named)} if named else {}


def last(result: dict[str, Any], column: str) -> float:
    """A column's last value; infinite for a run that diverged."""
    value = math.inf if "error" in result else result["history"][column][-1]
    return math.inf if value is None else float(value)
