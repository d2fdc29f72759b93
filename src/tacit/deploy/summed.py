"""The server's part in sums: it prepares batches of rounds, closes the list of a round, and opens its sum.

What the server must not forget is on disk before the silos are asked: the batch with its number (`sums/batch`),
and for the round that is being opened, the list and the sum of its masked messages (`sums/opening`). A restarted
server asks for the same list again, so that silos that are committed to it can answer.
"""

from __future__ import annotations

import hashlib
import logging
import struct
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor

from tacit.deploy.frames import Reply, Request
from tacit.deploy.job import Job
from tacit.deploy.reading import QuorumError, answer_to
from tacit.deploy.seam import Backend, Code, SiteError
from tacit.deploy.summing import Summing
from tacit.engine.files import write_atomically
from tacit.engine.slots import TwoSlots
from tacit.errors import MessageError
from tacit.sums.arithmetic import Residues
from tacit.sums.group import Rounds, SumGroup
from tacit.sums.requests import Closing
from tacit.sums.server import (
    Ask,
    Prepared,
    TooFewError,
    deliver,
    opening_secrets,
    prepare,
    rounds_ahead,
    unmasked,
)

_LOG = logging.getLogger("tacit.deploy.summed")
_NUMBER = struct.Struct("<I")
_RUN_BYTES = 16


