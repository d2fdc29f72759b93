"""Tables of embeddings whose padding learns nothing, in every record of a batch.

Inside `torch.vmap`, PyTorch numbers the rows of all records' tables through, but not the row of the padding: only
the first record's padding is left out of its gradient. So a record's gradient would depend on its place in the
batch, and that on which others were drawn.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.errors import RequestError

WRITES = "changes its own weights while it computes, so records are written into the model before any noise"


def embedding(
    words: Tensor,
    table: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`torch.nn.functional.embedding`, with the padding of every record left out of its gradient."""
    if max_norm is not None:
        raise RequestError(f"torch.nn.functional.embedding with max_norm {WRITES}: leave max_norm out")
    rows = F.embedding(words, table, None, None, norm_type, scale_grad_by_freq, sparse)
    if padding_idx is None:
        return rows
    padding = padding_idx if padding_idx >= 0 else len(table) + padding_idx
    return torch.where((words == padding)[..., None], rows.detach(), rows)


def operator(
    table: Tensor, words: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """`torch.embedding`, for which -1 means no padding, in the same way."""
    padding = None if padding_idx < 0 else padding_idx
    return embedding(words, table, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)
