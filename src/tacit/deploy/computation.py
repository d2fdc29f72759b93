"""What a silo computes for one round: its message, its report, and its new memory.

If a computation fails, it may have failed because of a record, and the failure itself is then a message without
noise. So the silo stops until its operators have looked at it and removed the file `halted`. A server cannot keep
asking for points at which the computation fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from tacit.client.cohort import Cohort
from tacit.deploy.final_release import FinalRelease
from tacit.deploy.frames import Request
from tacit.deploy.home import Home
from tacit.deploy.learning import Ranges
from tacit.deploy.mixing import Covers, context_of, mixing_of, point_digest
from tacit.deploy.silo_memory import Fingerprint, Memory
from tacit.deploy.summing import SiloSums
from tacit.deploy.terms import Terms
from tacit.engine.round import POINT, ClientState, client_round, summands
from tacit.engine.threads import suitable_threads
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.side.ranges import RangeSearch
from tacit.state import State
from tacit.sums.arithmetic import Residues

Computed = TypeVar("Computed")


class Computation:
    """One silo's rounds, on its terms and records."""

    def __init__(self, terms: Terms, home: Home, covers: Covers | None, sums: SiloSums | None = None) -> None:
        """Prepare for rounds.

        terms: the silo's terms, with its records and the noise that it adds.
        home: the silo's directory, which records that the silo has halted.
        covers: how messages are covered for a shuffler, if there is one.
        sums: how messages are masked, if only sums are opened.
        """
        self._terms, self._home, self._sums = terms, home, sums
        self._covers, self._mixing = covers, mixing_of(terms.job.algorithm)
        self._stopped = False
        if self._mixing is not None and covers is None:
            raise RequestError(
                f"algorithm {terms.job.recipe.algorithm!r} needs a shuffler, but this silo has no keys for it: "
                "provision the consortium with this version, which creates them"
            )

    @property
    def halted(self) -> bool:
        """Whether a computation has failed and nobody has looked at it yet."""
        return self._stopped or self._home.halted

    def final(self, release: FinalRelease, point: Tensor) -> list[float]:
        """The noisy sums of this silo in a final release at a model."""
        model, records = self._terms.job.algorithm.work.model, self._terms.records_for(release.name)
        return self._or_halt(lambda: release.measure(model, point, records))

    def prepared(self, ranges: Ranges) -> Computation:
        """The same with the records as these ranges prepare them."""
        return self._or_halt(
            lambda: Computation(self._terms.closed(ranges), self._home, self._covers, self._sums)
        )

    @property
    def records(self) -> Federation:
        """The records that are trained on."""
        return self._terms.federation

    def step_of_ranges(self, search: RangeSearch, step: int) -> list[float]:
        """The noisy sum of this silo in one step of a search for ranges."""
        terms, ranges, table = self._terms, self._terms.job.ranges, self._terms.table
        if ranges is None or table is None:
            raise RequestError("the job learns no ranges")
        client = int(terms.federation.ids[0])
        return self._or_halt(lambda: ranges.measure(table.numbers, search, step, client))

    def final_in_sum(
        self, release: FinalRelease, point: Tensor, asked: Request, last: Mapping[str, Any] | None
    ) -> list[float]:
        """This silo's part of the sum of a final release: with a share of the noise, on its lattice, masked."""
        sums, job, records = self._sums, self._terms.job, self._terms.records_for(release.name)
        assert sums is not None, "only sums have masked parts"
        client = job.sites.index(self._terms.site)
        integers = self._or_halt(lambda: release.integers(job.algorithm.work.model, point, records, client))
        masked = sums.mask(asked.run, asked.round, hashlib.sha256(asked.body).hexdigest(), integers, last)
        return [float(one) for one in masked]

    def run(
        self,
        asked: Request,
        received: State,
        state: ClientState,
        secret: int | None,
        records: Fingerprint,
        releases: int,
        last: Mapping[str, Any] | None = None,
    ) -> Memory:
        """Compute one round of this silo: the `releases`-th release of its run; `last` is the one before."""
        terms, job = self._terms, self._terms.job
        # The round consumes its input state, but the server may never use the result.
        uplink = {name: tensor.clone() for name, tensor in state.uplink.items()}
        cohort = Cohort(terms.federation, torch.zeros(1, dtype=torch.int64), asked.round, job.randomness(secret))
        algorithm, work = job.algorithm, job.algorithm.work
        operations = 3 * float(work.records_in_memory(cohort.sizes).sum()) * work.model.dim
        with suitable_threads(operations):
            loss = self._or_halt(lambda: self._loss(received[POINT], cohort, releases))
            if self._sums is not None:
                after, message = self._summand(self._sums, asked, received, cohort, state, last)
            else:
                multipliers = torch.tensor([terms.noise_multiplier], dtype=torch.float64)
                packets, after = self._or_halt(
                    lambda: client_round(algorithm, received, cohort, state, multipliers)
                )
                message = self._covered(packets.encode()[0], asked)
        return Memory(after.work, uplink, after.uplink, message, secret, records, loss)

    def _summand(
        self,
        sums: SiloSums,
        asked: Request,
        received: State,
        cohort: Cohort,
        state: ClientState,
        last: Mapping[str, Any] | None,
    ) -> tuple[ClientState, bytes]:
        """The state after a round, and what this silo sends to be summed."""
        terms = self._terms

        def compute() -> tuple[ClientState, Residues]:
            values, after = summands(terms.job.algorithm, received, cohort, state)
            return after, sums.integers(values[0], cohort, terms.noise_multiplier)

        after, integers = self._or_halt(compute)
        point = hashlib.sha256(asked.body).hexdigest()
        return after, sums.masked(asked.run, asked.round, point, integers, last)

    def _loss(self, point: Tensor, cohort: Cohort, releases: int) -> float | None:
        terms, report = self._terms, self._terms.job.report
        if report is None or not report.due(releases):
            return None
        model, kind = terms.job.algorithm.work.model, terms.job.noise.kind
        return report.measure(model, point, cohort, terms.report_noise, kind)

    def _covered(self, message: bytes, asked: Request) -> bytes:
        if self._mixing is None or self._covers is None:
            return message
        context = context_of(asked.job, asked.run, asked.round, point_digest(asked.body))
        return self._mixing.cover(message, self._covers, context)

    def _or_halt(self, compute: Callable[[], Computed]) -> Computed:
        try:
            return compute()
        except (OSError, MemoryError):
            # These come from the machine, not from the records.
            raise
        except Exception:
            # Set first, so that the silo halts even if the disk has no space for the file.
            self._stopped = True
            self._home.halt()
            self._stopped = False
            raise
