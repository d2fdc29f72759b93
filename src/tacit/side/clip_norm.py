"""A clip norm from the lengths of the records' gradients at the start of training, as an accounted release."""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.errors import count
from tacit.federation import Batch, Federation
from tacit.models.gradients import ROWS_AT_A_TIME
from tacit.models.model import Model
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy.promises.guarantee import Target
from tacit.side.quantile import private_quantile
from tacit.side.release import SideRelease

BINS = 256
"""How finely a clip norm is searched."""


def clip_norm_from_quantile(
    model: Model,
    federation: Federation,
    *,
    lower: float,
    upper: float,
    quantile: float = 0.5,
    bins: int = BINS,
    name: str = "gradient norms",
    target: Target,
    seed: int | None = None,
) -> SideRelease[float]:
    """A clip norm that about a share `quantile` of the records' gradients at the initial point do not exceed.

    The guarantee is that of `private_quantile`. The search is on a logarithmic scale, so the public `lower`
    (above 0) and `upper` may be far apart: the answer is precise to a factor (upper / lower)^(1 / bins). A
    gradient that is not finite counts as longer than `upper`. The point is where a run with this seed starts
    (seed 0 if there is none). The median is the usual choice (Andrew et al. 2021 track it during training).

    >>> from tacit.models import logistic_regression
    >>> x = torch.linspace(-3, 3, 4000)[:, None]
    >>> federation = Federation.from_arrays(x, (x[:, 0] > 1).long(), [0, 1] * 2000)
    >>> clip = clip_norm_from_quantile(
    ...     logistic_regression(features=1), federation, lower=0.01, upper=100, target=Target(1.0, 1e-5), seed=0)
    >>> round(clip.value, 1)
    0.9
    """
    start = Randomness(count("seed", seed or 0, at_least=0)).generator(Purpose.INIT)
    norms = _gradient_norms(model, model.init(start).to(federation.features.device), federation)
    return private_quantile(
        federation,
        torch.where(torch.isnan(norms), torch.inf, norms),
        quantile,
        name=name,
        lower=lower,
        upper=upper,
        bins=bins,
        logarithmic=True,
        target=target,
        seed=seed,
    )


def _gradient_norms(model: Model, point: Tensor, federation: Federation) -> Tensor:
    """The norm of each record's gradient, computed in parts that fit into memory, regardless of the client."""
    at_a_time = max(1, ROWS_AT_A_TIME // max(model.dim, federation.features[0].numel()))
    parts = zip(federation.features.split(at_a_time), federation.targets.split(at_a_time), strict=True)
    batches = (Batch(features, targets, torch.tensor([len(targets)])) for features, targets in parts)
    return torch.cat([model.gradients(point, batch).norms().detach() for batch in batches])