class Summed:
    """For messages of which only sums can be opened: by at least a quorum of silos together.

    Guarantee, for whoever runs the server honestly: a round that was started can be finished after any restart,
    as soon as enough of its silos are back.
    """

    def __init__(
        self, job: Job, backend: Backend, directory: Path, deadline_seconds: float, attempts: int
    ) -> None:
        """Open the reader.

        directory: the server's own directory.
        attempts: how many deadlines to wait for the silos that a sum needs.
        """
        self._job, self._backend, self._directory = job, backend, directory / "sums"
        self._deadline_seconds, self._attempts = deadline_seconds, attempts
        self._summing = Summing(job)
        self._prepared: tuple[str, Prepared] | None = None
        self._newcomers: set[str] = set()
        self._served: set[str] = set()

    @cached_property
    def sent_bytes(self) -> int:
        """Length of a masked message."""
        return self._summing.format.message_bytes

    def quorum(self, quorum: int, asked: int) -> int:
        """The consortium's quorum, but no less than that of the job's sums."""
        return max(min(quorum, asked), self._summing.trust.quorum)

    def read(self, body: bytes) -> Residues | None:
        """The masked integers, if they can be read."""
        try:
            return self._summing.from_bytes(body)
        except MessageError:
            return None

    def refusal(self, site: str) -> Code | None:
        """A silo that has missed the batch may still have keys of an earlier one, which open nothing here."""
        return None if self._job.sites.index(site) in self._members else Code.SUM_REFUSED

    def noted(self, problems: Mapping[str, Code]) -> None:
        """If a silo without keys is back, the next round gets a new batch with it; once, if it fails again."""
        refused = {site for site, code in problems.items() if code is Code.SUM_REFUSED}
        self._newcomers = refused - self._served

    def prepare(self, request: Request) -> None:
        """Make sure that silos have keys for this round."""
        run, round = request.run, request.round
        group = self._summing.group(run)
        number, prepared = self._stored(run, group)
        if prepared is not None and self._covers(prepared, round, run):
            if self._prepared is None:
                # After a restart: silos that missed it get the shares again.
                self._deliver(request, prepared)
            self._prepared = run, prepared
            return
        # An evaluation is a round of its own after the last.
        count = max(1, min(rounds_ahead(group.silos), self._job.rounds - round))
        silos: Sequence[int] = range(group.silos)
        for attempt in range(self._attempts + group.silos):
            # Minutes help a server that lost its number; silos accept only higher ones.
            number = max(number + 1, int(time.time()) // 60)
            self._write("batch", run, _NUMBER.pack(number))
            try:
                made = prepare(group, self._ask(request), Rounds(number, round, count), silos)
            except TooFewError as error:
                if attempt >= self._attempts - 1:
                    raise QuorumError(
                        f"round {round}: {error}. Nothing is lost: start the server again"
                    ) from error
                silos = range(group.silos)
                self._pause()
                continue
            if isinstance(made, Prepared):
                self._write("batch", run, _NUMBER.pack(number) + made.to_bytes())
                self._prepared, self._served, self._newcomers = (run, made), self._newcomers, set()
                self._deliver(request, made)
                return
            silos = sorted(made)
        raise QuorumError(f"round {round}: silos vanish faster than a sum can be prepared")

    def _deliver(self, request: Request, prepared: Prepared) -> None:
        """Give the members their shares, until a quorum has them."""
        for _ in range(self._attempts):
            if len(deliver(self._ask(request), prepared)) >= self._summing.trust.quorum:
                return
            self._pause()

    def total(self, request: Request, read: Mapping[str, Residues]) -> tuple[Tensor, int]:
        """The sum of the messages of these sites, and how many they are."""
        closing, total, _ = self.opened(request, read)
        return self._summing.vector(total, request, closing.silos), len(closing.silos)

    def opened(
        self, request: Request, read: Mapping[str, Residues]
    ) -> tuple[Closing, Residues, dict[int, bytes]]:
        """The list of a round, the opened sum of its messages, and the secrets that opened it."""
        assert self._prepared is not None, "prepared before anybody was asked"
        group, prepared = self._summing.group(request.run), self._prepared[1]
        closing, masked = self._opening(request, read, group)
        sites = {self._job.sites[silo] for silo in closing.silos}
        for attempt in range(self._attempts):
            # First those whose messages arrived; if too few of them are left, everybody who has shares.
            among = None if attempt else sites
            try:
                secrets = opening_secrets(group, self._ask(request, among, group.threshold), prepared, closing)
                return closing, unmasked(prepared.batch, closing, masked, secrets), secrets
            except TooFewError as error:
                _LOG.warning("round %d: %s", request.round, error)
                self._pause()
                continue
            except MessageError as error:
                raise QuorumError(
                    f"round {request.round}: {error}; a silo broke the rules, and the sum stays closed"
                ) from error
        raise QuorumError(
            f"round {request.round}: its messages arrived, but fewer than {group.threshold} silos helped to open "
            "their sum. Nothing is lost: start the server again when they are back"
        )

    def _opening(
        self, request: Request, read: Mapping[str, Residues], group: SumGroup
    ) -> tuple[Closing, Residues]:
        """The list of the round and the sum of its masked messages; the same after a restart."""
        length, context = Closing.length(group), hashlib.sha256(request.body).digest()
        stored = self._opened_last(request.run)
        if len(stored) > length:
            closing = Closing.from_bytes(stored[:length], group)
            if (closing.round, closing.context) == (request.round, context):
                return closing, np.frombuffer(stored[length:], dtype="<u4").astype(np.uint32)
        used = {self._job.sites.index(site): message for site, message in read.items()}
        closing = Closing(request.round, context, frozenset(used))
        masked: Residues = np.sum(list(used.values()), axis=0, dtype=np.uint32)
        self._slots.write(bytes.fromhex(request.run) + closing.to_bytes(group) + masked.astype("<u4").tobytes())
        return closing, masked

    @property
    def batch(self) -> bytes:
        """The keys of the batch in use."""
        assert self._prepared is not None, "prepared before anybody was asked"
        return self._prepared[1].batch.to_bytes()

    @property
    def _members(self) -> tuple[int, ...]:
        return self._prepared[1].batch.members if self._prepared else ()

    def _covers(self, prepared: Prepared, round: int, run: str) -> bool:
        """Whether a batch is to be used for a round. It is given up early if a silo waits for keys."""
        rounds = prepared.batch.rounds
        if not rounds.first <= round < rounds.first + rounds.count:
            return False
        started = self._opened_last(run)
        begun = len(started) > 4 and int.from_bytes(started[:4], "little") == round
        return begun or not self._newcomers

    def _ask(self, request: Request, among: set[str] | None = None, least: int | None = None) -> Ask:
        """Sends requests of the protocol to silos, as bodies of requests to their sites."""
        job = self._job

        def ask(body: bytes, silos: Sequence[int]) -> dict[int, bytes]:
            sites = [job.sites[silo] for silo in silos if among is None or job.sites[silo] in among]
            asked = Request("sum", request.run, request.round, request.job, body=body)
            answers = self._backend.run_round(
                asked.encode(),
                sites=sites,
                quorum=min(len(sites), least or self._summing.trust.quorum),
                deadline_seconds=self._deadline_seconds,
            )
            read = {
                site: answer_to(
                    answers.get(site, SiteError(Code.NO_ANSWER)), site, asked, self._summing.most_request_bytes
                )
                for site in sites
            }
            for site, reply in read.items():
                if isinstance(reply, Code):
                    _LOG.warning("round %d, sum: %s: %s", request.round, site, reply)
            return {job.sites.index(site): reply.body for site, reply in read.items() if isinstance(reply, Reply)}

        return ask

    def _pause(self) -> None:
        time.sleep(min(2.0, self._deadline_seconds / 10))

    def _stored(self, run: str, group: SumGroup) -> tuple[int, Prepared | None]:
        content = self._read("batch", run)
        if len(content) < _NUMBER.size:
            return -1, None
        number = _NUMBER.unpack_from(content)[0]
        rest = content[_NUMBER.size :]
        return number, Prepared.from_bytes(rest, group) if rest else None

    def _write(self, name: str, run: str, content: bytes) -> None:
        write_atomically(self._directory / name, bytes.fromhex(run) + content, mode=0o600)

    def _read(self, name: str, run: str) -> bytes:
        """What was written for this run; empty if nothing was."""
        path = self._directory / name
        return _of_run(run, path.read_bytes() if path.exists() else b"")

    @property
    def _slots(self) -> TwoSlots:
        return TwoSlots(self._directory / "opening")

    def _opened_last(self, run: str) -> bytes:
        """The list and masked sum of the last round of this run that was being opened; empty if there is none."""
        return _of_run(run, self._slots.read())


def _of_run(run: str, content: bytes) -> bytes:
    return content[_RUN_BYTES:] if content[:_RUN_BYTES] == bytes.fromhex(run) else b""
