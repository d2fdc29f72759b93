"""Privacy for records and whole clients at once: ISRL-DP (Lowy & Razaviyayn 2023), appendices C.2 and D.3.5.

The paper gives every record epsilon/n at delta/(4n); by group privacy, a client of n records then has epsilon at
delta. Here the noise is the larger of two needs: that of a record's own target, and that of all records of a
client changing together (`tacit.privacy.accountant.groups`, which takes the sampling into account).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dp_accounting import DpEvent

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy, least_noise
from tacit.algorithms.trust import Travel
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Target, Unit
from tacit.privacy.accountant import accounting
from tacit.privacy.accountant.composition import CannotAnswerError
from tacit.privacy.accountant.groups import group_epsilon

_PRECISION = 1.002
"""Upper limit on the noise found for whole clients, relative to the least that would do."""

_STRICTER, _MOST_TRIES = 0.998, 20
_MOST_NOISE = 1e9


def protect_clients(
    algorithm: Algorithm, federation: Federation, *, releases: int, privacy: Privacy, clients: Target
) -> Privacy:
    """Record-level targets, per client, whose noise also keeps the target for whole clients.

    Guarantee: with the noise that `calibrate` derives from the result, `group_epsilon` of each client's run over
    all of its records is at most `clients.epsilon` at `clients.delta`; no record is promised less than before.
    """
    if isinstance(privacy, str):
        raise RequestError("client_epsilon asks for a promise, but privacy = 'none'")
    if algorithm.work.unit is not Unit.RECORD or algorithm.travel is not Travel.ALONE:
        raise RequestError(
            f"client_epsilon is for algorithms that protect records in every single message; {algorithm.name!r} "
            f"protects every {algorithm.work.unit} against {algorithm.trust.adversary.description}"
        )
    each = [privacy] * federation.clients if isinstance(privacy, Target) else list(privacy)
    if any(target.adjacency is not clients.adjacency for target in each):
        raise RequestError("the targets of records and of whole clients must have the same adjacency")

    @cache
    def stricter(size: int, target: Target) -> Target:
        return _stricter(lambda z: algorithm.work.event(size, z, releases), size, target, clients)

    targets = tuple(stricter(size, target) for size, target in zip(federation.sizes.tolist(), each, strict=True))
    return targets[0] if len(set(targets)) == 1 else targets


def _stricter(make_event: Callable[[float], DpEvent], size: int, target: Target, clients: Target) -> Target:
    def keeps(noise_multiplier: float) -> bool:
        try:
            spent = group_epsilon(make_event(noise_multiplier), size, clients.delta, clients.adjacency)
        except CannotAnswerError:
            return False
        return spent <= clients.epsilon

    low = least_noise(make_event, target)
    if keeps(low):
        return target
    high = 2 * low
    while not keeps(high):
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise RequestError(
                f"no noise up to {_MOST_NOISE:g} bounds keeps client_epsilon = {clients.epsilon:g} at delta = "
                f"{clients.delta:g} for a client of {size} records; ask for a larger one, or for fewer rounds"
            )
    while high > _PRECISION * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if keeps(middle) else (middle, high)
    # Expressed as a record-level target, because all noise is derived from such targets.
    epsilon = accounting.epsilon(make_event(high), target.delta, target.adjacency)
    for _ in range(_MOST_TRIES):
        wanted = Target(min(target.epsilon, epsilon), target.delta, target.adjacency)
        if keeps(least_noise(make_event, wanted)):
            return wanted
        epsilon *= _STRICTER
    raise RequestError(f"client_epsilon = {clients.epsilon:g} is outside the range of the accountant")
