"""The benchmarks by name."""

from __future__ import annotations

from pathlib import Path

from tacit.bench import calibration, cross_device, cross_silo, local_cnn, processes, scaling, start, sweep, table
from tacit.bench.measure import BenchReport, one_thread
from tacit.errors import unknown_name

BENCHES = {
    "T1": cross_device.bench,
    "T2": cross_silo.bench,
    "T3": local_cnn.bench,
    "scaling": scaling.bench,
    "processes": processes.bench,
    "sweep": sweep.bench,
    "calibration": calibration.bench,
    "start": start.bench,
    "table": table.bench,
}


def run_bench(name: str, *, quick: bool = False, data_dir: Path | None = None) -> BenchReport:
    """Runs a benchmark on one thread."""
    if name not in BENCHES:
        raise unknown_name("benchmark", name, BENCHES)
    with one_thread():
        return BENCHES[name](quick=quick, data_dir=data_dir)
