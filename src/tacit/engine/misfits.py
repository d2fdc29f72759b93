"""Finds where records are not as the defaults assume: the sizes of features and targets.

This looks at records without protection. Like the losses of a simulation, it is only for the researcher.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from tacit.federation import Federation
from tacit.side.sizes import EXPECTED

FAR = 10.0
"""Sizes that differ from what is assumed by more than this factor are named."""

FAR_FROM_ZERO = 30.0
"""Targets lie far from 0 if their mean is this many times their standard deviation."""


ENOUGH = 1000
"""About so many records are looked at."""


@dataclass(frozen=True)
class Limit:
    """Something that limited a result, and what to change."""

    what: str
    change: str

    def to_dict(self) -> dict[str, str]:
        """As plain data for JSON."""
        return asdict(self)


def misfit_features(federation: Federation) -> list[Limit]:
    """Features that are much smaller or larger than assumed, all of them or some columns."""
    if federation.schema is not None or federation.feature_norm is not None:
        return []
    features = federation.features[:: max(1, federation.records // ENOUGH)].flatten(1)
    lengths = torch.linalg.vector_norm(features, dim=1).double()
    size = float(lengths.median()) / features.shape[1] ** 0.5
    usual = torch.stack([_usual(column) for column in features.T])
    usual = usual[usual > 0]
    if len(usual) and float(usual.max() / usual.median()) > FAR**2:
        return [
            Limit(
                f"Columns differ in size, from {float(usual.min()):.2g} to {float(usual.max()):.2g}: the largest "
                "hide the others.",
                'Give the usual size of each, as data.features = "sizes:A,B,...", or describe the table by a '
                "schema. With more records, or a larger epsilon, sizes are learned privately.",
            )
        ]
    if size > 0 and not 1 / FAR <= size / EXPECTED <= FAR**2:
        return [
            Limit(
                f"Features are of about size {size:.2g} each; steps and clip norm assume {EXPECTED:g}.",
                f'Say how large they usually are, as data.features = "sizes:{size:.1g}".',
            )
        ]
    return []


def _usual(column: torch.Tensor) -> torch.Tensor:
    """The median absolute value where it is not zero; 0 if it is zero everywhere."""
    there = column[column != 0].abs().double()
    return there.median() if len(there) else torch.zeros((), dtype=torch.float64)


def misfit_targets(federation: Federation, assumed: float) -> list[Limit]:
    """Targets of a regression that differ little compared with their size, or with what the steps assume."""
    if federation.classes is not None or federation.schema is not None:
        return []
    middle = federation.middle
    if middle is not None and middle.half is not None:
        return []
    targets = federation.targets.double() - (0.0 if middle is None else middle.centre)
    centre, spread = float(targets.mean()), float(targets.std(correction=0))
    if abs(centre) > FAR_FROM_ZERO * spread:
        return [
            Limit(
                f"Targets lie about {centre:.3g}, and differ by only {spread:.2g}.",
                "Subtract a public centre from the targets, and set target_bound for what is left.",
            )
        ]
    if 0 < spread < assumed / FAR:
        return [
            Limit(
                f"Targets differ by about {spread:.2g}; bound and first steps assume {assumed:.2g}.",
                "Set target_bound to a public bound on the absolute target.",
            )
        ]
    return []
