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
from tacit.side.correction import NOTHING, Correction, Moments, correctable, worthwhile

ANY = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(ANY, ANY, st.floats(-2.0, 0.0))
def test_no_record_adds_more_than_the_bound(target: float, predicted: float, low: float) -> None:
    """Whatever target and prediction are: infinite, or no numbers at all."""
    vector = Moments(low).of(torch.tensor([target]).double(), torch.tensor([predicted]).double())
    assert float(vector.norm()) <= Moments.bound * (1 + 1e-12)
    assert float(vector.abs().max()) <= 1


def test_the_bound_is_reached() -> None:
    far = torch.tensor([1e30], dtype=torch.float64)
    assert float(Moments(-1.0).of(far, far).norm()) == pytest.approx(math.sqrt(5))


def test_a_person_adds_no_more_than_one_row() -> None:
    """Rows of one person are averaged; unused rows count nothing, whatever they hold."""
    rows = torch.tensor(
        [[[9.0, 9.0, 0.5], [9.0, 9.0, 0.5], [0.0, 0.0, 0.0]], [[9.0, 9.0, 1.0], *[[0.0] * 3] * 2]]
    )
    batch = Batch(rows, rows[:, 0, 1], torch.tensor([2]))
    model, point = least_squares(features=1), torch.tensor([1.0, 0.0])
    both = Moments(-1.0).vectors(PersonModel(model), point, batch)
    assert both.norm(dim=1).tolist() == pytest.approx([math.sqrt(5)] * 2)
    assert Moments(-1.0).sums(PersonModel(model), point, batch).shape == (1, 5)


@pytest.mark.parametrize("low", [-1.0, -0.2])
def test_without_noise_a_line_is_found_exactly(low: float) -> None:
    """Also where predictions lie beyond the window, in which they are told apart."""
    generator = np.random.default_rng(0)
    predicted = torch.from_numpy(generator.uniform(low / 2, 0.6, 5000))
    target = predicted + 0.1 + 0.3 * (predicted - predicted.mean())
    found = Moments(low).read(Moments(low).of(target, predicted).mean(0), 0.0)
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
    assert worthwhile(0.0176)
    assert not worthwhile(0.0178)
