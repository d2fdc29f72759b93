"""The records that a benchmark trains on: MNIST, or made-up ones of its shape where a quick look is enough."""

from __future__ import annotations

from pathlib import Path

import torch

from tacit.data import load
from tacit.federation import Federation

FEATURES, CLASSES = 784, 10


def mnist_or_made_up(clients: int, records_each: int, *, made_up: bool, data_dir: Path | None) -> Federation:
    """Equally many records for every client, as flat vectors of 784 numbers in [0, 1]."""
    if not made_up:
        return load("mnist", clients=clients, records_per_client=records_each, data_dir=data_dir, seed=0)
    return made_up_records(clients, records_each)


def made_up_records(clients: int, records_each: int, *, features: int = FEATURES) -> Federation:
    """Random numbers, all clients' own."""
    generator = torch.Generator().manual_seed(0)
    return Federation(
        features=torch.rand(clients * records_each, features, generator=generator),
        targets=torch.randint(0, CLASSES, (clients * records_each,), generator=generator),
        sizes=torch.full((clients,), records_each),
        ids=torch.arange(clients),
        classes=CLASSES,
        name="made up",
    )
