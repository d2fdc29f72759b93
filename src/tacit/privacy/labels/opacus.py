"""Opacus: `PrivacyEngine.make_private` with its data loader.

Each gradient is clipped to `max_grad_norm`; the sum gets noise of `noise_multiplier * max_grad_norm`. With
Poisson sampling a record joins a step with probability 1/len(data_loader), and an epoch has len(data_loader)
steps. Opacus' own epsilon compares a data set with one that lacks a record (add-remove). With
`poisson_sampling=False` a record is in one batch of every epoch. Which one may be known, so sampling hides
nothing, but only one release per epoch depends on it.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, count, positive, probability
from tacit.privacy.events import poisson
from tacit.privacy.events.plain_numbers import check_delta, flag, number
from tacit.privacy.labels.verdict import STEPS, Flaw, LabelVerdict, every_round, nothing, release, view
from tacit.privacy.promises.terms import Unit


def privacy_engine(
    *,
    noise_multiplier: float,
    max_grad_norm: float | list[float],
    epochs: int,
    delta: float,
    sample_rate: float | None = None,
    batch_size: int | None = None,
    records: int | None = None,
    rounds: int = 1,
    poisson_sampling: bool = True,
    noise_seed: int | None = None,
    secure_mode: bool = False,
    clipping: str = "flat",
    claimed_epsilon: float | None = None,
) -> LabelVerdict:
    """DP-SGD with Opacus, alone or inside each round of a federation.

    Args:
        noise_multiplier: as given to make_private.
        max_grad_norm: as given to make_private.
        epochs: epochs of local training, in each round.
        delta: the delta of the promise.
        sample_rate: 1/len(data_loader); or give `batch_size` and `records`.
        batch_size: of the data loader.
        records: records in the data set.
        rounds: rounds of a federation in which this client trains.
        poisson_sampling: as given to make_private.
        noise_seed: the seed of `noise_generator`, if it has one.
        secure_mode: as given to PrivacyEngine.
        clipping: as given to make_private: flat or per_layer.
        claimed_epsilon: the label to check: what get_epsilon says.
    """
    if clipping not in ("flat", "per_layer"):
        raise RequestError(
            f"clipping must be flat or per_layer, not {clipping!r}: the cost of others is not known here"
        )
    for norm in max_grad_norm if isinstance(max_grad_norm, list) else [max_grad_norm]:
        positive("max_grad_norm", norm)
    if number("noise_multiplier", noise_multiplier) < 0:
        raise RequestError(f"noise_multiplier must be a number of at least 0, not {noise_multiplier!r}")
    epochs, rounds, delta = count("epochs", epochs), count("rounds", rounds), check_delta(delta)
    batches = _batches(sample_rate, batch_size, records)
    findings = []
    if noise_seed is not None:
        findings.append(
            Flaw(
                f"The noise comes from a generator with the seed {noise_seed}: who knows it subtracts the noise.",
                "Leave out noise_generator, and set secure_mode=True.",
            )
        )
        return LabelVerdict(
            "Opacus", claimed_epsilon, (nothing(STEPS, Unit.RECORD, "the seed is known"),), tuple(findings)
        )
    if noise_multiplier == 0:
        findings.append(Flaw("noise_multiplier = 0 adds no noise.", "Set a noise multiplier above 0."))
    if not flag("secure_mode", secure_mode):
        findings.append(
            Flaw(
                "secure_mode=False takes noise from PyTorch's generator, which is not made to be unpredictable.",
                "Set secure_mode=True for a model that is released.",
            )
        )
    if rounds > 1:
        findings.append(
            Flaw(
                f"A PrivacyEngine that is made anew in every round counts that round alone, not all {rounds}.",
                "Keep one engine per client over all rounds, or quote the epsilon of all rounds, as here.",
            )
        )
    if flag("poisson_sampling", poisson_sampling):
        event, times = release(lambda z: poisson(1 / batches, z), noise_multiplier), rounds * epochs * batches
        said = f"{times} steps at a sampling rate of 1/{batches}"
    else:
        event, times = every_round(noise_multiplier), rounds * epochs
        said = f"every record in {times} steps, once an epoch, without credit for sampling"
        findings.append(
            Flaw(
                "poisson_sampling=False draws batches by shuffling, but Opacus' accountant credits Poisson "
                "sampling.",
                "Leave poisson_sampling at True.",
            )
        )
    views = [view(STEPS, Unit.RECORD, kind, event, times, delta, said) for kind in ("add-remove", "replace-one")]
    return LabelVerdict("Opacus", claimed_epsilon, tuple(views), tuple(findings))


def _batches(rate: float | None, batch: int | None, records: int | None) -> int:
    """Batches in an epoch."""
    if batch is not None and records is not None and rate is None:
        return math.ceil(count("records", records) / count("batch_size", batch))
    if rate is not None and batch is None and records is None:
        # Opacus draws with 1/len(data_loader); a rate that is no such number is rounded up, to the safe side.
        return max(1, math.floor(1 / probability("sample_rate", rate) + 1e-9))
    raise RequestError("give either sample_rate, or batch_size and records: one of the two, not both")
