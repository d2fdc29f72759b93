"""Chooses good values for what a recipe leaves open, from public numbers and the exact accountant.

No record is used. The numbers of records, clients, features and classes are public, and so are the promise and
the noise it needs; steps are derived from the messages themselves (`tacit.server.self_tuned`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tacit.algorithms.calibrate import Privacy
from tacit.algorithms.prospect import NOISY, SHARP, feature_scale, long_tail, typical_residual, typical_scores
from tacit.algorithms.registry import algorithm_entry
from tacit.compress import Shifted, parse_compressor
from tacit.engine.batches import mean_noise, thrifty_rate
from tacit.models.linear import LinearModel
from tacit.privacy import Target
from tacit.server.self_tuned import Prospect
from tacit.theory.asked import Asked

ROUNDS = 100
"""Rounds of a large problem, or with local steps: more need more noise each, and only their distance counts."""

MANY_ROUNDS, CHEAP = 300, 10**8
"""Rounds where batches are small, and their most multiplications a round: shorter steps gain a point or two."""

FRESH, CHEAP_PASS = 0.8, 2 * 10**6
"""How often a snapshot is taken at most, and its multiplications a round that cost little time."""

CLIP_SHARE = 0.3
"""The bound on a record's gradient, relative to its length for a model that is entirely wrong.

A shorter bound loses nothing early on, when all gradients are long, and needs less noise later.
"""

WIDE_FROM, WIDEST = 30.0, 4.0
"""Above this signal-to-noise ratio, the bound for a table's classes grows with it, up to so many times."""

NARROWEST, ROOMIEST = 0.1, 1.25
"""The narrowest and widest clip norm of a regression, in typical gradients (a long tail has room of its own)."""

COMPRESSORS = ("rand-k:0.01", "rand-k:0.05", "rand-k:0.1", "rand-k:0.3", "natural")
"""Compressors to choose from, strongest first."""

SHORT_MESSAGE = 256
"""Up to this many numbers, a kilobyte, no message is compressed: that saves nothing that is worth its noise."""

SUMMABLE = tuple(spec for spec in COMPRESSORS if spec.startswith("rand-k"))
"""Those whose messages can be added up under masks."""

SPARSE_STEPS = "rand-k:0.3"
"""Compressor if clients work only on the coordinates they send: fewer need less noise each, but more rounds."""

WORTH = 0.1
"""The increase in predicted loss that a compressor may cause: about one point of accuracy."""


def good_settings(asked: Asked, privacy: Privacy) -> dict[str, Any]:
    """A value for every important setting that a recipe leaves open, including "rounds"."""
    entry = algorithm_entry(asked.algorithm)
    rounds = asked.given.get("rounds") or good_rounds(asked, privacy)
    chosen: dict[str, Any] = {"rounds": rounds}
    chosen |= _good_batch(asked, privacy, rounds)
    batch = _batch(asked, chosen)
    if "clip_norm" in entry.settings and entry.private:
        chosen["clip_norm"] = good_clip_norm(asked, batch, privacy, rounds)
    if "snapshot_probability" in entry.settings:
        chosen["snapshot_probability"] = good_snapshot_probability(asked, batch)
    if asked.is_open("compressor") and str(asked.usual.get("compressor")).startswith("rand-k"):
        # With local steps, clients work only on the coordinates they send, which costs no noise. But clients that
        # differ then pull different coordinates, and a short message saves nothing that is worth it.
        sparse = "rand-k:1.0" if asked.model.dim <= SHORT_MESSAGE else SPARSE_STEPS
        local = "local_steps" in entry.settings
        chosen["compressor"] = sparse if local else _good_compressor(asked, batch, privacy, rounds)
    return chosen


