"""Ranges that a schema leaves open, learned in a deployment before the first round.

The silos play the search of `tacit.side.ranges` with the server. A request of kind "range" carries the means of
all earlier steps. From these a silo computes the thresholds itself, and answers with one noisy sum. Like every
release, it is written to the ledger before it leaves, and whoever asks for the same step again gets the same sum.
The means of all steps give the ranges. They come with every later request of the run, and the silo writes what
they say to its ledger before its first message. Then it prepares its table, and takes part in training.

Guarantee: a run is charged for all steps from the start. A silo answers every step at most once in a run, and no
step after its first message, so whatever the server asks, at most `STEPS` sums leave. Every silo adds all of the
noise itself, wherever the thresholds are: nobody has to trust the server, or another silo, to search honestly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from dp_accounting import DpEvent

from tacit.data.encode import Vector
from tacit.data.schema import Schema
from tacit.data.schema.records import Learned, TableSource, federate
from tacit.deploy.parts import Part
from tacit.engine.ranges import limits_of, ranges_target
from tacit.errors import MessageError, RequestError
from tacit.federation import Federation
from tacit.noise.additive import build_noise
from tacit.privacy import Target, Unit
from tacit.side.ranges import STEPS, Limits, Numbers, RangeSearch, range_sums, ranges_release
from tacit.side.release import NoisyMeans

if TYPE_CHECKING:
    from tacit.deploy.job import Job

Ranges = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class OpenTable:
    """A silo's table, or those of several, whose schema leaves ranges open."""

    sources: tuple[TableSource, ...]
    schema: Schema

    def closed(self, ranges: Ranges) -> Federation:
        """The records with these ranges."""
        return federate(self.sources, self.schema, learn=lambda *_: (dict(ranges), None))

    @cached_property
    def wide(self) -> Federation:
        """The records with the limits of open ranges in their place: as many as with any other ranges."""
        return self._looked_at[0]

    @property
    def numbers(self) -> Vector:
        """The numbers whose ranges are open: (records, open columns), NaN for gaps."""
        return self._looked_at[1]

    @cached_property
    def _looked_at(self) -> tuple[Federation, Vector]:
        found: list[Vector] = []

        def look(who: Federation, numbers: Vector, schema: Schema) -> Learned:
            found.append(numbers)
            return {one.name: (one.lower, one.upper) for one in limits_of(schema)}, None

        return federate(self.sources, self.schema, learn=look), found[0]


@dataclass(frozen=True)
class JobRanges:
    """The ranges that a job leaves open, and how its sites learn them."""

    limits: tuple[Limits, ...]
    target: Target
    """what all steps may cost alone, the same for all sites"""
    noise: str
    seed: int
    question: str

    @classmethod
    def of(cls, job: Job) -> JobRanges | None:
        """The open ranges of a job, or None; refused if the cost of learning them cannot be stated."""
        schema, recipe = job.schema, job.recipe
        if schema is None or not schema.open:
            return None
        names = ", ".join(schema.open)
        if job.crowd:
            raise RequestError(
                f"the range of {names} is open, and with trust = 'sum' or a shuffler it cannot be learned: every "
                "silo would send counts of its own, which the server sees one by one. Give the range"
            )
        if job.unit is not Unit.RECORD or recipe.client_epsilon is not None:
            raise RequestError(
                f"the range of {names} is open, and learning it is accounted per record, not per site: give it"
            )
        target = ranges_target([job.target(site) for site in job.sites])
        return cls(limits_of(schema), target, recipe.noise, recipe.seed, recipe.stream or "")

    @cached_property
    def noise_multiplier(self) -> float:
        """The least noise multiplier with which all steps keep the target."""
        return self._release(0, 1).noise_multiplier

    @cached_property
    def event(self) -> DpEvent:
        """What a silo releases in all steps."""
        return self._release(0, 1).event(self.noise_multiplier)

    @property
    def dim(self) -> int:
        """How many numbers a silo sends in a step."""
        return self._start.dim

    @property
    def most_bytes(self) -> int:
        """Length of the means of all steps."""
        return 8 * STEPS * self._start.dim

    def facts(self) -> dict[str, Any]:
        """As plain values, for the ledger and the certificate."""
        return {"columns": [one.name for one in self.limits], "noise_multiplier": self.noise_multiplier}

    def search(self, means: bytes) -> tuple[RangeSearch, int]:
        """Where a search stands after steps with these means, and how many there were."""
        dim = self._start.dim
        if len(means) % (8 * dim) or len(means) > self.most_bytes:
            raise MessageError("not the means of steps of a search for ranges")
        rows = np.frombuffer(means, dtype="<f8").reshape(-1, dim)
        if not np.isfinite(rows).all():
            raise MessageError("the means of a search for ranges are not finite")
        search = self._start
        for row in rows:
            search = search.moved(row)
        return search, len(rows)

    def found(self, means: bytes) -> dict[str, tuple[float, float]]:
        """The ranges that the means of all steps give."""
        search, steps = self.search(means)
        if steps != STEPS:
            raise MessageError(f"ranges follow from {STEPS} steps, not {steps}")
        return dict(zip((one.name for one in self.limits), search.ranges, strict=True))

    def measure(self, numbers: Numbers, search: RangeSearch, step: int, client: int) -> list[float]:
        """The noisy sum of a silo in one step."""
        release = self._release(client, len(numbers))
        own = range_sums(search, numbers, release.federation.sizes)
        sums: list[float] = release.messages(own, step)[0].tolist()
        return sums

    def means(self, parts: Sequence[Part]) -> bytes:
        """The means of a step, from the parts of silos in the order of the job."""
        total: Numbers = np.sum([np.array(part.sums, dtype=np.float64) for part in parts], axis=0)
        means: Numbers = total / sum(part.records for part in parts)
        return means.astype("<f8").tobytes()

    @cached_property
    def _start(self) -> RangeSearch:
        return RangeSearch.start(self.limits)

    def _release(self, client: int, records: int) -> NoisyMeans:
        blank = torch.zeros(1).expand(records)
        who = Federation(blank[:, None], blank, torch.tensor([records]), torch.tensor([client]))
        seed = None if build_noise(self.noise).secret else self.seed
        return ranges_release(self._start, who, self.question, self.target, seed)
