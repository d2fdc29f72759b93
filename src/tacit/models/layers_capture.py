"""Per-record gradients of a network, from one forward and one backward pass over a whole batch.

Where the module applies a linear map or a convolution with its own parameter, the layer's inputs are recorded in
the forward pass and its errors in the backward pass; together they give each record's gradient (see
`tacit.models.layers`). Parameters that are used in any other way get a copy per record, whose gradients are
written out.

One record's gradient must not depend on another record, or no bound on one record holds. So the module's code
runs inside `torch.vmap`, where it sees one record at a time and cannot mix two, whatever it does. Only a chain of
layers that are known to keep records apart sees the whole batch (`tacit.models.layers_chain`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.federation import Batch
from tacit.models.layers import Owners
from tacit.models.layers_chain import LayerChain
from tacit.models.layers_tape import Tape
from tacit.models.layers_use import Use, UsedOtherwiseError
from tacit.models.shares import LayeredGradients, Share, WrittenShare

RecordLosses = Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]
"""Maps parameters by name, features (records, ...) and targets (records,) to losses (records,)."""


def layer_parameters(module: nn.Module) -> frozenset[str]:
    """The trainable parameters of the module's linear layers and convolutions, by name."""
    owners = [(name, m) for name, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    names = {f"{owner}.{name}" if owner else name for owner, m in owners for name, _ in m.named_parameters()}
    return frozenset(names & {name for name, p in module.named_parameters() if p.requires_grad})


@dataclass(frozen=True)
class Capture:
    """Captures the per-record gradients of one network."""

    losses: RecordLosses
    shapes: Mapping[str, torch.Size]
    """the shapes of all parameters by name, in their order in a point"""
    in_layers: frozenset[str]
    """the parameters that are expected to be used once, by one layer"""
    chain: LayerChain | None
    """the module, if it is known to keep records apart"""
    slopes: Callable[[Tensor, Tensor], Tensor]
    """maps outputs (records, ...) and targets (records,) to the slope of each record's loss by its outputs"""

    def gradients(self, point: Tensor, batch: Batch) -> LayeredGradients:
        """The gradient of each record's loss, at one point or at one per client; the batch must not be empty."""
        pieces = point.detach().split([shape.numel() for shape in self.shapes.values()], dim=-1)
        named = zip(self.shapes.items(), pieces, strict=True)
        parts = {name: piece.reshape((*piece.shape[:-1], *shape)) for (name, shape), piece in named}
        clients = Owners.of(batch.counts, batch.features.device)
        if self.chain is not None:
            try:
                uses = self.chain.uses(
                    parts, clients, batch.features, lambda outputs: self.slopes(outputs, batch.targets)
                )
                return self._layered(uses, {}, batch)
            except UsedOtherwiseError:
                pass
        in_layers = self.in_layers
        while True:
            try:
                return self._watched(parts, batch, clients, in_layers, shared=point.dim() == 1)
            except UsedOtherwiseError as found:
                in_layers = in_layers - found.names

    def _watched(
        self, parts: Mapping[str, Tensor], batch: Batch, clients: Owners, in_layers: frozenset[str], shared: bool
    ) -> LayeredGradients:
        """Run the module's own code, one record at a time, and record what it does with the parameters."""
        copies: dict[str, Tensor] = {}
        for name in self.shapes.keys() - in_layers:
            part = parts[name]
            each = part.expand(batch.records, *part.shape) if shared else part[clients.owners]
            copies[name] = each.detach().requires_grad_()
        stand_ins = {name: (parts[name] if shared else parts[name][0]).detach() for name in in_layers}
        tape = Tape(stand_ins, parts, clients)

        def one(features: Tensor, target: Tensor, own: dict[str, Tensor]) -> Tensor:
            return self.losses({**stand_ins, **own}, features[None], target[None])[0]

        # PyTorch's other kernels for attention cannot run inside vmap.
        with torch.enable_grad(), tape, sdpa_kernel(SDPBackend.MATH):
            total = vmap(one)(batch.features, batch.targets, copies).sum()
        if in_layers - tape.seen():
            raise UsedOtherwiseError(in_layers - tape.seen())
        written = _backward(total, tape.anchor, copies)
        return self._layered(tape.uses, written, batch)

    def _layered(self, uses: Sequence[Use], written: Mapping[str, Tensor], batch: Batch) -> LayeredGradients:
        shares: dict[str, Share] = {
            name: WrittenShare(rows.reshape(len(rows), -1)) for name, rows in written.items()
        }
        for use in uses:
            shares.update(use.shares())
        numbers = sum(use.numbers for use in uses) + sum(rows.numel() for rows in written.values())
        in_order = tuple(shares[name] for name in self.shapes)
        return LayeredGradients(in_order, batch.counts, numbers)


def _backward(total: Tensor, anchor: Tensor, copies: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of the copies. Meanwhile the layers record their errors, on the way back to the anchor."""
    if not total.requires_grad:
        return {name: torch.zeros_like(copy) for name, copy in copies.items()}
    found = torch.autograd.grad(total, [anchor, *copies.values()], allow_unused=True)[1:]
    pairs = zip(copies.items(), found, strict=True)
    return {name: torch.zeros_like(copy) if rows is None else rows for (name, copy), rows in pairs}
