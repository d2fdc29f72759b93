"""Fine-tuning: train a few parameters of a network and keep the rest as it is.

The noise of a private run grows with the number of trained parameters, so training the last layer of a good
network often beats training all of it. What is frozen is public: it must not have been trained on the
private records.
"""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tacit.errors import RequestError, count, unknown_name
from tacit.models.layers_chain import keeps_records_apart, record_by_record

Trainable = str | Sequence[str]
"""What is trained: "all", "head", "bias", "lora:RANK", or names of parameters and layers."""


def fine_tuned(module: nn.Module, trainable: Trainable) -> nn.Module:
    """A copy of a network in which only some parameters are trained; it runs in eval mode.

    Dropout is then off, and batch normalisation uses its stored statistics, as public as frozen weights.

    Args:
        module: the network.
        trainable: "all"; "head", the last linear layer (or convolution, if there is none); "bias", every bias
            and the head (BitFit, Zaken et al. 2022); "lora:RANK", an update of this rank for every other linear
            layer, and the head (LoRA, Hu et al. 2022); or names of parameters or layers, in a list or joined by
            commas.

    >>> network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [name for name, p in fine_tuned(network, "head").named_parameters() if p.requires_grad]
    ['2.weight', '2.bias']
    """
    if trainable == "all":
        return module
    module = copy.deepcopy(module).eval().requires_grad_(False)
    if isinstance(trainable, str):
        kind, _, rest = trainable.partition(":")
        if kind == "lora":
            return _with_low_rank(module, rest)
        if kind in ("head", "bias"):
            head = head_of(module)
            for name, parameter in module.named_parameters():
                inside = name.startswith(f"{head}." if head else "")
                parameter.requires_grad_(inside or (kind == "bias" and name.rpartition(".")[2] == "bias"))
            return module
        trainable = [name.strip() for name in trainable.split(",") if name.strip()]
    _train_named(module, trainable)
    return module


def _train_named(module: nn.Module, names: Iterable[str]) -> None:
    known = dict(module.named_parameters())
    for wanted in names:
        found = [p for name, p in known.items() if name == wanted or name.startswith(f"{wanted}.")]
        if not found:
            layers = [
                name for name, layer in module.named_modules() if name and any(True for _ in layer.parameters())
            ]
            raise unknown_name("trainable", wanted, ["all", "head", "bias", "lora:RANK", *layers])
        for parameter in found:
            parameter.requires_grad_(True)


def head_of(module: nn.Module) -> str:
    """The name of the last linear layer, or of the last convolution if there is none."""
    for kinds in (nn.Linear, nn.modules.conv._ConvNd):
        names: list[str] = [name for name, layer in module.named_modules() if isinstance(layer, kinds)]
        if names:
            return names[-1]
    raise RequestError("trainable = 'head', but the network has no linear layer: name the parameters to train")


class LowRankLinear(nn.Module):
    """A frozen linear layer plus a trained update of low rank: W x + b + B (A x), with B = 0 at the start."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False, dtype=layer.weight.dtype)
        self.up = nn.Linear(rank, layer.out_features, bias=False, dtype=layer.weight.dtype)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.frozen(inputs) + self.up(self.down(inputs))
        return outputs


def _with_low_rank(module: nn.Module, rank: str) -> nn.Module:
    if not rank.isdigit() or int(rank) == 0:
        raise RequestError(f"trainable = 'lora:{rank}' needs a rank, as in lora:8")
    head = head_of(module)
    layers = [
        (name, layer)
        for name, layer in module.named_modules()
        # A layer inside an attention layer is used by its weight, not called.
        if type(layer) is nn.Linear and name != head
    ]
    # PyTorch draws A from its global generator, whose state must not change.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, layer in layers:
            owner, _, place = name.rpartition(".")
            setattr(module.get_submodule(owner), place, LowRankLinear(layer, count("lora", int(rank))))
    module.get_submodule(head).requires_grad_(True)
    return module


def split_front(module: nn.Module, record: Tensor) -> tuple[nn.Module, nn.Module] | None:
    """The frozen front of a network, and the rest, which is trained: rest(front(x)) = module(x).

    The front can be evaluated once for each record. None if no part of it comes before everything that is
    trained, or if that cannot be seen: the network must be an `nn.Sequential`, or end with the
    only layer that is trained.

    Args:
        module: the network; frozen parameters are those that need no gradient.
        record: one record, with values that the network takes, such as zeros.
    """
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    if type(module) is nn.Sequential and not module._forward_hooks and not module._forward_pre_hooks:
        places = list(module._modules)
        first = next(k for k, place in enumerate(places) if any(name.startswith(f"{place}.") for name in trained))
        parts = [OrderedDict((p, module._modules[p]) for p in some) for some in (places[:first], places[first:])]
        front, rest = (nn.Sequential(part) for part in parts)
        return (front, rest) if any(True for _ in front.parameters()) else None
    owners = {name.rpartition(".")[0] for name in trained}
    if len(owners) != 1 or not (owner := owners.pop()):
        return None
    return _split_last(module, owner, record)


def _split_last(module: nn.Module, owner: str, record: Tensor) -> tuple[nn.Module, nn.Module] | None:
    """Split before a layer whose output is the network's output."""
    head, seen = module.get_submodule(owner), list[Tensor]()
    handle = head.register_forward_hook(lambda _, inputs, output: seen.append(output))
    try:
        with torch.no_grad():
            output = module(record[None].clone())
    finally:
        handle.remove()
    if len(seen) != 1 or output is not seen[0]:
        return None
    front = copy.deepcopy(module)
    parent, _, place = owner.rpartition(".")
    setattr(front.get_submodule(parent), place, nn.Identity())
    return front, copy.deepcopy(head)


def to_run(module: nn.Module) -> nn.Module:
    """A copy of a module whose code may be run on records: it shares weights and statistics, and nothing else.

    What the code keeps in attributes (its last activations, for instance) then stays out of the module itself,
    which is handed out.
    """
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    try:
        return copy.deepcopy(module, dict[int, Any](shared))
    except Exception as error:
        why = str(error).partition(". ")[0]
        raise RequestError(
            f"{type(module).__name__} cannot be copied, and a trained network is handed out as a copy: {why}"
        ) from error


class RecordByRecord(nn.Module):
    """A frozen network whose code sees one record at a time, so that no record's features depend on another."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.running = module, to_run(module)
        self.apart = keeps_records_apart(module)

    def forward(self, records: Tensor) -> Tensor:
        weight = next(self.module.parameters(), records)
        return self._outputs(records.to(weight.dtype)).to(records.dtype)

    def _outputs(self, records: Tensor) -> Tensor:
        return self._called(records) if self.apart else record_by_record(self._called, records)

    def _called(self, records: Tensor) -> Tensor:
        outputs: Tensor = self.running(records.clone())
        return outputs


def frozen_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Weights that need no gradient, and statistics, by name."""
    weights = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    return {**weights, **dict(module.named_buffers())}


def frozen_weights(tensors: Mapping[str, Tensor]) -> str:
    """The statement that frozen weights are public, with a digest that says which they are."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return (
        f"the network's frozen weights (SHA-256 {digest.hexdigest()[:16]}...), which must not have been trained "
        "on these records"
    )
