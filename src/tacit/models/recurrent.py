"""LSTM, GRU and RNN layers made of linear maps, so that every record has a gradient of its own.

PyTorch's layers run as one operation whose gradient cannot be taken apart by record.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from tacit.errors import RequestError

States = tuple[Tensor, ...]


class GatedLayers(nn.Module):
    """The same function as an `nn.LSTM`, `nn.GRU` or `nn.RNN`, with the same weights, step by step.

    Called in the same way, it returns the outputs of all steps and the last states. Packed sequences are refused,
    because their records would be mixed in one tensor.
    """

    def __init__(self, layer: nn.LSTM | nn.GRU | nn.RNN) -> None:
        super().__init__()
        if layer.proj_size:
            raise RequestError("an LSTM with proj_size has no replacement: leave proj_size out")
        self.kind = "LSTM" if isinstance(layer, nn.LSTM) else "GRU" if isinstance(layer, nn.GRU) else "RNN"
        self.squash = torch.relu if getattr(layer, "nonlinearity", "tanh") == "relu" else torch.tanh
        self.layers, self.ways = layer.num_layers, 2 if layer.bidirectional else 1
        self.hidden, self.batch_first = layer.hidden_size, layer.batch_first
        inputs, states = [], []
        for suffix in self._suffixes():
            inputs.append(_linear(layer, f"weight_ih_{suffix}", f"bias_ih_{suffix}"))
            states.append(_linear(layer, f"weight_hh_{suffix}", f"bias_hh_{suffix}"))
        self.inputs, self.states = nn.ModuleList(inputs), nn.ModuleList(states)

    def _suffixes(self) -> list[str]:
        ways = ("", "_reverse")[: self.ways]
        return [f"l{layer}{way}" for layer in range(self.layers) for way in ways]

    def forward(self, inputs: Tensor, start: Tensor | States | None = None) -> tuple[Tensor, Tensor | States]:
        """Outputs (records, steps, features) if batch first, and the last states."""
        if isinstance(inputs, PackedSequence):
            raise RequestError("packed sequences mix records: pad them, and mask what is padding")
        alone = inputs.dim() == 2
        if alone:
            inputs = inputs[None] if self.batch_first else inputs[:, None]
        rows = inputs if self.batch_first else inputs.transpose(0, 1)
        begin = self._start(rows, start, alone)
        lasts: list[States] = []
        for layer in range(self.layers):
            said = []
            for way in range(self.ways):
                place = layer * self.ways + way
                outputs, last = self._run(rows, place, tuple(state[place] for state in begin), backwards=way == 1)
                said.append(outputs)
                lasts.append(last)
            rows = torch.cat(said, dim=2)
        final = tuple(torch.stack([last[k] for last in lasts]) for k in range(len(begin)))
        rows = rows if self.batch_first else rows.transpose(0, 1)
        if alone:
            rows = rows[0] if self.batch_first else rows[:, 0]
            final = tuple(state[:, 0] for state in final)
        return rows, final if self.kind == "LSTM" else final[0]

    def _start(self, rows: Tensor, start: Tensor | States | None, alone: bool) -> States:
        number = 2 if self.kind == "LSTM" else 1
        if start is None:
            return (rows.new_zeros(self.layers * self.ways, len(rows), self.hidden),) * number
        given = start if isinstance(start, tuple) else (start,)
        return tuple(state[:, None] for state in given) if alone else given

    def _run(self, rows: Tensor, place: int, states: States, *, backwards: bool) -> tuple[Tensor, States]:
        """One layer in one direction, over all steps."""
        from_inputs = self.inputs[place](rows).unbind(1)
        outputs: list[Tensor] = []
        for step in reversed(from_inputs) if backwards else from_inputs:
            states = self._step(step, self.states[place](states[0]), states)
            outputs.append(states[0])
        return torch.stack(outputs[::-1] if backwards else outputs, dim=1), states

    def _step(self, from_inputs: Tensor, from_state: Tensor, states: States) -> States:
        if self.kind == "RNN":
            return (self.squash(from_inputs + from_state),)
        if self.kind == "GRU":
            (reset, update, new), (reset_s, update_s, new_s) = from_inputs.chunk(3, -1), from_state.chunk(3, -1)
            update = torch.sigmoid(update + update_s)
            new = torch.tanh(new + torch.sigmoid(reset + reset_s) * new_s)
            return (new + update * (states[0] - new),)
        enter, forget, cell, out = (from_inputs + from_state).chunk(4, -1)
        kept = torch.sigmoid(forget) * states[1] + torch.sigmoid(enter) * torch.tanh(cell)
        return torch.sigmoid(out) * torch.tanh(kept), kept


def _linear(layer: nn.Module, weight: str, bias: str) -> nn.Linear:
    """A linear layer with the weights of a recurrent one."""
    values: Sequence[Tensor] = [getattr(layer, name) for name in (weight, bias) if hasattr(layer, name)]
    outputs, inputs = values[0].shape
    made = nn.Linear(inputs, outputs, bias=len(values) == 2, dtype=values[0].dtype, device=values[0].device)
    for parameter, value in zip(made.parameters(), values, strict=True):
        parameter.data.copy_(value.data)
        parameter.requires_grad_(value.requires_grad)
    return made
