"""How qsgd and natural round: the exact probability, at every magnitude."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.compress import Natural, Qsgd
from tacit.compress.wire import OVERHEAD_BYTES

Generators = Callable[..., list[np.random.Generator]]
floats = st.floats(-(2.0**127), 2.0**127, width=32)


def always(uniform: float) -> Any:
    """A generator for which every uniform number is this one."""

    def random_raw(size: int) -> np.ndarray[Any, Any]:
        word = int(uniform * 2**32)
        return np.full(size, word << 32 | word, dtype=np.uint64)

    return cast(
        np.random.Generator,
        SimpleNamespace(
            random=lambda size: np.full(size, uniform), bit_generator=SimpleNamespace(random_raw=random_raw)
        ),
    )


def up_or_down(compressor: Natural | Qsgd, row: list[float], uniform: float) -> list[float]:
    values: list[float] = compressor.compress(torch.tensor([row]), [always(uniform)]).dense()[0].tolist()
    return values


@given(x=floats, data=st.data())
def test_natural_rounds_to_its_neighbours_with_the_exact_probability(x: float, data: st.DataObject) -> None:
    low, high = 0.0, 2.0**-126
    if abs(x) >= high:
        low = 2.0 ** (math.frexp(abs(x))[1] - 1)
        high = 2 * low
    ups = int((abs(x) - low) / (high - low) * 2**23)
    # Of the 2^23 equally likely values of a uniform number j/2^23, exactly `ups` may round up.
    candidates = [0, 2**23 - 1, data.draw(st.integers(0, 2**23 - 1)), 2**23 - ups - 1, 2**23 - ups]
    for j in candidates:
        if 0 <= j < 2**23:
            expected = high if j >= 2**23 - ups else low
            assert up_or_down(Natural(), [x], j / 2**23) == [math.copysign(expected, x)]


@pytest.mark.parametrize(
    ("x", "low", "high"),
    [(5.0, 4.0, 8.0), (-1.5, -1.0, -2.0), (3e-39, 0.0, 2.0**-126), (1.3e38, 2.0**126, 2.0**127)],
)
def test_natural_frequencies(x: float, low: float, high: float, generators: Generators) -> None:
    draws = 20_000
    values = Natural().compress(torch.full((1, draws), x), generators(1)).dense()
    ups = int((values == high).sum())
    assert ups + int((values == low).sum()) == draws
    probability = (x - low) / (high - low)
    assert abs(ups / draws - probability) < 5 * math.sqrt(probability * (1 - probability) / draws)


@given(
    row=st.lists(st.floats(-(2.0**50), 2.0**50, width=32), min_size=1, max_size=12),
    levels=st.sampled_from([1, 3, 16, 32767]),
)
def test_qsgd_rounds_to_its_neighbours_with_the_exact_probability(row: list[float], levels: int) -> None:
    norm = float(torch.tensor(row).double().norm())
    values = torch.tensor(row).double()
    last = math.nextafter(1.0, 0.0)
    down, up = (torch.tensor(up_or_down(Qsgd(levels), row, u)).double() for u in (last, 0.0))
    step = norm * (1 + 2.0**-23) / levels
    slack = 1e-6 * norm + 1e-44
    assert (down <= values + slack).all()
    assert (up >= values - slack).all()
    assert (up - down <= step + slack).all()
    assert (up.abs() <= norm + slack).all()
    assert (down.abs() <= norm + slack).all()


def test_qsgd_probability_is_the_fraction_between_the_levels() -> None:
    # Norm 5: the ratios at 4 levels are 2.4 and -3.2, of which -3.2 is 0.8 of the way up from -4.
    row, unit = [3.0, -4.0], 5 / 4
    for uniform, steps in [(0.39, [3, -3]), (0.41, [2, -3]), (0.79, [2, -3]), (0.81, [2, -4])]:
        assert up_or_down(Qsgd(4), row, uniform) == [step * unit for step in steps]


@given(row=st.lists(st.floats(-(2.0**126), 2.0**126, width=32), min_size=1, max_size=9))
def test_qsgd_sends_the_norm_rounded_up(row: list[float]) -> None:
    (message,) = Qsgd(4).compress(torch.tensor([row]), [always(0.5)]).encode()
    (norm,) = np.frombuffer(message, dtype="<f4", offset=OVERHEAD_BYTES, count=1)
    exact = float(torch.tensor(row).double().norm())
    assert float(np.nextafter(norm, np.float32(0))) <= exact <= float(norm)


@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False), uniform=st.floats(0, 1, exclude_max=True))
def test_qsgd_sends_a_single_coordinate_exactly(x: float, uniform: float) -> None:
    assert up_or_down(Qsgd(16), [x, 0.0, 0.0], uniform) == [x, 0, 0]


@given(
    row=st.lists(st.floats(-(2.0**126), 2.0**126, width=32), min_size=1, max_size=9),
    levels=st.sampled_from([1, 2, 16]),
)
def test_qsgd_codes_stay_in_range_at_every_magnitude(row: list[float], levels: int) -> None:
    for uniform in (0.0, math.nextafter(1.0, 0.0)):
        packets = Qsgd(levels).compress(torch.tensor([row]), [always(uniform)])
        decoded = Qsgd(levels).decode(packets.encode(), len(row))
        assert torch.equal(decoded.dense(), packets.dense())
