"""Flat parameters as tensors with names, and back: what a model's file holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tacit.errors import DataError
from tacit.models.model import Model


@dataclass(frozen=True)
class Stored:
    """A part of a flat vector: its name and shape; PyTorch keeps weights as (outputs, inputs)."""

    name: str
    shape: tuple[int, ...]
    turned: bool = False
    """whether the flat vector has it as (inputs, outputs)"""


@runtime_checkable
class Exportable(Protocol):
    """A model that is a function of one row's features. Others are stored as one vector, and not exported."""

    @property
    def stored(self) -> Sequence[Stored]:
        """The parts of its point, in their order."""
        ...

    def untrained(self) -> nn.Module:
        """An ordinary PyTorch module, features to scores, whose parameters have the names of these parts."""
        ...


def stored_parts(model: Model) -> Sequence[Stored]:
    """The parts of a model's point: one, if the model does not name any."""
    return model.stored if isinstance(model, Exportable) else [Stored("parameters", (model.dim,))]


def named_parameters(model: Model, point: Tensor) -> dict[str, Tensor]:
    """The parameters by name, as in the `state_dict` of the model's plain PyTorch module.

    >>> from tacit.models.linear import logistic_regression
    >>> named = named_parameters(logistic_regression(features=2), torch.tensor([1.0, 2.0, 3.0]))
    >>> {name: tensor.tolist() for name, tensor in named.items()}
    {'weight': [[1.0, 2.0]], 'bias': [3.0]}
    """
    parts = stored_parts(model)
    values = point.split([torch.Size(part.shape).numel() for part in parts])
    return {
        part.name: value.reshape(part.shape[::-1]).T.contiguous() if part.turned else value.reshape(part.shape)
        for part, value in zip(parts, values, strict=True)
    }


def flat_parameters(model: Model, named: Mapping[str, Tensor]) -> Tensor:
    """The inverse of `named_parameters`; other names or shapes are refused."""
    parts = stored_parts(model)
    shapes = {part.name: part.shape for part in parts}
    found = {name: tuple(tensor.shape) for name, tensor in named.items()}
    if found != shapes:
        raise DataError(f"the tensors {found} are not those of the model, {shapes}")
    values = [named[part.name].T if part.turned else named[part.name] for part in parts]
    return torch.cat([value.reshape(-1) for value in values])


def untrained_module(model: Model) -> nn.Module:
    """An ordinary PyTorch module for a model; refused for a model that is not a function of a row's features."""
    if not isinstance(model, Exportable):
        raise DataError(f"a {type(model).__name__} cannot be exported: it is not a function of a row's features")
    return model.untrained()


def plain_module(model: Model, point: Tensor) -> nn.Module:
    """The trained model as an ordinary PyTorch module: features to scores."""
    module = untrained_module(model).to(point.dtype)
    module.load_state_dict({**module.state_dict(), **named_parameters(model, point)})
    return module.eval().requires_grad_(False)
