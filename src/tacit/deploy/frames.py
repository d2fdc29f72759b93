"""Requests and answers as bytes: plain numbers and words, then raw bytes. Never pickle.

    offset  bytes  field
    0       4      b"TCT3": mark and version
    4       4      length of the header
    8       4      length of the body
    12      16     the first half of the SHA-256 of everything else
    28             header; then the body

The header of a request is JSON. The header of an answer is packed, because messages may be short and the header
should be shorter: code (1 byte), flags (1), run (16), round, releases, planned (4 each), epsilon (8), loss (8),
the signed head of the silo's ledger (104, if there is one), and the site's name. All numbers are little-endian.
Lengths are checked against the limits, and against the length of the frame, before anything is read. The digest
detects damage, not forgery: the network layer authenticates the sender.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from tacit.deploy.heads import HEAD_BYTES, Head
from tacit.deploy.seam import Code
from tacit.errors import MessageError

_MARK = b"TCT3"
_LENGTHS = struct.Struct("<4sII")
_DIGEST_BYTES = 16
OVERHEAD_BYTES = _LENGTHS.size + _DIGEST_BYTES
REQUEST_HEADER_LIMIT = 2**22
"""Enough for the acknowledgements and ledger heads of ten thousand sites."""

BODY_LIMIT = 2**30
_ANSWER = struct.Struct("<BB16sIIIdd")
ANSWER_HEADER_LIMIT = _ANSWER.size + HEAD_BYTES + 63
_CODES = tuple(Code)
_HAS_RUN, _INSECURE, _HAS_LOSS, _HAS_HEAD = 1, 2, 4, 8
_RUN = re.compile(r"[0-9a-f]{32}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_HEX = re.compile(r"(?:[0-9a-f]{2})*\Z")
_KINDS = ("round", "mix", "sum", "correct", "evaluate", "certify", "heads", "range")
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_MOST_ROUNDS = 2**31


def is_site_name(name: object) -> bool:
    """Whether this is a valid site name: at most 63 letters, digits, dots, dashes and underscores.

    >>> is_site_name("hospital-1"), is_site_name("../etc"), is_site_name("")
    (True, False, False)
    """
    return isinstance(name, str) and bool(_SITE.match(name))


def pack(header: bytes, body: bytes) -> bytes:
    """Build a frame."""
    lengths = _LENGTHS.pack(_MARK, len(header), len(body))
    return b"".join((lengths, _digest(lengths, header, body), header, body))


def unpack(frame: bytes, *, header_limit: int, body_limit: int) -> tuple[bytes, bytes]:
    """Read the header and body of a frame from an untrusted sender; anything wrong is a `MessageError`."""
    if (
        not isinstance(frame, bytes)
        or not OVERHEAD_BYTES <= len(frame) <= OVERHEAD_BYTES + header_limit + body_limit
    ):
        raise MessageError("not a frame: it is too short, too long, or not bytes")
    mark, header_bytes, body_bytes = _LENGTHS.unpack_from(frame)
    if mark != _MARK:
        raise MessageError(f"not a frame of this version: it starts with {frame[:4]!r}, not {_MARK!r}")
    if header_bytes > header_limit or body_bytes > body_limit:
        raise MessageError(f"a header of {header_bytes} and a body of {body_bytes} bytes are over the limits")
    if len(frame) != OVERHEAD_BYTES + header_bytes + body_bytes:
        raise MessageError("a frame is truncated, or has bytes after its end")
    view = memoryview(frame)
    header, body = view[OVERHEAD_BYTES : OVERHEAD_BYTES + header_bytes], view[OVERHEAD_BYTES + header_bytes :]
    if _digest(view[: _LENGTHS.size], header, body) != view[_LENGTHS.size : OVERHEAD_BYTES]:
        raise MessageError("a frame has a wrong digest: it was damaged in transit")
    return bytes(header), bytes(body)


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()[:_DIGEST_BYTES]


@dataclass(frozen=True)
class Request:
    """What the server asks the sites of a round, or a shuffler ("mix"); "sum" asks them to help with a sum,
    "correct" and "evaluate" for their part in a final release, and "range" for a step of a search for ranges.

    `accepted` has, for every site, the last round whose message the server used (no entry: none). It tells a silo
    whether its own last message counted, whatever was lost in transit. `heads` has the newest signed head of
    every site's ledger. A request of kind "heads" asks for the heads that a silo has witnessed.
    """

    kind: Literal["round", "mix", "sum", "correct", "evaluate", "certify", "heads", "range"]
    run: str
    """32 hexadecimal digits, drawn when the run began"""
    round: int
    job: str
    """the digest of the job that all parties agreed to"""
    accepted: Mapping[str, int] = field(default_factory=dict)
    body: bytes = b""
    """what the server broadcasts (`state_to_bytes`); for "certify", "correct" and "evaluate" a model; for "mix"
    see `mixing`, for "sum" `tacit.sums.requests`, for "range" `learning`"""
    heads: Mapping[str, Head] = field(default_factory=dict)
    learned: bytes = b""
    """the means of a search that all ranges follow from, if the run has learned any (`learning`)"""

    def encode(self) -> bytes:
        """As a frame."""
        header = {
            "kind": self.kind,
            "run": self.run,
            "round": self.round,
            "job": self.job,
            "accepted": dict(self.accepted),
            **({"heads": heads_to_values(self.heads)} if self.heads else {}),
            **({"learned": self.learned.hex()} if self.learned else {}),
        }
        return pack(json.dumps(header, sort_keys=True, separators=(",", ":")).encode(), self.body)

    @classmethod
    def decode(cls, frame: bytes, *, body_limit: int = BODY_LIMIT) -> Self:
        """The inverse, for bytes that may come from anyone."""
        text, body = unpack(frame, header_limit=REQUEST_HEADER_LIMIT, body_limit=body_limit)
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MessageError("the header of a request is not JSON") from error
        needed = {"kind", "run", "round", "job", "accepted"}
        if not isinstance(header, dict) or set(header) - {"heads", "learned"} != needed:
            raise MessageError("the header of a request must have kind, run, round, job and accepted")
        kind, accepted = header["kind"], header["accepted"]
        if kind not in _KINDS or not isinstance(accepted, dict):
            raise MessageError("not a request of a known kind")
        if not all(is_site_name(site) and _is_round(last) for site, last in accepted.items()):
            raise MessageError("the acknowledgements of a request are not rounds of sites")
        if not _matches(_DIGEST, header["job"]):
            raise MessageError("a request does not name its job")
        if not _matches(_RUN, header["run"]) or not _is_round(header["round"]):
            raise MessageError("a request has an invalid run or round")
        heads = heads_from_values(header.get("heads", {}))
        learned = header.get("learned", "")
        if not _matches(_HEX, learned):
            raise MessageError("what a request says about ranges is not in hexadecimal digits")
        return cls(
            kind, header["run"], header["round"], header["job"], accepted, body, heads, bytes.fromhex(learned)
        )


def heads_to_values(heads: Mapping[str, Head]) -> dict[str, str]:
    """Heads by site, as JSON values."""
    return {site: head.to_text() for site, head in heads.items()}


def heads_from_values(values: object) -> dict[str, Head]:
    """The inverse, for values that may come from anyone."""
    if not isinstance(values, dict) or not all(is_site_name(site) for site in values):
        raise MessageError("ledger heads are not a table by site")
    return {site: Head.from_text(text) for site, text in values.items()}


@dataclass(frozen=True)
class Reply:
    """What one silo answers: a message, or only a code."""

    code: Code
    site: str
    run: str = ""
    round: int = 0
    releases: int = 0
    """how many messages this silo has sent in this run, including this one"""
    planned: int = 0
    epsilon: float = 0.0
    """what the silo's part in this run costs its records if the run goes to its end, rounded up"""
    insecure: bool = False
    """whether its noise is seeded, which protects nobody"""
    body: bytes = b""

    loss: float | None = None
    """the noisy mean loss of its records at the point; None if none is released"""
    head: bytes = b""
    """the head of its ledger, including this message, signed for this run and round (`Head.on_answer`)"""

    def encode(self) -> bytes:
        """As a frame."""
        flags = _HAS_RUN * (self.run != "") + _INSECURE * self.insecure + _HAS_LOSS * (self.loss is not None)
        flags += _HAS_HEAD * (self.head != b"")
        numbers = (self.round, self.releases, self.planned, self.epsilon, self.loss or 0.0)
        header = _ANSWER.pack(_CODES.index(self.code), flags, bytes.fromhex(self.run), *numbers)
        return pack(header + self.head + self.site.encode(), self.body)

    @classmethod
    def decode(cls, frame: bytes, *, body_limit: int) -> Self:
        """The inverse, for bytes that may come from anyone."""
        header, body = unpack(frame, header_limit=ANSWER_HEADER_LIMIT, body_limit=body_limit)
        if len(header) <= _ANSWER.size:
            raise MessageError("the header of an answer is too short")
        code, flags, run, round, releases, planned, epsilon, loss = _ANSWER.unpack_from(header)
        named = _ANSWER.size + HEAD_BYTES * bool(flags & _HAS_HEAD)
        site = header[named:].decode("ascii", errors="replace")
        if code >= len(_CODES) or not is_site_name(site):
            raise MessageError("an answer has no known code, or no site")
        if flags >= 2 * _HAS_HEAD or not all(map(_is_round, (round, releases, planned))):
            raise MessageError("an answer has invalid numbers")
        if not 0 <= epsilon < 1e300 or not math.isfinite(loss):
            raise MessageError("an answer has an invalid epsilon or loss")
        said = run.hex() if flags & _HAS_RUN else ""
        given = loss if flags & _HAS_LOSS else None
        insecure, head = bool(flags & _INSECURE), header[_ANSWER.size : named]
        return cls(_CODES[code], site, said, round, releases, planned, epsilon, insecure, body, given, head)


