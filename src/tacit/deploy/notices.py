"""Telling people what is waited for: early, and then now and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

EVERY_SECONDS = 30.0


@dataclass
class Notices:
    """What one wait has to tell: first after `first_seconds`, from then on every half minute."""

    notify: Callable[[str], None]
    first_seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _due: float = field(init=False)

    def __post_init__(self) -> None:
        self._due = self.clock() + self.first_seconds

    def tell(self, what: str) -> None:
        """Say it, if it is time to."""
        if self.clock() >= self._due:
            self._due = self.clock() + EVERY_SECONDS
            self.notify(what)
