"""Side-by-side measurements: alternating runs in one process, CPU time, medians of ratios."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from tacit.engine.threads import suitable_threads

LEAST_SECONDS = 0.05
"""Shorter runs are repeated within one measurement, so that the clock's resolution does not matter."""

Turn = dict[str, tuple[float, float]]
"""CPU and wall seconds by name."""


@dataclass(frozen=True)
class Timing:
    """The time of one contender, compared with tacit in the same turn."""

    name: str
    cpu_seconds: float
    """median CPU time of the whole process"""
    wall_seconds: float
    times_tacit: float | None = None
    """median over the turns of its CPU time divided by tacit's"""
    least_times: float | None = None
    most_times: float | None = None


@dataclass(frozen=True)
class BenchReport:
    """The results of a benchmark, and where and when it ran."""

    task: str
    title: str
    timings: tuple[Timing, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=lambda: machine())

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def side_by_side(
    runs: Mapping[str, Callable[[], object]], *, repeats: int, least_seconds: float = LEAST_SECONDS
) -> tuple[Timing, ...]:
    """Times every run in every turn, after a warm-up turn, and compares it with the first run.

    Each turn starts with a different run, and ratios are taken within a turn, so that a changing load on the
    machine affects all runs alike.
    """
    names = list(runs)
    often = {name: max(1, round(least_seconds / max(_once(runs[name])[0], 1e-6))) for name in names}
    turns: list[Turn] = []
    for turn in range(repeats):
        first = turn % len(names)
        turns.append({name: _once(runs[name], often[name]) for name in names[first:] + names[:first]})
    return compared(turns, names)


def compared(turns: Sequence[Turn], names: Sequence[str]) -> tuple[Timing, ...]:
    """Medians over turns; ratios to the first name, each taken within its turn."""
    timings = []
    for name in names:
        ratios = [turn[name][0] / max(turn[names[0]][0], 1e-9) for turn in turns]
        cpu, wall = (statistics.median(turn[name][k] for turn in turns) for k in (0, 1))
        timings.append(Timing(name, cpu, wall, statistics.median(ratios), min(ratios), max(ratios)))
    return tuple(timings)


def _once(run: Callable[[], object], times: int = 1) -> tuple[float, float]:
    """CPU and wall seconds of one run, averaged over `times`."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        run()
    return (time.process_time() - cpu) / times, (time.perf_counter() - wall) / times


@dataclass(frozen=True)
class Used:
    """What one process used, from its start to its end."""

    cpu_seconds: float
    wall_seconds: float
    gibibytes: float
    """the most memory that it held at once"""


def python_process(*arguments: str) -> Used:
    """Runs Python in a process of its own, without its output."""
    # On Windows, where the other benchmarks work, there is no `wait4`.
    wall = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    kibibyte = 1 if sys.platform == "darwin" else 1024  # the unit of `ru_maxrss`
    return Used(used.ru_utime + used.ru_stime, time.perf_counter() - wall, used.ru_maxrss * kibibyte / 2**30)


@contextmanager
def one_thread() -> Iterator[None]:
    """Restricts PyTorch to one thread; all contenders are measured this way."""
    with suitable_threads(0):
        yield


def machine() -> dict[str, Any]:
    """Facts about the machine, without which a table of times is meaningless."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": 1,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
