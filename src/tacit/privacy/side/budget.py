"""One budget for a whole pipeline: releases before training and training itself, accounted for together.

Epsilons are never added up. What happened before and what training will do are composed as events, and training
gets the noise that the composition needs. That makes careful preparation cheap: Gaussian releases add up in
squares, so one that would take a tenth of epsilon alone leaves training about sqrt(1 - 0.1^2) = 99.5% of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dp_accounting import DpEvent

from tacit.errors import RequestError
from tacit.privacy.accounting import epsilon
from tacit.privacy.calibrate import calibrate_noise
from tacit.privacy.events import composed
from tacit.privacy.guarantee import Guarantee, Target
from tacit.privacy.side.release import SideRelease
from tacit.privacy.terms import Unit

_NUDGE, _MOST_NUDGES = 1e-3, 20


def split_target(target: Target, fraction: float) -> Target:
    """The target for a release that would cost a `fraction` of the pipeline's epsilon if it were alone.

    At the same delta, which is not divided: `remaining_target` accounts for everything at once, and leaves
    training more than the rest of epsilon.

    >>> split_target(Target(4.0, 1e-5), 0.1).epsilon
    0.4
    """
    if not 0 < fraction < 1:
        raise RequestError(
            f"fraction must be above 0 and below 1, not {fraction!r}: training needs a share as well"
        )
    return Target(target.epsilon * fraction, target.delta, target.adjacency)


def pipeline_event(
    before: Sequence[SideRelease[Any]], make_event: Callable[[float], DpEvent]
) -> Callable[[float], DpEvent]:
    """From the noise multiplier of training to one client's event for the whole pipeline, to be calibrated.

    `make_event` gives the event of the client's whole training.
    """
    spent = [release.event for release in before]
    return lambda noise_multiplier: composed([*spent, make_event(noise_multiplier)])


def remaining_target(
    target: Target, before: Sequence[SideRelease[Any]], make_events: Iterable[Callable[[float], DpEvent]]
) -> Target:
    """What to ask of training, so that it keeps `target` *together with* the releases before it.

    Guarantee: `make_events` holds, for a client of each size, its whole training as a function of the noise
    multiplier. If each of them is calibrated to the target that is returned, its composition with `before`
    keeps `target`. Found by calibrating the composition, checked by calibrating training alone.

    >>> from tacit.federation import Federation
    >>> from tacit.privacy.events import composed, poisson, repeated
    >>> from tacit.privacy.side import FeatureBox, private_mean_and_scale
    >>> federation = Federation.from_clients([([[0.1], [0.7], [0.4]], [0, 1, 1])])
    >>> total = Target(epsilon=2.0, delta=1e-5)
    >>> side = private_mean_and_scale(federation, FeatureBox(0, 1), target=split_target(total, 0.1), seed=0)
    >>> training = lambda z: repeated(poisson(0.1, z), 200)
    >>> left = remaining_target(total, [side], [training])
    >>> 1.97 < left.epsilon < 2.0
    True
    >>> z = calibrate_noise(training, epsilon=left.epsilon, delta=left.delta)
    >>> 1.98 < epsilon(composed([side.event, training(z)]), total.delta) <= total.epsilon
    True
    """
    factories = list(make_events)
    if not factories:
        raise RequestError("make_events must hold the training of at least one client; it is empty")
    spent = epsilon(composed([release.event for release in before]), target.delta, target.adjacency)
    if spent >= target.epsilon:
        raise RequestError(
            f"the releases before training already cost epsilon = {spent:.6g} of {target.epsilon!r}; "
            "give them a smaller share (split_target), or raise epsilon"
        )

    def of_training(make_event: Callable[[float], DpEvent]) -> float:
        noise_multiplier = _calibrated(pipeline_event(before, make_event), target)
        return epsilon(make_event(noise_multiplier), target.delta, target.adjacency)

    left = min(target.epsilon, *map(of_training, factories))
    for _ in range(_MOST_NUDGES):
        asked = Target(left, target.delta, target.adjacency)
        pipelines = (pipeline_event(before, make)(_calibrated(make, asked)) for make in factories)
        if all(epsilon(event, target.delta, target.adjacency) <= target.epsilon for event in pipelines):
            return asked
        # Accountants round up: the same epsilon may be met by a little less noise than it was computed from.
        left *= 1 - _NUDGE
    raise RequestError(f"no target for training near epsilon = {left:.6g} keeps {target!r} with what was before")


def pipeline_guarantee(before: Sequence[SideRelease[Any]], training: Guarantee) -> Guarantee:
    """What a run and the releases before it promise together, to each client.

    A side release holds against everyone, so the promise is against whomever training's is.
    """
    if training.unit is not Unit.RECORD:
        raise RequestError(
            f"training's unit {str(training.unit)!r} does not go with releases that protect one record at a time"
        )
    for release in before:
        if release.clients != len(training.events):
            raise RequestError(
                f"a release of {release.clients} clients does not go with a run of {len(training.events)}; "
                "use the same federation for both"
            )
    clients = zip(training.events, *(release.events for release in before), strict=True)
    public = [entry for release in before for entry in release.public]
    return Guarantee(
        tuple(composed([*spent, run]) for run, *spent in clients),
        delta=training.delta,
        adjacency=training.adjacency,
        unit=training.unit,
        adversary=training.adversary,
        public=tuple(dict.fromkeys([*training.public, *public])),
    )


def _calibrated(make_event: Callable[[float], DpEvent], target: Target) -> float:
    return calibrate_noise(make_event, epsilon=target.epsilon, delta=target.delta, adjacency=target.adjacency)
