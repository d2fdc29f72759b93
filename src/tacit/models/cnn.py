"""The two convolutional networks of Fed-SPA (Hu et al. 2021), section 5.1.

The paper states no parameter counts, but they follow from its costs in MB: 0.3931 MB for 45 rounds of a tenth of
the clients is 21,840 numbers of 4 bytes, which matches the network below only without padding. The 21.50 MB for
CIFAR-10 are 537,610 numbers, again the network without padding, for 100 rounds (the text says 200).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from tacit.errors import RequestError
from tacit.models.module import ModuleModel


def mnist_cnn(*, classes: int = 10) -> nn.Sequential:
    """Two 5 x 5 convolutions (10 and 20 filters), each pooled by 2 x 2, 50 hidden units: 28 x 28 images.

    >>> sum(p.numel() for p in mnist_cnn().parameters())
    21840
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, 28, 28)),
        *_convolution(1, 10, kernel=5),
        *_convolution(10, 20, kernel=5),
        nn.Flatten(),
        *_hidden(20 * 4 * 4, 50),
        nn.Linear(50, classes),
    )


def cifar_cnn(*, classes: int = 10) -> nn.Sequential:
    """Three 3 x 3 convolutions (64, 128 and 256 filters), each pooled by 2 x 2, 128 and 256 hidden units.

    >>> sum(p.numel() for p in cifar_cnn().parameters())
    537610
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (3, 32, 32)),
        *_convolution(3, 64, kernel=3),
        *_convolution(64, 128, kernel=3),
        *_convolution(128, 256, kernel=3),
        nn.Flatten(),
        *_hidden(256 * 2 * 2, 128),
        *_hidden(128, 256),
        nn.Linear(256, classes),
    )


def _convolution(channels: int, filters: int, *, kernel: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, filters, kernel), nn.MaxPool2d(2), nn.ReLU()


def _hidden(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Linear(inputs, outputs), nn.ReLU()


def mnist_cnn_model(*, features: int, classes: int) -> ModuleModel:
    """`mnist_cnn` with cross-entropy, for data of 784 features; the run's generator draws the starting point."""
    return _model(mnist_cnn, "mnist-cnn", "28 x 28", 784, features, classes)


def cifar_cnn_model(*, features: int, classes: int) -> ModuleModel:
    """`cifar_cnn` with cross-entropy, for data of 3072 features; the run's generator draws the starting point."""
    return _model(cifar_cnn, "cifar-cnn", "3 x 32 x 32", 3072, features, classes)


def _model(
    make: Callable[..., nn.Module], name: str, image: str, wanted: int, features: int, classes: int
) -> ModuleModel:
    if features != wanted:
        raise RequestError(f"model {name!r} is for images of {image} = {wanted} features, not {features}")
    # PyTorch draws values from its global generator, whose state must not change.
    with torch.random.fork_rng(devices=[]):
        module = make(classes=classes)
    return ModuleModel(module, start=partial(uniform_start, module))


def uniform_start(module: nn.Module, generator: np.random.Generator) -> Tensor:
    """PyTorch's default initialisation of linear layers and convolutions, from a reproducible generator.

    Weights and biases are uniform between -1 / sqrt(inputs) and 1 / sqrt(inputs); a convolution's inputs are all
    numbers under its kernel.
    """
    parts: list[Tensor] = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            limit = layer.weight[0].numel() ** -0.5
            for shape in (p.shape for p in layer.parameters()):
                draw = generator.uniform(-limit, limit, size=shape.numel()).astype(np.float32)
                parts.append(torch.from_numpy(draw))
    return torch.cat(parts)
