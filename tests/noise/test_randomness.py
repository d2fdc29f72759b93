"""Random numbers by address."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from tacit.noise.gaussian import _box_muller, gaussian_rows
from tacit.noise.randomness import EVERYONE, SHORT_ROW, Generators, Purpose, Randomness, fresh_secret


def _bytes(generators: Generators, index: int = 0, number: int = 16) -> bytes:
    target = bytearray(number)
    generators.fill(index, memoryview(target))
    return bytes(target)


def test_addresses_do_not_share_streams() -> None:
    seen = set()
    for seed in (0, 1, 2**64, 2**64 + 1):
        for purpose in Purpose:
            for client in (0, 1, EVERYONE):
                for round in (0, 1, 10**6):
                    for step in (0, 1):
                        at = {"client": client, "round": round, "step": step}
                        generator = Randomness(seed).generator(purpose, **at)
                        seen.add(tuple(generator.integers(0, 2**63, 2).tolist()))
                        seen.add(_bytes(Generators(Randomness(seed), purpose, (client,), round, step)))
    assert len(seen) == 4 * len(Purpose) * 3 * 3 * 2 * 2


@pytest.mark.parametrize("randomness", [Randomness(0), Randomness(2**127 + 9, stream="b"), Randomness(1, 2**100)])
def test_integers_of_many_addresses_are_those_of_their_generators(randomness: Randomness) -> None:
    # A third of the draws below 3 * 2^30 are rejected, and the generator goes on.
    clients, ends = (0, 5, EVERYONE, 2**40), (1, 1238, 3 * 2**30, 2**32 - 1)
    made = randomness.integers(Purpose.SAMPLE, ends, clients, round=7, steps=40, number=8)
    for step in range(40):
        for k, (client, end) in enumerate(zip(clients, ends, strict=True)):
            generator = randomness.generator(Purpose.SAMPLE, client=client, round=7, step=step)
            assert made[step, k].tolist() == generator.integers(0, end, 8).tolist()


def test_bytes_are_those_of_aes_in_counter_mode_whoever_else_draws() -> None:
    clients, number = (7, 3, EVERYONE), 300_001
    generators = Generators(Randomness(2**70 + 5), Purpose.NOISE, clients, round=11, step=2)
    key = generators.randomness.key(Purpose.NOISE, round=11, step=2)
    for index in (2, 0, 1, 0):
        nonce = clients[index].to_bytes(8, "big") + bytes(8)
        plain = Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor().update(bytes(number))
        assert _bytes(generators, index, number) == plain


@pytest.mark.parametrize("length", [1, 16, 200, SHORT_ROW, SHORT_ROW + 1])
def test_rows_filled_together_are_those_filled_one_by_one(length: int) -> None:
    generators = Generators(Randomness(9), Purpose.NOISE, (4, 7, EVERYONE, 0), round=1, step=3)
    rows = np.zeros((2, length), dtype=np.uint8)
    generators.fill_rows(1, rows)
    assert [row.tobytes() for row in rows] == [_bytes(generators, index, length) for index in (1, 2)]


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


@pytest.mark.parametrize("closed", [Randomness(3, secret=fresh_secret()), Randomness(3, stream="another")])
def test_secrets_and_streams_change_what_clients_draw_and_nothing_that_is_public(closed: Randomness) -> None:
    assert len({fresh_secret() for _ in range(50)}) == 50
    open_ = Randomness(3)
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
    for purpose in Purpose:
        first, second = (_bytes(Generators(each, purpose)) for each in (open_, closed))
        assert (first == second) == (purpose not in private)
    # Every purpose has a key of its own: the raw numbers of one are not those of another at its address.
    keys = {int(closed.generator(purpose).bit_generator.state["state"]["key"][0]) for purpose in private}
    assert len(keys) == len(private)
    for purpose in Purpose:
        same = open_.generator(purpose).random() == closed.generator(purpose).random()
        assert same == (purpose not in private)


def test_streams_of_a_seed_are_told_apart() -> None:
    made = [Randomness(3), Randomness(3, stream="a"), Randomness(3, stream="b"), Randomness(4, stream="a")]
    assert len({one.generator(Purpose.NOISE).random() for one in made}) == len(made)
    assert len({repr(one) for one in made}) == len(made), "a checkpoint of one is not taken up by another"
    # What comes from the operating system is nobody's stream.
    secret = fresh_secret()
    first, second = (Randomness(3, secret, stream).generator(Purpose.NOISE).random() for stream in ("a", "b"))
    assert first == second


def test_rows_are_gaussian_with_their_own_deviation_and_independent() -> None:
    streams = Generators(Randomness(9), Purpose.NOISE, (0, 1, 2), round=4)
    stds = torch.tensor([1.0, 0.0, 25.0], dtype=torch.float64)
    rows = gaussian_rows(stds, 20_000, streams).numpy()
    assert np.all(rows[1] == 0)
    for index, std in ((0, 1.0), (2, 25.0)):
        assert stats.kstest(rows[index] / std, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(rows[0], rows[2])[0, 1]) < 5 / np.sqrt(20_000)


@pytest.mark.parametrize("dim", [1, 2, 7, 7_850, 100_001])
def test_a_row_is_the_same_bits_alone_and_in_any_company(dim: int) -> None:
    clients = tuple(range(40 if dim < 10_000 else 3))
    stds = 1.0 + torch.arange(len(clients), dtype=torch.float64)
    together = gaussian_rows(stds, dim, Generators(Randomness(1), Purpose.NOISE, clients))
    for i in (0, 1, len(clients) - 1):
        alone = gaussian_rows(stds[i : i + 1], dim, Generators(Randomness(1), Purpose.NOISE, (i,)))
        assert torch.equal(alone[0], together[i])
    assert not bool((together[0] / stds[0] == together[1] / stds[1]).any())


def test_normal_numbers_have_their_moments_and_their_far_ends() -> None:
    """Box-Muller in single precision against the normal law, in 2^22 numbers."""
    number = 2**22
    one = torch.ones(1, dtype=torch.float64)
    row = gaussian_rows(one, number, Generators(Randomness(5), Purpose.NOISE))[0].double().numpy()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(row**power) - moment) < 5 * np.sqrt(variance / number)
    for far in (1.0, 2.0, 3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(far) * number
        assert abs(np.sum(np.abs(row) > far) - expected) < 5 * np.sqrt(expected)
    assert stats.kstest(row, "norm").pvalue > 1e-4
    # The two numbers of a pair share a radius, and are independent all the same.
    first, second = row[: number // 2], row[number // 2 :]
    for a, b in ((first, second), (np.abs(first), np.abs(second)), (first**2, second**2)):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(number / 2)


def test_the_far_ends_come_from_words_near_zero_and_no_word_gives_infinity() -> None:
    words = np.array([[0, 1, -1, 2**31 - 1, -(2**31), 0, 0, 0, 0, 0]], dtype=np.int32)
    row = np.empty((1, 10), dtype=np.float32)
    _box_muller(words, np.ones((1, 1), np.float32), row)
    furthest = np.sqrt(2 * 31 * np.log(2))
    np.testing.assert_allclose(row[0, :5], [furthest, furthest, furthest, 0, 0], atol=1e-4)
    assert np.isfinite(row).all()
