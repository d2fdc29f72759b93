"""The algorithms by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tacit.algorithms import error_feedback, fed_spa, fedavg, isrl_dp, scaffold, shuffled, soteriafl
from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.settings import About, Make, Settings, read_parts, settings_of, takes_part
from tacit.algorithms.shuffler import Shuffler
from tacit.compress.chain import Chain
from tacit.compress.kept import KeptCoordinates
from tacit.errors import RequestError, unknown_name
from tacit.models.model import Model
from tacit.noise.additive import Noise
from tacit.theory.asked import Theory
from tacit.theory.fed_spa import FED_SPA
from tacit.theory.isrl_dp.choices import choose_accelerated, choose_descent
from tacit.theory.isrl_dp.utility import accelerated_utility, descent_utility, local_utility
from tacit.theory.norm_fedavg import CLIPPING, NORMALISING
from tacit.theory.soteriafl.choices import choose as choose_by_soteriafl
from tacit.theory.soteriafl.utility import utility_of as soteriafl_utility

SOTERIAFL = Theory(soteriafl_utility, choose_by_soteriafl)
DESCENT = Theory(descent_utility, choose_descent)
ACCELERATED = Theory(accelerated_utility, choose_accelerated)
LOCAL = Theory(local_utility)


@dataclass(frozen=True)
class AlgorithmEntry:
    """A named algorithm: the function that composes it, and its source."""

    make: Make
    """its signature defines the settings and their defaults"""
    paper: str
    """where it is from"""
    summary: str
    """what it does, in a few words"""
    private: bool = True
    """False for algorithms without bound and noise, which cannot promise anything"""
    client_coins: bool = False
    """whether clients take part by their own secret coins, unless the promise is against the server"""
    on_grid: bool = False
    """whether messages are whole steps of a grid, which clients' weights would move them off"""
    theory: Theory | None = None
    """the results of its paper: they choose the settings a recipe leaves open and state what a run achieves"""

    @property
    def settings(self) -> frozenset[str]:
        """The names of the settings that the algorithm takes."""
        return frozenset(settings_of(self.make))

    @property
    def shuffled(self) -> bool:
        """Whether its messages must pass through a shuffler."""
        return takes_part(self.make, Shuffler)

    @property
    def weighable(self) -> bool:
        """Whether clients may have different weights; if not, their messages have to be alike."""
        return not (self.client_coins or self.shuffled or self.on_grid)


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "cdp-sgd": AlgorithmEntry(
        soteriafl.cdp_sgd,
        "SoteriaFL, Algorithm 1",
        "minibatch gradients, direct compression",
        theory=SOTERIAFL,
    ),
    "soteriafl-gd": AlgorithmEntry(
        soteriafl.soteriafl_gd,
        "SoteriaFL, Algorithm 3, option I, b = m",
        "full gradients, shifted compression",
        theory=SOTERIAFL,
    ),
    "soteriafl-sgd": AlgorithmEntry(
        soteriafl.soteriafl_sgd,
        "SoteriaFL, Algorithm 3, option I",
        "minibatch gradients, shifted compression",
        theory=SOTERIAFL,
    ),
    "soteriafl-svrg": AlgorithmEntry(
        soteriafl.soteriafl_svrg,
        "SoteriaFL, Algorithm 3, option II",
        "variance reduction by snapshots, shifted compression",
        theory=SOTERIAFL,
    ),
    "soteriafl-saga": AlgorithmEntry(
        soteriafl.soteriafl_saga,
        "SoteriaFL, Algorithm 3, option III",
        "variance reduction by a gradient table, shifted compression",
        theory=SOTERIAFL,
    ),
    "ldp-sgd": AlgorithmEntry(
        soteriafl.ldp_sgd,
        "SoteriaFL, section 6",
        "minibatch gradients, uncompressed",
        theory=SOTERIAFL,
    ),
    "ldp-svrg": AlgorithmEntry(
        soteriafl.ldp_svrg,
        "SoteriaFL, section 6",
        "variance reduction by snapshots, uncompressed",
        theory=SOTERIAFL,
    ),
    "noisy-mb-sgd": AlgorithmEntry(
        isrl_dp.noisy_mb_sgd,
        "ISRL-DP, Algorithms 2 and 7",
        "minibatch gradients, projection, averaged output",
        theory=DESCENT,
    ),
    "accelerated-mb-sgd": AlgorithmEntry(
        isrl_dp.accelerated_mb_sgd,
        "ISRL-DP, Algorithm 1",
        "accelerated minibatch SGD, in one stage or several",
        theory=ACCELERATED,
    ),
    "noisy-local-sgd": AlgorithmEntry(
        isrl_dp.noisy_local_sgd,
        "ISRL-DP, appendix I",
        "several noisy local steps, averaged models",
        theory=LOCAL,
    ),
    "mb-sgd": AlgorithmEntry(
        isrl_dp.mb_sgd,
        "ISRL-DP, Algorithm 2 without noise",
        "minibatch gradients, averaged output",
        private=False,
        theory=DESCENT,
    ),
    "accelerated": AlgorithmEntry(
        isrl_dp.accelerated,
        "ISRL-DP, Algorithm 1 without noise",
        "accelerated minibatch SGD",
        private=False,
        theory=ACCELERATED,
    ),
    "local-sgd": AlgorithmEntry(
        isrl_dp.local_sgd,
        "ISRL-DP, appendix I without noise",
        "several local steps, averaged models",
        private=False,
        theory=LOCAL,
    ),
    "shuffled-mb-sgd": AlgorithmEntry(
        shuffled.shuffled_mb_sgd,
        "ISRL-DP, Theorem 5.1",
        "noisy minibatch SGD behind a shuffler",
        theory=DESCENT,
    ),
    "shuffled-accelerated": AlgorithmEntry(
        shuffled.shuffled_accelerated,
        "ISRL-DP, Algorithms 4 to 6",
        "accelerated, on sums of single bits behind a shuffler",
        theory=ACCELERATED,
    ),
    "fedavg": AlgorithmEntry(
        fedavg.fedavg,
        "DP-NormFedAvg, appendix A",
        "several local steps, averaged updates",
        private=False,
        client_coins=True,
        theory=CLIPPING,
    ),
    "dp-fedavg": AlgorithmEntry(
        fedavg.dp_fedavg,
        "DP-NormFedAvg, Algorithm 1, option (i)",
        "several local steps, every client's update clipped",
        client_coins=True,
        theory=CLIPPING,
    ),
    "dp-normfedavg": AlgorithmEntry(
        fedavg.dp_normfedavg,
        "DP-NormFedAvg, Algorithm 1, option (ii)",
        "several local steps, every client's update normalised",
        client_coins=True,
        theory=NORMALISING,
    ),
    "fed-spa": AlgorithmEntry(
        fed_spa.fed_spa,
        "Fed-SPA, Algorithm 1",
        "noisy local steps on k coordinates, adaptive server",
        theory=FED_SPA,
    ),
    "dp-fed": AlgorithmEntry(fed_spa.dp_fed, "Fed-SPA, section 5", "noisy local steps, averaged updates"),
    "cpsgd": AlgorithmEntry(
        fed_spa.cpsgd,
        "Fed-SPA, section 5; cpSGD",
        "minibatch gradients on a grid, coins as noise",
        on_grid=True,
    ),
    "dp-scaffold": AlgorithmEntry(
        scaffold.dp_scaffold,
        "DP-SCAFFOLD, Algorithm 1",
        "noisy local steps, steered by control variates against drift",
    ),
    "ef21-sgdm": AlgorithmEntry(
        error_feedback.ef21_sgdm,
        "EF21-SGDM, Algorithm 1",
        "averaged minibatch gradients, error feedback, top-k messages",
    ),
}


