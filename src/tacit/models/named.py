"""Flat parameters as tensors with names, and back: what a model's file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.errors import DataError
from tacit.models.linear import LinearModel
from tacit.models.model import Model
from tacit.models.module import ModuleModel
from tacit.models.network import SigmoidNetwork
from tacit.models.persons import PersonModel


@dataclass(frozen=True)
class _Layer:
    """A part of a flat vector: its name and shape; PyTorch keeps weights as (outputs, inputs)."""

    name: str
    shape: tuple[int, ...]
    turned: bool = False
    """whether the flat vector has it as (inputs, outputs)"""


def _layers(model: Model) -> list[_Layer]:
    if isinstance(model, PersonModel):
        return _layers(model.rows)
    if isinstance(model, LinearModel):
        bias = [_Layer("bias", (model.outputs,))] if model.intercept else []
        return [_Layer("weight", (model.outputs, model.features), turned=True), *bias]
    if isinstance(model, SigmoidNetwork):
        return [
            _Layer("0.weight", (model.hidden, model.features), turned=True),
            _Layer("0.bias", (model.hidden,)),
            _Layer("2.weight", (model.classes, model.hidden), turned=True),
            _Layer("2.bias", (model.classes,)),
        ]
    if isinstance(model, ModuleModel):
        return [_Layer(name, tuple(shape)) for name, shape in model.shapes.items()]
    return [_Layer("parameters", (model.dim,))]


def named_parameters(model: Model, point: Tensor) -> dict[str, Tensor]:
    """The parameters by name, as in the `state_dict` of the model's plain PyTorch module.

    >>> from tacit.models.linear import logistic_regression
    >>> named = named_parameters(logistic_regression(features=2), torch.tensor([1.0, 2.0, 3.0]))
    >>> {name: tensor.tolist() for name, tensor in named.items()}
    {'weight': [[1.0, 2.0]], 'bias': [3.0]}
    """
    layers = _layers(model)
    parts = point.split([torch.Size(layer.shape).numel() for layer in layers])
    return {
        layer.name: part.reshape(layer.shape[::-1]).T.contiguous() if layer.turned else part.reshape(layer.shape)
        for layer, part in zip(layers, parts, strict=True)
    }


def flat_parameters(model: Model, named: Mapping[str, Tensor]) -> Tensor:
    """The inverse of `named_parameters`; other names or shapes are refused."""
    layers = _layers(model)
    shapes = {layer.name: layer.shape for layer in layers}
    found = {name: tuple(tensor.shape) for name, tensor in named.items()}
    if found != shapes:
        raise DataError(f"the tensors {found} are not those of the model, {shapes}")
    parts = [named[layer.name].T if layer.turned else named[layer.name] for layer in layers]
    return torch.cat([part.reshape(-1) for part in parts])


def plain_module(model: Model, point: Tensor) -> nn.Module:
    """The trained model as an ordinary PyTorch module: features to scores."""
    if isinstance(model, PersonModel):
        return plain_module(model.rows, point)
    module: nn.Module
    if isinstance(model, LinearModel):
        module = nn.Linear(model.features, model.outputs, bias=model.intercept)
    elif isinstance(model, SigmoidNetwork):
        first, second = nn.Linear(model.features, model.hidden), nn.Linear(model.hidden, model.classes)
        module = nn.Sequential(first, nn.Sigmoid(), second)
    elif isinstance(model, ModuleModel):
        module = model.copied()
    else:
        raise DataError(f"a {type(model).__name__} is no function of a row's features: it cannot be exported")
    module = module.to(point.dtype)
    module.load_state_dict({**module.state_dict(), **named_parameters(model, point)})
    return module.eval().requires_grad_(False)
