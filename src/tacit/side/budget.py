"""The part of a run's epsilon that a release before training may take."""

from __future__ import annotations

from tacit.errors import RequestError
from tacit.privacy.promises.guarantee import Target


def split_target(target: Target, fraction: float) -> Target:
    """The target for a release that would, on its own, cost a `fraction` of the pipeline's epsilon.

    Delta is the same and not divided, because release and training are accounted for together. Squared shifts of
    Gaussian releases add up, so one that would cost a tenth of epsilon alone leaves training about 99.5% of it.

    >>> split_target(Target(4.0, 1e-5), 0.1).epsilon
    0.4
    """
    if not 0 < fraction < 1:
        raise RequestError(f"fraction must be above 0 and below 1, not {fraction!r}: training needs a share, too")
    return Target(target.epsilon * fraction, target.delta, target.adjacency)
