"""Flower's central strategies (a wrapper that clips updates and adds noise at the server).

Central. The server adds noise of standard deviation `noise_multiplier * clipping_norm / num_sampled_clients` to
the average of the clipped updates. A client with weight w in the average moves it by at most w * clipping_norm,
so the true noise multiplier is `noise_multiplier / (num_sampled_clients * w)`. It is the stated one only if all
weights are equal; Flower's FedAvg weights by num_examples. The server itself sees every update without noise.

Adaptive. The count of clipped updates costs too: Flower raises the multiplier of the updates to `(z^-2 - (2
s)^-2)^(-1/2)`, s being the noise of the count (Andrew et al. 2021), which is right when one client is replaced by
another. But updates are clipped to the norm before its update, and the noise is scaled to the norm after it,
which is smaller by a factor of down to exp(-clip_norm_lr * (clipped fraction - target_clipped_quantile)).
"""

from __future__ import annotations

import math
from dataclasses import replace

from scipy import stats

from tacit.errors import RequestError, count, positive, probability
from tacit.privacy.events import without_replacement
from tacit.privacy.events.plain_numbers import check_delta, number
from tacit.privacy.labels.verdict import (
    MODELS,
    MODELS_ALONE,
    SERVER,
    Flaw,
    LabelVerdict,
    View,
    every_round,
    nothing,
)
from tacit.privacy.labels.verdict import release as one_release
from tacit.privacy.labels.verdict import view as cost
from tacit.privacy.promises.terms import Unit

_METRICS = Flaw(
    "Metrics, losses and num_examples travel beside the model without clipping or noise.",
    "Do not return metrics from clients, or count them as a release of their own.",
)
_UNBOUNDED_SHARE = 0.01
"""Part of delta that pays for the count's noise being larger than assumed."""


def fixed_clipping(
    side: str,
    *,
    noise_multiplier: float,
    clipping_norm: float,
    num_sampled_clients: int,
    rounds: int,
    delta: float,
    num_clients: int | None = None,
    weighted: bool = True,
    largest_weight: float | None = None,
    fewest_replies: int | None = None,
    secure_aggregation: bool = False,
    claimed_epsilon: float | None = None,
) -> LabelVerdict:
    """Central privacy with a fixed clip; `side` is where updates are clipped, "server" or "client".

    Args:
        side: who clips.
        noise_multiplier: as given to the strategy.
        clipping_norm: as given to the strategy.
        num_sampled_clients: as given to the strategy.
        rounds: rounds of training.
        delta: the delta of the promise.
        num_clients: clients to sample from; without it no sampling is credited.
        weighted: whether the average is weighted by num_examples, as in Flower's FedAvg.
        largest_weight: the largest weight that a client can have in an average.
        fewest_replies: the fewest replies that are averaged; `num_sampled_clients` unless given.
        secure_aggregation: whether SecAgg+ hides single updates.
        claimed_epsilon: the label to check.
    """
    positive("clipping_norm", clipping_norm)
    multiplier, findings = _multiplier(
        noise_multiplier, num_sampled_clients, weighted, largest_weight, fewest_replies
    )
    seen = "clips them itself" if side == "server" else "sees clipped updates, or their exact sum with SecAgg+"
    return _central(
        f"DifferentialPrivacy{side.title()}SideFixedClipping", multiplier, findings, seen, rounds=rounds,
        delta=delta, sampled=num_sampled_clients, clients=num_clients, secure=secure_aggregation,
        claimed=claimed_epsilon, noisy=noise_multiplier > 0,
    )  # fmt: skip


