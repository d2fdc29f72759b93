"""What a silo has seen of all silos' ledgers, including its own: a file next to its ledger.

A silo keeps the newest signed head of each ledger. It shows them to any server that asks, and in its
certificates.

    its own    A head that the silo has signed itself must match its ledger: a line with this number and hash.
               If not, the silo's state was set back to an older copy, and the silo stops answering.
    others'    A head that contradicts the one seen before is evidence against that silo, or against the server.
               The silo refuses the request once, and keeps both heads for its certificates.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.deploy.heads import Head, contradict
from tacit.deploy.seam import Code
from tacit.engine.files import write_atomically
from tacit.errors import DataError, MessageError, TacitError

FORMAT = "tacit-witness-1"
HEADS = "witnessed.json"
"""The name of the file in a silo's state."""

HashAt = Callable[[int], str | None]
"""Gives the hash of a line of the silo's own ledger, by number; None if there is no such line."""


class HeadsError(TacitError):
    """Ledger heads that make a silo refuse a request, with the code that the server gets."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass
class _Book:
    """The content of the file. Silos are identified by public keys, because names may be reused."""

    newest: dict[str, Head] = field(default_factory=dict)
    before: dict[str, dict[str, Head]] = field(default_factory=dict)
    """for every run of this silo, the newest heads when the run began"""
    contradictions: dict[str, list[Head]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        values = {
            "format": FORMAT,
            "newest": _values(self.newest),
            "before": {run: _values(heads) for run, heads in self.before.items()},
            "contradictions": {
                key: [head.to_values() for head in pair] for key, pair in self.contradictions.items()
            },
        }
        return json.dumps(values, indent=1, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> _Book:
        values = json.loads(content)
        if values["format"] != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        return cls(
            _heads(values["newest"]),
            {run: _heads(heads) for run, heads in values["before"].items()},
            {key: [Head.from_values(head) for head in pair] for key, pair in values["contradictions"].items()},
        )


def _values(heads: Mapping[str, Head]) -> dict[str, Any]:
    return {key: head.to_values() for key, head in heads.items()}


def _heads(values: Mapping[str, Any]) -> dict[str, Head]:
    return {key: Head.from_values(head) for key, head in values.items()}


class Witness:
    """A silo's file of heads. Only the process that holds the ledger's page may call its methods.

    Guarantee: a head that `take` has accepted is on disk when it returns.
    """

    def __init__(self, path: Path, site: str, keys: Mapping[str, str]) -> None:
        self._path, self._site, self._keys = path, site, dict(keys)

    def check_own(self, hash_at: HashAt) -> None:
        """Refuse a ledger that lacks a line which this silo has signed."""
        self._check_own(self._read(), hash_at)

    def take(self, heads: Mapping[str, Head], hash_at: HashAt, *, run: str, runs: Container[str]) -> None:
        """Record the heads that the server passes on with a request in a run.

        `hash_at` and `runs` describe the silo's own ledger: its hashes, and the runs that it has opened.
        """
        for site, head in heads.items():
            if site not in self._keys or not head.is_of(site, self._keys[site]):
                forged = f"the server passed on a ledger head that {site!r} has not signed"
                raise HeadsError(Code.MALFORMED, forged)
        book = self._read()
        if run not in runs:
            self._begin(book, run, runs)
        if own := heads.get(self._site):
            self._enter_own(book, own, hash_at)
        others = [(site, head) for site, head in heads.items() if site != self._site]
        refused = [reason for site, head in others if (reason := self._enter(book, site, head))]
        self._write(book)
        self._check_own(book, hash_at)
        if refused:
            raise HeadsError(Code.LEDGER_CONFLICT, " ".join(refused))

    def _begin(self, book: _Book, run: str, runs: Container[str]) -> None:
        """Note how long the others' ledgers were before a run that this silo hears of for the first time."""
        # A server can invent any number of runs. Only those that the silo has answered are kept.
        kept = {known: heads for known, heads in book.before.items() if known in runs or known == run}
        earlier = {key: head for key, head in book.newest.items() if head.run != run}
        book.before = {run: earlier, **kept}

    def _enter_own(self, book: _Book, head: Head, hash_at: HashAt) -> None:
        key = self._keys[self._site]
        seen = book.newest.get(key)
        if seen is not None and hash_at(seen.lines) != seen.hash:
            # This head proves that the state was set back, so it must be kept.
            return
        if seen is None or head.lines >= seen.lines or hash_at(head.lines) != head.hash:
            book.newest[key] = head

    def _enter(self, book: _Book, site: str, head: Head) -> str | None:
        """Record another silo's head, or return why it is not believed."""
        key = self._keys[site]
        seen = book.newest.get(key)
        if seen is None or (head.lines >= seen.lines and not contradict(seen, head)):
            book.newest[key] = head
            return None
        what = f"{site} signed {_told(head)}, but it had already signed {_told(seen)}."
        if contradict(seen, head):
            if key in book.contradictions:
                # Already reported, and kept for the certificate. Refusing forever would help nobody.
                return None
            book.contradictions[key] = [seen, head]
            return f"{what} Its ledger was set back to an older copy, or two copies of it are in use."
        if head.run == seen.run:
            # An older head of the same run, from a server that continues from an older checkpoint.
            return None
        return f"{what} Its ledger was set back to an older copy, or the server passes on an old head."

    def _check_own(self, book: _Book, hash_at: HashAt) -> None:
        own = book.newest.get(self._keys[self._site])
        if own is not None and hash_at(own.lines) != own.hash:
            raise HeadsError(
                Code.STATE_RESTORED,
                f"{self._site} has signed {_told(own)}, but its ledger has no such line: state/ was set back to "
                "an older copy, or another copy of this folder is in use. What has left since is not in this "
                "ledger, so the policy can no longer be kept with it. Restore the newest copy of state/. If it "
                "is lost, this folder cannot be used again: provision the consortium again, with a policy that "
                "subtracts what the lost ledger had spent.",
            )

    def newest(self) -> dict[str, Head]:
        """The newest head of every silo of the job, by name."""
        return self._named(self._read().newest)

    def testimony(self, run: str) -> dict[str, dict[str, Any]]:
        """Evidence for a certificate, by silo: the newest head, the newest before the run, any contradiction."""
        book = self._read()
        newest, before = self._named(book.newest), self._named(book.before.get(run, {}))
        said: dict[str, dict[str, Any]] = {site: {} for site in self._keys if site != self._site}
        for site, told in said.items():
            told |= {"newest": newest[site].to_values()} if site in newest else {}
            told |= {"before_run": before[site].to_values()} if site in before else {}
            pair = book.contradictions.get(self._keys[site])
            told |= {"contradiction": [head.to_values() for head in pair]} if pair else {}
        return {site: told for site, told in said.items() if told}

    def _named(self, heads: Mapping[str, Head]) -> dict[str, Head]:
        return {site: heads[key] for site, key in self._keys.items() if key in heads}

    def _write(self, book: _Book) -> None:
        content = book.to_bytes()
        if not self._path.exists() or self._path.read_bytes() != content:
            write_atomically(self._path, content, mode=0o600)

    def _read(self) -> _Book:
        if not self._path.exists():
            return _Book()
        try:
            return _Book.from_bytes(self._path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MessageError) as error:
            raise DataError(
                f"{self._path} is damaged: {error}. It records what this silo has seen of the others' ledgers; "
                "move it away to continue without that evidence"
            ) from error


def _told(head: Head) -> str:
    return f"a ledger of {head.lines} lines ({head.hash[:12]}, run {head.run[:8]}, round {head.round})"
