"""The coordinates that a message will carry are foretold exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tacit.compress import parse_compressor
from tacit.compress.sparse import SparsePackets
from tacit.compress.support import MessageSupport
from tacit.errors import RequestError

Generators = Callable[..., list[np.random.Generator]]


@pytest.mark.parametrize("name", ["rand-k:0.05", "rand-k:1", "rand-k:0.9", "rand-k:1.0", "rand-k:7+qsgd:4"])
def test_foretold(name: str, generators: Generators) -> None:
    compressor = parse_compressor(name)
    support = MessageSupport.of(compressor)
    indices = support.indices(generators(5), 60)
    packets = compressor.compress(torch.ones(5, 60), generators(5))
    assert isinstance(packets, SparsePackets)
    assert torch.equal(indices, packets.choice.indices)
    assert indices.shape == (5, support.kept(60))
    assert support.indices([], 60).shape == (0, support.kept(60))


@pytest.mark.parametrize("name", ["identity", "qsgd:4", "natural"])
def test_others_keep_no_coordinates_of_their_own(name: str) -> None:
    with pytest.raises(RequestError, match="must be rand-k"):
        MessageSupport.of(parse_compressor(name))