def adaptive_clipping(
    side: str,
    *,
    noise_multiplier: float,
    num_sampled_clients: int,
    rounds: int,
    delta: float,
    initial_clipping_norm: float = 0.1,
    target_clipped_quantile: float = 0.5,
    clip_norm_lr: float = 0.2,
    clipped_count_stddev: float | None = None,
    num_clients: int | None = None,
    weighted: bool = True,
    largest_weight: float | None = None,
    fewest_replies: int | None = None,
    secure_aggregation: bool = False,
    claimed_epsilon: float | None = None,
) -> LabelVerdict:
    """Central privacy with a clip that follows a quantile; see `fixed_clipping` for the shared settings.

    Args:
        side: who clips.
        noise_multiplier: as given to the strategy: of updates and count together.
        num_sampled_clients: as given to the strategy.
        rounds: rounds of training.
        delta: the delta of the promise.
        initial_clipping_norm: as given to the strategy; it does not change epsilon.
        target_clipped_quantile: as given to the strategy.
        clip_norm_lr: as given to the strategy.
        clipped_count_stddev: as given to the strategy; num_sampled_clients / 20 unless given.
        num_clients: clients to sample from.
        weighted: whether the average is weighted by num_examples.
        largest_weight: the largest weight that a client can have in an average.
        fewest_replies: the fewest replies that are averaged.
        secure_aggregation: whether SecAgg+ hides single updates.
        claimed_epsilon: the label to check.
    """
    positive("initial_clipping_norm", initial_clipping_norm)
    positive("clip_norm_lr", clip_norm_lr)
    if not 0 <= target_clipped_quantile <= 1:
        raise RequestError(f"target_clipped_quantile must be in [0, 1], not {target_clipped_quantile!r}")
    sampled, rounds, delta = (
        count("num_sampled_clients", num_sampled_clients),
        count("rounds", rounds),
        check_delta(delta),
    )
    name, seen = f"DifferentialPrivacy{side.title()}SideAdaptiveClipping", "sees every update and every norm bit"
    wanted = not_negative("noise_multiplier", noise_multiplier)
    stddev = (
        sampled / 20
        if clipped_count_stddev is None
        else not_negative("clipped_count_stddev", clipped_count_stddev)
    )
    if wanted == 0 or stddev == 0:
        return _central(
            name, 0.0, [], seen, rounds=rounds, delta=delta, sampled=sampled, clients=num_clients,
            secure=secure_aggregation, claimed=claimed_epsilon, noisy=wanted > 0,
        )  # fmt: skip
    if wanted >= 2 * stddev:
        raise RequestError(
            f"noise_multiplier = {wanted:g} must be below 2 * clipped_count_stddev = {2 * stddev:g}: Flower "
            "refuses it"
        )
    of_updates = (wanted**-2 - (2 * stddev) ** -2) ** -0.5
    multiplier, findings = _multiplier(of_updates, sampled, weighted, largest_weight, fewest_replies)
    # The noisy fraction exceeds 1 + tail with probability of at most this part of delta, over all rounds.
    tail = float(stats.norm.isf(_UNBOUNDED_SHARE * delta / rounds)) * stddev / sampled
    shrunk = min(1.0, math.exp(-clip_norm_lr * (1 + tail - target_clipped_quantile)))
    findings.append(
        Flaw(
            "Updates are clipped to the old norm but the noise is scaled to the new one, which can be "
            f"{shrunk:.3g} of it: the multiplier {of_updates:.4g} can be {of_updates * shrunk:.4g}.",
            f"Raise noise_multiplier by a factor of {1 / shrunk:.3g}, or use a fixed clip.",
        )
    )
    multiplier *= shrunk
    # The count moves by 1 whether a client is replaced or missing, an update by twice the clip or by the clip. An
    # accountant doubles multipliers' shifts for replace-one, so the count's multiplier is 2 * stddev there.
    replaced, missing = ((multiplier**-2 + (by * stddev) ** -2) ** -0.5 for by in (2, 1))
    return _central(
        name, replaced, findings, seen, rounds=rounds, delta=delta, sampled=sampled, clients=num_clients,
        secure=secure_aggregation, claimed=claimed_epsilon, noisy=True, missing=missing,
        accounted=(1 - _UNBOUNDED_SHARE) * delta,
    )  # fmt: skip