def algorithm_entry(name: str) -> AlgorithmEntry:
    """The entry of that name. If there is none, the error suggests similar names."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


def build_algorithm(
    name: str, model: Model, settings: Settings, about: About, noise: Noise | None = None
) -> Algorithm:
    """An algorithm by name, from plain settings (`{"batch": 0.2, "compressor": "natural"}`).

    Args:
        name: see `ALGORITHMS`.
        model: the loss that is trained.
        settings: settings of the algorithm. Settings it does not take are refused; those left out get the
            defaults of its signature.
        about: public numbers of the run that parts may depend on.
        noise: the kind of noise; seeded Gaussian noise by default.
    """
    make = algorithm_entry(name).make
    algorithm = replace(make(model, **read_parts(name, make, settings, about)), participation=about.participation)
    _check_kept(algorithm)
    return algorithm if noise is None else replace(algorithm, work=algorithm.work.with_noise(noise))


def _check_kept(algorithm: Algorithm) -> None:
    """Refuses a sparse message that would carry more coordinates than there are: it would compress nothing."""
    compressor, dim = algorithm.uplink.compressor, sum(algorithm.work.parts.values())
    sparse = compressor.first if isinstance(compressor, Chain) else compressor
    if isinstance(sparse, KeptCoordinates) and sparse.count is not None and sparse.count > dim:
        raise RequestError(
            f"compressor {compressor.spec()!r} keeps {sparse.count} coordinates of a message, which has {dim}: "
            f"ask for fewer, for a share such as {sparse.name}:0.1, or for identity"
        )
