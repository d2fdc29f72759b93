"""ISRL-DP (Lowy & Razaviyayn 2023): the noise of the theorems (D.1) and that of the experiments (appendix I).

Batches are drawn with replacement and one record is replaced. The theorems' noise is safe, and many times what is
needed. That of the experiments relies on a moments accountant whose conditions do not hold for these batches: it
is enough for Poisson sampling with add-remove, but not for the paper's own scheme at the larger labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tacit.theory.isrl_dp.published_noise import (
    experiment_batch,
    experiment_noise_std,
    resampled_noise_std,
    smallest_batch,
)
from tacit.theory.published import schemes
from tacit.theory.published.row import Row

PAPER = (
    "ISRL-DP (Lowy & Razaviyayn 2023), appendix I: variance 8 L^2 R ln(1/delta) / (n epsilon)^2, delta = 1/n^2"
)

NOISE = "noise over what full batches need"


@dataclass(frozen=True)
class PaperExperiment:
    """One of the experiments of appendix I."""

    name: str
    records: int
    rounds: int
    labels: tuple[float, ...]

    @property
    def batch(self) -> int:
        """The batch for all labels: that of the largest."""
        wanted = experiment_batch(records=self.records, rounds=self.rounds, epsilon=max(self.labels))
        return max(1, math.floor(wanted))


EXPERIMENTS = (
    PaperExperiment("MNIST", 1238, 35, (0.75, 1.5, 3.0, 6.0, 12.0, 18.0)),
    PaperExperiment("insurance", 107, 35, (0.125, 0.25, 0.5, 1.0, 2.0, 3.0)),
    PaperExperiment("obesity", 202, 100, (0.5, 1.0, 3.0, 6.0, 9.0)),
)
"""Training records of a silo (insurance: of ten silos). Rounds not given in the paper are those of the authors'
code.
"""


def row(setting: str, *, epsilon: float, delta: float, records: int, batch: int, rounds: int) -> Row:
    """What the experiments' noise gives for Noisy MB-SGD in one setting."""
    std = experiment_noise_std(lipschitz=1.0, records=records, rounds=rounds, epsilon=epsilon, delta=delta)
    return _row(setting, epsilon, delta, records, batch, rounds, std)


def local_row(setting: str, *, epsilon: float, delta: float, records: int, local_steps: int, rounds: int) -> Row:
    """What the experiments' noise gives for Noisy Local SGD, which takes K steps of one record each per round.

    "At most": every step counts as a release. "At least": gradients that do not depend on the point. The sum of
    a round's steps is then that of a batch of K with noise sqrt(K) s, which is the noise of Noisy MB-SGD.
    """
    std = experiment_noise_std(
        lipschitz=1.0, records=records, rounds=rounds, epsilon=epsilon, delta=delta, local_steps=local_steps
    )
    steps = _row(setting, epsilon, delta, records, 1, rounds * local_steps, std)
    summed = row(setting, epsilon=epsilon, delta=delta, records=records, batch=local_steps, rounds=rounds)
    attained = summed.true[schemes.WITH_REPLACEMENT_ATTAINED]
    return replace(
        steps,
        true={**steps.true, schemes.WITH_REPLACEMENT_ATTAINED: attained},
        factors={},
        remark=f"Local SGD, {local_steps} steps a round",
    )


def theorem_row(setting: str, *, epsilon: float, delta: float, records: int, rounds: int) -> Row:
    """What the noise of Theorem D.1 gives, at the smallest batch that it allows."""
    std = resampled_noise_std(lipschitz=1.0, records=records, rounds=rounds, epsilon=epsilon, delta=delta)
    least = smallest_batch(records=records, rounds=rounds, epsilon=epsilon, delta=delta)
    return replace(
        _row(setting, epsilon, delta, records, math.ceil(least), rounds, std), remark="noise of Theorem D.1"
    )


def table() -> tuple[Row, ...]:
    """The labels of the paper's experiments; MNIST also with the batch as printed, Local SGD and the theorem."""
    rows = []
    for one in EXPERIMENTS:
        settings = {"delta": one.records**-2.0, "records": one.records, "rounds": one.rounds}
        rows += [row(one.name, epsilon=label, batch=one.batch, **settings) for label in one.labels]
        if one.name == "MNIST":
            rows += [_as_printed(one, label) for label in one.labels[:-1]]
            rows += [
                local_row(one.name, epsilon=label, local_steps=one.batch, **settings) for label in one.labels
            ]
            rows += [theorem_row(one.name, epsilon=label, **settings) for label in one.labels]
    return tuple(rows)


def _as_printed(one: PaperExperiment, label: float) -> Row:
    batch = math.floor(experiment_batch(records=one.records, rounds=one.rounds, epsilon=label))
    found = row(
        one.name, epsilon=label, delta=one.records**-2.0, records=one.records, batch=batch, rounds=one.rounds
    )
    return replace(found, remark="batch as printed")


def _row(
    setting: str, epsilon: float, delta: float, records: int, batch: int, rounds: int, noise_std: float
) -> Row:
    noise_multiplier = noise_std * batch
    true = schemes.true_epsilons(
        records=records, batch=batch, rounds=rounds, noise_multiplier=noise_multiplier, delta=delta
    )
    attained = schemes.attained_with_replacement(
        records=records, batch=batch, rounds=rounds, noise_multiplier=noise_multiplier, delta=delta
    )
    at_most = true.pop(schemes.WITH_REPLACEMENT)
    needed = schemes.full_batch_noise_std(records=records, rounds=rounds, epsilon=epsilon, delta=delta)
    return Row(
        setting=setting,
        label=epsilon,
        delta=delta,
        records=records,
        batch=batch,
        rounds=rounds,
        noise_multiplier=noise_multiplier,
        true={**true, schemes.WITH_REPLACEMENT_ATTAINED: attained, schemes.WITH_REPLACEMENT: at_most},
        factors={NOISE: noise_std / needed},
    )
