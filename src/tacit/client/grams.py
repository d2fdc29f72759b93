"""The products A A^T of clients' records, kept from round to round.

They depend only on the records, so for a client that takes part often they are computed once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tacit.federation import Batch, Federation
from tacit.models.gradients import padded
from tacit.models.model import flat_features

BLOCK_CLIENTS = 16


class Grams:
    """A table of A A^T, one square per client, filled block by block when a block is first needed.

    Blocks are cut by position, not by cohort: the last bit of a product depends on the rest of its block, and a
    resumed run must reproduce the same bits.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        longest = int(federation.sizes.max())
        self._table = federation.features.new_empty(federation.clients, longest, longest)
        self._known = torch.zeros(-(-federation.clients // BLOCK_CLIENTS), dtype=torch.bool)

    @staticmethod
    def bytes_for(federation: Federation) -> int:
        """The memory that the table takes, in bytes."""
        return federation.clients * int(federation.sizes.max()) ** 2 * federation.features.element_size()

    def of(self, clients: Tensor) -> Tensor:
        """The products of the clients at these positions: (clients, most records, most records).

        Rows and columns beyond a client's own records are zero.
        """
        blocks = clients // BLOCK_CLIENTS
        known = self._known[blocks]
        if not bool(known.all()):
            for block in torch.unique(blocks[~known]).tolist():
                self._fill(block)
        return self._table.index_select(0, clients.to(self._table.device))

    def _fill(self, block: int) -> None:
        federation = self._federation
        start, stop = block * BLOCK_CLIENTS, min((block + 1) * BLOCK_CLIENTS, federation.clients)
        counts = federation.sizes[start:stop]
        records = slice(int(federation.offsets[start]), int(federation.offsets[stop]))
        batch = Batch(federation.features[records], federation.targets[records], counts)
        rectangle = padded(flat_features(batch), counts)
        here = self._table[start:stop].zero_()[:, : rectangle.shape[1], : rectangle.shape[1]]
        here.copy_(torch.bmm(rectangle, rectangle.transpose(1, 2)))
        self._known[block] = True
