"""How much memory a run takes: chunks keep to the limit, and the summary says what it was."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tacit.engine.memory import memory_mb, peak_memory_mb

SCRIPT = """
import json, sys
import torch
from tacit.bench.cross_device import private_simulation
from tacit.bench.records import made_up_records
from tacit.engine.memory import memory_mb
from tacit.engine.simulate import simulate
from tacit.privacy import Adjacency, Target

federation = made_up_records(3000, 20, overlap=True)
simulation = private_simulation(federation, 2500)
target = Target(2.0, 1e-5, Adjacency.ADD_REMOVE)
run = lambda rounds, limit: simulate(
    simulation.algorithm, federation, rounds=rounds, privacy=target, evaluate_every=9, memory_limit_bytes=limit
)
run(1, 2**22)
before = memory_mb()
taken = run(2, int(sys.argv[1]) * 2**20)
print(json.dumps([taken.peak_memory_mb - before, taken.summary()["peak_memory_mb"]]))
"""


def _taken(limit_mb: int) -> tuple[float, float]:
    command = [sys.executable, "-c", SCRIPT, str(limit_mb)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    beyond, peak = json.loads(output)
    return beyond, peak


@pytest.mark.skipif(memory_mb() is None, reason="the system does not say how much memory a process has")
def test_a_run_keeps_to_its_memory_limit() -> None:
    """Of 2,500 clients at once, the records alone would take 150 MiB."""
    little, peak = _taken(24)
    much, _ = _taken(1024)
    # Beside the chunks, the allocator keeps a few MiB of what it was given back.
    assert little < 24 + 16 < much
    assert peak > little
    assert peak_memory_mb() is not None
