"""A trained model as a function from features to predictions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tacit.engine.trained import Trained
from tacit.models.linear import least_squares


@pytest.fixture
def every_warning() -> Iterator[None]:
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("every_warning")
def test_features_that_cannot_be_written_to_are_taken_without_a_warning() -> None:
    features = np.arange(6, dtype=np.float32).reshape(3, 2)
    features.flags.writeable = False
    model = least_squares(features=2, intercept=False)
    found = Trained(model, torch.tensor([1.0, 10.0])).predict(features)
    assert found.tolist() == [10.0, 32.0, 54.0]
