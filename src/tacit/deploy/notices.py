"""Telling people what a wait is for: once early, then every half minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

EVERY_SECONDS = 30.0


@dataclass
class Notices:
    """The notices of one wait: the first after `first_seconds`, then at most one every half minute."""

    notify: Callable[[str], None]
    first_seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _due: float = field(init=False)

    def __post_init__(self) -> None:
        self._due = self.clock() + self.first_seconds

    def tell(self, what: str) -> None:
        """Pass `what` to `notify` if a notice is due; otherwise do nothing."""
        if self.clock() >= self._due:
            self._due = self.clock() + EVERY_SECONDS
            self.notify(what)
