"""Layers that a network must not have, because they mix records or cannot be repeated."""

from __future__ import annotations

from torch import nn

from tacit.errors import RequestError


def refuse_mixing_layers(module: nn.Module) -> None:
    """Refuses a network with such a layer, names it, and says what to put in its place."""
    for name, layer in module.named_modules():
        where = f"layer {name or '(the module itself)'!r} ({type(layer).__name__})"
        if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
            raise RequestError(f"{where} has no size yet: call the module once on a record, made up if you like")
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            if layer.training or layer.running_mean is None:
                raise RequestError(
                    f"{where} mixes the records of a batch, so no bound on one record can hold; "
                    "tacit.fix(module) replaces it by torch.nn.GroupNorm. If its statistics come from other "
                    "records, call module.eval() to keep them as they are"
                )
        elif isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
            raise RequestError(f"{where} keeps statistics over records; set track_running_stats=False")
        if isinstance(layer, nn.RNNBase | nn.LSTMCell) and any(p.requires_grad for p in layer.parameters()):
            which = "nn.LSTM, so use that," if isinstance(layer, nn.LSTMCell) else "it"
            raise RequestError(
                f"{where} has no gradients per record: PyTorch runs it as one operation that cannot be taken "
                f"apart. tacit.fix(module) replaces {which} by an equal layer made of linear layers"
            )
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise RequestError(
                f"{where} has max_norm = {layer.max_norm:g}: it writes the words of every record into the "
                "model's own weights, before any noise. Set max_norm = None; a LayerNorm behind it bounds rows"
            )
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0 and layer.training:
            raise RequestError(
                f"{where} draws from PyTorch's global generator, so a run could not be repeated; "
                "tacit.fix(module) removes it (the privacy noise already regularises), or call module.eval()"
            )
