"""State kept between rounds and data exchanged by clients and server: tensors by name."""

from __future__ import annotations

from torch import Tensor

State = dict[str, Tensor]