def _central(
    name: str,
    multiplier: float,
    findings: list[Flaw],
    seen: str,
    *,
    rounds: int,
    delta: float,
    sampled: int,
    clients: int | None,
    secure: bool,
    claimed: float | None,
    noisy: bool,
    missing: float | None = None,
    accounted: float | None = None,
) -> LabelVerdict:
    """The views of a strategy with this multiplier, or with `missing` if a client is missing instead of replaced.

    `accounted` is the part of delta that is left for the Gaussian releases.
    """
    rounds, delta, sampled = count("rounds", rounds), check_delta(delta), count("num_sampled_clients", sampled)
    views: list[View] = []
    findings = [*findings, _METRICS]
    if not noisy:
        findings.insert(0, Flaw("noise_multiplier = 0 adds no noise.", "Set a noise multiplier above 0."))
    at = delta if accounted is None else accounted
    said = f"noise {multiplier:.4g} times one client's largest share, {in_rounds(rounds)}"
    if clients is not None:
        if sampled > count("num_clients", clients):
            raise RequestError(f"num_sampled_clients must be at most num_clients = {clients}, not {sampled}")
        event = one_release(lambda z: without_replacement(clients, sampled, z), multiplier)
        because = f"{said}, {sampled} of {clients} clients drawn in each"
        views.append(cost(MODELS_ALONE, Unit.CLIENT, "replace-one", event, rounds, at, because))
    for adjacency, noise in (("replace-one", multiplier), ("add-remove", missing or multiplier)):
        views.append(cost(MODELS, Unit.CLIENT, adjacency, every_round(noise), rounds, at, said))
    views = [replace(one, delta=delta) for one in views]
    views.append(nothing(SERVER, Unit.CLIENT, f"the server {seen} and adds the noise afterwards"))
    if secure:
        findings.append(
            Flaw(
                "Secure aggregation hides single updates, but the server opens their exact sum and adds the "
                "noise itself.",
                "Let clients add the noise before the sum, as tacit's --trust sum does.",
            )
        )
    return LabelVerdict(name, claimed, tuple(views), tuple(findings))


def _multiplier(
    stated: float, sampled: int, weighted: bool, largest_weight: float | None, fewest_replies: int | None
) -> tuple[float, list[Flaw]]:
    """The noise over what the heaviest client can move, and what is wrong with the weights."""
    stated, sampled = not_negative("noise_multiplier", stated), count("num_sampled_clients", sampled)
    replies = sampled if fewest_replies is None else count("fewest_replies", fewest_replies)
    if not weighted:
        share = 1 / replies
    elif largest_weight is not None:
        share = probability("largest_weight", largest_weight)
    else:
        share = 1.0
    findings = []
    factor = sampled * share
    if weighted and largest_weight is None:
        findings.append(
            Flaw(
                "FedAvg weights updates by num_examples, so one client can be the whole average: the noise, "
                "divided by "
                f"num_sampled_clients, is {sampled} times too small for it.",
                "Weight all clients equally (weighted = false), or state the largest weight a client can have.",
            )
        )
    elif factor > 1 + 1e-9:
        findings.append(
            Flaw(
                f"A client can have a weight of {share:.4g}, but the noise is for 1/{sampled}: it is "
                f"{factor:.3g} times "
                "too small.",
                "Weight all clients equally, and average only complete rounds.",
            )
        )
    return stated / factor, findings


def not_negative(setting: str, value: float) -> float:
    """Return the value if it is a number of at least zero; raise `RequestError` otherwise."""
    if number(setting, value) < 0:
        raise RequestError(f"{setting} must be a number of at least 0, not {value!r}")
    return float(value)


def in_rounds(rounds: int) -> str:
    """The number of rounds in words."""
    return "one round" if rounds == 1 else f"{rounds} rounds"
