"""All parties in one process, for tests: parity with the simulator, and rehearsals of what can go wrong."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence

from tacit.deploy.seam import Answer, Code, Party, SiteError
from tacit.errors import RequestError

NO_FAULT = "none"
FAULTS = (
    NO_FAULT,
    "lose-request",
    "lose-answer",
    "duplicate-request",
    "delay-request",
    "delay-answer",
    "damage-request",
    "damage-answer",
    "die",
    "full-disk",
)
"""What can happen to one request: on its way to a site, at the site, and on the way back.

A delayed request reaches the site before the next one, and its answer is lost. A delayed answer arrives in place
of the next one. `damage-*:N` flips a bit of byte N. `die:MOMENT` kills the site at that moment; it is back for
the next round. `full-disk:MOMENT` leaves no space for what the site would write at that moment.
"""


class Death(BaseException):
    """Simulates the death of a party's process: only its disk is left."""


class InProcessBackend:
    """Parties as objects, which are created again from their disks whenever they have died.

    `parties` has a function that makes each party; its argument is called at the moments of durable writes.
    `faults` says what happens to every request (a word of `FAULTS`).
    """

    def __init__(
        self,
        parties: Mapping[str, Callable[[Callable[[str], None]], Party]],
        faults: Callable[[str], str] = lambda site: NO_FAULT,
    ) -> None:
        self._make = dict(parties)
        self._faults = faults
        self._alive: dict[str, Party] = {}
        self._dies_at: dict[str, str] = {}
        self._full_at: dict[str, str] = {}
        self._late_requests: dict[str, bytes] = {}
        self._late_answers: dict[str, bytes] = {}

    def run_round(
        self, request: bytes, *, sites: Sequence[str], quorum: int, deadline_seconds: float
    ) -> dict[str, Answer]:
        """Ask every site in turn. Nobody is slow here, so deadline and quorum do not matter."""
        return {site: self._deliver(site, request) for site in sites}

    def _deliver(self, site: str, request: bytes) -> Answer:
        fault, _, detail = self._faults(site).partition(":")
        if fault not in FAULTS:
            raise RequestError(f"unknown fault {fault!r}; known: {', '.join(FAULTS)}")
        if site in self._late_requests:
            self._ask(site, self._late_requests.pop(site))
        if fault == "lose-request":
            return SiteError(Code.NO_ANSWER)
        if fault == "delay-request":
            self._late_requests[site] = request
            return SiteError(Code.NO_ANSWER)
        if fault == "damage-request":
            request = damaged(request, int(detail or 0))
        if fault == "duplicate-request":
            self._ask(site, request)
        self._full_at[site] = detail if fault == "full-disk" else ""
        answer = self._ask(site, request, dies_at=detail if fault == "die" else "")
        self._full_at[site] = ""
        if answer is None or fault == "lose-answer":
            return SiteError(Code.NO_ANSWER)
        if fault == "damage-answer":
            return damaged(answer, int(detail or 0))
        if fault == "delay-answer":
            late, self._late_answers[site] = self._late_answers.get(site), answer
            return SiteError(Code.NO_ANSWER) if late is None else late
        return self._late_answers.pop(site, answer)

    def _ask(self, site: str, request: bytes, dies_at: str = "") -> bytes | None:
        self._dies_at[site] = dies_at
        try:
            if site not in self._alive:
                self._alive[site] = self._make[site](lambda moment: self._reached(site, moment))
            return self._alive[site].step(request)
        except Death:
            self._alive.pop(site, None)
            return None
        finally:
            self._dies_at[site] = ""

    def _reached(self, site: str, moment: str) -> None:
        if moment == self._dies_at[site]:
            raise Death(f"{site} {moment}")
        if moment == self._full_at.get(site):
            raise OSError(errno.ENOSPC, "no space left on device")

    def restart(self, site: str) -> None:
        """Discard everything that a site has in memory."""
        self._alive.pop(site, None)


def damaged(frame: bytes, position: int) -> bytes:
    """The frame with one bit of one byte flipped."""
    place = position % len(frame)
    return frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]
