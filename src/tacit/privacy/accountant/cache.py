"""A cache on disk for slow answers of the accountant, valid only for the same question and the same code.

It is in the user's cache directory, or in the one named by the environment variable TACIT_CACHE; an empty value
turns it off. An answer is stored under the full text of its question and a digest of this package's source and
of the libraries it computes with, so a corrected accountant does not return old answers. Entries that are
damaged, or that cannot be read or written, are ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import platformdirs

ENVIRONMENT = "TACIT_CACHE"
_LIBRARIES = ("dp-accounting", "numpy", "scipy")


def look_up(question: str) -> dict[str, float] | None:
    """The stored answer to this question, or None."""
    path = _path(question)
    if path is None:
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        numbers = {str(name): float(value) for name, value in found["answer"].items()}
        intact = found["question"] == question and all(map(math.isfinite, numbers.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return numbers if intact else None


def keep(question: str, answer: dict[str, float]) -> None:
    """Store an answer. It is written completely or not at all."""
    path = _path(question)
    if path is None:
        return
    text = json.dumps({"question": question, "answer": answer})
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as part:
            part.write(text)
        os.replace(part.name, path)


def _path(question: str) -> Path | None:
    code, root = _code(), os.environ.get(ENVIRONMENT)
    if code is None or root == "":
        return None
    place = Path(root or platformdirs.user_cache_dir("tacit", appauthor=False)) / "accounting"
    return place / code / f"{hashlib.sha256(question.encode()).hexdigest()}.json"


@lru_cache(maxsize=1)
def _code() -> str | None:
    """A digest of the code that determines an answer, or None if the source cannot be read."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(" ".join(metadata.version(name) for name in _LIBRARIES).encode())
    try:
        for file in files:
            digest.update(file.name.encode() + file.read_bytes())
    except OSError:
        return None
    return digest.hexdigest()[:16] if files else None
