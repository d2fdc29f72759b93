"""Random numbers by address."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.noise.gaussian import gaussian_rows
from tacit.noise.randomness import EVERYONE, Purpose, Randomness, fresh_secret


def test_addresses_do_not_share_streams() -> None:
    seen = set()
    for seed in (0, 1, 2**64, 2**64 + 1):
        for purpose in Purpose:
            for client in (0, 1, EVERYONE):
                for round in (0, 1, 10**6):
                    generator = Randomness(seed).generator(purpose, client=client, round=round)
                    seen.add(tuple(generator.integers(0, 2**63, 2).tolist()))
    assert len(seen) == 4 * len(Purpose) * 3 * 3


def test_the_stream_is_numpys_philox_at_that_key_and_counter() -> None:
    seed, client, round, step = 2**70 + 5, 3, 11, 2
    key = np.array([seed % 2**64, seed >> 64], dtype=np.uint64)
    counter = np.array([step << 40, int(Purpose.NOISE), round, client], dtype=np.uint64)
    plain = np.random.Generator(np.random.Philox(key=key, counter=counter))
    ours = Randomness(seed).generator(Purpose.NOISE, client=client, round=round, step=step)
    assert np.array_equal(ours.standard_normal(1000), plain.standard_normal(1000))


@pytest.mark.parametrize("seed", [-1, 2**128])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        Randomness(seed)


def test_a_secret_changes_what_clients_draw_and_nothing_that_is_public() -> None:
    assert len({fresh_secret() for _ in range(50)}) == 50
    open_, closed = Randomness(3), Randomness(3, secret=fresh_secret())
    assert "secret" not in repr(closed)
    private = {
        Purpose.SAMPLE,
        Purpose.NOISE,
        Purpose.COMPRESS,
        Purpose.SECRET_PARTICIPATION,
        Purpose.AGGREGATE,
        Purpose.REPORT,
    }
    firsts = {closed.generator(purpose).random() for purpose in private}
    assert len(firsts) == len(private)
    # Every purpose has a key of its own: the raw numbers of one are not those of another at its address.
    keys = {int(closed.generator(purpose).bit_generator.state["state"]["key"][0]) for purpose in private}
    assert len(keys) == len(private)
    for purpose in Purpose:
        same = open_.generator(purpose).random() == closed.generator(purpose).random()
        assert same == (purpose not in private)


def test_rows_are_gaussian_with_their_own_deviation_and_independent() -> None:
    randomness = Randomness(9)
    stds = torch.tensor([1.0, 0.0, 25.0], dtype=torch.float64)
    generators = [randomness.generator(Purpose.NOISE, client=i, round=4) for i in range(3)]
    rows = gaussian_rows(stds, 20_000, generators).numpy()
    assert np.all(rows[1] == 0)
    for index, std in ((0, 1.0), (2, 25.0)):
        assert stats.kstest(rows[index] / std, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(rows[0], rows[2])[0, 1]) < 5 / np.sqrt(20_000)