def point_to_bytes(point: Tensor) -> bytes:
    """A point as little-endian float32."""
    return point.detach().cpu().contiguous().numpy().astype("<f4", copy=False).tobytes()


def state_to_bytes(state: Mapping[str, Tensor]) -> bytes:
    """Named tensors one after the other. Names and shapes are agreed on beforehand and not sent."""
    return b"".join(point_to_bytes(tensor) for tensor in state.values())


def state_from_bytes(body: bytes, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The inverse of `state_to_bytes`, for these names and shapes; anything else is a `MessageError`."""
    whole = point_from_bytes(body, sum(shape.numel() for shape in shapes.values()))
    parts = whole.split([shape.numel() for shape in shapes.values()])
    # Cloned into separate, aligned memory, because products round differently in unaligned memory.
    return {name: part.clone().view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


LARGEST_COORDINATE = 1e12
"""Beyond this, arithmetic may overflow, and whether it does could depend on a record."""


def point_from_bytes(body: bytes, dim: int) -> Tensor:
    """The inverse of `point_to_bytes`; a wrong length, or a huge or infinite value, is a `MessageError`."""
    if len(body) != 4 * dim:
        raise MessageError(f"a point has {len(body)} bytes, but the model has {dim} parameters of 4 bytes")
    values = np.frombuffer(body, dtype="<f4").astype(np.float32)
    if not (np.abs(values) <= LARGEST_COORDINATE).all():
        raise MessageError(f"a point has a value that is not finite, or larger than {LARGEST_COORDINATE:g}")
    # Cloned into memory that PyTorch has aligned, because products round differently in unaligned memory.
    return torch.from_numpy(values).clone()


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and bool(pattern.match(value))


def _is_round(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_ROUNDS
