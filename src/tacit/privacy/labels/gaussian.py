"""Any clip and any Gaussian noise, in plain words: for code that follows a paper instead of a library.

What counts is the noise over the most that one record (or one client) can add to what gets the noise. A clip of
the mean of a batch bounds the mean, not a record: one record can move it by as much as the whole clip.
"""

from __future__ import annotations

import math
from functools import partial

from tacit.errors import RequestError, count, positive, unknown_name
from tacit.privacy.accountant.cost import SAMPLINGS, over, release_of
from tacit.privacy.events import gaussian as full
from tacit.privacy.events import non_private
from tacit.privacy.events.plain_numbers import check_delta, number
from tacit.privacy.labels.verdict import Flaw, LabelVerdict, View, every_round, nothing, view
from tacit.privacy.promises.terms import Unit

_SEES_RESULTS = "anyone who sees the noisy results, in every round"
_SEES_SUMS = "anyone who sees the noisy sums and knows who took part"
_SEES_MESSAGES = "anyone who sees a single client's messages"
_FIXED = ("without-replacement", "with-replacement")


def gaussian(
    *,
    rounds: int,
    delta: float,
    clip: float | None = None,
    clip_of: str = "record",
    noise_std: float | None = None,
    noise_multiplier: float | None = None,
    sensitivity: float | None = None,
    noise_on: str = "sum",
    sampling: str = "full",
    rate: float | None = None,
    batch: int | None = None,
    records: int | None = None,
    noise_shares: int = 1,
    noise_seed: int | None = None,
    mask_seed: int | None = None,
    claimed_epsilon: float | None = None,
) -> LabelVerdict:
    """Clipped contributions plus Gaussian noise, round after round.

    Args:
        rounds: noisy releases.
        delta: the delta of the promise.
        clip: the norm to which contributions are clipped; without one there is no guarantee.
        clip_of: whose contribution is clipped: record, client, or batch (the mean over a batch).
        noise_std: the noise's standard deviation; or give `noise_multiplier`.
        noise_multiplier: the noise over `sensitivity`, or over the clip if that is not given.
        sensitivity: what the noise was scaled to.
        noise_on: what the noise is added to: sum or mean (then `batch` is needed).
        sampling: poisson, without-replacement, with-replacement, full or one-pass.
        rate: the chance of being drawn.
        batch: records (or clients) in a round.
        records: records (or clients) to draw from.
        noise_shares: over how many clients' messages the noise is divided.
        noise_seed: the seed of the noise's generator, if it has one.
        mask_seed: the seed of the masks that hide single messages, if they have one.
        claimed_epsilon: the label to check.
    """
    rounds, delta = count("rounds", rounds), check_delta(delta)
    for setting, value, known in (
        ("clip_of", clip_of, ("record", "client", "batch")),
        ("noise_on", noise_on, ("sum", "mean")),
        ("sampling", sampling, SAMPLINGS),
    ):
        if value not in known:
            raise unknown_name(setting, value, known)
    unit = Unit.CLIENT if clip_of == "client" else Unit.RECORD
    refused = _gives_nothing(clip, noise_std, noise_multiplier, noise_seed)
    if refused is not None:
        return LabelVerdict(
            "gaussian", claimed_epsilon, (nothing(_SEES_RESULTS, unit, refused.what),), (refused,)
        )
    clip = positive("clip", clip or 0.0)
    divisor = 1
    if noise_on == "mean":
        if batch is None:
            raise RequestError("noise_on = 'mean' needs batch, by which the sum is divided")
        divisor = count("batch", batch)
    std = _std(noise_std, noise_multiplier, sensitivity, clip / divisor)
    moved = clip if clip_of != "batch" else clip * (1 if noise_on == "mean" else count("batch", batch or 1))
    multiplier = std * (divisor if clip_of != "batch" else 1) / moved
    findings = list(_wrong(clip_of, std, multiplier, sensitivity, noise_multiplier, batch))
    release = release_of(sampling, multiplier, rounds=rounds, rate=rate, records=records, batch=batch)
    views: list[View] = []
    said = f"noise {multiplier:.4g} times what one {unit} can add, {sampling} sampling, {rounds} rounds"
    for adjacency in ("replace-one",) if sampling in _FIXED else ("replace-one", "add-remove"):
        views.append(view(_SEES_RESULTS, unit, adjacency, over(release, rounds), 1, delta, said))
    if count("noise_shares", noise_shares) > 1:
        views += _shared(unit, multiplier, noise_shares, rounds, delta)
        if mask_seed is not None:
            findings.append(
                Flaw(
                    f"The masks come from a generator with the seed {mask_seed}: who knows it sees single "
                    "messages, each "
                    f"with 1/{math.sqrt(noise_shares):.3g} of the noise.",
                    "Agree on masks with fresh keys for every run (tacit's --trust sum).",
                )
            )
            views = [one for one in views if one.against == _SEES_MESSAGES]
    return LabelVerdict("gaussian", claimed_epsilon, tuple(views), tuple(findings))


