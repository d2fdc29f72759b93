"""From one promise to others, by (epsilon, delta) alone: other neighbours, several records, whole users.

These hold for every mechanism. `tacit.privacy.groups` looks at the events and is tighter, because it knows how
often several records of a group are drawn together.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, count
from tacit.privacy.accounting import check_delta
from tacit.privacy.guarantee import Target


def group(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """What a promise to one record is worth to `size` records that change together.

    (k e, d (1 + exp(e) + ... + exp((k-1) e))). Proof: change one record after the other. From
    P_i(S) <= exp(e) P_{i+1}(S) + d for i = 0, ..., k-1 follows P_0(S) <= exp(k e) P_k(S) + d sum_i exp(i e). QED.
    The bound of ISRL-DP (Lowy & Razaviyayn 2023), appendix C.2, with k exp((k-1) e) d, is looser.

    >>> epsilon, delta = group(1.0, 1e-6, 2)
    >>> epsilon, round(delta, 8)
    (2.0, 3.72e-06)
    """
    log_group_delta = math.log(check_delta(delta)) + log_geometric(_not_negative(epsilon), count("size", size))
    if log_group_delta >= 0:
        raise RequestError(
            f"epsilon = {epsilon!r} at delta = {delta!r} promises nothing to {size} records together: their "
            "delta would be 1 or more; begin with a smaller delta, or ask tacit.privacy.groups with the events"
        )
    return size * epsilon, math.exp(log_group_delta)


def replace_one_from_add_remove(epsilon: float, delta: float) -> tuple[float, float]:
    """The promise between data sets in which a record is another one, from that in which it is not used.

    A group of two: the record is taken out, and another one is put in its place.

    >>> epsilon, delta = replace_one_from_add_remove(0.5, 1e-6)
    >>> epsilon, round(delta, 8)
    (1.0, 2.65e-06)
    """
    return group(epsilon, delta, 2)


def add_remove_from_replace_one(epsilon: float, delta: float) -> tuple[float, float]:
    """The promise between data sets in which a record is used or not, from that in which it is another one.

    The same numbers: the number of records is public, so a record that is not used is one that contributes zero,
    and zero is within every bound.

    >>> add_remove_from_replace_one(0.5, 1e-6)
    (0.5, 1e-06)
    """
    return _not_negative(epsilon), check_delta(delta)


def user_level(epsilon: float, delta: float, records: int) -> tuple[float, float]:
    """The promise to a user (a silo, a person) all of whose records are protected one by one.

    A group of all its records: ISRL-DP (Lowy & Razaviyayn 2023), appendix C.2.

    >>> user_level(0.01, 1e-8, 100)[0]
    1.0
    """
    return group(epsilon, delta, count("records", records))


def record_target(user: Target, records: int) -> Target:
    """What to ask for each record so that a user with so many of them has the target: `user_level` backwards.

    (e/n, d / (1 + exp(e/n) + ... + exp((n-1) e/n))). ISRL-DP (Lowy & Razaviyayn 2023), appendix D.3.5, takes
    d/(4n) for e <= 1, which is stricter than needed.

    >>> target = record_target(Target(epsilon=1.0, delta=1e-5), 100)
    >>> target.epsilon, target.delta > 1e-5 / 400
    (0.01, True)
    """
    each = user.epsilon / count("records", records)
    return Target(each, user.delta * math.exp(-log_geometric(each, records)), user.adjacency)


def log_geometric(epsilon: float, size: int) -> float:
    """log(1 + exp(e) + ... + exp((k-1) e)), without overflow.

    >>> round(math.exp(log_geometric(1.0, 3)), 3)
    11.107
    """
    if epsilon == 0:
        return math.log(size)
    return (size - 1) * epsilon + math.log(math.expm1(-size * epsilon) / math.expm1(-epsilon))


def _not_negative(epsilon: float) -> float:
    if isinstance(epsilon, bool) or not (math.isfinite(epsilon) and epsilon >= 0):
        raise RequestError(f"epsilon must be a finite number of at least 0, not {epsilon!r}")
    return float(epsilon)
