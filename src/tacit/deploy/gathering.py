"""Asking the silos of a round for their messages, until there is a quorum of usable ones."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tacit.deploy.advice import ADVICE, too_few
from tacit.deploy.frames import Reply, Request, heads_from_values
from tacit.deploy.heads import Heads
from tacit.deploy.notices import Notices
from tacit.deploy.reading import QuorumError, Reader, answer_to
from tacit.deploy.seam import Answer, Backend, Code, SiteError
from tacit.errors import MessageError

_LOG = logging.getLogger("tacit.deploy.gathering")
_HEADS_LIMIT = 2**22
_PAUSE_SECONDS = 2.0
"""How long to wait before asking again when too few answers came."""
_TAKE_UP = "Nothing is lost: if it is restarted in the same directory, the server asks for this round again"


@dataclass(frozen=True)
class Message:
    """What one site sent: the answer and its decoded content."""

    reply: Reply
    content: Any

    @property
    def digest(self) -> str:
        """The digest of its bytes."""
        return _digest(self.reply.body)


@dataclass(frozen=True)
class Gathering:
    """How a server asks its silos, and passes their ledger heads on to each other."""

    backend: Backend
    reader: Reader
    heads: Heads
    sites: tuple[str, ...]
    quorum: int
    deadline_seconds: float
    attempts: int
    """how many deadlines to wait for a quorum"""
    notify: Callable[[str], None]

    def ask(self, request: Request, sites: Sequence[str], quorum: int) -> dict[str, Answer]:
        """Ask these sites once. A site that does not answer before the deadline gets a `SiteError`."""
        answers = self.backend.run_round(
            replace(request, heads=self.heads.newest()).encode(),
            sites=sites,
            quorum=quorum,
            deadline_seconds=self.deadline_seconds,
        )
        return {site: answers.get(site, SiteError(Code.NO_ANSWER)) for site in sites}

    def ask_for_heads(self, request: Request) -> None:
        """Collect the ledger heads that silos have witnessed, so that a silo that was set back sees its own."""
        asked = replace(request, kind="heads", accepted={}, body=b"")
        answers = self.backend.run_round(
            asked.encode(),
            sites=self.sites,
            quorum=min(self.quorum, len(self.sites)),
            deadline_seconds=self.deadline_seconds,
        )
        for site, answer in answers.items():
            reply = answer_to(answer, site, asked, _HEADS_LIMIT)
            if isinstance(reply, Code):
                _LOG.warning("ledger heads of %s: %s", site, reply)
                continue
            try:
                self.heads.told(site, heads_from_values(json.loads(reply.body)["heads"]))
            except (MessageError, ValueError, KeyError, TypeError, RecursionError):
                _LOG.warning("ledger heads of %s: %s", site, Code.BAD_MESSAGE)

    def messages(
        self, request: Request, sites: Sequence[str], before: Mapping[str, str]
    ) -> tuple[dict[str, Message], dict[str, Code]]:
        """The usable messages by site, and the problems of the others. Asks again while there are too few.

        `before` has the digest of the last used message of every site. Raises a `QuorumError` after `attempts`
        deadlines, or at once if asking again cannot help.
        """
        quorum = self.reader.quorum(self.quorum, len(sites))
        messages: dict[str, Message] = {}
        problems: dict[str, Code] = {}
        left, notices = self.attempts * self.deadline_seconds, Notices(self.notify)
        pause = min(_PAUSE_SECONDS, self.deadline_seconds / 10)
        while True:
            began = time.monotonic()
            missing = [site for site in sites if site not in messages]
            answers = self.ask(request, missing, quorum - len(messages))
            # The time that the engine needs to restart is not counted against the silos.
            left -= min(time.monotonic() - began, self.deadline_seconds)
            for site, answer in answers.items():
                read = self._message(answer, site, request, before.get(site))
                if isinstance(read, Message):
                    messages[site] = read
                    problems.pop(site, None)
                else:
                    problems[site] = read
                    _LOG.warning("round %d: %s: %s", request.round, site, read)
            if Code.LEDGER_CONFLICT in problems.values():
                # The silo that objects has evidence, which the silo in question should see.
                self.ask_for_heads(request)
            if len(messages) >= quorum:
                return messages, problems
            short = too_few(request.round, len(messages), quorum, problems)
            hopeful = sum(not ADVICE[code].lasting for code in problems.values())
            if left <= 0 or len(messages) + hopeful < quorum:
                waited = f" The server waited for {self.attempts} deadlines." if left <= 0 else ""
                raise QuorumError(f"{short}.{waited} {_TAKE_UP}")
            notices.tell(short)
            time.sleep(pause)
            left -= pause

    def _message(self, answer: Answer, site: str, request: Request, before: str | None) -> Message | Code:
        """The message in an answer if it can be added up, otherwise the code of what is wrong."""
        reply = answer_to(answer, site, request, self.reader.sent_bytes)
        if isinstance(reply, Code):
            return reply
        if _digest(reply.body) == before:
            return Code.REPLAYED
        if not self.heads.answered(site, reply.head, run=request.run, round=request.round):
            return Code.BAD_MESSAGE
        if (refused := self.reader.refusal(site)) is not None:
            return refused
        content = self.reader.read(reply.body)
        return Code.BAD_MESSAGE if content is None else Message(reply, content)


def _digest(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()
