"""Private evaluation: how good a model is on records that the clients hold back, for each client and over all.

Every client sends one noisy sum of bounded vectors (`tacit.side.scoring`). Accuracy, AUC, calibration, mean loss
and the gaps between groups all follow from it by post-processing, with error bars (`tacit.side.estimates`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tacit.federation import Federation
from tacit.models.model import Model
from tacit.privacy.promises.guarantee import Target
from tacit.side.estimates import Estimate, NoisySums, auc_estimate, difference, mean_estimate, mean_of
from tacit.side.noisy_total import NoisyTotal
from tacit.side.release import NoisyMeans, SideRelease
from tacit.side.scoring import Scoring


@dataclass(frozen=True)
class Quality:
    """What is known about some records: named estimates."""

    records: int
    estimates: dict[str, Estimate]
    groups: dict[str, dict[str, Estimate]]
    """for each group its estimates, and the gaps between it and all other records"""
    reliability: tuple[tuple[float, float, Estimate], ...]
    """for each bin of probabilities its limits, and how often the label was 1"""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "records": self.records,
            **{name: one.to_dict() for name, one in self.estimates.items()},
            "groups": {name: {n: e.to_dict() for n, e in own.items()} for name, own in self.groups.items()},
            "reliability": [[low, high, one.to_dict()] for low, high, one in self.reliability],
        }


@dataclass(frozen=True)
class PrivateEvaluation:
    """The evaluation of a model by several clients."""

    pooled: Quality
    clients: dict[str, Quality]
    """each client's own; empty if only the sum over all of them was opened"""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        clients = {name: scores.to_dict() for name, scores in self.clients.items()}
        left_out = {} if clients else {"left_out": ONLY_TOGETHER}
        return {"all": self.pooled.to_dict(), "clients": clients, **left_out}


ONLY_TOGETHER = (
    "each client's own numbers: only the sum over all clients was opened, and one client's part of it has too "
    "little noise to be shown"
)
"""Why an evaluation through a secure sum has no numbers of single clients."""


def total_release(
    scoring: Scoring, question: str, target: Target, seed: int | None, *, clients: int, honest: int
) -> NoisyTotal:
    """The release that an evaluation needs if only the sum over all clients is opened."""
    name = f"evaluation {question} {scoring}"
    return NoisyTotal(name, scoring.bound, target, seed, scoring.dim, clients, honest)


def read_total(scoring: Scoring, total: Tensor, records: int, noise_std: float) -> PrivateEvaluation:
    """What an opened sum over `records` records says: post-processing.

    Args:
        scoring: what was asked of every record.
        total: (dim,): the noisy sum.
        records: how many records are in it.
        noise_std: the standard deviation of all shares of noise in it.
    """
    sums = (total.double() + records * scoring.centre).numpy()
    return PrivateEvaluation(read_sums(scoring, sums, records, noise_std), {})


def evaluation_release(
    scoring: Scoring, held: Federation, question: str, target: Target, seed: int | None
) -> NoisyMeans:
    """The release that an evaluation needs: its noise and event depend on `scoring` and `target` alone."""
    return NoisyMeans(held, f"evaluation {question} {scoring}", scoring.bound, 1, target, seed, scoring.dim)


def evaluation_messages(
    release: NoisyMeans, model: Model, point: Tensor, held: Federation, scoring: Scoring
) -> Tensor:
    """What every client sends about its records: (clients, dim) double."""
    return release.messages(scoring.sums(model, point, held.batch()))


def private_evaluation(
    model: Model,
    point: Tensor,
    held: Federation,
    scoring: Scoring,
    *,
    name: str,
    target: Target,
    seed: int | None = None,
) -> SideRelease[PrivateEvaluation]:
    """Evaluates a model on the records that clients hold back.

    Guarantee: all that is released keeps `target`: every client's message is the Gaussian mechanism on a sum in
    which each record has a norm of at most `scoring.bound`. Compose the event with that of training, if both
    promises are made about the same records.

    Args:
        model: the model.
        point: its parameters; they must be public already, as those of a private run are.
        held: the records that were held back.
        scoring: what is asked of every record.
        name: describes the model. With the same seed, evaluations of other models need other names.
        target: what the evaluation alone may cost.
        seed: for research; by default the noise is lattice noise from the operating system's entropy.
    """
    release = evaluation_release(scoring, held, name, target, seed)
    messages = evaluation_messages(release, model, point, held, scoring)
    noise_std = release.noise_multiplier * release.bound
    return release.released(_read(scoring, messages, held, noise_std), "the limits between bins and groups")


def exact_evaluation(model: Model, point: Tensor, held: Federation, scoring: Scoring) -> PrivateEvaluation:
    """The same without noise, for runs without privacy; bars are for sampling only."""
    return _read(scoring, scoring.sums(model, point, held.batch()), held, 0.0)


