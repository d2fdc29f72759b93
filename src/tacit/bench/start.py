"""What starts cost, in processes of their own: the demonstration, and the imports that it waits for."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tacit.bench.measure import BenchReport, Turn, compared, python_process


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
    commands = {
        "the demonstration": ("-m", "tacit", "run", "--out", str(out), "--quiet"),
        "tacit --help": ("-m", "tacit", "--help"),
        "import torch": ("-c", "import torch"),
        "import tacit": ("-c", "import tacit"),
        "Python alone": ("-c", ""),
    }
    used = {name: python_process(*command) for name, command in commands.items()}
    return {name: (process.cpu_seconds, process.wall_seconds) for name, process in used.items()}