def _gives_nothing(
    clip: float | None, std: float | None, multiplier: float | None, seed: int | None
) -> Flaw | None:
    if clip is None:
        return Flaw(
            "Nothing is clipped: noise of any size is too small for a contribution of any size.",
            "Clip every record's gradient, or every client's update, before it is added to others.",
        )
    if seed is not None:
        return Flaw(
            f"The noise comes from a generator with the seed {seed}: who knows it subtracts the noise.",
            "Draw noise from the operating system's entropy, and keep no seed.",
        )
    if (std is None) == (multiplier is None):
        raise RequestError("give noise_std or noise_multiplier, one of them")
    given = std if std is not None else multiplier
    if number("noise_std" if std is not None else "noise_multiplier", given) == 0:
        return Flaw("There is no noise.", "Add noise: tacit plan computes how much a target needs.")
    return None


def _std(std: float | None, multiplier: float | None, sensitivity: float | None, clip: float) -> float:
    if std is not None:
        return positive("noise_std", std)
    scale = clip if sensitivity is None else positive("sensitivity", sensitivity)
    return positive("noise_multiplier", multiplier or 0.0) * scale


def _wrong(
    clip_of: str, std: float, true: float, sensitivity: float | None, stated: float | None, batch: int | None
) -> tuple[Flaw, ...]:
    findings = []
    if clip_of == "batch":
        per_record = "" if batch is None else f": {batch} times as far as if each record were clipped"
        findings.append(
            Flaw(
                "The mean of a batch is clipped, not each record. One record can move it by the whole "
                f"clip{per_record}.",
                "Clip each record's gradient before the mean.",
            )
        )
    if stated is not None and true < 0.999 * stated:
        findings.append(
            Flaw(
                f"noise_multiplier = {stated:g} is stated, but the noise ({std:.4g}) is {true:.4g} times what "
                "one "
                + ("record" if clip_of != "client" else "client")
                + " can add"
                + ("" if sensitivity is None else f": sensitivity = {sensitivity:g} ignores the clip")
                + ".",
                "Scale the noise to the clip.",
            )
        )
    return tuple(findings)


def _shared(unit: Unit, multiplier: float, shares: int, rounds: int, delta: float) -> list[View]:
    """Without credit for sampling, as who took part is seen: sums, and single messages with their share of the "
    "noise."""
    alone = multiplier / math.sqrt(shares)
    made = partial(view, unit=unit, adjacency="replace-one", rounds=rounds, delta=delta)
    return [
        made(_SEES_SUMS, event=every_round(multiplier), because=f"noise {multiplier:.4g} on every sum"),
        made(
            _SEES_MESSAGES,
            event=full(alone) if alone > 0 else non_private(),
            because=f"noise {alone:.4g} on every message",
        ),
    ]
