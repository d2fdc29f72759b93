"""Signed ledger heads: the length and last hash of a silo's ledger, so that others can witness it.

Every answer of a silo carries the head of its ledger, signed for the job, run and round of the answer. The server
passes the newest head of each silo on to all of them with its next request. A ledger only grows, and its hash
covers all of its lines. So anyone who has a head of a silo can tell when that silo's ledger has been set back to
an older copy, emptied or replaced: the copy cannot have a line with the same number and the same hash.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.deploy.signatures import signed_by
from tacit.errors import MessageError

_PURPOSE = b"tacit-ledger-head-1\n"
_SIGNED = struct.Struct("<32s16sIQ32s")
_SIGNATURE_BYTES = 64
_BYTES = _SIGNED.size + _SIGNATURE_BYTES
_ON_ANSWER = struct.Struct(f"<Q32s{_SIGNATURE_BYTES}s")
HEAD_BYTES = _ON_ANSWER.size
"""The bytes that a head adds to an answer; the answer already names the run and round."""

_MOST_LINES = 2**53
"""Above this, JSON readers in other languages lose digits."""

_WIDTHS = {"job": 64, "run": 32, "hash": 64, "signature": 2 * _SIGNATURE_BYTES}
_HEX = re.compile(r"[0-9a-f]+\Z")


@dataclass(frozen=True)
class Head:
    """Signed by a silo: when it answered this round, its ledger had `lines` lines and ended in `hash`."""

    job: str
    run: str
    round: int
    lines: int
    hash: str
    signature: str

    @classmethod
    def sign(
        cls, key: Ed25519PrivateKey, site: str, *, job: str, run: str, round: int, lines: int, hash: str
    ) -> Head:
        """Sign a head under a silo's name."""
        text = _text(site, job, run, round, lines, hash)
        return cls(job, run, round, lines, hash, key.sign(text).hex())

    def is_of(self, site: str, public_key: str) -> bool:
        """Whether the holder of this key has signed the head under this name."""
        text = _text(site, self.job, self.run, self.round, self.lines, self.hash)
        return signed_by(public_key, bytes.fromhex(self.signature), text)

    def on_answer(self) -> bytes:
        """The head in the form that answers carry."""
        return _ON_ANSWER.pack(self.lines, bytes.fromhex(self.hash), bytes.fromhex(self.signature))

    @classmethod
    def from_answer(cls, content: bytes, *, job: str, run: str, round: int) -> Head:
        """The inverse of `on_answer`, for an answer in this round."""
        lines, hash, signature = _ON_ANSWER.unpack(content)
        return cls._sound(job, run, round, lines, hash.hex(), signature.hex())

    def to_text(self) -> str:
        """The head in the form that requests carry."""
        return base64.b64encode(
            _SIGNED.pack(
                bytes.fromhex(self.job), bytes.fromhex(self.run), self.round, self.lines, bytes.fromhex(self.hash)
            )
            + bytes.fromhex(self.signature)
        ).decode()

    @classmethod
    def from_text(cls, text: object) -> Head:
        """The inverse of `to_text`, for text that may come from anyone."""
        try:
            content = base64.b64decode(text if isinstance(text, str) else "", validate=True)
        except (binascii.Error, ValueError) as error:
            raise MessageError("a ledger head is not base64") from error
        if len(content) != _BYTES:
            raise MessageError(f"a ledger head has {_BYTES} bytes, not {len(content)}")
        job, run, round, lines, hash = _SIGNED.unpack_from(content)
        return cls._sound(job.hex(), run.hex(), round, lines, hash.hex(), content[_SIGNED.size :].hex())

    def to_values(self) -> dict[str, Any]:
        """The head as plain values, for files and certificates."""
        return asdict(self)

    @classmethod
    def from_values(cls, values: object) -> Head:
        """The inverse of `to_values`, for values that may come from anyone."""
        if not isinstance(values, dict) or set(values) != {*_WIDTHS, "round", "lines"}:
            raise MessageError("a ledger head must have job, run, round, lines, hash and signature")
        for name, width in _WIDTHS.items():
            if not isinstance(values[name], str) or len(values[name]) != width or not _HEX.match(values[name]):
                raise MessageError(f"{name} of a ledger head must be {width} hexadecimal digits")
        return cls._sound(**values)

    @classmethod
    def _sound(cls, job: str, run: str, round: int, lines: int, hash: str, signature: str) -> Head:
        if (
            type(round) is not int
            or type(lines) is not int
            or not (0 <= round < 2**31 and 0 <= lines < _MOST_LINES)
        ):
            raise MessageError("a ledger head has an invalid round or number of lines")
        return cls(job, run, round, lines, hash, signature)


def _text(site: str, job: str, run: str, round: int, lines: int, hash: str) -> bytes:
    """The bytes that are signed. All parts except the last, the name, have a fixed length."""
    packed = _SIGNED.pack(bytes.fromhex(job), bytes.fromhex(run), round, lines, bytes.fromhex(hash))
    return _PURPOSE + packed + site.encode()


def contradict(one: Head, other: Head) -> bool:
    """Whether a ledger that only grows cannot have had both heads.

    That is the case if there are two hashes for one number of lines or, within a run, fewer lines in a later
    round. Heads of different runs and lengths prove nothing by themselves, because nobody signs which run came
    first.
    """
    if one.lines == other.lines:
        return one.hash != other.hash
    shorter, longer = sorted((one, other), key=lambda head: head.lines)
    return (one.job, one.run) == (other.job, other.run) and shorter.round > longer.round


class Heads:
    """The newest head that a server has seen of every silo, to be passed on with every request.

    They are kept only in memory: when a server starts, it asks all silos for the heads that they have witnessed
    and keep on disk. A head that others have witnessed takes precedence over the silo's own if it is longer or
    contradicts it. So a silo whose state was set back is shown its own signature.
    """

    def __init__(self, job: str, keys: Mapping[str, str]) -> None:
        self._job, self._keys = job, dict(keys)
        self._own: dict[str, Head] = {}
        self._witnessed: dict[str, Head] = {}

    def answered(self, site: str, head: bytes, *, run: str, round: int) -> bool:
        """Record the head in a silo's own answer; False if there is no head that the silo has signed."""
        if len(head) != HEAD_BYTES:
            return False
        try:
            read = Head.from_answer(head, job=self._job, run=run, round=round)
        except MessageError:
            return False
        return self._take(self._own, site, read)

    def told(self, by: str, heads: Mapping[str, Head]) -> None:
        """Record the heads that a silo has witnessed, and its own; those with a wrong signature are ignored."""
        for site, head in heads.items():
            self._take(self._own if site == by else self._witnessed, site, head)

    def _take(self, into: dict[str, Head], site: str, head: Head) -> bool:
        if site not in self._keys or not head.is_of(site, self._keys[site]):
            return False
        if site not in into or head.lines > into[site].lines:
            into[site] = head
        return True

    def newest(self) -> dict[str, Head]:
        """The newest head of every silo that has one."""
        return {site: head for site in self._keys if (head := self._newest(site)) is not None}

    def _newest(self, site: str) -> Head | None:
        own, seen = self._own.get(site), self._witnessed.get(site)
        if own is None or seen is None:
            return own or seen
        return seen if seen.lines > own.lines or contradict(own, seen) else own
