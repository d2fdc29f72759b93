"""Settings that meet a privacy target: the least noise, most rounds or largest batch, always on the safe side."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial

from dp_accounting import DpEvent

from tacit._deferred import optimize
from tacit.errors import RequestError, positive
from tacit.privacy.accountant import cache as answers
from tacit.privacy.accountant.accounting import best_split, check_delta, log_delta
from tacit.privacy.accountant.accounting import epsilon as epsilon_of
from tacit.privacy.accountant.dominate import is_private, splits_noise
from tacit.privacy.accountant.inexact import Surcharge
from tacit.privacy.events import to_dict
from tacit.privacy.promises.terms import Adjacency

_PRECISION = 1e-4
"""Relative precision of the noise multiplier before it is rounded up."""

_STRIDE, _SMALL_STRIDE = 1.0, 0.01
_TYPICAL_SPLIT = -1.0
_MOST_NUDGES, _MOST_NUDGE = 20, 2e-3
_LEAST_LOG_NOISE, _MOST_LOG_NOISE = math.log(1e-4), math.log(1e9)
_ANSWERS: dict[str, float] = {}
"""Noise multipliers found earlier in this process: many clients share the same settings."""


def calibrate_noise(
    make_event: Callable[[float], DpEvent],
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
) -> float:
    """The smallest noise multiplier, to within 0.5% and never below it, whose event keeps (epsilon, delta).

    `make_event` returns the whole run's event for a noise multiplier. The result is checked by accounting for it
    once more, and both are cached (`tacit.privacy.accountant.cache`).

    >>> from tacit.privacy.events import gaussian, repeated
    >>> z = calibrate_noise(lambda z: repeated(gaussian(z), 100), epsilon=1.0, delta=1e-5)
    >>> round(z, 1)
    74.6
    """
    positive("epsilon", epsilon)
    check_delta(delta)
    adjacency = Adjacency(adjacency)
    # Two reference points distinguish functions that scale the noise differently.
    references = tuple(json.dumps(to_dict(make_event(z))) for z in (1.0, 3.0))
    question = json.dumps(["least noise", *references, float(epsilon), float(delta), adjacency])
    if question not in _ANSWERS:
        found = answers.look_up(question)
        if found is None or not found.get("epsilon", math.inf) <= epsilon or not found.get("noise", 0.0) > 0:
            found = _least_noise(make_event, float(epsilon), float(delta), adjacency)
            answers.keep(question, found)
        _ANSWERS[question] = found["noise"]
    return _ANSWERS[question]


def forget() -> None:
    """Clear the answers kept in memory by this process; those on disk stay."""
    _ANSWERS.clear()


def _least_noise(
    make_event: Callable[[float], DpEvent], epsilon: float, delta: float, adjacency: Adjacency
) -> dict[str, float]:
    if not is_private(make_event(1.0)):
        raise RequestError("noise cannot be calibrated: part of the run is not private at any noise level")
    target = math.log(delta)

    def excess(log_noise: float, split: float, rough: bool) -> float:
        # Search on delta, which is smooth in the noise; epsilon has a kink at zero.
        event = make_event(math.exp(log_noise))
        # Truncated noise has no guarantee above this epsilon, so a larger target does not allow less noise.
        kept = min(epsilon, Surcharge.of(event).largest_epsilon(target))
        if kept < 0:
            return -target
        found = log_delta(event, kept, adjacency, log_floor=target, split=split, rough=rough)
        return max(found, 4 * target) - target

    coarse = partial(excess, split=_TYPICAL_SPLIT, rough=True)
    _check_provable(make_event, partial(coarse, _MOST_LOG_NOISE), epsilon, delta)
    root = float(optimize.brentq(coarse, *_bracket(coarse, 0.0, _STRIDE, epsilon, delta), xtol=0.01))
    for _ in range(2 if splits_noise(make_event(1.0)) else 1):
        # The best split hardly changes with the noise, so it is searched for at the last root, not at every step.
        split = best_split(make_event(math.exp(root)), epsilon, adjacency, log_floor=target)
        fine = partial(excess, split=split, rough=False)
        root = float(optimize.brentq(fine, *_bracket(fine, root, _SMALL_STRIDE, epsilon, delta), xtol=_PRECISION))
    noise = math.exp(root + _PRECISION)
    for _ in range(_MOST_NUDGES):
        found = epsilon_of(make_event(noise), delta, adjacency)
        if found <= epsilon:
            return {"noise": noise, "epsilon": found}
        # Epsilon falls about as fast as the noise grows or faster, so this rarely runs twice.
        noise *= min(max(found / epsilon, 1 + 2 * _PRECISION), 1 + _MOST_NUDGE)
    raise _out_of_reach(f"noise multiplier near {noise:.6g}", epsilon, delta)


def _check_provable(
    make_event: Callable[[float], DpEvent], excess: Callable[[], float], epsilon: float, delta: float
) -> None:
    """Refuses a target above what truncated noise can prove, if other releases alone cost more than that."""
    most = Surcharge.of(make_event(1.0)).largest_epsilon(math.log(delta))
    if most < epsilon and excess() > 0:
        raise RequestError(
            f"epsilon = {epsilon:g} is too large for noise with truncated tails, of which no more than epsilon = "
            f"{most:.3g} can be proved, and other releases of the run cost more than that alone: ask for at most "
            f"epsilon = {most:.3g}"
        )


def _bracket(
    excess: Callable[[float], float], start: float, stride: float, epsilon: float, delta: float
) -> tuple[float, float]:
    """Logarithms of a noise multiplier that is too small and of one that is enough."""
    low = high = start
    if excess(start) > 0:
        while excess(high) > 0:
            low, high, stride = high, high + stride, 2 * stride
            if high > _MOST_LOG_NOISE:
                raise _out_of_reach(f"noise multiplier up to {math.exp(_MOST_LOG_NOISE):.0e}", epsilon, delta)
    else:
        while excess(low) <= 0:
            low, high, stride = low - stride, low, 2 * stride
            if low < _LEAST_LOG_NOISE:
                raise RequestError(
                    f"epsilon = {epsilon!r} at delta = {delta!r} is met without noise: delta is larger than "
                    "the chance that the record is used at all. Take a smaller delta, well below 1/records"
                )
    return low, high


def _out_of_reach(what: str, epsilon: float, delta: float) -> RequestError:
    return RequestError(
        f"no {what} keeps epsilon = {epsilon!r} at delta = {delta!r}; "
        "ask for a larger epsilon or delta, or reduce what is fixed (rounds, batch, other releases)"
    )
