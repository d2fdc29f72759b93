"""Any loss of PyTorch, as a loss of single records."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.func import vmap

from tacit.errors import RequestError

RecordLoss = Callable[[Tensor, Tensor], Tensor]
"""Maps outputs (records, ...) and targets (records,) to losses (records,)."""

_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
"""Losses that take whole numbers as targets, one for each row of outputs."""


def described(given: object) -> str:
    """What was given in the place of a network or a loss, for an error.

    >>> described("resnet"), described(nn.L1Loss)
    ("the text 'resnet'", 'the class L1Loss: write L1Loss()')
    """
    if isinstance(given, type):
        return f"the class {given.__name__}: write {given.__name__}()"
    return f"the text {given!r}" if isinstance(given, str) else type(given).__name__


def per_record_loss(loss: str | nn.Module | Callable[[Tensor, Tensor], Tensor]) -> str | RecordLoss:
    """A loss whose value for one record depends on that record alone.

    The function is called for one record at a time, so a mean over the batch becomes that record's own loss, and
    a loss that compares records cannot see another one.

    >>> import torch
    >>> found = per_record_loss(nn.L1Loss())
    >>> found(torch.tensor([[1.0], [5.0]]), torch.tensor([0.0, 2.0]))
    tensor([1., 3.])
    """
    if isinstance(loss, str):
        return loss
    if type(loss) is nn.CrossEntropyLoss and loss.weight is None and loss.label_smoothing == 0:
        return "cross-entropy"
    if isinstance(loss, type) or not callable(loss):
        raise RequestError(f"the loss must be a function of outputs and targets, not {described(loss)}")
    elementwise = isinstance(loss, nn.modules.loss._Loss) and not isinstance(loss, _OF_CLASSES)
    own: Any = copy.deepcopy(loss) if isinstance(loss, nn.Module) else loss

    def one(output: Tensor, target: Tensor) -> Tensor:
        wanted = target.to(output.dtype).reshape(output.shape) if elementwise else target
        value: Tensor = own(output[None], wanted[None])
        return value.mean()

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            found: Tensor = vmap(one)(outputs, targets)
        except Exception as error:
            named = getattr(loss, "__name__", type(loss).__name__)
            raise RequestError(
                f"loss {named} fails for one record, with outputs of shape {tuple(outputs.shape[1:])} and one "
                f"number as target: {str(error).partition('. ')[0]}"
            ) from error
        return found

    return losses
