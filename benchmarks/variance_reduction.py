"""What the account of SVRG and SAGA is worth: training at one true epsilon under the bounds on a record's reach.

    python benchmarks/variance_reduction.py --data-dir DIR      # 14 minutes of one core; prints Markdown

Ten clients that share the records at random, messages compressed by rand-k (a fifth), gradients clipped to 1.
Each row has its own step: of two, the one with the least loss at seed 0, whose run counts. The three accounts:

    minibatch       soteriafl-sgd, whose batches have no memory
    two norms       a contribution is known by its length, drawn or not (Lemma A); no bound on differences
    with averages   what is charged now: the average contribution is short, and differences are bounded
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.soteriafl import soteriafl_saga, soteriafl_sgd, soteriafl_svrg
from tacit.client.bounds import ClipNorm
from tacit.client.estimators import Saga, Svrg
from tacit.client.sampling import Poisson, Reach
from tacit.compress import parse_compressor
from tacit.data import load
from tacit.engine.plan import plan
from tacit.engine.run import Run
from tacit.engine.simulate import simulate
from tacit.models.registry import build_model
from tacit.privacy import Target

CLIENTS, SEEDS, COMPRESSOR, CLIP_NORM, DELTA = 10, 3, "rand-k:0.2", 1.0, 1e-5
RATE, ROUNDS, EPSILON, EVALUATIONS = 0.05, 200, 1.0, 10


@dataclass(frozen=True)
class Setting:
    """A data set, what is trained on it, and the steps that are tried."""

    data: str
    model: str
    steps: tuple[float, ...]


SETTINGS = (Setting("a9a", "logistic", (0.3, 1.0)), Setting("mnist", "network", (0.5, 1.5)))


class _TwoNorms:
    """An estimator whose contributions are known by their two lengths alone: 2 - q when drawn, q when not."""

    def reach(self, rate: float) -> Reach:
        return Reach(drawn=2 * (1 - rate), always=rate)


class _SvrgByNorms(_TwoNorms, Svrg):
    pass


class _SagaByNorms(_TwoNorms, Saga):
    pass


def by_two_norms(algorithm: Algorithm) -> Algorithm:
    """The same with the account of two norms, and differences as they are."""
    work: Any = algorithm.work
    old: Any = work.estimator
    if isinstance(old, Svrg):
        estimator: Any = _SvrgByNorms(old.sampling, old.snapshot_probability, difference_bound=2.0)
    else:
        estimator = _SagaByNorms(old.sampling, difference_bound=2.0)
    return replace(algorithm, work=replace(work, estimator=estimator))


def algorithms(model: Any, step: float) -> Iterator[tuple[str, str, Algorithm]]:
    """Name, account, and parts."""
    parts: dict[str, Any] = {
        "bound": ClipNorm(CLIP_NORM),
        "compressor": parse_compressor(COMPRESSOR),
        "sampling": Poisson(RATE),
        "step": step,
    }
    svrg = soteriafl_svrg(model, snapshot_probability=RATE, **parts)
    saga = soteriafl_saga(model, **parts)
    yield "soteriafl-sgd", "minibatch", soteriafl_sgd(model, **parts)
    for name, algorithm in (("soteriafl-svrg", svrg), ("soteriafl-saga", saga)):
        yield name, "two norms", by_two_norms(algorithm)
        yield name, "with averages", algorithm


def trained(algorithm: Algorithm, federation: Any, seed: int) -> Run:
    """One run at the true epsilon."""
    made = plan(algorithm, federation, rounds=ROUNDS, privacy=Target(EPSILON, DELTA), seed=seed)
    return simulate(made, evaluate_every=ROUNDS // EVALUATIONS)


def rows(setting: Setting, data_dir: str) -> Iterator[str]:
    """Of the table, in Markdown."""
    federation = load(setting.data, clients=CLIENTS, partition="iid", data_dir=data_dir)
    model = build_model(setting.model, federation)
    made = [list(algorithms(model, step)) for step in setting.steps]
    for of_each_step in zip(*made, strict=True):
        first = [(trained(algorithm, federation, 0), algorithm) for _, _, algorithm in of_each_step]
        step, (run, algorithm) = min(
            zip(setting.steps, first, strict=True), key=lambda tried: tried[1][0].history.rows[-1].train_loss
        )
        runs = [run, *(trained(algorithm, federation, seed) for seed in range(1, SEEDS))]
        last = [run.history.rows[-1] for run in runs]
        accuracy = [row.test_metric for row in last if row.test_metric is not None]
        norms = [row.grad_norm_sq_mean for row in last]
        loss = [row.train_loss for row in last]
        name, account, _ = of_each_step[0]
        noise = float(run.calibration.noise_multipliers[0])
        yield (
            f"| {setting.data}, {setting.model} | {name} | {account} | {noise:.2f} | {step:g} "
            f"| {100 * statistics.mean(accuracy):.1f} ({100 * min(accuracy):.1f} to {100 * max(accuracy):.1f}) "
            f"| {statistics.mean(loss):.3f} | {statistics.mean(norms):.4f} |"
        )


def main() -> None:
    """Print the table as it is made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="where a9a and mnist are")
    parser.add_argument("--only", choices=[setting.data for setting in SETTINGS])
    given = parser.parse_args()
    print("| data, model | algorithm | account | noise multiplier | step | accuracy, % | loss | gradient^2 |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for setting in SETTINGS:
        if given.only in (None, setting.data):
            for row in rows(setting, given.data_dir):
                print(row, flush=True)


if __name__ == "__main__":
    main()
