"""Reads compressors from the text that users write in settings and on the command line."""

from __future__ import annotations

from collections.abc import Callable

from tacit.compress.chain import Chain
from tacit.compress.compressor import Compressor
from tacit.compress.identity import Identity
from tacit.compress.natural import Natural
from tacit.compress.qsgd import Qsgd
from tacit.compress.quantiser import Quantiser
from tacit.compress.rand_k import RandK
from tacit.compress.top_k import TopK
from tacit.errors import RequestError, unknown_name

_MAX_DIGITS = 18
"""The most digits of a number: more than enough for any dimension."""


def parse_compressor(text: str) -> Compressor:
    """The compressor described by `text`; the inverse of `Compressor.spec`.

    Args:
        text: `identity`, `rand-k:0.05` (a fraction: it has a point or is below 1), `rand-k:128` (a count),
            `qsgd:16` (levels), `natural`, or `top-k:0.05` and `top-k:128`, which are biased. Rand-k and a
            quantiser are joined by `+`.

    >>> parse_compressor("rand-k:0.05+qsgd:16")
    Chain(first=RandK(fraction=0.05, count=None), then=Qsgd(levels=16))
    """
    parts = [_parse_part(part) for part in text.split("+")]
    if len(parts) == 1:
        return parts[0]
    if len(parts) > 2:
        raise RequestError(f"compressor {text!r} joins {len(parts)} parts; at most two are allowed")
    first, then = parts
    if not isinstance(first, RandK) or not isinstance(then, Quantiser):
        raise RequestError(
            f"compressor {text!r} must be rand-k followed by qsgd or natural, for example rand-k:0.05+qsgd:16"
        )
    return Chain(first, then)


def _parse_part(text: str) -> RandK | TopK | Quantiser:
    name, colon, value = text.strip().partition(":")
    if name not in _PARTS:
        raise unknown_name("compressor", name, _PARTS)
    takes, build = _PARTS[name]
    if bool(colon) != bool(takes):
        needed = f"needs {takes}" if takes else f"takes no value, but has {value!r}"
        raise RequestError(f"compressor {name} {needed}; write {_EXAMPLES[name]}")
    return build(value)


def _identity(value: str) -> Identity:
    return Identity()


def _natural(value: str) -> Natural:
    return Natural()


def _qsgd(value: str) -> Qsgd:
    return Qsgd(levels=_whole("qsgd levels", value))


def _rand_k(value: str) -> RandK:
    fraction, count = _share("rand-k", value)
    return RandK(fraction=fraction, count=count)


def _top_k(value: str) -> TopK:
    fraction, count = _share("top-k", value)
    return TopK(fraction=fraction, count=count)


def _share(name: str, value: str) -> tuple[float | None, int | None]:
    """A fraction, or a count."""
    try:
        number = float(value)
    except ValueError:
        raise RequestError(
            f"{name} needs a fraction in (0, 1] or a count, not {value!r}; write {name}:0.05 or {name}:128"
        ) from None
    if "." in value or 0 < number < 1:
        return number, None
    return None, _whole(f"{name} count", value)


def _whole(setting: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS):
        raise RequestError(f"{setting} must be a whole number of at least 1, not {value[:40]!r}")
    return int(value)


_PARTS: dict[str, tuple[str, Callable[[str], RandK | TopK | Quantiser]]] = {
    "identity": ("", _identity),
    "natural": ("", _natural),
    "qsgd": ("a number of levels", _qsgd),
    "rand-k": ("a fraction or a count", _rand_k),
    "top-k": ("a fraction or a count", _top_k),
}
_EXAMPLES = {
    "identity": "identity",
    "natural": "natural",
    "qsgd": "qsgd:16",
    "rand-k": "rand-k:0.05",
    "top-k": "top-k:0.05",
}
