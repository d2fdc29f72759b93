"""Replaces the layers of a network that have no gradients per record by layers that do."""

from __future__ import annotations

import copy
import warnings

from torch import nn

from tacit.errors import RequestError
from tacit.models.record_loss import described
from tacit.models.recurrent import GatedLayers


def fix(module: nn.Module) -> nn.Module:
    """A copy of a network in which every record has a gradient of its own; a warning lists what was replaced.

    - Batch normalisation, which mixes records, becomes group normalisation with the same weights (32 groups, or
      the next smaller number that divides the channels; at least 8 channels in a group where there may be one
      number in each, as after a linear layer). This is another function: train it again. In eval mode, batch
      normalisation mixes nothing and is left alone.
    - LSTM, GRU and RNN layers become equal layers made of linear maps: the same function, only slower.
    - Dropout, which makes runs that cannot be repeated, is taken out.
    - Instance normalisation forgets its statistics over records.

    Args:
        module: the network; it is not changed.

    >>> with warnings.catch_warnings(record=True, action="always") as said:
    ...     fixed = fix(nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)))
    >>> fixed[1], str(said[0].message)
    (GroupNorm(8, 8, eps=1e-05, affine=True...), "replaced layer '1': BatchNorm2d by GroupNorm")
    """
    if not isinstance(module, nn.Module):
        raise RequestError(f"the network must be a torch.nn.Module, not {described(module)}")
    module = copy.deepcopy(module)
    changes = []
    for name, layer in list(module.named_modules()):
        made = _instead_of(layer)
        if made is None:
            continue
        kinds = f"{type(layer).__name__} by {type(made).__name__}"
        changes.append(f"layer {name or '(the module itself)'!r}: {kinds}")
        if not name:
            module = made
        else:
            owner, _, place = name.rpartition(".")
            setattr(module.get_submodule(owner), place, made)
    if changes:
        warnings.warn(f"replaced {', '.join(changes)}", stacklevel=2)
    return module


def _instead_of(layer: nn.Module) -> nn.Module | None:
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or layer.running_mean is None):
        return group_norm(layer)
    if isinstance(layer, nn.LSTM | nn.GRU | nn.RNN):
        return GatedLayers(layer)
    if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
        return nn.Identity()
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        made = copy.deepcopy(layer)
        made.track_running_stats = False
        made.running_mean = made.running_var = made.num_batches_tracked = None
        return made
    return None


def group_norm(layer: nn.modules.batchnorm._BatchNorm) -> nn.GroupNorm:
    """Normalises one record over groups of channels, with the weights of a batch normalisation."""
    channels = layer.num_features
    # A group of one number is that number minus itself. Images have many numbers in a channel; after a linear
    # layer there is one, so groups need several channels.
    most = max(1, channels // 8) if isinstance(layer, nn.BatchNorm1d) else channels
    groups = next(number for number in range(min(32, most), 0, -1) if channels % number == 0)
    made = nn.GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        made.load_state_dict({"weight": layer.weight, "bias": layer.bias})
        made.weight.requires_grad_(layer.weight.requires_grad)
        made.bias.requires_grad_(layer.bias.requires_grad)
    return made.to(layer.weight.device if layer.affine else "cpu").train(layer.training)
