"""Noise on the vectors of a cohort, and the noise's memory between a client's releases."""

from __future__ import annotations

from torch import Tensor

from tacit.client.cohort import Cohort
from tacit.noise.additive import Noise
from tacit.noise.randomness import Purpose
from tacit.state import State

_PREFIX = "noise."


def noise_memory(noise: Noise, clients: int, dim: int) -> State:
    """The part of a work's memory that belongs to its noise: one row per client."""
    return {_PREFIX + name: rows for name, rows in noise.init(clients, dim).items()}


def with_noise(
    noise: Noise, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, cohort: Cohort, state: State
) -> tuple[Tensor, State]:
    """Rows plus noise, and the work's new memory; without noise, both are unchanged."""
    if not bool((noise_multipliers > 0).any()):
        return rows, state
    known = {name: kept for name, kept in state.items() if name.startswith(_PREFIX)}
    own = {name.removeprefix(_PREFIX): kept[cohort.clients] for name, kept in known.items()}
    rows, own = noise.add(rows, stds, noise_multipliers, cohort.generators(Purpose.NOISE), own)
    for name, kept in known.items():
        kept[cohort.clients] = own[name.removeprefix(_PREFIX)]
    return rows, state
