"""Small versions of all algorithms that promise something, as an audit plays them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.error_feedback import ef21_sgdm
from tacit.algorithms.fed_spa import cpsgd, dp_fed, fed_spa
from tacit.algorithms.fedavg import dp_fedavg, dp_normfedavg
from tacit.algorithms.isrl_dp import noisy_local_sgd
from tacit.algorithms.scaffold import dp_scaffold
from tacit.algorithms.shuffled import shuffled_accelerated, shuffled_mb_sgd
from tacit.algorithms.shuffler import Shuffler
from tacit.algorithms.soteriafl import soteriafl_gd, soteriafl_saga, soteriafl_sgd, soteriafl_svrg
from tacit.algorithms.trust import Aggregator, Nobody
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.client.sampling import Full, OnePass, Poisson, Sampling, WithoutReplacement, WithReplacement
from tacit.client.work import Work
from tacit.compress import Direct, Identity, TopK, parse_compressor
from tacit.engine.audit import audit
from tacit.engine.audit.model import GradientGame
from tacit.engine.audit.promises import Promise, promises_of
from tacit.privacy import Target
from tacit.privacy.audit import AuditResult
from tacit.schedules import Constant, InverseSqrt
from tacit.server.accelerated import Stage
from tacit.server.participation import PoissonClients
from tacit.server.projection import Everywhere
from tacit.server.update import Descent

CLIP = ClipNorm(1.0)
MODEL = GradientGame(4)
TARGET = Target(4.0, 1e-5)
DIM = 16
"""Of games: every message has so many numbers whose noise can be measured."""


@dataclass(frozen=True)
class Audited:
    """An algorithm, and the run in which it is audited."""

    algorithm: Algorithm
    run: dict[str, Any] = field(default_factory=lambda: {"records": 4, "rounds": 3})

    def audit(self, **settings: Any) -> AuditResult:
        """With few trials, unless told otherwise."""
        return audit(self.algorithm, **{"privacy": TARGET, "trials": 500, "dim": DIM, **self.run, **settings})


def promises(audited: Audited, **settings: Any) -> list[Promise]:
    """What is promised there, as games."""
    asked = {"clients": 1, "privacy": TARGET, "whole_clients": None, "dim": DIM, "seed": 0}
    return promises_of(audited.algorithm, **{**asked, **audited.run, **settings})


def plain(work: Work) -> Algorithm:
    """Work whose messages are sent as they are."""
    return Algorithm(type(work).__name__, work, Direct(Identity()), Descent(1.0))


def sgd(sampling: Sampling, compressor: str = "identity", bound: Bound = CLIP) -> Algorithm:
    """Minibatch gradients behind a shifted compressor."""
    return soteriafl_sgd(MODEL, bound=bound, sampling=sampling, compressor=parse_compressor(compressor), step=1.0)


def gradients(sampling: Sampling, compressor: str = "identity", bound: Bound = CLIP) -> Audited:
    """An audit of minibatch gradients."""
    return Audited(sgd(sampling, compressor, bound))


_LOCAL: dict[str, Any] = {"bound": CLIP, "sampling": Poisson(0.5), "local_steps": 2}
_SLOWLY: dict[str, Any] = {"local_step": 0.1, "step": 1.0, "schedule": InverseSqrt()}
_FEDAVG: dict[str, Any] = {
    "clip_norm": 1.0, "sampling": Full(), "local_steps": 2, "momentum": 0.0, "output": lambda update: update,
    **_SLOWLY,
}  # fmt: skip
_CONVEX: dict[str, Any] = {"bound": CLIP, "projection": Everywhere()}


def by_coins(algorithm: Algorithm) -> Algorithm:
    """Three of the clients, by coins."""
    return replace(algorithm, participation=PoissonClients(3.0))


def shuffled(sampling: Sampling, records: int) -> Audited:
    """Gaussian messages of ten clients, mixed."""
    algorithm = shuffled_mb_sgd(MODEL, sampling=sampling, step=0.1, shuffler=Shuffler(10, records), **_CONVEX)
    run = {"records": records, "rounds": 2, "clients": 10, "privacy": Target(1.0, 1e-5)}
    return Audited(algorithm, run)


def coins(sampling: Sampling, records: int) -> Audited:
    """Coins of ten clients, added up."""
    parts: dict[str, Any] = {
        "stages": (Stage(2, 1.0),),
        "strong_convexity": 0.0,
        "shuffler": Shuffler(10, records),
        **_CONVEX,
    }
    algorithm = shuffled_accelerated(GradientGame(1), sampling=sampling, **parts)
    return Audited(algorithm, {"records": records, "rounds": 2, "clients": 10, "dim": 3})


_CROWD = {"records": 2, "rounds": 3, "clients": 6}

ALGORITHMS: dict[str, Audited] = {
    "gd": Audited(soteriafl_gd(MODEL, bound=CLIP, compressor=Identity(), step=1.0)),
    "gd, rand-k": Audited(soteriafl_gd(MODEL, bound=CLIP, compressor=parse_compressor("rand-k:0.5"), step=1.0)),
    "sgd": gradients(Poisson(0.5)),
    "sgd, qsgd": gradients(Poisson(0.5), "qsgd:4"),
    "sgd, natural": gradients(Poisson(0.5), "rand-k:0.5+natural"),
    "sgd, normalised": gradients(Poisson(0.5), bound=Normalise(1.0)),
    "sgd, each coordinate": gradients(Poisson(0.5), bound=ClipEachCoordinate(1.0)),
    "sgd, without replacement": gradients(WithoutReplacement(2)),
    "sgd, with replacement": gradients(WithReplacement(2)),
    "sgd, one pass": gradients(OnePass(1)),
    "svrg": Audited(
        soteriafl_svrg(
            MODEL, bound=CLIP, sampling=Poisson(0.5), snapshot_probability=0.3, compressor=Identity(), step=1.0
        )
    ),
    "saga": Audited(soteriafl_saga(MODEL, bound=CLIP, sampling=Poisson(0.5), compressor=Identity(), step=1.0)),
    "local steps": Audited(noisy_local_sgd(MODEL, step=0.1, **_LOCAL)),
    "fed-spa": Audited(fed_spa(MODEL, compressor=parse_compressor("rand-k:0.5"), **_LOCAL, **_SLOWLY)),
    "dp-scaffold": Audited(dp_scaffold(MODEL, **_LOCAL, **_SLOWLY)),
    "dp-scaffold, rand-k": Audited(
        dp_scaffold(MODEL, compressor=parse_compressor("rand-k:0.5"), **_LOCAL, **_SLOWLY)
    ),
    "ef21-sgdm": Audited(ef21_sgdm(MODEL, bound=CLIP, sampling=Poisson(0.5), compressor=TopK(fraction=0.5))),
    "dp-fed": Audited(dp_fed(MODEL, **_LOCAL, **_SLOWLY)),
    "cpsgd": Audited(cpsgd(MODEL, bound=CLIP, sampling=Poisson(0.5), bits=16, step=1.0, schedule=Constant())),
    "cpsgd, rotated": Audited(
        cpsgd(MODEL, bound=CLIP, sampling=Poisson(0.5), bits=16, rotate=True, step=1.0, schedule=Constant())
    ),
    "dp-fedavg": Audited(by_coins(dp_fedavg(MODEL, trust=Aggregator(3.0), **_FEDAVG)), _CROWD),
    "dp-normfedavg": Audited(by_coins(dp_normfedavg(MODEL, trust=Aggregator(3.0), **_FEDAVG)), _CROWD),
    "dp-fedavg, server": Audited(dp_fedavg(MODEL, trust=Nobody(), **_FEDAVG), _CROWD),
    "shuffled": shuffled(Full(), 1),
    "shuffled, batches": shuffled(WithoutReplacement(1), 2),
    "coins": coins(Full(), 1),
    "coins, one pass": coins(OnePass(1), 2),
    "hybrid": Audited(sgd(Poisson(0.5)), {"records": 3, "rounds": 2, "whole_clients": Target(20.0, 1e-5)}),
}
"""Everything that promises something, but for reports of the loss, which are no algorithm"""
