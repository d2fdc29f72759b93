"""Sums in a deployment: the numbers and keys that all parties of a job agree on, and a silo's own part.

The protocol is in `tacit.sums`. Here it gets the silos' provisioned identities, one session per run, and a file
in which a silo remembers what it has committed itself to, written before every answer.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from tacit.algorithms.secure_sum import encoding_of
from tacit.algorithms.trust import Trust
from tacit.client.cohort import Cohort
from tacit.compress.wire import Format
from tacit.deploy.frames import Request, state_from_bytes
from tacit.deploy.job import Job
from tacit.engine.files import write_atomically
from tacit.engine.round import opened_sum, shared_coordinates
from tacit.engine.slots import TwoSlots
from tacit.errors import DataError
from tacit.noise.randomness import Purpose
from tacit.sums.arithmetic import Residues
from tacit.sums.encoding import Encoding
from tacit.sums.group import SumGroup
from tacit.sums.requests import Closing
from tacit.sums.server import most_request_bytes
from tacit.sums.silo import SiloState, SumSilo

_CODEC = 6


@dataclass(frozen=True)
class Summing:
    """What all parties of a job with secure sums know."""

    job: Job

    @property
    def trust(self) -> Trust:
        """Quorum and colluding."""
        return self.job.algorithm.trust

    @property
    def kept(self) -> int:
        """The number of coordinates of a message."""
        return self.job.algorithm.uplink.compressor.kept(self._dim)

    @property
    def _dim(self) -> int:
        return self.job.algorithm.work.model.dim

    def encoding(self, noise_multiplier: float | None = None) -> Encoding:
        """How messages become integers.

        noise_multiplier: that of a silo with more records than the least; all silos have the same ring.
        """
        if noise_multiplier not in self._encodings:
            job, shares = self.job, self.job.noise.shares
            least = noise_multiplier is None
            multipliers = shares.noise_multipliers if least else torch.tensor([noise_multiplier])
            encoding = encoding_of(job.algorithm, job.blank(), shares.noise_stds, multipliers, job.rounds)
            self._encodings[noise_multiplier] = encoding
        return self._encodings[noise_multiplier]

    @cached_property
    def _encodings(self) -> dict[float | None, Encoding]:
        """Those that were needed so far, by noise multiplier."""
        return {}

    @cached_property
    def format(self) -> Format:
        """The wire format of a masked message."""
        ring = self.encoding().ring
        return Format(_CODEC, ring.bits, self._dim, self.kept, ring.message_bytes(self.kept))

    def to_bytes(self, masked: Residues) -> bytes:
        """A masked message."""
        body = np.frombuffer(self.encoding().ring.to_bytes(masked), dtype=np.uint8)
        return self.format.seal(body[None])[0]

    def from_bytes(self, message: bytes) -> Residues:
        """The inverse, for bytes that may come from anyone."""
        return self.encoding().ring.from_bytes(self.format.open([message]).tobytes(), self.kept)

    def vector(self, total: Residues, request: Request, silos: Collection[int]) -> Tensor:
        """The sum of a round's messages as the algorithm adds them, from that of these silos' integers."""
        job, encoding = self.job, self.encoding()
        received = state_from_bytes(request.body, job.broadcast_shapes)
        values = encoding.decode(encoding.ring.residues(total.astype(np.int64)))
        weights = job.blank().weights
        weight = len(silos) if weights is None else float(weights[sorted(silos)].sum())
        at = shared_coordinates(job.algorithm, self._dim, request.round, job.randomness())
        return opened_sum(job.algorithm, received, values, weight, at)

    def group(self, run: str) -> SumGroup:
        """The silos of a run, by the keys that they were provisioned with."""
        identities, sites = self.job.identities, self.job.sites
        assert identities is not None, "a job without identities is refused before"
        session = hashlib.sha256(bytes.fromhex(self.job.digest) + bytes.fromhex(run)).digest()
        keys = tuple(bytes.fromhex(identities.silos[site]) for site in sites)
        return SumGroup(session, keys, self.trust.quorum, self.trust.colluding)

    @property
    def most_request_bytes(self) -> int:
        """The longest request of the protocol."""
        return most_request_bytes(len(self.job.sites))


class SiloSums:
    """A silo's part in the sums of its runs.

    What it must not forget of a run: in `RUN.json`, its secrets and its shares of other silos' secrets; in
    `RUN.closed`, the list that it committed itself to, which changes every round; in the ledger, the last round
    that it masked. A silo that lost its files has no shares, so it can open nothing; it takes part again from the
    next batch on. Shares without a readable file of lists are refused.
    """

    def __init__(
        self, job: Job, site: str, key: Ed25519PrivateKey, directory: Path, at: Callable[[str], None]
    ) -> None:
        """Open the silo's part.

        job, site: the job, and this silo's name in it.
        key: its provisioned identity.
        directory: where its files are.
        at: called before and after durable writes.
        """
        self.summing = Summing(job)
        self._me, self._key, self._directory, self._at = job.sites.index(site), key, directory, at
        self._silo: tuple[str, SumSilo] | None = None

    def answer(self, run: str, request: bytes, last: Mapping[str, Any] | None, known: Collection[str]) -> bytes:
        """The answer to a request of the protocol, once everything that it commits this silo to is on disk.

        last: the ledger's line of the last round of this run that was answered.
        known: the runs in the ledger; of others, only one is remembered at a time.
        """
        before = self._state(run, last)
        after, answer = self._of(run).answer(before, request)
        if after != before:
            self._at("before sums")
            if after.closing != before.closing or not self._closed(run).path.exists():
                self._closed(run).write(after.closing)
            if after != dataclasses.replace(before, closed=after.closed, closing=after.closing):
                self._at("between sums")
                write_atomically(self._directory / f"{run}.json", after.to_bytes(), mode=0o600)
                self._forget_all_but({run, *known})
            self._at("after sums")
        return answer

    def integers(self, values: Tensor, cohort: Cohort, noise_multiplier: float) -> Residues:
        """What this silo adds to a sum: its values with its share of the noise, on the lattice of the sum."""
        if not bool(torch.isfinite(values).all()):
            # The values are left out: they are private.
            raise DataError("what a silo adds to a sum must be finite")
        noise = self.summing.job.algorithm.work.noise
        encoding = self.summing.encoding(noise_multiplier)
        return encoding.encode(values, noise, cohort.generators(Purpose.NOISE))

    def masked(
        self, run: str, round: int, point: str, integers: Residues, last: Mapping[str, Any] | None
    ) -> bytes:
        """This silo's message of a round. Not remembered here: it must be in the ledger before it leaves.

        point: the digest of what the server sent. Messages of silos that were sent something else do not add up.
        """
        return self.summing.to_bytes(self.mask(run, round, point, integers, last))

    def mask(
        self, run: str, round: int, point: str, integers: Residues, last: Mapping[str, Any] | None
    ) -> Residues:
        """The masked integers of such a message."""
        return self._of(run).mask(self._state(run, last), round, bytes.fromhex(point), integers)[1]

    def check_ready(self, run: str, round: int, last: Mapping[str, Any] | None) -> str:
        """The digest of the batch whose keys mask a message of this round; `MessageError` if there is none.

        Asked before anything is computed.
        """
        return self._of(run).check_ready(self._state(run, last), round).digest.hex()

    def forget(self, run: str) -> None:
        """Remove the secrets of a run that is over."""
        (self._directory / f"{run}.json").unlink(missing_ok=True)
        self._closed(run).path.unlink(missing_ok=True)

    def _forget_all_but(self, runs: Collection[str]) -> None:
        for run in {path.stem for path in self._directory.glob("[!.]*")} - set(runs):
            self.forget(run)

    def _closed(self, run: str) -> TwoSlots:
        return TwoSlots(self._directory / f"{run}.closed")

    def _of(self, run: str) -> SumSilo:
        if self._silo is None or self._silo[0] != run:
            self._silo = run, SumSilo(self.summing.group(run), self._me, self._key)
        return self._silo[1]

    def _state(self, run: str, last: Mapping[str, Any] | None) -> SiloState:
        path, closed = self._directory / f"{run}.json", self._closed(run)
        state = SiloState.from_bytes(path.read_bytes()) if path.exists() else SiloState()
        if path.exists() and not closed.intact:
            raise DataError(
                f"{closed.path} is missing or damaged: this silo no longer knows what it has agreed to open"
            )
        if closing := closed.read():
            round = Closing.from_bytes(closing, self.summing.group(run)).round
            state = dataclasses.replace(state, closed=round, closing=closing)
        if last is None:
            return state
        return dataclasses.replace(state, masked=last["round"], context=bytes.fromhex(last["point"]))
