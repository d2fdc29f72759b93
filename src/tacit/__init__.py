"""Federated learning in which nobody has to trust the server.

>>> import tacit
>>> federation = tacit.load("digits", clients=10, unit_norm=True)
>>> model = tacit.build_model("softmax", federation)
>>> algorithm = tacit.soteriafl_gd(
...     model, bound=tacit.ClipNorm(1.0), compressor=tacit.parse_compressor("rand-k:0.2"), step=1.0)
>>> plan = tacit.plan(algorithm, federation, rounds=5, privacy=tacit.Target(epsilon=8, delta=1e-5))
>>> run = tacit.simulate(plan)
>>> run.guarantee.epsilon <= 8
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tacit._version import __version__

if TYPE_CHECKING:
    from tacit.algorithms.algorithm import Algorithm as Algorithm
    from tacit.algorithms.fedavg import dp_fedavg as dp_fedavg
    from tacit.algorithms.fedavg import dp_normfedavg as dp_normfedavg
    from tacit.algorithms.fedavg import fedavg as fedavg
    from tacit.algorithms.isrl_dp import accelerated_mb_sgd as accelerated_mb_sgd
    from tacit.algorithms.isrl_dp import noisy_local_sgd as noisy_local_sgd
    from tacit.algorithms.isrl_dp import noisy_mb_sgd as noisy_mb_sgd
    from tacit.algorithms.registry import build_algorithm as build_algorithm
    from tacit.algorithms.soteriafl import cdp_sgd as cdp_sgd
    from tacit.algorithms.soteriafl import ldp_sgd as ldp_sgd
    from tacit.algorithms.soteriafl import ldp_svrg as ldp_svrg
    from tacit.algorithms.soteriafl import soteriafl_gd as soteriafl_gd
    from tacit.algorithms.soteriafl import soteriafl_saga as soteriafl_saga
    from tacit.algorithms.soteriafl import soteriafl_sgd as soteriafl_sgd
    from tacit.algorithms.soteriafl import soteriafl_svrg as soteriafl_svrg
    from tacit.client.bounds import ClipEachCoordinate as ClipEachCoordinate
    from tacit.client.bounds import ClipNorm as ClipNorm
    from tacit.client.bounds import Normalise as Normalise
    from tacit.client.sampling import Full as Full
    from tacit.client.sampling import OnePass as OnePass
    from tacit.client.sampling import Poisson as Poisson
    from tacit.client.sampling import WithoutReplacement as WithoutReplacement
    from tacit.client.sampling import WithReplacement as WithReplacement
    from tacit.compress import parse_compressor as parse_compressor
    from tacit.data import load as load
    from tacit.engine.plan import Plan as Plan
    from tacit.engine.plan import make_plan as make_plan
    from tacit.engine.plan import plan as plan
    from tacit.engine.recipe import Recipe as Recipe
    from tacit.engine.run import Run as Run
    from tacit.engine.simulate import simulate as simulate
    from tacit.federation import Federation as Federation
    from tacit.models.registry import build_model as build_model
    from tacit.privacy import Guarantee as Guarantee
    from tacit.privacy import Target as Target
    from tacit.report.curves import plot_run as plot_run
    from tacit.report.labels import plot_labels as plot_labels

# Names are looked up when they are first used, so that `tacit --help` does not wait for PyTorch.
_HOMES = {
    "tacit.algorithms.algorithm": ["Algorithm"],
    "tacit.algorithms.fedavg": ["dp_fedavg", "dp_normfedavg", "fedavg"],
    "tacit.algorithms.isrl_dp": ["accelerated_mb_sgd", "noisy_local_sgd", "noisy_mb_sgd"],
    "tacit.algorithms.registry": ["build_algorithm"],
    "tacit.algorithms.soteriafl": [
        "cdp_sgd",
        "ldp_sgd",
        "ldp_svrg",
        "soteriafl_gd",
        "soteriafl_saga",
        "soteriafl_sgd",
        "soteriafl_svrg",
    ],
    "tacit.client.bounds": ["ClipEachCoordinate", "ClipNorm", "Normalise"],
    "tacit.client.sampling": ["Full", "OnePass", "Poisson", "WithReplacement", "WithoutReplacement"],
    "tacit.compress": ["parse_compressor"],
    "tacit.data": ["load"],
    "tacit.engine.plan": ["Plan", "make_plan", "plan"],
    "tacit.engine.recipe": ["Recipe"],
    "tacit.engine.run": ["Run"],
    "tacit.engine.simulate": ["simulate"],
    "tacit.federation": ["Federation"],
    "tacit.models.registry": ["build_model"],
    "tacit.privacy": ["Guarantee", "Target"],
    "tacit.report.curves": ["plot_run"],
    "tacit.report.labels": ["plot_labels"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
