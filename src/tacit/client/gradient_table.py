"""Past points that a record or client still refers to.

SAGA's table holds one gradient for each record: records x parameters numbers, 12 GB for a small network on
MNIST. But a table entry is the gradient at a point that was broadcast once, and few points are in use at any
time (with sampling rate q, about log(records)/q). So a record remembers *which* point, and its gradient is
computed again when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tacit.state import State


def remember(state: State, key: int, point: Tensor, in_use: Tensor) -> State:
    """Store a point under a key, in a slot that no key of `in_use` needs; the state is consumed."""
    keys = state["past_keys"]
    if bool((keys == key).any()):
        return state
    free = torch.nonzero(~torch.isin(keys, in_use)).flatten()
    if len(free) == 0:
        state["past_points"] = torch.cat([state["past_points"], torch.zeros_like(state["past_points"])])
        state["past_keys"] = torch.cat([keys, torch.full_like(keys, -1)])
        free = torch.tensor([len(keys)])
    state["past_points"][free[0]] = point
    state["past_keys"][free[0]] = key
    return state


def no_past(point: Tensor) -> State:
    """An empty state with room for a first point."""
    return {"past_points": torch.zeros(4, len(point)).to(point), "past_keys": torch.full((4,), -1)}


def has_past(state: State) -> bool:
    """Whether a state holds past points, which several clients share."""
    return "past_keys" in state


def joined(states: Sequence[State]) -> State:
    """The memory of several groups of clients, one after the other, all of which start at the same point."""
    shared = no_past(torch.empty(0)).keys()
    return {
        name: first if name in shared else torch.cat([state[name] for state in states])
        for name, first in states[0].items()
    }


def recall(state: State, key: int) -> Tensor:
    """The point stored under a key."""
    slot = torch.nonzero(state["past_keys"] == key).flatten()
    return state["past_points"][slot[0]]
