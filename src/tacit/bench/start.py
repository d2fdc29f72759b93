"""What starts cost, in processes of their own: the demonstration, and the imports that it waits for."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tacit.bench.measure import BenchReport, Turn, compared


def bench(*, quick: bool = False, data_dir: Path | None = None) -> BenchReport:
    """`tacit run` without arguments, beside Python alone and the imports of tacit and PyTorch."""
    with tempfile.TemporaryDirectory() as place:
        turns = [_turn(Path(place) / str(turn)) for turn in range(1 if quick else 8)]
    if not quick:
        # It only warms caches: compiled modules, derived noise.
        del turns[0]
    note = "Processor time of whole processes, user and system, from their start to their end."
    return BenchReport("start", "what starts cost", compared(turns, list(turns[0])), notes=(note,))


def _turn(out: Path) -> Turn:
    return {
        "the demonstration": _process("-m", "tacit", "run", "--out", str(out), "--quiet"),
        "tacit --help": _process("-m", "tacit", "--help"),
        "import torch": _process("-c", "import torch"),
        "import tacit": _process("-c", "import tacit"),
        "Python alone": _process("-c", ""),
    }


def _process(*arguments: str) -> tuple[float, float]:
    """CPU and wall seconds of one Python process."""
    cpu, wall = _children(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return _children() - cpu, time.perf_counter() - wall


def _children() -> float:
    """CPU seconds of all processes that were started here and have ended."""
    import resource  # not on Windows, where the other benchmarks work

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
