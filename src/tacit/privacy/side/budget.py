"""The part of a run's epsilon that a release before training may take."""

from __future__ import annotations

from tacit.errors import RequestError
from tacit.privacy.guarantee import Target


def split_target(target: Target, fraction: float) -> Target:
    """The target for a release that would cost a `fraction` of the pipeline's epsilon if it were alone.

    At the same delta, which is not divided: release and training are accounted for together. Gaussian releases
    add up in squares, so one that would take a tenth of epsilon alone leaves training about 99.5% of it.

    >>> split_target(Target(4.0, 1e-5), 0.1).epsilon
    0.4
    """
    if not 0 < fraction < 1:
        raise RequestError(
            f"fraction must be above 0 and below 1, not {fraction!r}: training needs a share as well"
        )
    return Target(target.epsilon * fraction, target.delta, target.adjacency)
