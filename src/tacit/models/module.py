"""Any `torch.nn.Module` with any per-record loss, as a model over one flat vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacit.errors import RequestError, unknown_name
from tacit.federation import Batch
from tacit.models.gradients import ROWS_AT_A_TIME, Gradients, WrittenGradients
from tacit.models.losses import CrossEntropy, ScoreLoss, Squared
from tacit.models.model import check_point
from tacit.models.penalty import Penalty

RecordLoss = Callable[[Tensor, Tensor], Tensor]
"""outputs (records, ...), targets (records,) -> losses (records,)."""

LOSSES: dict[str, tuple[RecordLoss, ScoreLoss]] = {
    "cross-entropy": (
        lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
        CrossEntropy(),
    ),
    "squared": (lambda outputs, targets: (outputs.flatten() - targets).square() / 2, Squared()),
}


@dataclass(frozen=True, eq=False)
class ModuleModel:
    """A network from PyTorch: every record's gradient by `vmap(grad)`, in chunks that fit into memory.

    The module is a recipe for a function: its own parameters are only the starting point. A layer that mixes
    the records of a batch makes "one record's gradient" meaningless, and with it every promise about one
    record; such a layer is refused by name.

    >>> model = ModuleModel(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    >>> model.dim
    23
    """

    module: nn.Module
    loss: str | RecordLoss = "cross-entropy"
    penalty: Penalty | None = None
    _shapes: dict[str, torch.Size] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _refuse_mixing_layers(self.module)
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)
        shapes = {name: p.shape for name, p in self.module.named_parameters() if p.requires_grad}
        if not shapes:
            raise RequestError("the module has no parameters to train")
        object.__setattr__(self, "_shapes", shapes)

    @property
    def dim(self) -> int:
        """The number of trainable parameters."""
        return sum(shape.numel() for shape in self._shapes.values())

    @property
    def metric_name(self) -> str:
        """Accuracy or root mean squared error for the named losses, else the loss itself."""
        score_loss = self._named()[1]
        return score_loss.metric_name if score_loss else "loss"

    def _named(self) -> tuple[RecordLoss, ScoreLoss | None]:
        if isinstance(self.loss, str):
            return LOSSES[self.loss]
        return self.loss, None

    def init(self, generator: np.random.Generator) -> Tensor:
        """The module's own parameters, as they were when it was handed over."""
        parameters = dict(self.module.named_parameters())
        return torch.cat([parameters[name].detach().flatten() for name in self._shapes])

    def _state(self, point: Tensor) -> dict[str, Tensor]:
        parts = point.split([shape.numel() for shape in self._shapes.values()])
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(shape) for (name, shape), part in named}

    def outputs(self, point: Tensor, features: Tensor) -> Tensor:
        """What the module says at this point."""
        check_point(self, point)
        return functional_call(self.module, self._state(point), (features,))  # type: ignore[no-any-return]

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        """The loss of every record, every client at its own point if there is one each."""
        record_loss = self._named()[0]
        if point.dim() == 1:
            return record_loss(self.outputs(point, batch.features), batch.targets)
        sizes = batch.counts.tolist()
        parts = zip(point, batch.features.split(sizes), batch.targets.split(sizes), strict=True)
        return torch.cat([record_loss(self.outputs(p, x), y) for p, x, y in parts])

    def gradients(self, point: Tensor, batch: Batch) -> Gradients:
        """By `vmap(grad)`; written out once if that fits into memory, recomputed in chunks if not."""
        check_point(self, point)
        lazy = _ModuleGradients(self, point, batch)
        if batch.records * self.dim <= ROWS_AT_A_TIME:
            return WrittenGradients(lazy.rows(0, batch.records), batch.counts)
        return lazy

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        """The predicted target of every record, or the raw output for a loss of the user's own."""
        outputs, score_loss = self.outputs(point, features), self._named()[1]
        return score_loss.predict(outputs) if score_loss else outputs

    def metric(self, point: Tensor, batch: Batch) -> float:
        """The named loss's metric, or the mean loss."""
        score_loss = self._named()[1]
        if score_loss is None:
            return float(self.losses(point, batch).double().mean())
        return float(score_loss.metric(self.outputs(point, batch.features), batch.targets))


@dataclass(frozen=True)
class _ModuleGradients:
    model: ModuleModel
    point: Tensor
    batch: Batch

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def counts(self) -> Tensor:
        return self.batch.counts

    def _ranges(self) -> list[tuple[int, int]]:
        size = max(1, ROWS_AT_A_TIME // self.dim)
        return [(s, min(s + size, self.batch.records)) for s in range(0, self.batch.records, size)]

    def rows(self, start: int, stop: int) -> Tensor:
        if start == stop:
            return torch.zeros(0, self.dim)
        record_loss = self.model._named()[0]

        def one(point: Tensor, features: Tensor, target: Tensor) -> Tensor:
            return record_loss(self.model.outputs(point, features[None]), target[None])[0]

        shared = self.point.dim() == 1
        points = self.point if shared else self.point[self.batch.owners()[start:stop]]
        axes: tuple[Any, ...] = (None if shared else 0, 0, 0)
        gradients: Callable[..., Tensor] = vmap(grad(one), in_dims=axes)
        return gradients(points, self.batch.features[start:stop], self.batch.targets[start:stop])

    def norms(self) -> Tensor:
        return torch.cat([WrittenGradients(self.rows(a, b), self.counts).norms() for a, b in self._ranges()])

    def weighted_sums(self, weights: Tensor) -> Tensor:
        total = self.point.new_zeros(len(self.counts), self.dim)
        owners = self.batch.owners()
        for start, stop in self._ranges():
            part = WrittenGradients(self.rows(start, stop), torch.ones(stop - start, dtype=torch.int64))
            total.index_add_(0, owners[start:stop].to(total.device), part.weighted_sums(weights[start:stop]))
        return total


def _refuse_mixing_layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        where = f"layer {name or '(the module itself)'!r} ({type(layer).__name__})"
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise RequestError(
                f"{where} mixes the records of a batch, so no bound on one record can hold; "
                "use torch.nn.GroupNorm or torch.nn.LayerNorm instead"
            )
        if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
            raise RequestError(f"{where} keeps statistics over records; set track_running_stats=False")
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0 and layer.training:
            raise RequestError(
                f"{where} draws from PyTorch's global generator, so that a run could not be repeated; "
                "remove it (the noise of privacy regularises already) or call module.eval() first"
            )
