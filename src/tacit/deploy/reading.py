"""Turning what silos sent into the sum of their messages, directly or through a shuffler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from tacit.compress import Packets
from tacit.deploy.advice import advice
from tacit.deploy.frames import LARGEST_COORDINATE, Reply, Request
from tacit.deploy.job import Job
from tacit.deploy.mixing import Mixing, context_of, point_digest
from tacit.deploy.parts import Part, part_bytes
from tacit.deploy.seam import Backend, Code, SiteError
from tacit.deploy.shuffler import SHUFFLER
from tacit.errors import MessageError, TacitError


class QuorumError(TacitError):
    """Too few sites gave a usable answer, even after retries. The run can be continued later."""


class Reader(Protocol):
    """How the server reads the messages of a round."""

    @property
    def sent_bytes(self) -> int:
        """Length of what a silo sends."""
        ...

    def quorum(self, quorum: int, asked: int) -> int:
        """How many of the sites that were asked must answer."""
        ...

    def read(self, body: bytes) -> Any | None:
        """Read what one silo sent into a form that can be added up; None if that is impossible."""
        ...

    def prepare(self, request: Request) -> None:
        """Do what must be done before the sites are asked for their messages."""
        ...

    def refusal(self, site: str) -> Code | None:
        """Why no message of a site can be used in the prepared round, whatever it sends; None if one can."""
        ...

    def noted(self, problems: Mapping[str, Code]) -> None:
        """Take note of why sites sent no message in a round."""
        ...

    def total(self, request: Request, read: Mapping[str, Any]) -> tuple[Tensor, int]:
        """The sum of the messages of these sites, in their order, and the number of sites to divide it by."""
        ...


class Unprepared:
    """A reader that needs no preparation."""

    def prepare(self, request: Request) -> None:
        """Nothing to do."""

    def refusal(self, site: str) -> Code | None:
        """Everybody's messages can be used."""
        return None

    def noted(self, problems: Mapping[str, Code]) -> None:
        """Nothing to do."""


def answer_to(answer: bytes | SiteError, site: str, request: Request, body_limit: int) -> Reply | Code:
    """Decode an answer if it is this site's answer to this request; otherwise the code of what is wrong."""
    if isinstance(answer, SiteError):
        return answer.code
    try:
        reply = Reply.decode(answer, body_limit=body_limit)
    except MessageError:
        return Code.REJECTED
    if reply.site != site:
        return Code.REJECTED
    if reply.code is not Code.OK:
        return reply.code
    return reply if (reply.run, reply.round) == (request.run, request.round) else Code.WRONG_ROUND


@dataclass(frozen=True)
class OneByOne(Unprepared):
    """For messages that are each protected by their own noise: they are read directly, and any number will do."""

    job: Job

    @property
    def sent_bytes(self) -> int:
        """Length of a message."""
        return self.job.algorithm.uplink.compressor.message_bytes(self._dim)

    @property
    def _dim(self) -> int:
        return self.job.algorithm.length

    def quorum(self, quorum: int, asked: int) -> int:
        """The consortium's quorum, or everybody if fewer were asked."""
        return min(quorum, asked)

    def read(self, body: bytes) -> Packets | None:
        """The packets, if they can be decoded and are finite."""
        try:
            packets = self.job.algorithm.uplink.compressor.decode([body], self._dim)
        except MessageError:
            return None
        return packets if bool((packets.sum().abs() <= LARGEST_COORDINATE).all()) else None

    def total(self, request: Request, read: Mapping[str, Packets]) -> tuple[Tensor, int]:
        """The sum, computed as in the simulator, and the number of sites that were asked."""
        total = torch.zeros(self._dim)
        for packets in read.values():
            packets.add_sum_to(total)
        return total, len(self.job.cohort(request.round))


@dataclass(frozen=True)
class PartReader(Unprepared):
    """How the server reads parts that it sees one by one; any quorum of silos will do."""

    dim: int

    @property
    def sent_bytes(self) -> int:
        """Length of a silo's part."""
        return part_bytes(self.dim, masked=False)

    def quorum(self, quorum: int, asked: int) -> int:
        """The consortium's quorum, or everybody if fewer were asked."""
        return min(quorum, asked)

    def read(self, body: bytes) -> Part | None:
        """The part, if it can be read."""
        try:
            return Part.from_bytes(body, self.dim, masked=False)
        except MessageError:
            return None

    def total(self, request: Request, read: Mapping[str, Part]) -> tuple[Tensor, int]:
        """The sum of all parts, and the number of records in it."""
        sums = torch.tensor([part.sums for part in read.values()], dtype=torch.float64)
        return sums.sum(0), sum(part.records for part in read.values())


@dataclass(frozen=True)
class Mixed(Unprepared):
    """For messages that the shuffler mixes: all messages of a round, or none."""

    job: Job
    mixing: Mixing
    key: X25519PrivateKey
    backend: Backend
    deadline_seconds: float
    attempts: int

    @property
    def sent_bytes(self) -> int:
        """Length of a covered message."""
        return self.mixing.sent_bytes

    def quorum(self, quorum: int, asked: int) -> int:
        """All that were asked, because the promise relies on the noise of each."""
        return asked

    def read(self, body: bytes) -> bytes | None:
        """The bytes unchanged, if their length is right; the server cannot open them yet."""
        return body if len(body) == self.sent_bytes else None

    def total(self, request: Request, read: Mapping[str, bytes]) -> tuple[Tensor, int]:
        """The sum, with the help of the shuffler's answer, and the number of sites that were asked."""
        digest, each = point_digest(request.body), self.mixing.covered_bytes
        covered = b"".join(sent[:each] for sent in read.values())
        asked = Request("mix", request.run, request.round, request.job, body=digest + covered)
        mixed = self._mixed(asked)
        context = context_of(request.job, request.run, request.round, digest)
        try:
            total = self.mixing.total(list(read.values()), mixed, self.key, context)
            return total, len(self.job.cohort(request.round))
        except MessageError as error:
            raise QuorumError(
                f"round {request.round}: {error}; a silo broke the rules, and it cannot be known which one"
            ) from error

    def _mixed(self, asked: Request) -> bytes:
        """Ask the shuffler. Asking again is safe: it always mixes the same messages."""
        code = Code.NO_ANSWER
        for _ in range(self.attempts):
            answers = self.backend.run_round(
                asked.encode(), sites=[SHUFFLER], quorum=1, deadline_seconds=self.deadline_seconds
            )
            answer = answers.get(SHUFFLER, SiteError(Code.NO_ANSWER))
            reply = answer_to(answer, SHUFFLER, asked, self.mixing.mixed_bytes)
            if isinstance(reply, Reply) and len(reply.body) == self.mixing.mixed_bytes:
                return reply.body
            code = reply if isinstance(reply, Code) else Code.BAD_MESSAGE
        raise QuorumError(
            f"round {asked.round}: no message could be read without the shuffler. {advice({SHUFFLER: code})}"
        )
