"""Requests and answers as bytes: plain numbers and words in JSON, then raw bytes. Never pickle.

    offset  bytes  field
    0       4      b"TCT1": mark and version
    4       4      length of the header
    8       8      length of the body
    16      32     SHA-256 of everything else
    48             header: JSON; then the body

All numbers are little-endian. Lengths are compared with the limits, and with the length of the frame, before
anything is read. The digest finds damage, not forgery: who sent a frame is the network's to say.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from tacit.deploy.seam import Code
from tacit.errors import MessageError

_MARK = b"TCT1"
_LENGTHS = struct.Struct("<4sIQ")
_DIGEST_BYTES = 32
OVERHEAD_BYTES = _LENGTHS.size + _DIGEST_BYTES
REQUEST_HEADER_LIMIT = 2**20
"""Room for the acknowledgements of ten thousand sites."""

ANSWER_HEADER_LIMIT = 512
BODY_LIMIT = 2**30
_RUN = re.compile(r"[0-9a-f]{32}\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_MOST_ROUNDS = 2**31


def is_site_name(name: object) -> bool:
    """Whether a site may be called so: letters, digits, dot, dash and underscore, at most 63 of them.

    >>> is_site_name("hospital-1"), is_site_name("../etc"), is_site_name("")
    (True, False, False)
    """
    return isinstance(name, str) and bool(_SITE.match(name))


def pack(header: Mapping[str, Any], body: bytes) -> bytes:
    """One frame."""
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    lengths = _LENGTHS.pack(_MARK, len(text), len(body))
    return b"".join((lengths, _digest(lengths, text, body), text, body))


def unpack(frame: bytes, *, header_limit: int, body_limit: int) -> tuple[dict[str, Any], bytes]:
    """Header and body of a frame that may come from anyone; anything wrong is a `MessageError`."""
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
    text, body = view[OVERHEAD_BYTES : OVERHEAD_BYTES + header_bytes], view[OVERHEAD_BYTES + header_bytes :]
    if _digest(view[: _LENGTHS.size], text, body) != view[_LENGTHS.size : OVERHEAD_BYTES]:
        raise MessageError("a frame has a wrong digest: it was damaged on its way")
    try:
        header = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise MessageError("the header of a frame is not JSON") from error
    if not isinstance(header, dict):
        raise MessageError("the header of a frame is not an object")
    return header, bytes(body)


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


@dataclass(frozen=True)
class Request:
    """What the server asks all sites of a round.

    `accepted` has, for every site, the last round whose message the server used (no entry: none). A silo that
    reads it knows whether its own last message counted, whatever was lost on the way.
    """

    kind: Literal["round", "certify"]
    run: str
    """32 hexadecimal digits, drawn when the run began"""
    round: int
    job: str
    """the digest of the job that all parties agreed to"""
    accepted: Mapping[str, int] = field(default_factory=dict)
    body: bytes = b""
    """the point, or for "certify" the final model: float32"""

    def encode(self) -> bytes:
        """As a frame."""
        header = {
            "kind": self.kind,
            "run": self.run,
            "round": self.round,
            "job": self.job,
            "accepted": dict(self.accepted),
        }
        return pack(header, self.body)

    @classmethod
    def decode(cls, frame: bytes, *, body_limit: int = BODY_LIMIT) -> Self:
        """The inverse, for bytes that may come from anyone."""
        header, body = unpack(frame, header_limit=REQUEST_HEADER_LIMIT, body_limit=body_limit)
        _exactly(header, {"kind", "run", "round", "job", "accepted"})
        kind, accepted = header["kind"], header["accepted"]
        if kind not in ("round", "certify") or not isinstance(accepted, dict):
            raise MessageError("not a request of a known kind")
        if not all(is_site_name(site) and _is_round(last) for site, last in accepted.items()):
            raise MessageError("the acknowledgements of a request are not rounds of sites")
        if not _matches(_DIGEST, header["job"]):
            raise MessageError("a request does not say for which job it is")
        return cls(kind, _run(header), _round(header), header["job"], accepted, body)


@dataclass(frozen=True)
class Reply:
    """What one silo answers: a message, or a bare code."""

    code: Code
    site: str
    run: str = ""
    round: int = 0
    releases: int = 0
    """how often this silo has answered in this run, this message included"""
    planned: int = 0
    epsilon: float = 0.0
    """what the silo's whole part in this run costs its records if it goes to its end, rounded up"""
    insecure: bool = False
    """whether its noise is seeded: a trial, not protection"""
    body: bytes = b""

    def encode(self) -> bytes:
        """As a frame."""
        header = {name: value for name, value in self.__dict__.items() if name != "body"}
        return pack(header, self.body)

    @classmethod
    def decode(cls, frame: bytes, *, body_limit: int) -> Self:
        """The inverse, for bytes that may come from anyone."""
        header, body = unpack(frame, header_limit=ANSWER_HEADER_LIMIT, body_limit=body_limit)
        _exactly(header, {"code", "site", "run", "round", "releases", "planned", "epsilon", "insecure"})
        if header["code"] not in set(Code) or not is_site_name(header["site"]):
            raise MessageError("an answer has no known code, or no site")
        if header["run"] != "":
            _run(header)
        counts = (header["releases"], header["planned"])
        numbers = all(_is_round(value) for value in counts) and type(header["epsilon"]) in (int, float)
        if not numbers or not isinstance(header["insecure"], bool):
            raise MessageError("an answer has no sound numbers")
        if not 0 <= header["epsilon"] < 1e300:
            raise MessageError("an answer has no sound epsilon")
        return cls(
            Code(header["code"]),
            header["site"],
            header["run"],
            _round(header),
            *counts,
            float(header["epsilon"]),
            header["insecure"],
            body,
        )


def point_to_bytes(point: Tensor) -> bytes:
    """Float32, little-endian."""
    return point.detach().cpu().contiguous().numpy().astype("<f4", copy=False).tobytes()


LARGEST_COORDINATE = 1e12
"""Beyond, arithmetic may overflow; and that it does could depend on a record."""


def point_from_bytes(body: bytes, dim: int) -> Tensor:
    """The inverse; a wrong length, or a value that is not finite or huge, is a `MessageError`."""
    if len(body) != 4 * dim:
        raise MessageError(f"a point has {len(body)} bytes, but the model has {dim} parameters of 4 bytes")
    values = np.frombuffer(body, dtype="<f4").astype(np.float32)
    if not (np.abs(values) <= LARGEST_COORDINATE).all():
        raise MessageError(f"a point has a value that is not finite, or larger than {LARGEST_COORDINATE:g}")
    # Cloned into memory that PyTorch aligned, because products round differently in other memory.
    return torch.from_numpy(values).clone()


def _exactly(header: dict[str, Any], names: set[str]) -> None:
    if set(header) != names:
        raise MessageError(f"a header must have {sorted(names)}")


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and bool(pattern.match(value))


def _is_round(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_ROUNDS


def _run(header: dict[str, Any]) -> str:
    if not _matches(_RUN, header["run"]):
        raise MessageError("a frame has no sound run")
    return str(header["run"])


def _round(header: dict[str, Any]) -> int:
    if not _is_round(header["round"]):
        raise MessageError("a frame has no sound round")
    return int(header["round"])
