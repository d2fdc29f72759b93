"""Divides a cohort into parts that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tacit.client.grams import Grams
from tacit.client.work import Work
from tacit.federation import Federation

CHUNK_BYTES = 2**27
"""Largest chunk, however much memory there is: larger chunks are no faster."""


@dataclass(frozen=True)
class Chunks:
    """How many clients of a run are computed at once."""

    work: Work
    federation: Federation
    memory_limit_bytes: int

    def of(self, cohort: Tensor) -> Iterator[Tensor]:
        """Consecutive parts of a cohort whose batches and vectors fit into the memory limit."""
        per_client = self._client_bytes[cohort]
        if len(cohort) and float(per_client.sum()) < self._chunk_bytes:
            yield cohort
            return
        group = torch.cumsum(per_client, 0) // self._chunk_bytes
        yield from cohort.split(torch.unique_consecutive(group.long(), return_counts=True)[1].tolist())

    @cached_property
    def grams(self) -> Grams | None:
        """Products of the clients' records, if they take no more than a quarter of the memory."""
        fits = Grams.bytes_for(self.federation) <= self.memory_limit_bytes // 4
        return Grams(self.federation) if fits else None

    @cached_property
    def _chunk_bytes(self) -> int:
        """The most memory for the batches and vectors of a chunk, beside what is kept."""
        kept = 0 if self.grams is None else Grams.bytes_for(self.federation)
        return max(1, min(self.memory_limit_bytes - kept, CHUNK_BYTES))

    @cached_property
    def _client_bytes(self) -> Tensor:
        """(clients,): about how much memory the batch and the vectors of every client take."""
        record = 4 * self.federation.features[0].numel()
        batches = self.work.records_in_memory(self.federation.sizes)
        return 3 * record * batches + 6 * 4 * self.work.model.dim
