"""A party of tacit's that kills itself, or spoils its own messages, as told by its environment.

TACIT_TEST_DIE = "MOMENT:N" kills the process, as kill -9 does, when it reaches a moment for the N-th time; with a
path in the place of N, when it reaches that moment and the file is there.
TACIT_TEST_SLOW = "FILE" has a server wait a second before each round, until the file is there.
TACIT_TEST_RAISE = "WORDS" has the computation fail with these words and a record from the second round on.
TACIT_TEST_KEEP = "FILE" has a server write down every request and answer, as lines of hexadecimal numbers.
TACIT_TEST_SPOIL = "SEED" damages, repeats, delays and duplicates what a silo answers, about every second time.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests import warm

COLLECTING = "collecting"
"""Between asking and the first answer."""


def _dying(order: str) -> Callable[[str], None]:
    moment, _, when = order.rpartition(":")
    reached: Counter[str] = Counter()

    def due(here: str) -> bool:
        return reached[here] == int(when) if when.isdigit() else os.path.exists(when)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def at(here: str) -> None:
        reached[here] += 1
        if here == moment and due(here):
            die()
        if here == "before asking" and moment == COLLECTING and due(here):
            threading.Timer(0.05, die).start()

    return at


def _slow(quick: str, here: str) -> None:
    if here == "before asking" and not os.path.exists(quick):
        time.sleep(1)


def _spoiling(seed: str, answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    generator, last = random.Random(seed), [b"nothing yet"]

    def spoilt(request: bytes) -> bytes:
        frame = answer(request)
        before, last[0] = last[0], frame
        match generator.choice(["damage", "replay", "delay", "duplicate", "none", "none", "none"]):
            case "damage":
                place = generator.randrange(len(frame))
                return frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]
            case "replay":
                return before
            case "delay":
                time.sleep(2.5)
            case "duplicate":
                assert answer(request) == frame
        return frame

    return spoilt


class _Keeping:
    """A backend whose requests and answers are written down."""

    def __init__(self, backend: Any, path: str) -> None:
        self._backend, self._path = backend, path

    def run_round(self, request: bytes, **options: Any) -> Any:
        answers = self._backend.run_round(request, **options)
        with open(self._path, "a") as file:
            for site, answer in answers.items():
                if isinstance(answer, bytes):
                    file.write(f"{site} {request.hex()} {answer.hex()}\n")
        return answers


@contextlib.contextmanager
def _kept(make: Callable[..., Any], path: str, *arguments: Any, **settings: Any) -> Iterator[_Keeping]:
    with make(*arguments, **settings) as backend:
        yield _Keeping(backend, path)


def _have_it_fail(words: str) -> None:
    from tacit.deploy import computation

    compute = computation.client_round

    def failing(algorithm: Any, point: Any, cohort: Any, *others: Any) -> Any:
        if cohort.round:
            raise ValueError(f"{words}: {cohort.federation.features[0].tolist()}")
        return compute(algorithm, point, cohort, *others)

    computation.client_round = failing


def meddled(*words: str) -> None:
    """Run the command `tacit WORDS` in this process, as told by the environment, and leave it."""
    from tacit.deploy.flare import parties

    if order := os.environ.pop("TACIT_TEST_DIE", ""):
        at = _dying(order)

        class Dying(parties.Silo):
            def __init__(self, *arguments: Any, **settings: Any) -> None:
                super().__init__(*arguments, at=at, **settings)

        parties.Silo = Dying  # type: ignore[misc]  # in this process alone
        parties.Server = partial(parties.Server, at=at)  # type: ignore[misc,assignment]  # likewise
    if quick := os.environ.pop("TACIT_TEST_SLOW", ""):
        parties.Server = partial(parties.Server, at=partial(_slow, quick))  # type: ignore[misc,assignment]  # likewise
    if path := os.environ.pop("TACIT_TEST_KEEP", ""):
        parties.flare_backend = partial(_kept, parties.flare_backend, path)
    if seed := os.environ.pop("TACIT_TEST_SPOIL", ""):
        honest = parties.answering
        parties.answering = lambda answer, home: honest(_spoiling(seed, answer), home)
    if said := os.environ.pop("TACIT_TEST_RAISE", ""):
        _have_it_fail(said)
    warm.tacit(*words)
