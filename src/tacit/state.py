"""What parts remember from round to round, and what clients and server exchange: tensors by name."""

from __future__ import annotations

from torch import Tensor

State = dict[str, Tensor]
