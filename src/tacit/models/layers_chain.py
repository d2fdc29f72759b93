"""Per-record gradients of a chain of PyTorch's own layers, with explicit forward and backward passes.

Layers that are known to use one record at a time may see the whole batch, and a chain of them needs neither
watching nor an autograd graph: each layer's inputs are kept in the forward pass, and the errors are recorded in
the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from tacit.models.convolution import ConvolutionLayer, Geometry, HalvingMaxPool, halves, pair
from tacit.models.layers import Owners
from tacit.models.layers_use import LinearLayer, Use, UsedOtherwiseError

_WITHOUT_PARAMETERS = (nn.MaxPool2d, nn.AvgPool2d, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.Identity)

threshold_backward = torch.ops.aten.threshold_backward

Back = Callable[[Tensor], Tensor]
"""Maps the errors of a layer's outputs to the errors of its inputs."""


def keeps_records_apart(module: nn.Module) -> bool:
    """Whether a module is a chain of PyTorch's own layers, none of which combines two records.

    >>> keeps_records_apart(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
    True
    >>> keeps_records_apart(nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)))
    False
    """
    # With hooks or an overridden forward, it is no longer PyTorch's own layer.
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    if type(module) is nn.Sequential:
        return all(keeps_records_apart(layer) for layer in module)
    if type(module) is nn.Flatten:
        return module.start_dim == 1
    if type(module) is nn.Unflatten:
        return isinstance(module.dim, int) and module.dim > 0
    return type(module) in (*_WITHOUT_PARAMETERS, nn.Linear, nn.Conv2d)


def record_by_record(function: Callable[..., Tensor], *records: Tensor) -> Tensor:
    """What a function of batches gives for each record, if it is called with one record at a time.

    So whatever the function does, no record's result depends on another record.
    """
    if not len(records[0]):
        return function(*records)

    def of_one(*own: Tensor) -> Tensor:
        return function(*(part[None] for part in own))[0]

    try:
        # PyTorch's other kernels for attention cannot run inside vmap.
        with sdpa_kernel(SDPBackend.MATH):
            return vmap(of_one)(*records)
    except RuntimeError:
        # Code that PyTorch cannot run for all records at once is run for one after the other.
        return torch.stack([of_one(*own) for own in zip(*records, strict=True)])


@dataclass(frozen=True)
class LayerChain:
    """The layers of a chain in order, each with the names of its parameters: weight and, if present, bias."""

    layers: tuple[tuple[nn.Module, tuple[str, ...]], ...]

    @classmethod
    def of(cls, module: nn.Module) -> LayerChain | None:
        """The module as a chain; None if it is not a chain, or if its parameters are frozen or used twice."""
        if not keeps_records_apart(module):
            return None
        layers = tuple(_with_names(module, ""))
        named = [name for _, names in layers for name in names]
        trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        plain = all(_plain(layer) for layer, _ in layers if isinstance(layer, nn.Conv2d))
        return cls(layers) if plain and named == trained else None

    def outputs(self, parts: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """What the module computes with these parameters, with the faster pooling."""
        for layer, names in self.layers:
            own = {name.rpartition(".")[2]: parts[name] for name in names}
            inputs = functional_call(layer, own, (inputs,)) if own else _forward(layer, inputs)(inputs)
        return inputs

    def uses(self, parts: Mapping[str, Tensor], clients: Owners, inputs: Tensor, slopes: Back) -> tuple[Use, ...]:
        """The inputs of each layer with parameters, and the errors that came back to it.

        `parts` are the parameters by name, (clients, ...) if every client has its own; `slopes` gives the
        derivative of the records' losses by the chain's outputs.
        """
        uses: list[Use] = []
        backs: list[Callable[[Tensor], Tensor | None]] = []
        for layer, names in self.layers:
            if names:
                use = _use(layer, names, parts, clients, inputs)
                backs.append(partial(use.back, shape=inputs.shape if uses else None))
                inputs = use.forward(inputs)
                uses.append(use)
            elif uses:
                inputs, back = _differentiable(layer, inputs)
                backs.append(back)
            else:
                # Never in place, which would change the records themselves.
                inputs = torch.relu(inputs) if isinstance(layer, nn.ReLU) else layer(inputs)
        errors: Tensor | None = slopes(inputs)
        for way_back in reversed(backs):
            assert errors is not None, "only the first layer sends no errors on"
            errors = way_back(errors)
        return tuple(uses)


def _with_names(module: nn.Module, name: str) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """The layers in the order in which they are applied; a layer that is applied twice appears twice."""
    if isinstance(module, nn.Sequential):
        for place, layer in module._modules.items():
            assert layer is not None, "a chain has no gaps"
            yield from _with_names(layer, f"{name}{place}.")
    else:
        yield module, tuple(name + part for part, _ in module.named_parameters())


def _plain(layer: nn.Conv2d) -> bool:
    """Whether `Geometry` can describe a convolution."""
    dense = layer.groups == 1 and layer.dilation == (1, 1)
    return dense and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _use(
    layer: nn.Module, names: tuple[str, ...], parts: Mapping[str, Tensor], clients: Owners, inputs: Tensor
) -> Use:
    weight, bias = parts[names[0]], parts[names[1]] if len(names) == 2 else None
    if isinstance(layer, nn.Conv2d):
        # Without an axis for records, the first axis would be mistaken for it.
        if inputs.dim() != 4:
            raise UsedOtherwiseError(frozenset(names))
        geometry = Geometry(pair(layer.kernel_size), pair(layer.stride), pair(layer.padding))
        return Use(ConvolutionLayer(geometry, weight, bias, clients), names, _matrix(layer.weight))
    if inputs.dim() < 2:
        raise UsedOtherwiseError(frozenset(names))
    assert isinstance(layer, nn.Linear), "of the layers in a chain no other has parameters"
    return Use(LinearLayer(weight, bias, clients), names, _matrix(layer.weight))


def _matrix(weight: Tensor) -> tuple[int, int]:
    """The outputs and the width of a weight."""
    return weight.shape[0], weight[0].numel()


def _differentiable(layer: nn.Module, inputs: Tensor) -> tuple[Tensor, Back]:
    """The outputs of a layer without parameters, and its backward function."""
    if isinstance(layer, nn.Flatten | nn.Unflatten | nn.Identity):
        return layer(inputs), lambda errors: errors.reshape(inputs.shape)
    if isinstance(layer, nn.ReLU):
        positive = torch.relu(inputs)
        return positive, lambda errors: threshold_backward(errors, positive, 0)
    function = _forward(layer, inputs)
    with torch.enable_grad():
        inputs = inputs.detach().requires_grad_()
        outputs = function(inputs)
    return outputs.detach(), lambda errors: torch.autograd.grad(outputs, inputs, errors)[0]


def _forward(layer: nn.Module, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """The layer, or what computes the same faster."""
    halving = isinstance(layer, nn.MaxPool2d) and halves(inputs, *_pooling(layer))
    return HalvingMaxPool.apply if halving else layer


def _pooling(layer: nn.MaxPool2d) -> tuple[Any, ...]:
    return (
        layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode, layer.return_indices,
    )  # fmt: skip
