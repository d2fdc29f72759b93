"""Randomised response as a score: a second kind of message, whose clones can be enumerated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tacit.privacy.clones import NEGLIGIBLE, Array


@dataclass(frozen=True)
class PureScores:
    """+-tanh(epsilon/2) with probability 1/2 each: the worst epsilon-private randomiser."""

    epsilon: float

    @property
    def reach(self) -> float:
        # Rounded up: near one, the last digit of a score is a large part of its loss.
        return min(1.0, math.tanh(self.epsilon / 2) * (1 + 2.0**-51))

    def means(self, sizes: Iterable[int]) -> Iterator[tuple[Array, Array]]:
        for size in sizes:
            heads = stats.binom(size, 0.5)
            fewest = int(heads.ppf(NEGLIGIBLE))
            ones = np.arange(fewest, size - fewest + 1)
            yield self.reach * (2 * ones / size - 1), heads.pmf(ones)
