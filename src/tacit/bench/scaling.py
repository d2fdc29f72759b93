"""How costs grow: with clients in a round of T1; with parameters in a round of T2 and for rand-k messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit.bench import cross_silo
from tacit.bench.cross_device import private_simulation
from tacit.bench.measure import BenchReport, Timing, side_by_side
from tacit.bench.records import CLASSES, FEATURES, made_up_records
from tacit.compress import RandK
from tacit.engine.peak_memory import forget_peak, memory_mb, peak_memory_mb
from tacit.models.network import SigmoidNetwork
from tacit.noise.randomness import Purpose, Randomness

RECORDS_EACH, SHARE = 20, 5


def bench(*, quick: bool = False, data_dir: Path | None = None) -> BenchReport:
    """Uses synthetic records that overlap in memory, so that those of a million clients fit."""
    clients = (200, 1000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    dims = (1_000, 100_000) if quick else (1_000, 100_000, 10_000_000)
    rows = [cohort_row(number) for number in clients]
    messages = [timing for dim in dims for timing in message_timings(dim)]
    widths = (1, 4) if quick else (1, 13, 126, 1_258, 12_579)
    rounds = [timing for hidden in widths for timing in width_timings(hidden, batch=16 if quick else 256)]
    return BenchReport(
        "scaling",
        f"a fifth of the clients in a round of T1 ({FEATURES} features); rand-k 5% messages",
        (*(timing for timing, _ in rows), *messages, *rounds),
        {"clients": [facts for _, facts in rows]},
        (
            "rounds of T1 are compared with themselves, those of T2 with one pass without privacy, messages with "
            "copying k values and drawing k normals",
        ),
    )


def cohort_row(clients: int) -> tuple[Timing, dict[str, Any]]:
    """A round with a fifth of the clients: its time, and the memory that it takes beyond the data."""
    federation = made_up_records(clients, RECORDS_EACH, overlap=True)
    cohort = clients // SHARE
    simulation = private_simulation(federation, cohort)
    state, members = simulation.start(), torch.arange(0, clients, SHARE)
    before = memory_mb()
    forget_peak()

    def one_round() -> None:
        nonlocal state
        state = simulation.advance(state, members)

    (timing,) = side_by_side(
        {f"T1, {cohort:,} of {clients:,} clients": one_round}, repeats=1 if clients > 10**5 else 3
    )
    peak = peak_memory_mb()
    return timing, {
        "clients": clients,
        "cpu_microseconds_per_client": 1e6 * timing.cpu_seconds / cohort,
        "data_mb": federation.features.untyped_storage().nbytes() / 2**20,
        "peak_beyond_data_mb": None if before is None or peak is None else max(0.0, peak - before),
    }


def message_timings(dim: int) -> tuple[Timing, ...]:
    """Times copying k values and drawing k normals; encoding a vector; decoding the message."""
    compressor = RandK(fraction=0.05)
    kept = compressor.kept(dim)
    rows = torch.rand(1, dim)
    places = torch.randperm(dim)[:kept].sort().values
    randomness = Randomness(0)

    def generator(purpose: Purpose) -> np.random.Generator:
        return randomness.generator(purpose)

    message = compressor.compress(rows, [generator(Purpose.COMPRESS)]).encode()
    return side_by_side(
        {
            f"{kept:,} of {dim:,} numbers, copied, and as many normals": lambda: (
                rows[0].index_select(0, places),
                generator(Purpose.NOISE).standard_normal(kept, dtype=np.float32),
            ),
            f"{kept:,} of {dim:,} numbers as a message": lambda: compressor.compress(
                rows, [generator(Purpose.COMPRESS)]
            ).encode(),
            f"{kept:,} of {dim:,} numbers from a message": lambda: compressor.decode(message, dim),
        },
        repeats=7,
    )


def width_timings(hidden: int, batch: int) -> tuple[Timing, ...]:
    """A round of T2 on synthetic records with this many hidden units, compared with one pass without privacy."""
    federation = made_up_records(cross_silo.CLIENTS, 2 * batch)
    dim = SigmoidNetwork(FEATURES, hidden, CLASSES).dim
    return side_by_side(
        {
            f"T2, {dim:,} parameters, without privacy": cross_silo.floor(federation, batch, hidden=hidden),
            f"T2, {dim:,} parameters, rand-k 5%": cross_silo.private_rounds(federation, batch, hidden=hidden),
        },
        repeats=5,
    )
