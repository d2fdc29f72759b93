"""A server of secure sums that runs the protocol step by step, keeps every byte, and asks for what it likes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.deploy.frames import Reply, Request
from tacit.deploy.mixing import point_digest
from tacit.deploy.seam import Code
from tacit.deploy.silo import Silo
from tacit.deploy.summing import Summing
from tacit.sums.arithmetic import Residues
from tacit.sums.group import Rounds
from tacit.sums.requests import Closing, SumStep
from tacit.sums.server import Prepared, TooFewError, deliver, opening_secrets, prepare, unmasked

RUN = "0123456789abcdef" * 2


def asked_for(silo: Silo, body: bytes, **changes: Any) -> Reply:
    """What a silo answers to a request of the protocol."""
    request = replace(Request("sum", RUN, 0, silo.terms.job.digest, body=body), **changes)
    return Reply.decode(silo.step(request.encode()), body_limit=10**7)


class LyingServer:
    """The silos of a consortium, asked by someone who follows no rules."""

    def __init__(self, made: Any, rounds: int = 6) -> None:
        self.made, self.summing = made, Summing(made.job)
        self.group = self.summing.group(RUN)
        self.silos = [made.silo(site) for site in made.job.sites]
        self.context = b""
        self.revealed: dict[int, bytes] = {}
        """the answers to the last request for shares"""
        prepared = prepare(self.group, self.ask, Rounds(1, 0, rounds), range(len(self.silos)))
        assert isinstance(prepared, Prepared)
        deliver(self.ask, prepared)
        self.prepared = prepared

    def ask(self, body: bytes, silos: Iterable[int]) -> dict[int, bytes]:
        replies = {n: asked_for(self.silos[n], body) for n in silos}
        answers = {n: reply.body for n, reply in replies.items() if reply.code is Code.OK}
        if body[0] == SumStep.REVEAL:
            self.revealed = answers
        return answers

    def masked(self, round: int = 0, point: float = 0.0) -> dict[int, Reply]:
        """All silos' messages of a round, at a point of the server's choice."""
        request = self.made.request(round, point=point)
        self.context = point_digest(Request.decode(request).body)
        return {n: Reply.decode(silo.step(request), body_limit=10**6) for n, silo in enumerate(self.silos)}

    def total(self, silos: Collection[int], messages: Sequence[Residues], round: int = 0) -> Residues:
        """The opened sum of these silos' messages; `TooFewError` if silos refuse."""
        closing = Closing(round, self.context, frozenset(silos))
        masked: Residues = np.sum(messages, axis=0, dtype=np.uint32)
        secrets = opening_secrets(self.group, self.ask, self.prepared, closing)
        return unmasked(self.prepared.batch, closing, masked, secrets)

    def opens(self, silos: Collection[int], round: int = 0) -> bool:
        """Whether silos open the sum over this list."""
        try:
            self.total(silos, [np.zeros(1, np.uint32)], round)
        except TooFewError:
            return False
        return True
