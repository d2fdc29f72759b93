"""The algorithms by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tacit.algorithms import isrl_dp, soteriafl
from tacit.algorithms.algorithm import Algorithm
from tacit.errors import unknown_name
from tacit.models.model import Model


@dataclass(frozen=True)
class AlgorithmEntry:
    """A named algorithm: the function that composes it, and where it is from."""

    make: Callable[..., Algorithm]
    paper: str
    summary: str

    @property
    def settings(self) -> frozenset[str]:
        """The parts and numbers that the algorithm takes, beside the model."""
        return frozenset(inspect.signature(self.make).parameters) - {"model"}


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "cdp-sgd": AlgorithmEntry(
        soteriafl.cdp_sgd, "SoteriaFL, Algorithm 1", "minibatch gradients, direct compression"
    ),
    "soteriafl-gd": AlgorithmEntry(
        soteriafl.soteriafl_gd,
        "SoteriaFL, Algorithm 3, option I, b = m",
        "full gradients, shifted compression",
    ),
    "soteriafl-sgd": AlgorithmEntry(
        soteriafl.soteriafl_sgd,
        "SoteriaFL, Algorithm 3, option I",
        "minibatch gradients, shifted compression",
    ),
    "soteriafl-svrg": AlgorithmEntry(
        soteriafl.soteriafl_svrg,
        "SoteriaFL, Algorithm 3, option II",
        "variance reduction by snapshots, shifted compression",
    ),
    "soteriafl-saga": AlgorithmEntry(
        soteriafl.soteriafl_saga,
        "SoteriaFL, Algorithm 3, option III",
        "variance reduction by a gradient table, shifted compression",
    ),
    "ldp-sgd": AlgorithmEntry(soteriafl.ldp_sgd, "SoteriaFL, section 6", "minibatch gradients, uncompressed"),
    "ldp-svrg": AlgorithmEntry(
        soteriafl.ldp_svrg, "SoteriaFL, section 6", "variance reduction by snapshots, uncompressed"
    ),
    "noisy-mb-sgd": AlgorithmEntry(
        isrl_dp.noisy_mb_sgd, "ISRL-DP, Algorithms 2 and 7", "minibatch gradients, projection, averaged output"
    ),
    "accelerated-mb-sgd": AlgorithmEntry(
        isrl_dp.accelerated_mb_sgd, "ISRL-DP, Algorithm 1", "accelerated minibatch SGD, in one stage or several"
    ),
    "noisy-local-sgd": AlgorithmEntry(
        isrl_dp.noisy_local_sgd, "ISRL-DP, appendix I", "several noisy steps at home, averaged models"
    ),
}


def algorithm_entry(name: str) -> AlgorithmEntry:
    """The entry of a name, or an error that lists the close ones."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def build_algorithm(name: str, model: Model, settings: dict[str, Any]) -> Algorithm:
    """An algorithm by name, from the settings that it takes; others are left aside."""
    entry = algorithm_entry(name)
    algorithm = entry.make(model, **{key: value for key, value in settings.items() if key in entry.settings})
    work = algorithm.work.with_noise(settings.get("noise", algorithm.work.noise))
    return replace(algorithm, work=work, participation=settings.get("participation", algorithm.participation))
