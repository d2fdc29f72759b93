"""How fast noise is drawn: samples a second on one core, beside numpy's floating-point sampler.

Run: OMP_NUM_THREADS=1 python benchmarks/noise.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
import torch

from tacit.noise.entropy import Keystream
from tacit.noise.lattice import lattice_rows, rounded_gaussian

SAMPLES = 4_000_000
REPEATS = 5


def rate(draw: Callable[[], object]) -> float:
    """The best of a few runs, in samples a second; the first one warms up."""
    draw()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        draw()
        seconds.append(time.perf_counter() - start)
    return SAMPLES / min(seconds)


def main() -> None:
    """Print one line a sampler."""
    torch.set_num_threads(1)
    keystream, generator = Keystream(), np.random.default_rng()
    row, std = torch.randn(1, SAMPLES), torch.ones(1, dtype=torch.float64)
    samplers: dict[str, Callable[[], object]] = {
        "keystream words": lambda: keystream.uint64(SAMPLES),
        "rounded Gaussian": lambda: rounded_gaussian(SAMPLES, 24, keystream),
        "row on a lattice, with noise": lambda: lattice_rows(row, std, 24, [keystream]),
        "numpy Philox normal, float64": lambda: np.random.Generator(np.random.Philox()).standard_normal(SAMPLES),
        "numpy PCG64 normal, float64": lambda: generator.standard_normal(SAMPLES),
    }
    for name, draw in samplers.items():
        print(f"{name:30} {rate(draw) / 1e6:7.1f} million a second")
    if hasattr(os, "getloadavg"):
        print(f"{'load over the last minute':30} {os.getloadavg()[0]:7.2f}")


if __name__ == "__main__":
    main()
