"""Records every use of the layers' parameters while the network's own code runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from tacit.models import padding
from tacit.models.convolution import ConvolutionLayer, Geometry, HalvingMaxPool, halves, pair
from tacit.models.layers import Owners
from tacit.models.layers_use import LinearLayer, Use, UsedOtherwiseError

_REPLACED: dict[Any, Callable[..., Tensor]] = {
    F.embedding: padding.embedding,
    torch.embedding: padding.operator,
    torch.ops.aten.embedding: padding.operator,
    torch.ops.aten.embedding.default: padding.operator,
}
"""Functions of which `torch.vmap` does not keep records apart, and what is called instead."""

_METADATA = frozenset(["shape", "dtype", "device", "requires_grad", "ndim", "size", "dim", "numel"])


class _Applied(torch.autograd.Function):
    """Applies a layer to all records, and records the errors that come back."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, use: Use) -> Tensor:
        outputs = use.forward(inputs.detach())
        ctx.use, ctx.shape = use, inputs.shape
        ctx.save_for_backward(inputs)
        # Not a view, because the network's code could not change a view in place.
        return outputs.data

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, None, None]:
        (error,) = errors
        use: Use = ctx.use
        # PyTorch refuses this if the inputs, which the gradient depends on, were changed in place since.
        _ = ctx.saved_tensors
        return use.back(error, ctx.shape if ctx.needs_input_grad[0] else None), None, None


class _OnAllRecords(torch.autograd.Function):
    """From inside `vmap`, passes the tensor of all records to a function that keeps them apart."""

    @staticmethod
    def forward(one: Tensor, function: Callable[[Tensor], Tensor], names: frozenset[str]) -> Tensor:
        # The tensor is the same for every record, so a layer cannot tell their gradients apart.
        if names:
            raise UsedOtherwiseError(names)
        return function(one)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, one: Tensor, function: Any, names: Any) -> tuple[Tensor, int]:
        return function(one.movedim(in_dims[0], 0)), 0


class Tape(TorchFunctionMode):
    """A context that records what PyTorch's functions do with the parameters of layers.

    `stand_ins` are the tensors that the network's code sees; `parts` are the parameters that they stand for,
    (clients, ...) if every client has its own.
    """

    def __init__(self, stand_ins: Mapping[str, Tensor], parts: Mapping[str, Tensor], clients: Owners) -> None:
        super().__init__()
        self.names = {id(tensor): name for name, tensor in stand_ins.items()}
        self.parts = parts
        self.clients = clients
        self.anchor = torch.zeros((), requires_grad=True)
        """an input that every layer appears to depend on, so that errors flow back to all of them"""
        self.uses: list[Use] = []

    def seen(self) -> frozenset[str]:
        """The parameters of the layers that were used."""
        return frozenset(name for use in self.uses for name in use.names)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """PyTorch calls this instead of each of its functions."""
        kwargs = kwargs or {}
        if func is F.max_pool2d and halves(*args, **kwargs):
            return _on_all_records(args[0], HalvingMaxPool.apply, frozenset())
        used = frozenset(self.names[id(x)] for x in _leaves((args, kwargs)) if id(x) in self.names)
        if not used:
            func = _REPLACED.get(func, func)
            return func(*args, **kwargs)
        if func is F.linear:
            return self._linear(used, *args, **kwargs)
        if func is F.conv2d:
            return self._conv2d(used, *args, **kwargs)
        if _METADATA.isdisjoint(str(resolve_name(func)).split(".")):
            raise UsedOtherwiseError(used)
        return func(*args, **kwargs)

    def _linear(self, used: frozenset[str], input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        names = self._once(used, weight, bias)
        outputs, width = weight.shape
        return self._apply(input, Use(LinearLayer(*self._values(names), self.clients), names, (outputs, width)))

    def _conv2d(
        self,
        used: frozenset[str],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
    ) -> Tensor:
        names = self._once(used, weight, bias)
        plain = not isinstance(padding, str) and pair(dilation) == (1, 1) and groups == 1
        if not plain or input.dim() != 4 or len(input) != 1:
            raise UsedOtherwiseError(used)
        outputs, channels, height, width = weight.shape
        geometry = Geometry((height, width), pair(stride), pair(padding))
        layer = ConvolutionLayer(geometry, *self._values(names), self.clients)
        use = Use(layer, names, (outputs, prod((channels, height, width))))
        return self._apply(input[0], use)[None]

    def _once(self, used: frozenset[str], weight: Tensor, bias: Tensor | None) -> tuple[str, ...]:
        """The names of weight and bias, if they are parameters that no layer has used before."""
        given = [weight] if bias is None else [weight, bias]
        names = tuple(self.names[id(x)] for x in given if id(x) in self.names)
        if len(names) < len(given) or frozenset(names) != used or used & self.seen():
            raise UsedOtherwiseError(used)
        return names

    def _values(self, names: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
        return self.parts[names[0]], self.parts[names[1]] if len(names) == 2 else None

    def _apply(self, inputs: Tensor, use: Use) -> Tensor:
        self.uses.append(use)
        return _on_all_records(inputs, partial(_applied, anchor=self.anchor, use=use), frozenset(use.names))


def _on_all_records(inputs: Tensor, function: Callable[[Tensor], Tensor], names: frozenset[str]) -> Tensor:
    return _OnAllRecords.apply(inputs, function, names)  # type: ignore[no-any-return, no-untyped-call]


def _applied(inputs: Tensor, anchor: Tensor, use: Use) -> Tensor:
    return _Applied.apply(inputs, anchor, use)  # type: ignore[no-any-return, no-untyped-call]


def _leaves(nested: Any) -> Iterator[Any]:
    if isinstance(nested, dict):
        nested = tuple(nested.values())
    if isinstance(nested, list | tuple):
        for part in nested:
            yield from _leaves(part)
    else:
        yield nested
