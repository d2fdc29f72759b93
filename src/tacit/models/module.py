"""Any `torch.nn.Module` with any per-record loss, as a model over one flat vector."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from tacit.errors import RequestError, unknown_name
from tacit.federation import Batch
from tacit.models.gradients import ROWS_AT_A_TIME, Divisible, Gradients
from tacit.models.layers_capture import Capture, layer_parameters
from tacit.models.layers_chain import LayerChain, keeps_records_apart, record_by_record
from tacit.models.layers_refused import refuse_mixing_layers
from tacit.models.losses import CrossEntropy, ScoreLoss, Squared
from tacit.models.model import check_point
from tacit.models.named import Stored
from tacit.models.padding import WRITES
from tacit.models.penalty import Penalty
from tacit.models.record_loss import RecordLoss
from tacit.models.shares import LayeredGradients
from tacit.models.trainable import (
    Trainable,
    fine_tuned,
    frozen_tensors,
    frozen_weights,
    split_front,
    to_run,
)

LOSSES: dict[str, tuple[RecordLoss, ScoreLoss]] = {
    "cross-entropy": (
        lambda outputs, targets: F.cross_entropy(outputs, targets, reduction="none"),
        CrossEntropy(),
    ),
    "squared": (lambda outputs, targets: (outputs.flatten() - targets).square() / 2, Squared()),
}

EVALUATED_AT_A_TIME = 512
"""The number of records that pass through a network together if nothing else limits it."""


@dataclass(frozen=True, eq=False)
class ModuleModel:
    """A PyTorch network, with per-record gradients from one forward and one backward pass over the batch.

    The module only defines a function: its own parameters are just the starting point, or unused if `start` draws
    another one. Its code sees one record at a time, so that what it computes for one cannot depend on another
    (see `tacit.models.layers_capture`). A layer that mixes the records of a batch makes "one record's gradient"
    meaningless, and with it every promise about one record; such a layer is refused by name.

    >>> model = ModuleModel(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    >>> model.dim
    23
    """

    module: nn.Module
    """the network"""
    loss: str | RecordLoss = "cross-entropy"
    """"cross-entropy", "squared", or a function of outputs and targets with one loss per record"""
    penalty: Penalty | None = None
    """the part of the objective that no record influences"""
    start: Callable[[np.random.Generator], Tensor] | None = field(default=None, repr=False)
    """draws the point at which training starts"""
    trainable: Trainable = "all"
    """what is trained, see `tacit.models.trainable.fine_tuned`"""
    _shapes: dict[str, torch.Size] = field(init=False, repr=False)
    _running: nn.Module = field(init=False, repr=False)
    """the module whose code is run: what that keeps in attributes stays out of the module that is handed out"""
    _names: dict[str, str] = field(init=False, repr=False)
    """of every tensor that a layer has, by its name in that layer: the name in `named_parameters` or buffers"""
    _capture: Capture = field(init=False, repr=False)
    _apart: bool = field(init=False, repr=False)
    """whether the module is known to keep records apart"""

    def __post_init__(self) -> None:
        if isinstance(self.module, torch.jit.ScriptModule):
            raise RequestError(
                "a TorchScript module's code cannot be run one record at a time: give the nn.Module"
            )
        object.__setattr__(self, "module", fine_tuned(self.module, self.trainable))
        refuse_mixing_layers(self.module)
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise unknown_name("loss", self.loss, LOSSES)
        shapes = {name: p.shape for name, p in self.module.named_parameters() if p.requires_grad}
        if not shapes:
            raise RequestError("the module has no parameters to train")
        object.__setattr__(self, "_shapes", shapes)
        object.__setattr__(self, "_running", to_run(self.module))
        object.__setattr__(self, "_names", _names_of_tensors(self.module))
        chain = LayerChain.of(self.module) if isinstance(self.loss, str) else None
        capture = Capture(self._record_losses, shapes, layer_parameters(self.module), chain, self._slopes)
        object.__setattr__(self, "_capture", capture)
        object.__setattr__(self, "_apart", keeps_records_apart(self.module))

    @property
    def dim(self) -> int:
        return sum(shape.numel() for shape in self._shapes.values())

    @property
    def metric_name(self) -> str:
        """Accuracy or root mean squared error for the named losses, otherwise the loss itself."""
        score_loss = self._named()[1]
        return score_loss.metric_name if score_loss else "loss"

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The shapes of the trained parameters by name, in their order in a point."""
        return self._shapes

    @property
    def public(self) -> tuple[str, ...]:
        """What a guarantee takes as public: weights and statistics that are not trained."""
        frozen = frozen_tensors(self.module)
        return (frozen_weights(frozen),) if frozen else ()

    def split(self, record: Tensor) -> tuple[nn.Module, ModuleModel] | None:
        """The frozen front of the network and a model of the rest (`tacit.models.trainable.split_front`)."""
        parts = split_front(self.module, record)
        if parts is None:
            return None
        return parts[0], replace(self, module=parts[1], start=self.start or self.init, trainable="all")

    @property
    def stored(self) -> tuple[Stored, ...]:
        return tuple(Stored(name, tuple(shape)) for name, shape in self.shapes.items())

    def untrained(self) -> nn.Module:
        return copy.deepcopy(self.module)

    def _named(self) -> tuple[RecordLoss, ScoreLoss | None]:
        if isinstance(self.loss, str):
            return LOSSES[self.loss]
        return self.loss, None

    def init(self, generator: np.random.Generator) -> Tensor:
        """What `start` draws, or the module's own parameters as they were when the model was built."""
        if self.start is not None:
            return self.start(generator)
        parameters = dict(self.module.named_parameters())
        return torch.cat([parameters[name].detach().flatten() for name in self._shapes])

    def _state(self, point: Tensor) -> dict[str, Tensor]:
        parts = point.split([shape.numel() for shape in self._shapes.values()])
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(shape) for (name, shape), part in named}

    def outputs(self, point: Tensor, features: Tensor) -> Tensor:
        """The module's outputs at this point, each of its record alone."""
        check_point(self, point)
        if self._capture.chain is None:
            with self._untouched(point) as own:
                return self._all_outputs(own, features)
        return self._all_outputs(point, features)

    def _all_outputs(self, point: Tensor, features: Tensor) -> Tensor:
        state = self._state(point)
        # Activations of too many records at once do not fit into the processor's cache: twice the time.
        outputs = [self._outputs(state, part) for part in features.split(EVALUATED_AT_A_TIME)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _outputs(self, state: dict[str, Tensor], features: Tensor) -> Tensor:
        if self._capture.chain is not None:
            return self._capture.chain.outputs(state, features.clone())
        called = partial(self._called, state)
        return called(features) if self._apart else record_by_record(called, features)

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        """The loss of each record, at each client's own point if there is one per client.

        Guarantee: it depends on this record alone, whatever the module and the loss do with batches.
        """
        if point.dim() == 1:
            return self._losses(self.outputs(point, batch.features), batch.targets)
        sizes = batch.counts.tolist()
        parts = zip(point, batch.features.split(sizes), batch.targets.split(sizes), strict=True)
        return torch.cat([self._losses(self.outputs(p, x), y) for p, x, y in parts])

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = self._named()[0]
        return loss(outputs, targets) if isinstance(self.loss, str) else record_by_record(loss, outputs, targets)

    def weighted_loss(self, point: Tensor, batch: Batch, weights: Tensor) -> tuple[Tensor, Tensor] | None:
        """The weighted sum of the records' losses (double) and its gradient, without per-record gradients.

        One ordinary forward and backward pass, for evaluation. None for a module that might mix records.
        """
        if self._capture.chain is None:
            return None
        total, gradient = torch.zeros((), dtype=torch.float64, device=point.device), torch.zeros_like(point)
        point = point.detach().requires_grad_()
        parts = (tensor.split(EVALUATED_AT_A_TIME) for tensor in (batch.features, batch.targets, weights))
        for features, targets, factors in zip(*parts, strict=True):
            with torch.enable_grad():
                losses = self._named()[0](self.outputs(point, features), targets)
                loss = (losses * factors.to(losses.dtype)).sum()
            gradient += torch.autograd.grad(loss, point)[0]
            total += (losses.detach().double() * factors).sum()
        return total, gradient

    def gradients(self, point: Tensor, batch: Batch) -> Gradients:
        """The gradients, layer by layer; kept if they fit into memory, otherwise recomputed in chunks."""
        check_point(self, point)
        if batch.records == 0:
            return LayeredGradients.written(point.new_zeros(0, self.dim), batch.counts)
        # For few records, it is not worth measuring how much memory they take.
        if batch.records * (self.dim + 16 * batch.features[0].numel()) > ROWS_AT_A_TIME // 8:
            first = self._captured(point, _part(batch, 0, 1))
            size = max(1, ROWS_AT_A_TIME // max(1, first.numbers))
            if size < batch.records:
                return _ChunkedGradients(self, point, batch, size)
        return self._captured(point, batch)

    def _captured(self, point: Tensor, batch: Batch) -> LayeredGradients:
        if self._capture.chain is not None:
            return self._capture.gradients(point, batch)
        with self._untouched(point) as own:
            return self._capture.gradients(own, batch)

    @contextlib.contextmanager
    def _untouched(self, point: Tensor) -> Iterator[Tensor]:
        """A copy of a point for the module's own code, which must not write into it.

        All records share it: what one of them writes, the others would read, and so would everyone, in the model.
        """
        own = point.clone()
        yield own
        # Not a number is not equal to itself.
        if not torch.equal(own.detach().nan_to_num(), point.detach().nan_to_num()):
            raise RequestError(f"{type(self.module).__name__} {WRITES}: leave that out of forward")

    def _record_losses(self, parameters: Mapping[str, Tensor], features: Tensor, targets: Tensor) -> Tensor:
        return self._named()[0](self._called(dict(parameters), features), targets)

    def _called(self, state: dict[str, Tensor], features: Tensor) -> Tensor:
        """The module's outputs on a copy of the features, because in-place code must not change the records."""
        known = {**self._frozen(features), **state}
        # By all of its names: PyTorch's own ties would leave these values in a layer that has two of them.
        named = {name: known[first] for name, first in self._names.items()}
        outputs: Tensor = functional_call(self._running, named, (features.clone(),), tie_weights=False)
        return outputs

    def _frozen(self, features: Tensor) -> dict[str, Tensor]:
        """Weights and statistics that are not trained, where the features are and as precise."""
        frozen = frozen_tensors(self.module)
        return {
            name: t.to(features.device, features.dtype if t.is_floating_point() else t.dtype)
            for name, t in frozen.items()
        }

    def _slopes(self, outputs: Tensor, targets: Tensor) -> Tensor:
        with torch.enable_grad():
            outputs = outputs.detach().requires_grad_()
            total = self._named()[0](outputs, targets).sum()
        return torch.autograd.grad(total, outputs)[0]

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        """The predicted target of each record, or the raw output for a custom loss."""
        outputs, score_loss = self.outputs(point, features), self._named()[1]
        return score_loss.predict(outputs) if score_loss else outputs

    def metric(self, point: Tensor, batch: Batch) -> float:
        """The named loss's metric, or the mean loss."""
        score_loss = self._named()[1]
        if score_loss is None:
            return float(self.losses(point, batch).double().mean())
        return float(score_loss.metric(self.outputs(point, batch.features), batch.targets))


def _names_of_tensors(module: nn.Module) -> dict[str, str]:
    """For each layer once, the names of its tensors, with the first name of the same tensor in any layer."""
    first = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    return {
        f"{layer}.{name}" if layer else name: first[id(tensor)]
        for layer, owner in module.named_modules()
        for name, tensor in (*owner._parameters.items(), *owner._buffers.items())
        if tensor is not None
    }


def _part(batch: Batch, start: int, stop: int) -> Batch:
    """Some consecutive records, with a count for every client of the whole batch."""
    ends = torch.cumsum(batch.counts, 0)
    counts = ends.clamp(start, stop) - (ends - batch.counts).clamp(start, stop)
    return Batch(batch.features[start:stop], batch.targets[start:stop], counts)


@dataclass(frozen=True)
class _ChunkedGradients(Divisible):
    """Gradients that are recomputed whenever they are needed, some records at a time."""

    model: ModuleModel
    point: Tensor
    batch: Batch
    size: int

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def counts(self) -> Tensor:
        return self.batch.counts

    def _chunks(self, first: int, last: int) -> Iterator[tuple[slice, LayeredGradients]]:
        for start in range(first, last, self.size):
            stop = min(start + self.size, last)
            yield slice(start, stop), self.model._captured(self.point, _part(self.batch, start, stop))

    def parts(self) -> Iterator[tuple[slice, Gradients]]:
        """Groups of clients that fit into memory; a client that does not comes in several parts."""
        sizes = self.counts.tolist()
        first, start, stop = 0, 0, 0
        for client, size in enumerate(sizes):
            if client > first and stop + size - start > self.size:
                yield from self._of_clients(slice(first, client), slice(start, stop))
                first, start = client, stop
            stop += size
        yield from self._of_clients(slice(first, len(sizes)), slice(start, stop))

    def _of_clients(self, clients: slice, records: slice) -> Iterator[tuple[slice, Gradients]]:
        batch = Batch(self.batch.features[records], self.batch.targets[records], self.counts[clients])
        point = self.point if self.point.dim() == 1 else self.point[clients]
        for _, gradients in replace(self, point=point, batch=batch)._chunks(0, batch.records):
            yield clients, gradients

    def norms(self) -> Tensor:
        return torch.cat([gradients.norms() for _, gradients in self._chunks(0, self.batch.records)])

    def weighted_sums(self, weights: Tensor) -> Tensor:
        total = self.point.new_zeros(len(self.counts), self.dim)
        for records, gradients in self._chunks(0, self.batch.records):
            total += gradients.weighted_sums(weights[records])
        return total

    def rows(self, start: int, stop: int) -> Tensor:
        parts = [gradients.rows(0, r.stop - r.start) for r, gradients in self._chunks(start, stop)]
        return torch.cat(parts) if parts else self.point.new_zeros(0, self.dim)
