"""The correction of a regression: what a record can add, what is read from means, and how it is folded in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.federation import Batch
from tacit.models.linear import absolute_regression, least_squares, logistic_regression
from tacit.models.persons import PersonModel
from tacit.side.correction import NOTHING, Correction, Moments, _slope, correctable, worthwhile

ANY = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(ANY, ANY, st.floats(-2.0, 0.0), st.booleans())
def test_no_record_adds_more_than_the_bound(target: float, predicted: float, low: float, whole: bool) -> None:
    """Whatever target and prediction are: infinite, or no numbers at all."""
    moments = Moments(low, whole)
    vector = moments.of(torch.tensor([target]).double(), torch.tensor([predicted]).double())
    assert vector.shape == (1, moments.dim)
    assert float(vector.norm()) <= moments.bound * (1 + 1e-12)
    assert float(vector.abs().max()) <= 1


@pytest.mark.parametrize(("whole", "numbers"), [(False, 5), (True, 7)])
def test_the_bound_is_reached(whole: bool, numbers: int) -> None:
    far = torch.tensor([1e30], dtype=torch.float64)
    assert float(Moments(-1.0, whole).of(far, -far).norm()) == pytest.approx(math.sqrt(numbers))
    assert Moments(-1.0, whole).bound == pytest.approx(math.sqrt(numbers))


def test_a_person_adds_no_more_than_one_row() -> None:
    """Rows of one person are averaged; unused rows count nothing, whatever they hold."""
    rows = torch.tensor(
        [[[9.0, -9.0, 0.5], [9.0, -9.0, 0.5], [0.0, 0.0, 0.0]], [[9.0, -9.0, 1.0], *[[0.0] * 3] * 2]]
    )
    batch = Batch(rows, rows[:, 0, 1], torch.tensor([2]))
    model, point = least_squares(features=1), torch.tensor([1.0, 0.0])
    both = Moments(-1.0).vectors(PersonModel(model), point, batch)
    assert both.norm(dim=1).tolist() == pytest.approx([math.sqrt(5)] * 2)
    assert Moments(-1.0).sums(PersonModel(model), point, batch).shape == (1, 5)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("low", [-1.0, -0.2])
def test_without_noise_a_line_is_found_exactly(low: float, whole: bool) -> None:
    """Also where predictions lie beyond the window, in which they are told apart."""
    moments = Moments(low, whole)
    generator = np.random.default_rng(0)
    predicted = torch.from_numpy(generator.uniform(low / 2, 0.6, 5000))
    target = predicted + 0.1 + 0.3 * (predicted - predicted.mean())
    found = moments.read(moments.of(target, predicted).mean(0), 0.0)
    assert (found.shift, found.slope, found.at) == pytest.approx((0.1, 0.3, float(predicted.mean())))


def test_what_noise_may_have_caused_is_left_as_it_is() -> None:
    """A model that needs no correction is corrected in 1 of 20 cases, and then by less than the noise's size."""
    generator, std = np.random.default_rng(1), 0.01
    predicted = torch.from_numpy(generator.normal(0, 0.15, 20_000))
    means = Moments(-1.0).of(predicted, predicted).mean(0)
    noise = torch.from_numpy(generator.normal(0, std, (1000, 5)))
    found = [Moments(-1.0).read(means + one, std) for one in noise]
    assert np.mean([one.shift != 0 for one in found]) < 0.1
    assert np.mean([one.slope != 0 for one in found]) < 0.1
    assert math.sqrt(np.mean([one.shift**2 for one in found])) < std
    # Where predictions hardly differ, no slope can be told.
    same = Moments(-1.0).of(predicted / 100, predicted / 100).mean(0)
    assert all(Moments(-1.0).read(same + one, std).slope == 0 for one in noise)


def test_the_best_line_is_found_where_the_mean_is_no_line() -> None:
    """Most values follow a flat line, and a few far away a steep one, as prices do."""
    generator = np.random.default_rng(2)
    predicted = torch.from_numpy(generator.exponential(0.2, 20_000)).clamp(max=0.7)
    target = predicted + 0.5 * (predicted - 0.3).clamp(min=0)
    slopes = []
    for whole in (False, True):
        moments = Moments(-1.0, whole)
        slopes.append(moments.read(moments.of(target, predicted).mean(0), 0.0).slope)
    both = torch.stack([predicted, target - predicted])
    best = float(both.cov()[0, 1] / both.cov()[0, 0])
    assert slopes[1] == pytest.approx(best, rel=1e-3)
    assert slopes[0] < 0.8 * best


def test_the_noise_of_a_slope_is_known() -> None:
    """Over the whole range it is taken only if it is clear, and then it deviates by no more than it should."""
    generator, moments = np.random.default_rng(3), Moments(-0.4, whole=True)
    predicted = torch.from_numpy(generator.normal(0.1, 0.2, 20_000))
    means = moments.of(predicted + 0.3 * (predicted - 0.1), predicted).mean(0)
    for std, few in ((0.0005, 0.02), (0.01, 0.3)):
        noise = torch.from_numpy(generator.normal(0, std, (1000, 7)))
        slopes = [moments.read(means + one, std).slope for one in noise]
        assert np.std(slopes) < few

    def told(m: torch.Tensor) -> tuple[float, float]:
        return _slope(float(m[0]), float(m[1]), float(m[1]), float(m[5]), float(m[6]), 0.0005, same=True)

    noise = torch.from_numpy(generator.normal(0, 0.0005, (2000, 7)))
    assert told(means)[1] == pytest.approx(np.std([told(means + one)[0] for one in noise]), rel=0.1)


def test_folding_is_exact() -> None:
    model, point = least_squares(features=3), torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
    rows, mended = torch.randn(50, 3, dtype=torch.float64), Correction(0.1, -0.2, 0.4)
    before = model.predict(point, rows)
    expected = before + 0.1 - 0.2 * (before - 0.4)
    for one in (model, PersonModel(model)):
        torch.testing.assert_close(model.predict(mended.folded(one, point), rows), expected, atol=1e-14, rtol=0)
    assert torch.equal(NOTHING.folded(model, point), point)


def test_only_lines_that_are_fitted_to_means_are_corrected() -> None:
    assert correctable(least_squares(features=2))
    assert correctable(PersonModel(least_squares(features=2)))
    others = (
        least_squares(features=2, intercept=False),
        least_squares(features=2, ridge=0.1),
        absolute_regression(features=2),
        logistic_regression(features=2),
    )
    assert not any(map(correctable, others))


def test_it_is_worthwhile_while_a_point_of_r2_stands_out() -> None:
    assert worthwhile(0.0249)
    assert not worthwhile(0.0251)
