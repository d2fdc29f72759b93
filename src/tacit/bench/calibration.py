"""Times the derivation of noise at the papers' settings: for the first time, and again from the cache."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dp_accounting import DpEvent

from tacit.bench.measure import BenchReport, Timing
from tacit.client.estimators import DIFFERENCE_BOUND
from tacit.client.sampling import Full, Poisson, Reach, Sampling, WithoutReplacement, WithReplacement
from tacit.privacy.accountant import accounting, calibrate
from tacit.privacy.accountant import cache as answers
from tacit.privacy.promises.terms import Adjacency

Setting = tuple[Callable[[float], DpEvent], float, Adjacency]


def bench(*, quick: bool = False, data_dir: Path | None = None) -> BenchReport:
    """Times every setting once with empty caches, then once more as another process would find it."""
    settings = _settings()
    if quick:
        settings = dict(list(settings.items())[:2])
    timings = []
    with _own_cache():
        for name, setting in settings.items():
            timings.append(_timed(f"{name}, cold", setting))
            timings.append(_timed(f"{name}, cached", setting))
    return BenchReport("calibration", "the least noise for a target", tuple(timings), {"delta": 1e-5})


def _settings() -> dict[str, Setting]:
    """The papers' records, batches and rounds; estimators with memory are timed with both kinds of batch."""
    replace, either = Adjacency.REPLACE_ONE, (1.0, 8.0)
    made: dict[str, Setting] = {}
    for epsilon in either:
        made |= {
            f"SoteriaFL, gradient descent, epsilon {epsilon:g}": (_of(Full(), 3256, 2000), epsilon, replace),
            f"SoteriaFL, SGD, epsilon {epsilon:g}": (_of(Poisson(256), 6000, 3000), epsilon, replace),
            f"SoteriaFL, SVRG, epsilon {epsilon:g}": (_looking_back(Poisson(256), 6000, 3000), epsilon, replace),
            f"SoteriaFL, SVRG, batches of exactly 256, epsilon {epsilon:g}": (
                _looking_back(WithoutReplacement(256), 6000, 3000), epsilon, replace,
            ),
            f"ISRL-DP, MB-SGD, epsilon {epsilon:g}": (_of(WithReplacement(50), 1000, 50), epsilon, replace),
            f"ISRL-DP, Local SGD, epsilon {epsilon:g}": (_of(WithReplacement(32), 800, 500), epsilon, replace),
            f"Fed-SPA, Fed-SPA, epsilon {epsilon:g}": (
                _of(WithoutReplacement(10), 600, 13500), epsilon, replace,
            ),
            f"DP-NormFedAvg, DP-NormFedAvg, epsilon {epsilon:g}": (
                _of(Poisson(0.2), 3000, 100), epsilon, Adjacency.ADD_REMOVE,
            ),
        }  # fmt: skip
    return made


def _of(sampling: Sampling, size: int, rounds: int) -> Callable[[float], DpEvent]:
    return lambda z: sampling.event(size, z, rounds)


def _looking_back(sampling: Sampling, size: int, rounds: int) -> Callable[[float], DpEvent]:
    rate = sampling.rate(size)
    return lambda z: sampling.event(size, z, rounds, Reach(DIFFERENCE_BOUND, rate, rate))


def _timed(name: str, setting: Setting) -> Timing:
    make_event, epsilon, adjacency = setting
    forget()
    wall, cpu = time.perf_counter(), time.process_time()
    calibrate.calibrate_noise(make_event, epsilon=epsilon, delta=1e-5, adjacency=adjacency)
    return Timing(name, time.process_time() - cpu, time.perf_counter() - wall)


def forget() -> None:
    """Clears in-process caches, as in a process that has just started."""
    calibrate.forget()
    accounting._epsilon.cache_clear()
    accounting._log_delta.cache_clear()


@contextmanager
def _own_cache() -> Iterator[None]:
    """A temporary, empty cache."""
    before = os.environ.get(answers.ENVIRONMENT)
    with tempfile.TemporaryDirectory() as place:
        os.environ[answers.ENVIRONMENT] = place
        try:
            yield
        finally:
            del os.environ[answers.ENVIRONMENT]
            if before is not None:
                os.environ[answers.ENVIRONMENT] = before
