"""Notices every use of the parameters of a network's layers while the network's own code runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from tacit.models.convolution import ConvolutionLayer, Geometry, HalvingMaxPool
from tacit.models.layers import Clients, Share, WrittenShare, weight_share

_METADATA = frozenset(["shape", "dtype", "device", "requires_grad", "ndim", "size", "dim", "numel"])


class UsedOtherwiseError(Exception):
    """These parameters are not used once by one layer, so that their gradients must be had in another way."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self.names = names


class _Layer(Protocol):
    def outputs(self, inputs: Tensor) -> tuple[Tensor, Tensor]: ...

    def input_errors(self, errors: Tensor, shape: torch.Size) -> Tensor: ...

    def columns(self, kept: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class _LinearLayer:
    """A linear map of every client's records, with one weight (outputs, inputs), or one a client."""

    weight: Tensor
    bias: Tensor | None
    clients: Clients

    def outputs(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.weight.dim() == 2:
            return F.linear(inputs, self.weight, self.bias), inputs
        return self._by_client(inputs, self.weight.transpose(1, 2), self.bias), inputs

    def input_errors(self, errors: Tensor, shape: torch.Size) -> Tensor:
        if self.weight.dim() == 2:
            return errors @ self.weight
        return self._by_client(errors, self.weight, None)

    def columns(self, kept: Tensor) -> Tensor:
        return _by_position(kept)

    def _by_client(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rectangle = self.clients.padded(rows)
        flat = torch.bmm(rectangle.flatten(1, -2), weight)
        if bias is not None:
            flat += bias[:, None]
        return self.clients.unpadded(flat.unflatten(1, rectangle.shape[1:-1]))


def _by_position(rows: Tensor) -> Tensor:
    """(records, ..., width) as (records, width, positions)."""
    return rows[:, None].flatten(1, -2).transpose(1, 2)


@dataclass
class Use:
    """One layer at work: what it saw, and what came back."""

    layer: _Layer
    names: tuple[str, ...]
    """weight, and bias if there is one"""
    shape: tuple[int, int]
    """outputs and width of the weight"""
    inputs: Tensor | None = None
    errors: Tensor | None = None
    """(records, outputs, positions), or nothing where the loss does not depend on the layer"""

    @property
    def numbers(self) -> int:
        """About how many numbers it took: columns; outputs, what was made of them, and the errors of both."""
        if self.errors is None:
            return 0
        outputs, width = self.shape
        return (4 * outputs + width) * (self.errors.numel() // outputs)

    def shares(self) -> Iterator[tuple[str, Share]]:
        """The gradients of weight and bias, by name."""
        assert self.inputs is not None
        outputs, width = self.shape
        if self.errors is None:
            for name, size in zip(self.names, (outputs * width, outputs), strict=False):
                yield name, WrittenShare(self.inputs.new_zeros(len(self.inputs), size))
            return
        yield self.names[0], weight_share(self.inputs, self.errors, self.layer.columns, width)
        for bias in self.names[1:]:
            yield bias, WrittenShare(self.errors.sum(2))


class _Applied(torch.autograd.Function):
    """Applies a layer to all records, and notes the errors that come back."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, anchor: Tensor, use: Use) -> Tensor:
        outputs, use.inputs = use.layer.outputs(inputs.detach())
        ctx.use, ctx.shape = use, inputs.shape
        ctx.save_for_backward(inputs)
        # Not a view, which the network's code would not be allowed to change in place.
        return outputs.data

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, None, None]:
        (error,) = errors
        use: Use = ctx.use
        # PyTorch refuses this if the inputs, which the gradient is made of, were changed in place since.
        _ = ctx.saved_tensors
        use.errors = error.flatten(2) if isinstance(use.layer, ConvolutionLayer) else _by_position(error)
        further = use.layer.input_errors(error, ctx.shape) if ctx.needs_input_grad[0] else None
        return further, None, None


class _OnAllRecords(torch.autograd.Function):
    """From inside `vmap`, hand the tensor of all records to a function that keeps them apart."""

    @staticmethod
    def forward(one: Tensor, function: Callable[[Tensor], Tensor], names: frozenset[str]) -> Tensor:
        # The same tensor for every record: a layer cannot tell their gradients apart.
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
    """While it is entered, notices what PyTorch's functions do with the parameters of layers.

    `stand_ins` are the tensors that the network's code gets to see; `parts` are what they stand for, (clients,
    ...) where every client has its own. `together` says whether that code is shown all records at once.
    """

    def __init__(
        self, stand_ins: Mapping[str, Tensor], parts: Mapping[str, Tensor], clients: Clients, together: bool
    ) -> None:
        super().__init__()
        self.names = {id(tensor): name for name, tensor in stand_ins.items()}
        self.parts = parts
        self.clients = clients
        self.together = together
        self.anchor = torch.zeros((), requires_grad=True)
        """what every layer seems to depend on, so that errors find their way to all of them"""
        self.uses: list[Use] = []

    def seen(self) -> frozenset[str]:
        """The parameters of the layers that were used."""
        return frozenset(name for use in self.uses for name in use.names)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """What PyTorch calls instead of each of its functions."""
        kwargs = kwargs or {}
        if func is F.max_pool2d and _halves(*args, **kwargs):
            return self._on_all_records(args[0], HalvingMaxPool.apply, frozenset())
        used = frozenset(self.names[id(x)] for x in _leaves((args, kwargs)) if id(x) in self.names)
        if not used:
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
        if self.together and (input.dim() < 2 or len(input) != len(self.clients.owners)):
            raise UsedOtherwiseError(used)
        outputs, width = weight.shape
        return self._apply(input, Use(_LinearLayer(*self._values(names), self.clients), names, (outputs, width)))

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
        plain = not isinstance(padding, str) and _pair(dilation) == (1, 1) and groups == 1
        records = len(self.clients.owners) if self.together else 1
        if not plain or input.dim() != 4 or len(input) != records:
            raise UsedOtherwiseError(used)
        outputs, channels, height, width = weight.shape
        geometry = Geometry((height, width), _pair(stride), _pair(padding))
        layer = ConvolutionLayer(geometry, *self._values(names), self.clients)
        use = Use(layer, names, (outputs, prod((channels, height, width))))
        return self._apply(input, use) if self.together else self._apply(input[0], use)[None]

    def _once(self, used: frozenset[str], weight: Tensor, bias: Tensor | None) -> tuple[str, ...]:
        """The names of weight and bias, if these are parameters that no layer has used before."""
        given = [weight] if bias is None else [weight, bias]
        names = tuple(self.names[id(x)] for x in given if id(x) in self.names)
        if len(names) < len(given) or frozenset(names) != used or used & self.seen():
            raise UsedOtherwiseError(used)
        return names

    def _values(self, names: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
        return self.parts[names[0]], self.parts[names[1]] if len(names) == 2 else None

    def _apply(self, inputs: Tensor, use: Use) -> Tensor:
        self.uses.append(use)
        return self._on_all_records(inputs, partial(_applied, anchor=self.anchor, use=use), frozenset(use.names))

    def _on_all_records(
        self, inputs: Tensor, function: Callable[[Tensor], Tensor], names: frozenset[str]
    ) -> Tensor:
        if self.together:
            return function(inputs)
        return _OnAllRecords.apply(inputs, function, names)  # type: ignore[no-any-return, no-untyped-call]


def _applied(inputs: Tensor, anchor: Tensor, use: Use) -> Tensor:
    return _Applied.apply(inputs, anchor, use)  # type: ignore[no-any-return, no-untyped-call]


def _pair(value: Any) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    return (pair[0], pair[0]) if len(pair) == 1 else pair


def _leaves(nested: Any) -> Iterator[Any]:
    if isinstance(nested, dict):
        nested = tuple(nested.values())
    if isinstance(nested, list | tuple):
        for part in nested:
            yield from _leaves(part)
    else:
        yield nested


def _halves(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """Whether this is the pooling that nearly everybody uses: 2 x 2, without overlap."""
    steps = stride or kernel_size
    pairs = (_pair(kernel_size), _pair(steps), _pair(padding), _pair(dilation))
    return pairs == ((2, 2), (2, 2), (0, 0), (1, 1)) and not ceil_mode and not return_indices
