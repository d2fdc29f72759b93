"""Updates in units of a clip norm that follows a quantile of their norms (Andrew et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.client.bounded_update import BoundedUpdate
from tacit.client.cohort import Cohort
from tacit.client.work import DIRECTION
from tacit.errors import RequestError

CLIP_NORM = "clip_norm"
"""The clip norm of a round, as the server sends it: one number."""
BELOW = "below"
"""Whether the client's update was shorter than the clip norm: one number, with noise."""
WEIGHT = 0.2
"""How much of the bound is spent on `below`: a message is (sqrt(1 - WEIGHT^2) u/C, +-WEIGHT)."""
UPDATE_WEIGHT = math.sqrt(1 - WEIGHT**2)


@dataclass(frozen=True)
class QuantileUpdate(BoundedUpdate):
    """Sends two parts: the update, clipped to the server's clip norm C and divided by it, and if it was below C.

    Guarantee: that of `BoundedUpdate` for the vector of both parts, whatever C the server sends. It has d + 1
    numbers and a norm of at most 1, so the bound must be 1.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bound.norm(self.model.dim) != 1:
            raise RequestError("updates in units of a clip norm need a bound of 1")

    @property
    def parts(self) -> Mapping[str, int]:
        return {DIRECTION: self.model.dim, BELOW: 1}

    def message(self, point: Tensor, cohort: Cohort) -> Tensor:
        """Both parts of each client: (clients, dim + 1)."""
        clip = float(cohort.told.get(CLIP_NORM, torch.ones(1)))
        updates = self.updates(point, cohort)
        norms = torch.linalg.vector_norm(updates, dim=1, keepdim=True)
        shortened = updates / torch.clamp(norms, min=clip)
        below = torch.where(norms <= clip, WEIGHT, -WEIGHT)
        return torch.cat([UPDATE_WEIGHT * shortened, below], dim=1)
