"""Silos whose state is on a disk of bytes, and a server that can lose requests, answers and silos."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.errors import MessageError
from tacit.sums.arithmetic import Residues
from tacit.sums.group import Rounds, SumGroup
from tacit.sums.requests import Closing
from tacit.sums.server import Ask, Prepared, deliver, opening_secrets, prepare, unmasked
from tacit.sums.silo import SiloState, SumSilo

CONTEXT = bytes(range(32))
Drops = Callable[[int], bool]
"""Whether the request to a silo, or its answer, is lost."""


class Colluder(SumSilo):
    """Helps the server: signs any list, and reveals what it is asked for."""

    def _committed(self, state: SiloState, closing: Closing) -> SiloState:
        return state

    def _check_agreement(self, state: SiloState, closing: Closing, signatures: dict[int, bytes]) -> None:
        pass


class Consortium:
    """A group of silos in one process. Every request starts from the state on disk."""

    def __init__(
        self,
        silos: int,
        quorum: int,
        colluding: int = 0,
        *,
        colluders: Sequence[int] = (),
        store_first: bool = True,
    ) -> None:
        self.keys = [Ed25519PrivateKey.from_private_bytes(bytes([silo]) * 32) for silo in range(silos)]
        publics = tuple(key.public_key().public_bytes_raw() for key in self.keys)
        self.group = SumGroup(bytes(32), publics, quorum, colluding)
        self.disks = [SiloState().to_bytes()] * silos
        self.colluders, self.store_first = colluders, store_first
        self.everyone = range(silos)

        self.running: dict[int, SumSilo] = {}

    def silo(self, n: int) -> SumSilo:
        kind = Colluder if n in self.colluders else SumSilo
        return self.running.setdefault(n, kind(self.group, n, self.keys[n]))

    def restart(self, n: int) -> None:
        self.running.pop(n, None)

    def state(self, n: int) -> SiloState:
        return SiloState.from_bytes(self.disks[n])

    def ask(self, request: bytes, silos: Sequence[int], drops: Drops = lambda silo: False) -> dict[int, bytes]:
        """Answers of the silos that do not refuse; a request or an answer may be lost."""
        answers = {}
        for n in silos:
            if drops(n):
                continue
            try:
                state, answer = self.silo(n).answer(self.state(n), request)
            except MessageError:
                continue
            if self.store_first:
                self.disks[n] = state.to_bytes()
            if not drops(n):
                answers[n] = answer
        return answers

    def mask(self, n: int, round: int, message: Residues, context: bytes = CONTEXT) -> Residues:
        state, masked = self.silo(n).mask(self.state(n), round, context, message)
        self.disks[n] = state.to_bytes()
        return masked

    def prepared(self, number: int = 0, first: int = 0, rounds: int = 4) -> Prepared:
        prepared = prepare(self.group, self.ask, Rounds(number, first, rounds), self.everyone)
        assert isinstance(prepared, Prepared)
        deliver(self.ask, prepared)
        return prepared

    def all_masked(self, round: int, messages: Sequence[Residues]) -> dict[int, Residues]:
        return {n: self.mask(n, round, message) for n, message in enumerate(messages)}


def messages(silos: int, dim: int = 6, seed: int = 0) -> list[Residues]:
    drawn = np.random.default_rng(seed).integers(0, 2**32, (silos, dim), dtype=np.uint32)
    return list(drawn)


def total(messages: Mapping[int, Residues] | Sequence[Residues], silos: Sequence[int]) -> Residues:
    return np.sum([messages[n] for n in silos], axis=0, dtype=np.uint32)


def opened(group: SumGroup, ask: Ask, prepared: Prepared, closing: Closing, masked: Residues) -> Residues:
    """The sum of the messages of the silos in a list, as the server opens it."""
    return unmasked(prepared.batch, closing, masked, opening_secrets(group, ask, prepared, closing))
