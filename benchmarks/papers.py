"""What `tacit reproduce --all` costs in full, without running it: cells times measured rounds and evaluations.

    python benchmarks/papers.py [--share 0.5] [experiment ...]

Every experiment is asked for its cells with made-up results, so that tuning has something to choose from. One
cell of each kind (all settings but the seed, step and clip norm) is then started as it is and stopped after a few
rounds. A cell costs its start, its rounds and its evaluations, in seconds of one processor. Searches stop runs
that cannot win any more: --share says how much of such a run is done on average (1: all of it).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.engine.simulation import Simulation
from tacit.errors import TacitError
from tacit.experiments import simulated
from tacit.experiments.cells import Cell
from tacit.experiments.experiment import Scale
from tacit.experiments.registry import EXPERIMENTS
from tacit.experiments.simulated import KEPT, SimulatedRun
from tacit.privacy.events import gaussian, to_dict

ROUNDS = 2
"""Rounds that are measured, after a first one that is not."""
SAME_COST = ("seed", "step", "clip_norm", "signal", "split", "hopeless_above")


class Counting:
    """Stands in for a runner: notes the cells, and gives every one the same made-up result."""

    def __init__(self, data_dir: Path | None) -> None:
        self.data_dir = data_dir
        self.cells: dict[str, Cell] = {}

    def __call__(self, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        self.cells |= {_name(cell, ()): cell for cell in cells}
        return [_made_up(cell) for cell in cells]


def _made_up(cell: Cell) -> dict[str, Any]:
    rounds = cell.settings.get("rounds") or 10
    # More rounds win, so that the estimate is not too low.
    history: dict[str, list[Any]] = {name: [1 / rounds] * (rounds + 1) for name in (*KEPT, "seen")}
    history["round"] = list(range(rounds + 1))
    if cell.work.__name__ == "walk":
        history["seen"] = [[0.1 * t, 0.2, 0.3] for t in range(rounds + 1)]
    facts = {
        "batch": 7.0,
        "payload_bits": 80.0,
        "scale": 1.0,
        "least": 0.0,
        "upper": 2.0,
        "above": 0.5,
        "left": 1.0,
        "right": 2.0,
        "epsilon": 1.0,
        "beside": {},
    }
    said = {"adjacency": "replace-one", "step": 0.1, "noise_multiplier": 1.0, "noise_std": 0.1, "seconds": 0.5}
    event = {"event": to_dict(gaussian(5.0)), "delta": 1e-5}
    rest = {"events": [event], "rounds": rounds, "uplink_bits_per_client": 800.0, "history": history}
    return {**facts, **said, **rest, "settings": dict(cell.settings)}


def _name(cell: Cell, without: Sequence[str]) -> str:
    settings = {name: value for name, value in cell.settings.items() if name not in without}
    return json.dumps([cell.work.__module__, cell.work.__qualname__, settings], sort_keys=True)


class EnoughError(Exception):
    """A cell has been measured."""


@dataclass
class Clock:
    """Processor seconds of the parts of one cell."""

    began: float = field(default_factory=time.process_time)
    start: float = 0.0
    rounds: list[float] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    job: SimulatedRun | None = None

    def seconds(self) -> float:
        """The cost of the whole cell."""
        if self.job is None:
            return time.process_time() - self.began
        rounds = self.job.plan.rounds * _mean(self.rounds[1:])
        return self.start + rounds + self.job.evaluations * _mean(self.evaluations)


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


def _timed(work: Callable[..., Any], note: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        try:
            return work(*args, **kwargs)
        finally:
            note.append(time.process_time() - began)

    return timed


@contextmanager
def _measured() -> Iterator[Clock]:
    clock, usual = Clock(), (Simulation.advance, Simulation.evaluated, simulated.simulated, simulated.watched)
    advance = _timed(usual[0], clock.rounds)

    def stops(*args: Any, **kwargs: Any) -> Any:
        if len(clock.rounds) > ROUNDS:
            raise EnoughError
        return advance(*args, **kwargs)

    def begins(job: SimulatedRun) -> SimulatedRun:
        clock.job, clock.start = job, time.process_time() - clock.began
        return job

    Simulation.advance, Simulation.evaluated = stops, _timed(usual[1], clock.evaluations)  # type: ignore[method-assign]
    replaced = {
        "simulated": lambda job: usual[2](begins(job)),
        "watched": lambda job, look, **kw: usual[3](begins(job), _timed(look, clock.evaluations), **kw),
    }
    places = [module for module in list(sys.modules.values()) if module.__name__.startswith("tacit.experiments")]
    before = [
        (module, name, getattr(module, name)) for module in places for name in replaced if hasattr(module, name)
    ]
    for module, name, _ in before:
        setattr(module, name, replaced[name])
    try:
        yield clock
    finally:
        Simulation.advance, Simulation.evaluated = usual[0], usual[1]  # type: ignore[method-assign]
        for module, name, value in before:
            setattr(module, name, value)


def measure(cell: Cell, data_dir: Path | None) -> float:
    """Processor seconds of a cell, by its first rounds."""
    with _measured() as clock, suppress(EnoughError):
        cell.work(cell.settings, data_dir)
    return clock.seconds()


def main(names: Sequence[str], share: float) -> None:
    """Prints the estimate of these experiments, or of all."""
    data_dir = Path(os.environ["TACIT_DATA"]) if "TACIT_DATA" in os.environ else None
    unit: dict[str, float] = {}
    known: set[str] = set()
    total = 0.0
    for name in names or EXPERIMENTS:
        runner = Counting(data_dir)
        try:
            EXPERIMENTS[name].run(runner, Scale())  # type: ignore[arg-type]  # whatever takes cells
        except TacitError as error:
            print(f"{name}: left out: {error}", flush=True)
            continue
        new = {key: cell for key, cell in runner.cells.items() if key not in known}
        seconds = 0.0
        for cell in new.values():
            kind = _name(cell, SAME_COST)
            if kind not in unit:
                unit[kind] = measure(cell, data_dir)
            seconds += unit[kind] * (share if "hopeless_above" in cell.settings else 1.0)
        known |= new.keys()
        total += seconds
        print(
            f"{name}: {len(runner.cells)} cells, {len(new)} of them new: {seconds / 3600:.2f} hours", flush=True
        )
    print(f"all: {len(known)} cells, {total / 3600:.1f} hours of one processor")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--share", type=float, default=1.0)
    asked = parser.parse_args()
    main(asked.names, asked.share)