def read_messages(
    scoring: Scoring, messages: Tensor, sizes: Tensor, names: Sequence[str], noise_stds: Sequence[float]
) -> PrivateEvaluation:
    """What the clients' messages say, each alone and all together: post-processing.

    Args:
        scoring: what was asked of every record.
        messages: (clients, dim): the noisy sums.
        sizes: how many records each client held back.
        names: the clients' names.
        noise_stds: the standard deviation of each client's noise.
    """
    sums = (messages.double() + sizes[:, None] * scoring.centre).numpy()
    each = zip(names, sums, sizes.tolist(), noise_stds, strict=True)
    clients = {name: read_sums(scoring, row, records, std) for name, row, records, std in each}
    pooled = read_sums(scoring, sums.sum(0), int(sizes.sum()), math.hypot(*noise_stds))
    return PrivateEvaluation(pooled, clients)


def _read(scoring: Scoring, messages: Tensor, held: Federation, noise_std: float) -> PrivateEvaluation:
    names = held.names or tuple(map(str, held.ids.tolist()))
    return read_messages(scoring, messages, held.sizes, names, [noise_std] * held.clients)


def read_sums(scoring: Scoring, sums: NoisySums, records: int, noise_std: float) -> Quality:
    """Estimates from one noisy sum over `records` records."""
    parts, variance = {name: sums[part] for name, part in scoring.parts.items()}, noise_std**2
    estimates = {
        name: _scale(scoring, name, mean_estimate(float(own.sum()), records, (variance * len(own), 0.0)))
        for name, own in parts.items()
        if name not in ("count", "histogram", "ranking")
    }
    if scoring.unit is not None:
        estimates["error"] = scoring.unit.error(estimates["loss"])
    reliability: tuple[tuple[float, float, Estimate], ...] = ()
    if scoring.classes is not None:
        table = parts["histogram"].reshape(-1, 2)
        if scoring.classes == 2:
            estimates["auc"] = auc_estimate(table, records, noise_std)
        if scoring.ranked:
            # Counts were divided by sqrt(K) on their way; undoing that multiplies their noise, too.
            scale = math.sqrt(scoring.ranked)
            tables = (parts["ranking"] * scale).reshape(scoring.ranked, -1, 2)
            estimates["auc"] = mean_of([auc_estimate(one, records, noise_std * scale) for one in tables])
        limits = (0.0, *scoring.edges, 1.0)
        shares = [_share(row, variance) for row in table]
        reliability = tuple(zip(limits[:-1], limits[1:], shares, strict=True))
    return Quality(records, estimates, _groups(scoring, parts, records, noise_std), reliability)


def _groups(
    scoring: Scoring, parts: dict[str, NoisySums], records: int, noise_std: float
) -> dict[str, dict[str, Estimate]]:
    variance = noise_std**2
    told: dict[str, dict[str, Estimate]] = {}
    for k, group in enumerate(scoring.group_names):
        told[group] = {}
        size = float(parts["count"][k])
        for name in (name for name in parts if name not in ("count", "histogram", "ranking")):
            own, everyone = parts[name], len(parts[name])
            inside = mean_estimate(float(own[k]), size, (variance, variance), noise_std)
            outside = mean_estimate(
                float(own.sum() - own[k]), records - size, (variance * (everyone - 1), variance), noise_std
            )
            told[group][name] = _scale(scoring, name, inside)
            told[group][f"{name}_gap"] = _gap(scoring, name, difference(inside, outside))
            if name == "loss" and scoring.unit is not None:
                errors = [scoring.unit.error(_scale(scoring, name, one)) for one in (inside, outside)]
                told[group] |= {"error": errors[0], "error_gap": difference(*errors)}
    return told


def _share(row: Sequence[float] | NoisySums, variance: float) -> Estimate:
    """How often the label is 1 in a bin, from the noisy counts of 0 and 1."""
    zeros, ones = map(float, row)
    # (ones - zeros)/2 - m (ones + zeros) has the noise variance (1/2 + 2 m^2) of one count.
    noise = (variance / 2, 2 * variance)
    return mean_estimate((ones - zeros) / 2, ones + zeros, noise, (2 * variance) ** 0.5).scaled(1.0, 0.5)


_SCALES = {"accuracy": (1.0, 0.5), "calibration": (2.0, 0.0)}


def _scale(scoring: Scoring, name: str, mean: Estimate) -> Estimate:
    """From [-1/2, 1/2] to the quantity's own scale."""
    return mean.scaled(*_SCALES.get(name, (scoring.loss_bound, 0.5)))


def _gap(scoring: Scoring, name: str, gap: Estimate) -> Estimate:
    return gap.scaled(_SCALES.get(name, (scoring.loss_bound, 0.5))[0], 0.0)
