"""The simulator: all clients in one process, or divided between several, cohort by cohort."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tacit.engine import checkpoint as checkpoints
from tacit.engine.checkpoint import Checkpoint
from tacit.engine.history import HistoryRow
from tacit.engine.identity import engine_digest, libraries
from tacit.engine.ledger import RunLedger
from tacit.engine.peak_memory import forget_peak, peak_memory_mb
from tacit.engine.plan import Plan
from tacit.engine.run import Run
from tacit.engine.simulation import Simulation
from tacit.engine.simulation_state import SimulationState
from tacit.engine.threads import suitable_threads
from tacit.engine.together import ALONE, Division, Together
from tacit.engine.watch import Watch, Watcher
from tacit.errors import DataError, RequestError, count

Progress = Callable[[int, HistoryRow | None], None]
"""Called after every round with the number of finished rounds, and with a history row if one was evaluated."""

MEMORY_LIMIT_BYTES = 2**30
EVALUATIONS = 50
SECONDS_BETWEEN_CHECKPOINTS = 2.0


def simulate(
    plan: Plan,
    *,
    evaluate_every: int | None = None,
    out: Path | str | None = None,
    checkpoint_every: int | None = None,
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES,
    client_groups: int = 1,
    together: Together = ALONE,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
    watchers: Sequence[Watcher] = (),
) -> Run:
    """Runs a plan (`tacit.plan`): trains with the plan's noise and records the history.

    The same seed gives the same bits. Noise from a seed is for research: whoever knows the seed can subtract it,
    and two runs with the same seed and stream share it. With lattice noise, everything that a client draws for
    itself comes from the operating system, and a run cannot be repeated.

    Args:
        plan: the plan to run.
        evaluate_every: rounds between two evaluations; by default there are about fifty.
        out: directory for ledger and checkpoints. A killed run that is started again continues from its last
            checkpoint, and the result is the same, bit for bit.
        checkpoint_every: rounds between two checkpoints; by default there is one every few seconds.
        memory_limit_bytes: cohorts are processed in chunks of about this size.
        client_groups: number of groups of clients whose sums are added one after the other. It changes results by
            rounding only, and the number of processes that share the groups changes nothing.
        together: this process among those that compute the run together (`tacit.engine.together`).
        device: where tensors are kept, such as "cuda".
        progress: called after every round with the number of finished rounds, and with a history row if there was
            an evaluation.
        watchers: are told what happens: logs such as `CsvLog`, or your own `Watcher`.
    """
    if not isinstance(plan, Plan):
        raise RequestError(
            f"simulate takes a plan, not {type(plan).__name__}: tacit.plan(algorithm, federation, rounds=..., "
            "privacy=...) makes one"
        )
    if plan.evaluation is not None and plan.evaluation.target is not None and plan.algorithm.work.noise.secret:
        raise RequestError(
            "a simulated evaluation needs noise = 'gaussian': with noise that cannot be drawn again, a run that "
            "is resumed would evaluate, and so release, a second time"
        )
    forget_peak()
    usual = max(1, plan.rounds // EVALUATIONS)
    every = usual if evaluate_every is None else count("evaluate_every", evaluate_every)
    plan = replace(plan, federation=plan.federation.to(device))
    scratch = Path(out) if out is not None and together.leads else None
    loads = plan.algorithm.work.records_in_memory(plan.federation.sizes)
    division = Division.of(loads, client_groups, together)
    simulation = Simulation(plan, plan.randomness(), memory_limit_bytes, scratch, division)
    if together.size > 1:
        mine = [simulation.fingerprint(), engine_digest(), *libraries()]
        together.check_same("data, recipe, code and libraries", " ".join(mine))

    store = None if out is None else _Store(simulation, Path(out), checkpoint_every)
    with suitable_threads(simulation.operations_per_round()):
        watch = Watch(plan, watchers)
        try:
            run = _train(simulation, store, every, progress, watch)
        except BaseException as error:
            # What stopped the run matters more than a log that cannot be closed.
            with contextlib.suppress(Exception):
                watch.end("stopped" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        watch.end("finished")
        return run


def _train(
    simulation: Simulation, store: _Store | None, every: int, progress: Progress | None, watch: Watch
) -> Run:
    plan, rounds = simulation.plan, simulation.plan.rounds
    resumed = store is not None and store.ledger.exists()
    state = (store.load() if store else None) or simulation.start()
    if simulation.division.together.size > 1:
        simulation.check_divided(state)
    watch.start(state.round, resumed=resumed)
    clock, charged, correction = time.perf_counter() - state.seconds, list[Tensor](), None
    while True:
        due = state.round % every == 0 or state.round == rounds
        point = simulation.model_of(state) if due else None
        if point is not None and state.round == rounds:
            correction = simulation.correction(point)
            point = point if correction is None else correction.folded(plan.algorithm.work.model, point)
        if point is not None and not (len(state.history) and state.history[-1].round == state.round):
            state = simulation.evaluated(state, time.perf_counter() - clock, point)
        if due:
            watch.row(state.history[-1])
        if progress:
            progress(state.round, state.history[-1] if due else None)
        if store:
            store.save_if_due(replace(state, seconds=time.perf_counter() - clock))
        if state.round == rounds:
            break
        cohort = simulation.cohort(state.round)
        if store:
            store.note(state.round, simulation.charged(cohort))
        else:
            charged.append(simulation.charged(cohort))
        due = (state.round + 1) % every == 0 or state.round + 1 == rounds
        state = simulation.advance(state, cohort, measure=due)
    assert point is not None, "the last round is evaluated"
    return Run(
        plan,
        history=state.history,
        parameters=point.cpu(),
        seconds=time.perf_counter() - clock,
        peak_memory_mb=peak_memory_mb(),
        charged=None if store else tuple(charged),
        correction=correction,
    )


class _Store:
    """The ledger and the checkpoints of a run."""

    def __init__(self, simulation: Simulation, directory: Path, every: int | None) -> None:
        self._checkpoints = directory / "checkpoints"
        self._fingerprint = simulation.fingerprint()
        self._rounds = simulation.plan.rounds
        self._every = None if every is None else count("checkpoint_every", every)
        self._saved_at, self._pause = 0.0, SECONDS_BETWEEN_CHECKPOINTS
        self._simulation = simulation
        self._together = simulation.division.together
        if self._together.leads:
            directory.mkdir(parents=True, exist_ok=True)
        self.ledger = RunLedger(directory / "ledger.jsonl")

    @property
    def _secret(self) -> bool:
        return self._simulation.algorithm.work.noise.secret

    def note(self, round: int, cohort: Tensor) -> None:
        """Notes who is about to release something."""
        if not self._together.leads:
            return
        federation = self._simulation.federation
        self.ledger.append(round, federation.ids[cohort], federation.clients)
        if self._secret:
            # This noise cannot be drawn again: the release counts even if the process dies right after it.
            self.ledger.sync()

    def load(self) -> SimulationState | None:
        """The state of the newest checkpoint, which only the first of several processes reads."""
        saved = self._read() if self._together.leads else None
        known = self._together.from_first(
            None if saved is None else [saved.round, saved.fingerprint, saved.facts]
        )
        if known is None:
            return None
        round, fingerprint, facts = known
        tensors = self._together.tensors_from_first({} if saved is None else saved.tensors)
        if saved is None:
            saved = Checkpoint(
                round, fingerprint, {n: self._simulation.placed(t) for n, t in tensors.items()}, facts
            )
        return SimulationState.from_checkpoint(saved, self._simulation.federation.features.device)

    def _read(self) -> Checkpoint | None:
        if self._secret and self.ledger.exists():
            raise RequestError(
                f"{self._checkpoints.parent} cannot be resumed: its noise cannot be drawn again, so its rounds "
                "would be released a second time; start again in another --out, at its own privacy cost"
            )
        try:
            saved = checkpoints.latest(self._checkpoints, self._fingerprint, self._simulation.placed)
        except checkpoints.OtherRunError as error:
            raise DataError(f"{error}; use another --out, or remove the run directory") from error
        except checkpoints.DamagedError as error:
            raise DataError(f"{error}; remove it to start again from the beginning") from error
        self.ledger.begin(self._simulation.ledger_header(), keep_rounds=saved.round if saved else 0)
        return saved

    def save_if_due(self, state: SimulationState) -> None:
        if self._every is not None:
            due = state.round % self._every == 0
        else:
            due = self._together.from_first(time.monotonic() - self._saved_at > self._pause)
        if due or state.round == self._rounds:
            self._simulation.collect(state)
            if not self._together.leads:
                return
            self.ledger.sync()
            if self._secret:
                return
            began = time.monotonic()
            checkpoints.save(self._checkpoints, state.to_checkpoint(self._fingerprint))
            self._saved_at = time.monotonic()
            # Large states take long to write; most of the time should go to training.
            self._pause = max(SECONDS_BETWEEN_CHECKPOINTS, 10 * (self._saved_at - began))
