"""The part of a run's epsilon that a release before training may take."""

from __future__ import annotations

from collections.abc import Sequence

from tacit.errors import RequestError
from tacit.privacy.promises.guarantee import Target


def split_target(privacy: Target | Sequence[Target], fraction: float, setting: str = "fraction") -> Target:
    """The target for a release that would, on its own, cost a `fraction` of the epsilon of a run.

    Delta is the same and not divided, because release and training are accounted for together. Squared shifts of
    Gaussian releases add up, so one that would cost a tenth of epsilon alone leaves training about 99.5% of it.
    Where clients have targets of their own, a release to all of them has the smallest epsilon and delta.
    `setting` is what the fraction is called where it is set.

    >>> split_target(Target(4.0, 1e-5), 0.1).epsilon
    0.4
    """
    if not 0 < fraction < 1:
        raise RequestError(
            f"{setting} must be above 0 and below 1, not {fraction!r}: training needs a share, too"
        )
    targets = [privacy] if isinstance(privacy, Target) else privacy
    epsilon, delta = min(one.epsilon for one in targets), min(one.delta for one in targets)
    return Target(epsilon * fraction, delta, targets[0].adjacency)
