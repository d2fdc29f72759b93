"""Hostile inputs made from sound ones: bent bytes, trees with replaced nodes, texts with strange lines."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """A reader, and hostile inputs for it."""

    name: str
    hostile: Callable[[random.Random], Any]
    """a hostile input from a case's own random numbers"""
    read: Callable[[Any], object]
    """returns, or raises one of tacit's errors"""
    share: float = 1.0
    """of the inputs; slow readers get fewer"""


_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
_WORDS = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_DEEP = 20_000

STRINGS = (
    "", " ", "\n", "\x00", "0", "-1", "nan", "inf", "1e999", "true", "none", "null", "../../etc/passwd",
    "/dev/zero", "a" * 5000, "\N{BYTE ORDER MARK}", "\N{RIGHT-TO-LEFT OVERRIDE}lyon", "\N{PILE OF POO}",
    "é" * 64, "0" * 5000,
    "rand-k:1e308", "qsgd:99999999999999999999", "ball:nan", "0-0", "1-99999999999", "median", "quantile:0.5",
    "public:digits", "__import__('os')", "%s%s%n", "f" * 32, "0" * 64, "[[[[", "{}", "exponential:inf",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 255, 256, 65_535, 65_536, 10**6, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64,
    10**30, 10**308, 10**309, 10**400, -(2**63), 0.0, -0.0, 0.5, 1e-9, 1e-320, 1e-3, 0.999999, 1.0, 1.5, 1e6,
    1e18, 1e300, 1.7e308, float("nan"), float("inf"), float("-inf"), True, False,
)  # fmt: skip


def bent_bytes(rng: random.Random, message: bytes) -> bytes:
    """The message after one to four of: flip, overwrite, insert, delete, duplicate, cut off, lengthen."""
    bent = bytearray(message)
    for _ in range(rng.randint(1, 4)):
        size = len(bent)
        at, span = rng.randrange(size + 1), rng.choice((1, 1, 2, 4, 8, rng.randrange(64)))
        match rng.randrange(8):
            case 0 if size:
                bent[rng.randrange(size)] ^= 1 << rng.randrange(8)
            case 1 if size:
                bent[rng.randrange(size)] = rng.choice(_BYTES)
            case 2:
                width = rng.choice((1, 2, 4, 8))
                word = rng.choice(_WORDS) % 256**width
                bent[at : at + width] = word.to_bytes(width, rng.choice(("little", "big")))
            case 3:
                bent[at:at] = rng.randbytes(span)
            case 4:
                del bent[at : at + span]
            case 5:
                bent[at:at] = bent[at : at + span]
            case 6:
                del bent[rng.randrange(size + 1) :]
            case _:
                bent += rng.randbytes(span) if rng.random() < 0.9 else bytes(rng.randrange(100_000))
    return bytes(bent)


def bent_tree(rng: random.Random, tree: Any, strange: Callable[[random.Random], Any] | None = None) -> Any:
    """A copy of a tree of dicts and lists with one to three nodes replaced, removed, renamed or doubled."""
    make = strange or strange_value
    for _ in range(rng.randint(1, 3)):
        tree = _bent_once(rng, tree, make)
    return tree


def _bent_once(rng: random.Random, node: Any, make: Callable[[random.Random], Any]) -> Any:
    if isinstance(node, dict) and node and rng.random() < 0.93:
        key = rng.choice(list(node))
        changed = dict(node)
        match rng.randrange(12):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice(STRINGS)] = changed.pop(key)
            case 2:
                changed[key] = changed[rng.choice(list(node))]
            case 3:
                changed[rng.choice(STRINGS) or "x"] = make(rng)
            case _:
                changed[key] = _bent_once(rng, node[key], make)
        return changed
    if isinstance(node, list) and node and rng.random() < 0.85:
        at, changed_list = rng.randrange(len(node)), list(node)
        match rng.randrange(6):
            case 0:
                del changed_list[at]
            case 1:
                changed_list.insert(at, changed_list[at])
            case 2:
                changed_list *= rng.choice((2, 3, 100))
            case _:
                changed_list[at] = _bent_once(rng, node[at], make)
        return changed_list
    if isinstance(node, str) and node and rng.random() < 0.3:
        return bent_bytes(rng, node.encode()).decode("utf-8", errors="replace")
    if isinstance(node, int | float) and not isinstance(node, bool) and rng.random() < 0.3:
        return rng.choice((node + 1, node - 1, -node, node * 2, node * 1000, str(node), [node]))
    return make(rng)


def strange_value(rng: random.Random) -> Any:
    """Something that nobody expects there."""
    match rng.randrange(8):
        case 0:
            return rng.choice(STRINGS)
        case 1:
            return [strange_value(rng) for _ in range(rng.randrange(4))]
        case 2:
            return {rng.choice(STRINGS): strange_value(rng) for _ in range(rng.randrange(3))}
        case 3 if rng.random() < 0.1:
            return deep(rng)
        case 4:
            return None
        case _:
            return rng.choice(NUMBERS)


def changed_leaf(rng: random.Random, tree: Any, words: dict[str, tuple[str, ...]]) -> Any:
    """A copy of a tree in which one leaf has another value of its own kind: what gets past the first checks.

    `words` has other values for names that take a word.
    """
    changed = {**tree}
    name = rng.choice(list(tree))
    value = tree[name]
    if isinstance(value, dict) and value:
        changed[name] = changed_leaf(rng, value, {**words, "name": words.get(name, ())})
    elif isinstance(value, list) and value:
        changed[name] = [*value[:-1], changed_leaf(rng, {name: value[-1]}, words)[name]]
    elif words.get(name):
        changed[name] = rng.choice(words[name])
    elif isinstance(value, int) and not isinstance(value, bool):
        changed[name] = rng.choice(
            [n for n in NUMBERS if isinstance(n, int) and n is not True and n is not False]
        )
    elif isinstance(value, float):
        changed[name] = rng.choice([n for n in NUMBERS if isinstance(n, float)])
    return changed


def strange_setting(rng: random.Random) -> Any:
    """The same, of what TOML can say."""
    value = strange_value(rng)
    return _without_none(value)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_none(one) for one in value] if len(value) < 2 or not _is_deep(value) else value
    return "" if value is None else value


def _is_deep(value: list[Any]) -> bool:
    return isinstance(value[0], list) and len(value) == 1


def deep(rng: random.Random) -> Any:
    """Lists in lists, more of them than any stack holds frames."""
    tree: Any = 0
    for _ in range(rng.choice((50, 600, _DEEP))):
        tree = [tree]
    return tree


def bent_text(rng: random.Random, text: str) -> str:
    """A text whose lines are swapped, doubled, removed, or bent."""
    lines = text.splitlines(keepends=True) or [""]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                lines.insert(at, lines[rng.randrange(len(lines))])
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                lines.insert(at, rng.choice(STRINGS) + "\n")
            case 3:
                key = lines[at].partition("=")[0].strip() or "x"
                lines[at] = f"{key} = {'[' * rng.choice((10, 1000, _DEEP))}\n"
            case 4:
                key = lines[at].partition("=")[0].strip() or "x"
                lines[at] = f"{key} = {'9' * rng.choice((20, 400, 5000))}\n"
            case _:
                lines[at] = bent_bytes(rng, lines[at].encode()).decode("utf-8", errors="replace")
    return "".join(lines)
