"""One simulation in one process, and divided between several by torchrun: rounds of T1 and T3.

The records are made up: only their number matters here. This module is also the program that is started, with
what to do as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from tacit.algorithms.fed_spa import dp_fed
from tacit.bench import cross_device, local_cnn
from tacit.bench.measure import BenchReport, Turn, compared, one_thread
from tacit.bench.records import made_up_records
from tacit.client.bounds import ClipNorm
from tacit.client.sampling import WithoutReplacement
from tacit.engine.plan import plan
from tacit.engine.simulate import MEMORY_LIMIT_BYTES
from tacit.engine.simulation import Simulation
from tacit.engine.together import Division, joined, usual_groups
from tacit.errors import TacitError
from tacit.models import build_model
from tacit.privacy import Target

COHORT = 600
ROUNDS = {"T1": 40, "T3": 3}
WARM_UP = {"T1": 10, "T3": 1}
"""Rounds before the first that counts: those of T1 compute products of most clients' records, which are kept."""


def bench(*, quick: bool = False, data_dir: Path | None = None) -> BenchReport:
    """Starts every contender in every turn. A round takes as long as its busiest process; medians over rounds."""
    turns: list[Turn] = []
    for _ in range(1 if quick else 3):
        turns.append({})
        for task, often in ROUNDS.items():
            for name, processes, groups in contenders():
                rounds = 2 if quick else often
                turns[-1][f"{task}, {name}"] = started(task, rounds, processes, groups, quick)
    timings = [
        timing
        for task in ROUNDS
        for timing in compared(turns, [name for name in turns[0] if name.startswith(task)])
    ]
    alone = {timing.name[:2]: timing.wall_seconds for timing in timings if timing.name.endswith("one process")}
    wall = {timing.name: round(timing.wall_seconds / alone[timing.name[:2]], 2) for timing in timings}
    return BenchReport(
        "processes",
        f"a round of T1 ({COHORT} clients, 20 local steps) and of T3 (10 clients, 50 local steps)",
        tuple(timings),
        {"wall time relative to one process": wall},
        ("CPU is that of the busiest process, which is the time of a round if every process has a core",),
    )


def contenders() -> list[tuple[str, int, int]]:
    """Names, numbers of processes (0 without torchrun), and of groups (0 for the usual number)."""
    return [("one process", 0, 1), ("torchrun with 1", 1, 0), ("torchrun with 2", 2, 0)]


def started(task: str, rounds: int, processes: int, groups: int, quick: bool) -> tuple[float, float]:
    """CPU seconds of the busiest process and wall seconds of a round, in processes of their own."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes else []
    asked = {"task": task, "rounds": rounds, "groups": groups, "quick": quick}
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "tacit.bench.processes", json.dumps(asked)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise TacitError(f"the benchmark failed: {done.stderr[-2000:]}")
    cpu, wall = json.loads(done.stdout.splitlines()[-1])
    return cpu, wall


def simulation_of(task: str, quick: bool) -> Simulation:
    """What a round of T1 or T3 computes."""
    if task == "T1":
        clients, cohort = (300, 60) if quick else (3000, COHORT)
        return cross_device.private_simulation(made_up_records(clients, 20), cohort)
    steps, records = (5, 60) if quick else (50, 6000)
    federation = made_up_records(local_cnn.CLIENTS, records)
    algorithm = dp_fed(
        build_model("mnist-cnn", federation),
        bound=ClipNorm(local_cnn.CLIP_NORM),
        sampling=WithoutReplacement(local_cnn.BATCH),
        local_steps=steps,
        local_step=local_cnn.STEP_SIZE,
        step=local_cnn.STEP_SIZE,
    )
    planned = plan(algorithm, federation, rounds=100, privacy=Target(8.0, 1e-5))
    return Simulation(planned, planned.randomness(), MEMORY_LIMIT_BYTES)


def main(asked: str) -> None:
    """Runs rounds in this process, with the others of torchrun if there are any, and prints its times."""
    task, rounds, groups, quick = json.loads(asked).values()
    with one_thread(), joined() as together:
        simulation = simulation_of(task, quick)
        groups = groups or usual_groups(simulation.federation.clients)
        loads = simulation.algorithm.work.records_in_memory(simulation.federation.sizes)
        simulation = replace(simulation, division=Division.of(loads, groups, together))
        state, times = simulation.start(), []
        for number in range(-1 if quick else -WARM_UP[task], rounds):
            cohort = simulation.cohort(state.round)
            wall, cpu = time.perf_counter(), time.process_time()
            state = simulation.advance(state, cohort)
            if number >= 0:
                times.append([time.process_time() - cpu, time.perf_counter() - wall])
        own = torch.tensor([times], dtype=torch.float64)
        busiest = together.stacked(own, [1] * together.size).max(0).values
        if together.leads:
            print(json.dumps(busiest.median(0).values.tolist()))


if __name__ == "__main__":
    main(sys.argv[1])
