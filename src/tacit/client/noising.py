"""Noise on the vectors of a cohort, and what it remembers from one release of a client to the next."""

from __future__ import annotations

from torch import Tensor

from tacit.client.cohort import Cohort
from tacit.noise.additive import Noise
from tacit.noise.randomness import Purpose
from tacit.state import State

_PREFIX = "noise."


def noise_memory(noise: Noise, clients: int, dim: int) -> State:
    """Room in a work's memory for that of its noise: a row for each client."""
    return {_PREFIX + name: rows for name, rows in noise.init(clients, dim).items()}


def with_noise(
    noise: Noise, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, cohort: Cohort, state: State
) -> tuple[Tensor, State]:
    """Rows plus noise, and the memory of the work after it; without noise, both as they are."""
    if not bool((noise_multipliers > 0).any()):
        return rows, state
    known = {name: kept for name, kept in state.items() if name.startswith(_PREFIX)}
    own = {name.removeprefix(_PREFIX): kept[cohort.clients] for name, kept in known.items()}
    rows, own = noise.add(rows, stds, noise_multipliers, cohort.generators(Purpose.NOISE), own)
    for name, kept in known.items():
        kept[cohort.clients] = own[name.removeprefix(_PREFIX)]
    return rows, state
