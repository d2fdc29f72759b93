"""Every record's gradient of a network, from one forward and one backward pass over a whole batch.

Wherever the module applies a linear map or a convolution with a parameter of its own, the layer's inputs are
noted on the way there and its errors on the way back; the two are the gradient of every record (see
`tacit.models.layers`). Parameters that are used in any other way get a copy for each record, whose gradients are
written down.

One record's gradient must not depend on another record, or no bound on one record holds. So the module's code
runs inside `torch.vmap`, where it is shown one record at a time and cannot mix two, whatever it does. Only a
chain of layers that are known to keep records apart is shown the whole batch: that saves what `vmap` costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from tacit.federation import Batch
from tacit.models.layers import Clients, LayeredGradients, Share, WrittenShare
from tacit.models.layers_tape import Tape, UsedOtherwiseError

RecordLosses = Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]
"""parameters by name, features (records, ...), targets (records,) -> losses (records,)"""

_RECORD_BY_RECORD = (nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.Identity)


def keeps_records_apart(module: nn.Module) -> bool:
    """Whether a module is a chain of PyTorch's own layers none of which looks at two records at once.

    >>> keeps_records_apart(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    True
    >>> keeps_records_apart(nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)))
    False
    """
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    if type(module) is nn.Sequential:
        return all(keeps_records_apart(layer) for layer in module)
    if type(module) is nn.Flatten:
        return module.start_dim == 1
    if type(module) is nn.Unflatten:
        return isinstance(module.dim, int) and module.dim > 0
    return type(module) in _RECORD_BY_RECORD


def layer_parameters(module: nn.Module) -> frozenset[str]:
    """The trainable parameters of the module's linear layers and convolutions, by name."""
    owners = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    names = {f"{owner}.{name}" if owner else name for owner, m in owners for name, _ in m.named_parameters()}
    return frozenset(names & {name for name, p in module.named_parameters() if p.requires_grad})


@dataclass(frozen=True)
class Capture:
    """How the gradients of one network are captured."""

    losses: RecordLosses
    shapes: Mapping[str, torch.Size]
    """of all parameters, in the order in which they lie in a point"""
    in_layers: frozenset[str]
    """the parameters that are expected to be used once, by a layer"""
    together: bool
    """whether the module and its loss are known to keep records apart"""

    def gradients(self, point: Tensor, batch: Batch) -> LayeredGradients:
        """The gradient of every record's loss, at one point or at one point a client; not of an empty batch."""
        in_layers, together = self.in_layers, self.together and len(self.in_layers) == len(self.shapes)
        while True:
            try:
                return self._gradients(point, batch, in_layers, together)
            except UsedOtherwiseError as found:
                in_layers, together = in_layers - found.names, False

    def _gradients(
        self, point: Tensor, batch: Batch, in_layers: frozenset[str], together: bool
    ) -> LayeredGradients:
        pieces = point.detach().split([shape.numel() for shape in self.shapes.values()], dim=-1)
        named = zip(self.shapes.items(), pieces, strict=True)
        parts = {name: piece.unflatten(-1, shape) for (name, shape), piece in named}
        clients = Clients.of(batch.counts, batch.features.device)
        shared = point.dim() == 1
        copies: dict[str, Tensor] = {}
        for name in self.shapes.keys() - in_layers:
            part = parts.pop(name)
            each = part.expand(batch.records, *part.shape) if shared else part[clients.owners]
            copies[name] = each.detach().requires_grad_()
        stand_ins = {name: (part if shared else part[0]).detach() for name, part in parts.items()}
        tape = Tape(stand_ins, parts, clients, together)

        def one(features: Tensor, target: Tensor, own: dict[str, Tensor]) -> Tensor:
            return self.losses({**stand_ins, **own}, features[None], target[None])[0]

        with torch.enable_grad(), tape:
            if together:
                total = self.losses(stand_ins, batch.features, batch.targets).sum()
            else:
                total = vmap(one)(batch.features, batch.targets, copies).sum()
        if in_layers - tape.seen():
            raise UsedOtherwiseError(in_layers - tape.seen())
        written = _backward(total, tape.anchor, copies)
        shares: dict[str, Share] = {name: WrittenShare(rows.flatten(1)) for name, rows in written.items()}
        for use in tape.uses:
            shares.update(use.shares())
        sizes = tuple(shape.numel() for shape in self.shapes.values())
        numbers = sum(use.numbers for use in tape.uses) + sum(copy.numel() for copy in copies.values())
        in_order = tuple(shares[name] for name in self.shapes)
        return LayeredGradients(in_order, sizes, batch.counts, clients, numbers)


def _backward(total: Tensor, anchor: Tensor, copies: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of the copies; the layers note their errors meanwhile, on the way to the anchor."""
    if not total.requires_grad:
        return {name: torch.zeros_like(copy) for name, copy in copies.items()}
    found = torch.autograd.grad(total, [anchor, *copies.values()], allow_unused=True)[1:]
    pairs = zip(copies.items(), found, strict=True)
    return {name: torch.zeros_like(copy) if rows is None else rows for (name, copy), rows in pairs}
