"""What the tests of this room share: generators by seed, and one compressor of every kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tacit.noise.randomness import Purpose, Randomness

Generators = Callable[..., list[np.random.Generator]]

SPECS = [
    "identity",
    "rand-k:0.05",
    "rand-k:3",
    "rand-k:0.9",
    "rand-k:1.0",
    "qsgd:1",
    "qsgd:16",
    "qsgd:32767",
    "natural",
    "rand-k:0.4+qsgd:5",
    "rand-k:3+natural",
]

BIASED = ["top-k:0.3", "top-k:3", "top-k:1.0"]


@pytest.fixture
def generators() -> Generators:
    """`generators(n, seed=0)`: one fresh generator for each of n clients."""

    def make(clients: int, seed: int = 0) -> list[np.random.Generator]:
        randomness = Randomness(seed)
        return [randomness.generator(Purpose.COMPRESS, client=client) for client in range(clients)]

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "spec" in metafunc.fixturenames:
        unbiased_only = metafunc.module.__name__.endswith(("test_uplink", "test_chosen"))
        metafunc.parametrize("spec", SPECS if unbiased_only else [*SPECS, *BIASED])
