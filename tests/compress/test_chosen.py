"""Coordinates chosen before there is anything to send: the same messages, from the chosen values alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.compress import Direct, Identity, Shifted, Uplink, indices, parse_compressor, rand_k_indices
from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness


def _generators(clients: int, round: int) -> list[np.random.Generator]:
    return [Randomness(3).generator(Purpose.COMPRESS, client=i, round=round) for i in range(clients)]


@given(
    spec=st.sampled_from(["rand-k:0.3", "rand-k:1.0", "rand-k:2", "rand-k:0.5+natural", "rand-k:0.5+qsgd:4"]),
    shifted=st.booleans(),
    dim=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60)
def test_chosen_values_give_the_messages_of_whole_rows(spec: str, shifted: bool, dim: int, seed: int) -> None:
    compressor = parse_compressor(spec)
    uplink: Uplink = Shifted(compressor) if shifted else Direct(compressor)
    clients = torch.tensor([2, 0, 1])
    whole_state, chosen_state = uplink.init(3, dim), uplink.init(3, dim)
    draw = torch.Generator().manual_seed(seed)
    for t in range(3):
        rows = torch.randn(3, dim, generator=draw)
        whole, whole_state = uplink.send(rows, whole_state, clients, _generators(3, t))
        generators = _generators(3, t)
        choice = uplink.choose(dim, generators)
        assert choice is not None
        values = rows.gather(1, choice.indices)
        chosen, chosen_state = uplink.send_chosen(values, choice, chosen_state, clients, generators)
        assert chosen.encode() == whole.encode()
        for name, tensor in whole_state.items():
            assert torch.equal(tensor, chosen_state[name])


def test_where_the_message_depends_on_the_vector_nothing_is_chosen() -> None:
    for uplink in (Direct(Identity()), Shifted(parse_compressor("natural"))):
        assert uplink.choose(5, _generators(1, 0)) is None
    choice = Direct(parse_compressor("rand-k:2")).choose(5, _generators(1, 0))
    assert choice is not None
    with pytest.raises(RequestError, match="identity does not choose its coordinates"):
        Direct(Identity()).send_chosen(torch.zeros(1, 2), choice, {}, torch.tensor([0]), _generators(1, 0))
    with pytest.raises(RequestError, match=r"values must be float32 of shape \(1, 2\)"):
        Direct(parse_compressor("rand-k:2")).send_chosen(
            torch.zeros(1, 5), choice, {}, torch.tensor([0]), _generators(1, 0)
        )


@given(seed=st.integers(0, 2**64 - 1), dim=st.integers(12, 400), share=st.floats(0.001, 1 / 12))
def test_sorting_finds_the_coordinates_that_a_table_finds(seed: int, dim: int, share: float) -> None:
    k = max(1, int(dim * share))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indices, "_LONG", 2**63)
        by_table = rand_k_indices(seed, dim, k)
        patch.setattr(indices, "_LONG", 1)
        by_sorting = rand_k_indices(seed, dim, k)
    assert by_sorting.dtype == by_table.dtype == np.int64
    assert (by_sorting == by_table).all()


def test_sorting_copes_with_many_repeats() -> None:
    """As many draws as positions: nearly every batch repeats what was there."""
    source, other = (np.random.Philox(key=5, counter=0) for _ in range(2))
    found = indices._by_sorting(source, 50, 50)
    assert found.tolist() == list(range(50))
    assert len(set(indices._by_sorting(other, 50, 25).tolist())) == 25
