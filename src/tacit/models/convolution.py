"""Convolutions as matrix products, and pooling, for clients that may have different weights.

A convolution is the product of its weight with the patches under its kernel, written side by side as columns. The
columns are needed for per-record gradients anyway. With them, one product per record works for clients with
different weights and numbers of records, without padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input

from tacit.models.layers import Owners

SHORT = 16
"""Rows with fewer positions are copied faster in two passes."""


@dataclass(frozen=True)
class Geometry:
    """How a kernel moves over an image."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def columns(self, images: Tensor) -> Tensor:
        """The patch under the kernel at every position: (records, channels * kernel, positions).

        >>> Geometry((1, 2), (1, 1), (0, 0)).columns(torch.tensor([[[[1.0, 2.0, 3.0]]]]))
        tensor([[[1., 2.],
                 [2., 3.]]])
        """
        if any(self.padding):
            vertical, horizontal = self.padding
            images = F.pad(images, (horizontal, horizontal, vertical, vertical))
        # Copied from a strided view, which takes a fifth of the time of torch.nn.functional.unfold.
        patches = images.unfold(3, self.kernel[1], self.stride[1])
        if patches.shape[3] < SHORT:
            # Once across and once down, so that most of the data is copied in long runs.
            patches = patches.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)
        patches = patches.unfold(2, self.kernel[0], self.stride[0])
        return patches.permute(0, 1, 5, 4, 2, 3).flatten(4, 5).flatten(1, 3)

    def positions(self, height: int, width: int) -> tuple[int, int]:
        """The height and width of the output for an image of this size."""
        down, across = (
            (size + 2 * padding - kernel) // stride + 1
            for size, kernel, stride, padding in zip(
                (height, width), self.kernel, self.stride, self.padding, strict=True
            )
        )
        return down, across


@dataclass(frozen=True)
class ConvolutionLayer:
    """A convolution of each client's images, with one weight (outputs, channels, kernel) or one per client."""

    geometry: Geometry
    weight: Tensor
    bias: Tensor | None
    clients: Owners

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs, and what the gradient needs later: the images, or the columns if they were computed."""
        if self.weight.dim() == 4:
            return self._convolve(images, self.weight, self.bias), images
        height, width = self.geometry.positions(*images.shape[2:])
        if self.weight.shape[1] > height * width:
            # Weights larger than the columns are not copied for every record.
            biases = [None] * len(self.weight) if self.bias is None else list(self.bias)
            triples = zip(images.split(self.clients.sizes), self.weight, biases, strict=True)
            return torch.cat([self._convolve(*triple) for triple in triples if len(triple[0])]), images
        columns = self.geometry.columns(images)
        outputs = torch.bmm(self.weight.flatten(2)[self.clients.owners], columns)
        if self.bias is not None:
            outputs += self.bias[self.clients.owners][:, :, None]
        return outputs.unflatten(2, (height, width)), columns

    def columns(self, kept: Tensor) -> Tensor:
        """The columns, from what `outputs` kept."""
        return kept if kept.dim() == 3 else self.geometry.columns(kept)

    def _convolve(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(images, weight, bias, self.geometry.stride, self.geometry.padding)

    def input_errors(self, errors: Tensor, shape: torch.Size) -> Tensor:
        """The error passed back to the images, of this shape.

        It uses PyTorch's convolution, client by client: from four records per client, adding columns is slower.
        """
        stride, padding = self.geometry.stride, self.geometry.padding
        if self.weight.dim() == 4:
            whole: Tensor = conv2d_input(shape, self.weight, errors, stride, padding)
            return whole
        pairs = zip(errors.split(self.clients.sizes), self.weight, strict=True)
        return torch.cat([conv2d_input((len(e), *shape[1:]), w, e, stride, padding) for e, w in pairs if len(e)])


class HalvingMaxPool(torch.autograd.Function):
    """The maximum of every 2 x 2 square: equal to PyTorch's max-pooling and several times faster.

    Of equal values the first one gets the gradient, as in PyTorch. An odd last row or column is left out.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        """The maximum across, then down."""
        height, width = images.shape[-2] // 2 * 2, images.shape[-1] // 2 * 2
        even, odd = images[..., :height, 0:width:2], images[..., :height, 1:width:2]
        across, rows = odd > even, torch.maximum(even, odd)
        upper, lower = rows[..., 0::2, :], rows[..., 1::2, :]
        ctx.save_for_backward(across, lower > upper)
        ctx.shape = images.shape
        return torch.maximum(upper, lower)

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> Tensor:
        """Pass the errors back down, then across. Errors that are not finite stay so; that is enough."""
        across, down = ctx.saved_tensors
        (error,) = errors
        rows = error.new_empty(across.shape)
        upper, lower = rows[..., 0::2, :], rows[..., 1::2, :]
        torch.sub(error, torch.mul(error, down, out=lower), out=upper)
        height, width = rows.shape[-2], 2 * rows.shape[-1]
        whole = tuple(ctx.shape[-2:]) == (height, width)
        images = error.new_empty(ctx.shape) if whole else error.new_zeros(ctx.shape)
        even, odd = images[..., :height, 0:width:2], images[..., :height, 1:width:2]
        torch.sub(rows, torch.mul(rows, across, out=odd), out=even)
        return images


def pair(value: Any) -> tuple[int, int]:
    """Height and width from a PyTorch layer setting: two numbers, or one for both."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    return (both[0], both[0]) if len(both) == 1 else both


def halves(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> bool:
    """Whether this is the most common pooling: 2 x 2, without overlap, of images.

    On a batch of plain rows it would take the maximum over two records; PyTorch refuses that.
    """
    steps = stride or kernel_size
    pairs = (pair(kernel_size), pair(steps), pair(padding), pair(dilation))
    plain = pairs == ((2, 2), (2, 2), (0, 0), (1, 1)) and not ceil_mode and not return_indices
    return plain and input.dim() in (3, 4)
