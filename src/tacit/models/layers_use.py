"""One use of a network's layer: its inputs, the errors that came back, and the resulting gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.models.convolution import ConvolutionLayer
from tacit.models.layers import Owners, weight_share
from tacit.models.shares import Share, WrittenShare


class UsedOtherwiseError(Exception):
    """These parameters are not used once by one layer, so their gradients must be computed in another way."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(names)
        self.names = names


class Layer(Protocol):
    def outputs(self, inputs: Tensor) -> tuple[Tensor, Tensor]: ...

    def input_errors(self, errors: Tensor, shape: torch.Size) -> Tensor: ...

    def columns(self, kept: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class LinearLayer:
    """A linear map of each client's records, with one weight (outputs, inputs) or one per client."""

    weight: Tensor
    bias: Tensor | None
    clients: Owners

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
    """One use of a layer: its inputs, and the errors that came back."""

    layer: Layer
    names: tuple[str, ...]
    """the names of the weight and, if present, the bias"""
    shape: tuple[int, int]
    """outputs and width of the weight"""
    inputs: Tensor | None = None
    errors: Tensor | None = None
    """(records, outputs, positions), or None if the loss does not depend on the layer"""

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs."""
        outputs, self.inputs = self.layer.outputs(inputs)
        return outputs

    def back(self, error: Tensor, shape: torch.Size | None) -> Tensor | None:
        """Record the error that came back, and return the error of inputs of this shape if it is needed."""
        self.errors = error.flatten(2) if isinstance(self.layer, ConvolutionLayer) else _by_position(error)
        return None if shape is None else self.layer.input_errors(error, shape)

    @property
    def numbers(self) -> int:
        """About how many numbers were held: columns, outputs, activations, and the errors of the last two."""
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
