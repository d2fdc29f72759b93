"""Records for benchmarks: MNIST, or synthetic ones of its shape if a quick look is enough."""

from __future__ import annotations

from pathlib import Path

import torch

from tacit.data import load
from tacit.federation import Federation

FEATURES, CLASSES = 784, 10
WINDOW_STEP = 16
"""Distance between the starts of two windows, in numbers: one cache line."""


def mnist_or_made_up(clients: int, records_each: int, *, made_up: bool, data_dir: Path | None) -> Federation:
    """The same number of records for every client, as flat vectors of 784 numbers in [0, 1]."""
    if not made_up:
        return load("mnist", clients=clients, records_per_client=records_each, data_dir=data_dir, seed=0)
    return made_up_records(clients, records_each)


def made_up_records(
    clients: int, records_each: int, *, features: int = FEATURES, overlap: bool = False
) -> Federation:
    """Separate random numbers for every client, or overlapping windows into one long row, to save memory."""
    generator = torch.Generator().manual_seed(0)
    records = clients * records_each
    if overlap:
        numbers = torch.rand(records * WINDOW_STEP + features, generator=generator)
        windows = numbers.as_strided((records, features), (WINDOW_STEP, 1))
    return Federation(
        features=windows if overlap else torch.rand(records, features, generator=generator),
        targets=torch.randint(0, CLASSES, (records,), generator=generator),
        sizes=torch.full((clients,), records_each),
        ids=torch.arange(clients),
        classes=CLASSES,
        name="made up",
    )