def good_rounds(asked: Asked, privacy: Privacy) -> int:
    """As many rounds as still help, where they cost little; in one pass, no more than there are batches."""
    local_steps = asked.value("local_steps")
    if asked.one_pass:
        return int(max(1, min(ROUNDS, asked.disjoint_batches(asked.batch()) // (local_steps or 1))))
    batch = _batch(asked, _good_batch(asked, privacy, MANY_ROUNDS))
    cost = asked.rate(batch) * asked.federation.records * asked.model.dim
    return ROUNDS if local_steps or cost > CHEAP else MANY_ROUNDS


def good_snapshot_probability(asked: Asked, batch: float | None) -> float:
    """In most rounds, where a pass over all records costs little; elsewhere less often.

    A record's gradient may differ only so much from that at the snapshot. Where steps are long, an old snapshot
    is far away, most differences are shortened, and the model runs past its goal.
    """
    cheap = CHEAP_PASS / (asked.federation.records * asked.model.dim)
    return min(FRESH, max(0.1, cheap, min(0.5, asked.rate(batch))))


def good_clip_norm(asked: Asked, batch: float | None, privacy: Privacy, rounds: int) -> float:
    """A share of the length of a record's gradient before training, from public numbers alone."""
    scale = feature_scale(asked.model, asked.feature_norm)
    if asked.federation.classes is not None and asked.federation.schema is not None:
        # Classes of real tables overlap, so many gradients stay long. Clipping these pushes probabilities towards
        # 0 and 1, and costs accuracy where there are many classes: the bound is as wide as the noise permits.
        room = _signal_to_noise(asked, batch, privacy, rounds) / WIDE_FROM
        return CLIP_SHARE * scale * min(max(1.0, room), WIDEST)
    known = asked.federation.schema is not None or asked.federation.target_bound is not None
    if asked.federation.classes is not None or not known:
        return CLIP_SHARE * scale
    if isinstance(asked.model, LinearModel) and asked.model.loss.slope_bound is not None:
        # An absolute error pulls as strongly whatever its size.
        return CLIP_SHARE * scale * asked.model.loss.slope_bound
    # A narrow bound pulls predictions towards the median, and a wide one brings noise. Where the noise is not
    # that of records, the ratio says nothing.
    ratio = _signal_to_noise(asked, batch, privacy, rounds)
    residual = typical_residual(asked.model, asked.federation, math.nan, ratio or SHARP)
    widest = ROOMIEST + (1 - ROOMIEST) * long_tail(asked.federation)
    return residual * scale * min(max(NARROWEST, (ratio or NOISY) / NOISY), widest)


def _signal_to_noise(asked: Asked, batch: float | None, privacy: Privacy, rounds: int) -> float:
    """About how many times the noise the mean of all directions can be; 0 where it is not records' noise."""
    if privacy == "none":
        return math.inf
    entry, federation, least = algorithm_entry(asked.algorithm), asked.federation, _records(asked)
    if entry.client_coins or entry.shuffled:
        return 0.0
    alone = mean_noise(asked.rate(batch), least, _releases(asked, rounds), _strictest(privacy))
    weights = 1.0 if federation.weights is None else federation.weights.double()
    stds = alone * weights * least / federation.sizes.double()
    cohort = asked.mean_cohort or federation.clients
    mean = math.sqrt(float(stds.square().mean()) / (cohort * asked.shares))
    return math.sqrt(_releases(asked, rounds) / asked.model.dim) / mean


def _good_batch(asked: Asked, privacy: Privacy, rounds: int) -> dict[str, Any]:
    """The cheapest batch whose noise is within 2% of the least possible; nothing if it is given."""
    entry = algorithm_entry(asked.algorithm)
    samples = "sampling" in entry.settings and asked.usual.get("sampling") == "poisson" and not entry.client_coins
    if not samples or not asked.is_open("sampling", "batch"):
        return {}
    if privacy == "none":
        return {"sampling": "poisson", "batch": 0.1}
    rate = thrifty_rate(_records(asked), _releases(asked, rounds), _strictest(privacy))
    return {"sampling": "poisson", "batch": rate} if rate < 1 else {"sampling": "full"}


def _good_compressor(asked: Asked, batch: float | None, privacy: Privacy, rounds: int) -> str:
    """The strongest compressor that is predicted to cost less than a point of accuracy, or none."""
    dim = asked.model.dim
    if dim <= SHORT_MESSAGE:
        return "identity"
    if privacy == "none":
        # Without noise, nothing says what a sparse message costs; rounded numbers cost next to nothing.
        return "natural"
    cohort = asked.mean_cohort or asked.federation.clients
    alone = mean_noise(asked.rate(batch), _records(asked), _releases(asked, rounds), _strictest(privacy))
    scores = typical_scores(asked.federation)
    plain = Prospect(dim, rounds, 1.0, alone / math.sqrt(cohort * asked.shares), 1.0, scores)
    for spec in COMPRESSORS if asked.shares == 1 else SUMMABLE:
        factor = Shifted(parse_compressor(spec)).noise_factor(dim)
        if replace(plain, noise_std=plain.noise_std * math.sqrt(factor)).excess() - plain.excess() <= WORTH:
            return spec
    return "identity"


def _batch(asked: Asked, chosen: dict[str, Any]) -> float | None:
    """The chosen batch, or the one that was given; None for all records."""
    return chosen.get("batch") if "sampling" in chosen else asked.batch()


def _records(asked: Asked) -> int:
    """Number of records of the smallest client."""
    return int(asked.federation.sizes.min())


def _releases(asked: Asked, rounds: int) -> int:
    """Total number of noisy gradients that a client sends, or steps along."""
    return int(rounds * (asked.value("local_steps") or 1))


def _strictest(privacy: Target | Sequence[Target]) -> Target:
    targets = [privacy] if isinstance(privacy, Target) else list(privacy)
    return min(targets, key=lambda target: target.epsilon)
