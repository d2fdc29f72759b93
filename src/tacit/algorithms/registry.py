"""The algorithms by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tacit.algorithms import fed_spa, fedavg, isrl_dp, shuffled, soteriafl
from tacit.algorithms.algorithm import Algorithm
from tacit.errors import unknown_name
from tacit.models.model import Model


@dataclass(frozen=True)
class AlgorithmEntry:
    """A named algorithm: the function that composes it, and where it is from."""

    make: Callable[..., Algorithm]
    paper: str
    summary: str
    private: bool = True
    """False for those that have no bound and no noise, and can promise nothing"""
    sampling: str = "poisson"
    """how records are drawn unless a recipe says otherwise"""
    schedule: str = "constant"
    """how steps change with the rounds unless a recipe says otherwise"""
    client_coins: bool = False
    """whether clients take part by secret coins of their own, unless the promise is against the server"""

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
    "mb-sgd": AlgorithmEntry(
        isrl_dp.mb_sgd,
        "ISRL-DP, Algorithm 2 without noise",
        "minibatch gradients, averaged output",
        private=False,
    ),
    "accelerated": AlgorithmEntry(
        isrl_dp.accelerated, "ISRL-DP, Algorithm 1 without noise", "accelerated minibatch SGD", private=False
    ),
    "local-sgd": AlgorithmEntry(
        isrl_dp.local_sgd,
        "ISRL-DP, appendix I without noise",
        "several steps at home, averaged models",
        private=False,
    ),
    "shuffled-mb-sgd": AlgorithmEntry(
        shuffled.shuffled_mb_sgd,
        "ISRL-DP, Theorem 5.1",
        "noisy minibatch SGD behind a shuffler",
        sampling="without-replacement",
    ),
    "shuffled-accelerated": AlgorithmEntry(
        shuffled.shuffled_accelerated,
        "ISRL-DP, Algorithms 4 to 6",
        "accelerated, on sums of single bits behind a shuffler",
        sampling="one-pass",
    ),
    "fedavg": AlgorithmEntry(
        fedavg.fedavg,
        "DP-NormFedAvg, appendix A",
        "several steps at home, averaged updates",
        private=False,
        sampling="full",
        client_coins=True,
    ),
    "dp-fedavg": AlgorithmEntry(
        fedavg.dp_fedavg,
        "DP-NormFedAvg, Algorithm 1, option (i)",
        "several steps at home, every client's update clipped",
        sampling="full",
        client_coins=True,
    ),
    "dp-normfedavg": AlgorithmEntry(
        fedavg.dp_normfedavg,
        "DP-NormFedAvg, Algorithm 1, option (ii)",
        "several steps at home, every client's update normalised",
        sampling="full",
        client_coins=True,
    ),
    "fed-spa": AlgorithmEntry(
        fed_spa.fed_spa,
        "Fed-SPA, Algorithm 1",
        "noisy steps at home on k coordinates, adaptive server",
        schedule="inverse-sqrt",
    ),
    "dp-fed": AlgorithmEntry(
        fed_spa.dp_fed, "Fed-SPA, section 5", "noisy steps at home, averaged updates", schedule="inverse-sqrt"
    ),
    "cpsgd": AlgorithmEntry(
        fed_spa.cpsgd, "Fed-SPA, section 5; cpSGD", "minibatch gradients on a grid, coins as noise"
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
