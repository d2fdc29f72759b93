"""A device that computes on the processor but refuses what a graphics card would refuse.

Tensors on it say that they are on the `meta` device, which every build of PyTorch has, and carry their values
inside. An operation on tensors of both devices fails, as on a real device, and so does reading one with numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "meta"


class Placed(torch.Tensor):
    """A tensor on the fake device."""

    inside: Tensor

    @staticmethod
    def __new__(cls, inside: Tensor) -> Placed:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inside.size(),
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            device=NAME,
            requires_grad=False,
        )
        made.inside = inside
        return made  # type: ignore[no-any-return]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Placed({self.inside!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})


def dispatched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs an operation on the values inside, and puts the result where the real one would be."""
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    placed = [tensor for tensor in tensors if isinstance(tensor, Placed)]
    target = kwargs.get("device")
    copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    # A single number may come from the processor, and indices may stay there, as on a real device.
    plain = [tensor for tensor in tensors if not isinstance(tensor, Placed) and tensor.dim()]
    indexing = func in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
    if placed and plain and not copies and not (indexing and isinstance(args[0], Placed)):
        raise RuntimeError(f"{func}: expected all tensors on one device, found {NAME} and cpu")
    inner = {name: "cpu" if name == "device" and value is not None else value for name, value in kwargs.items()}
    unwrapped = tree_map(lambda leaf: leaf.inside if isinstance(leaf, Placed) else leaf, (args, inner))
    result = func(*unwrapped[0], **unwrapped[1])
    there = torch.device(target).type == NAME if target is not None else bool(placed)
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if not there:
        return result
    # What was changed in place is returned itself.
    same = {id(tensor.inside): tensor for tensor in placed}
    return tree_map(lambda leaf: same.get(id(leaf), Placed(leaf)) if isinstance(leaf, Tensor) else leaf, result)


class _Mode(TorchDispatchMode):
    """Catches tensors that are made on, or moved to, the fake device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatched(func, args, kwargs or {})


@contextmanager
def fake_device() -> Iterator[str]:
    """The name of the device, which works inside this context."""
    with _Mode():
        yield NAME
