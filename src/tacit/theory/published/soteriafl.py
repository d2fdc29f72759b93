"""SoteriaFL (Li et al. 2022): Theorems 2 and 4 with the constants of the authors' experiments.

The labels of section 6 and appendix A, for per-record clipping (the authors clip the mean of a batch, which
protects nobody). The theorem's condition, epsilon < c' q^2 T, is violated by factors of 15 and more.
"""

from __future__ import annotations

from tacit.errors import RequestError
from tacit.privacy import Adjacency, epsilon
from tacit.privacy.events import repeated, two_level
from tacit.theory.published import schemes
from tacit.theory.published.row import Row
from tacit.theory.soteriafl import amplification_excess, published_noise_std

PAPER = "SoteriaFL (Li et al. 2022), Theorem 2 with c = 48 (SGD) and delta = 1e-3"

CONDITION = "label over the theorem's condition"
NOISE = "noise over what full batches need"

EXPERIMENTS = (
    ("a9a", 3256, ((1.0, 10, 25), (5.0, 51, 100), (10.0, 103, 150))),
    (
        "MNIST network",
        6000,
        ((1.0, 128, 150), (2.0, 128, 200), (4.0, 128, 300), (8.0, 128, 500), (16.0, 128, 1000)),
    ),
)
"""Name, records of each of ten clients, and (label, batch, rounds): appendix A."""

SVRG_ON_A9A = (1.0, 54, 25)
"""Label, batch of Corollary 2, rounds."""


def row(
    setting: str,
    *,
    epsilon: float,
    delta: float,
    records: int,
    batch: int,
    rounds: int,
    algorithm: str = "soteriafl-sgd",
) -> Row:
    """What the published noise of one of the paper's algorithms gives in one setting."""
    std = published_noise_std(
        algorithm, gradient_bound=1.0, records=records, rounds=rounds, epsilon=epsilon, delta=delta
    )
    needed = schemes.full_batch_noise_std(records=records, rounds=rounds, epsilon=epsilon, delta=delta)
    return Row(
        setting=setting,
        label=epsilon,
        delta=delta,
        records=records,
        batch=batch,
        rounds=rounds,
        noise_multiplier=std * batch,
        true=_true(algorithm, records, batch, rounds, std * batch, delta),
        factors={
            CONDITION: amplification_excess(epsilon, batch=batch, records=records, rounds=rounds),
            NOISE: std / needed,
        },
        remark="" if algorithm == "soteriafl-sgd" else algorithm,
    )


def table() -> tuple[Row, ...]:
    """The labels of the paper's experiments, and one of SoteriaFL-SVRG."""
    rows = [
        row(name, epsilon=label, delta=1e-3, records=records, batch=batch, rounds=rounds)
        for name, records, labels in EXPERIMENTS
        for label, batch, rounds in labels
    ]
    label, batch, rounds = SVRG_ON_A9A
    rows.append(
        row(
            "a9a",
            epsilon=label,
            delta=1e-3,
            records=3256,
            batch=batch,
            rounds=rounds,
            algorithm="soteriafl-svrg",
        )
    )
    return tuple(rows)


def _true(
    algorithm: str, records: int, batch: int, rounds: int, noise_multiplier: float, delta: float
) -> dict[str, float]:
    if algorithm in ("soteriafl-sgd", "cdp-sgd", "ldp-sgd"):
        return schemes.true_epsilons(
            records=records, batch=batch, rounds=rounds, noise_multiplier=noise_multiplier, delta=delta
        )
    if algorithm not in ("soteriafl-svrg", "soteriafl-saga", "ldp-svrg"):
        raise RequestError(f"algorithm must draw batches, which {algorithm!r} does not")
    # Theorem B: (2 - q) bounds when drawn, q when not, q on average. The paper does not bound differences.
    rate = batch / records
    coins = repeated(two_level(rate, noise_multiplier, 2 - rate, rate, rate), rounds)
    return {
        schemes.POISSON_ADD_REMOVE: epsilon(coins, delta, Adjacency.ADD_REMOVE),
        schemes.POISSON_REPLACE_ONE: epsilon(coins, delta),
    }
