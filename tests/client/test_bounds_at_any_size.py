"""No record adds more than the bound, whatever sizes its features, errors and the bound have.

Every client holds one record, so what a client's sum holds is what that record really added. Its norm is taken in
double precision, which neither loses nor overflows anything of numbers in single precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit.client.active_gradients import ActiveGradients, active_gradients
from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.errors import RequestError
from tacit.federation import Batch
from tacit.models import least_squares
from tacit.models.gradients import Gradients, OuterGradients, OuterLayer, WrittenGradients
from tacit.models.layers import LayeredGradients, OuterShare, Owners, ProductsShare, RowsShare, WrittenShare
from tacit.models.module import ModuleModel

RECORDS, WIDTH, OUTPUTS = 6, 5, 3


@dataclass(frozen=True)
class Sizes:
    """The powers of ten around which inputs, errors and the bound lie, and how far they spread."""

    inputs: float
    errors: float
    bound: float
    spread: float
    positions: int
    broken: float | None
    seed: int

    def tensors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Columns (records, width, positions) and errors (records, outputs, positions)."""
        generator = np.random.default_rng(self.seed)
        columns = self._numbers(generator, self.inputs, WIDTH)
        errors = self._numbers(generator, self.errors, OUTPUTS)
        if self.broken is not None:
            columns[0, 0, 0] = self.broken
            errors[1, 0, 0] = self.broken
        if self.seed % 2 and self.positions > 1:
            # Positions that nearly cancel.
            columns[:, :, 1] = columns[:, :, 0]
            errors[:, :, 1] = -errors[:, :, 0] * (1 + 10.0 ** -(self.seed % 9))
        with np.errstate(over="ignore"):
            narrow = np.float32 if dtype == torch.float32 else np.float64
            return torch.from_numpy(columns.astype(narrow)), torch.from_numpy(errors.astype(narrow))

    def _numbers(self, generator: np.random.Generator, centre: float, width: int) -> np.ndarray:
        shape = (RECORDS, width, self.positions)
        exponents = np.clip(centre + self.spread * generator.uniform(-1, 1, shape), -45, 38.5)
        return np.asarray(generator.choice([-1.0, 1.0], shape) * 10.0**exponents)


def _outer(columns: Tensor, errors: Tensor) -> Gradients:
    layers = (
        OuterLayer(columns[:, :, 0], errors[:, :, 0], True),
        OuterLayer(errors[:, :, 0], errors[:, :, 0], False),
    )
    return OuterGradients(layers, _ones())


def _layered(columns: Tensor, errors: Tensor) -> Gradients:
    share = OuterShare(columns[:, :, 0], errors[:, :, 0])
    sizes = (WIDTH * OUTPUTS, OUTPUTS)
    return LayeredGradients((share, WrittenShare(errors[:, :, 0])), sizes, _ones(), _clients(), numbers=0)


def _positions(form: type[RowsShare] | type[ProductsShare]) -> Callable[[Tensor, Tensor], Gradients]:
    def build(columns: Tensor, errors: Tensor) -> Gradients:
        share = form(columns, errors, lambda kept: kept, WIDTH)
        return LayeredGradients((share,), (WIDTH * OUTPUTS,), _ones(), _clients(), numbers=0)

    return build


def _written(columns: Tensor, errors: Tensor) -> Gradients:
    return WrittenGradients(torch.cat([columns, errors], dim=1).flatten(1), _ones())


def _active(columns: Tensor, errors: Tensor) -> Gradients:
    return active_gradients(_outer(columns, errors), torch.tensor([[0, 4, 7, 16]] * RECORDS))


def _active_in_chunks(columns: Tensor, errors: Tensor) -> Gradients:
    return ActiveGradients(_layered(columns, errors), torch.tensor([[1, 17]] * RECORDS))


FORMS: dict[str, Callable[[Tensor, Tensor], Gradients]] = {
    "outer": _outer,
    "layered": _layered,
    "rows": _positions(RowsShare),
    "products": _positions(ProductsShare),
    "written": _written,
    "active": _active,
    "active in chunks": _active_in_chunks,
}

BOUNDS: dict[str, Callable[[float], Bound]] = {
    "clip": ClipNorm,
    "normalise": Normalise,
    "coordinates": ClipEachCoordinate,
}

sizes = st.builds(
    Sizes,
    inputs=st.floats(-45, 38.5) | st.sampled_from([-45.0, -23.0, 0.0, 19.0, 20.0, 37.0, 38.5]),
    errors=st.floats(-45, 38.5) | st.sampled_from([-45.0, -38.0, -8.0, -6.0, 0.0, 38.5]),
    bound=st.floats(-12, 12) | st.sampled_from([-12.0, -4.0]),
    spread=st.sampled_from([0.0, 1.0, 8.0]),
    positions=st.integers(1, 3),
    broken=st.sampled_from([None, None, float("inf"), float("nan"), -float("inf")]),
    seed=st.integers(0, 10**6),
)

HUGE_FEATURES = Sizes(38.2, -6.0, -5.0, 0.3, 2, None, 0)
"""A scaled error of 1e-43 has hardly any digits left."""


def _ones() -> Tensor:
    return torch.ones(RECORDS, dtype=torch.int64)


def _clients() -> Owners:
    return Owners.of(_ones(), torch.device("cpu"))


def _largest(sums: Tensor) -> float:
    assert bool(torch.isfinite(sums).all())
    return float(torch.linalg.vector_norm(sums.double(), dim=1).max())


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20)
@given(sizes=sizes, dtype=st.sampled_from([torch.float32, torch.float64]))
@example(sizes=HUGE_FEATURES, dtype=torch.float32)
def test_no_record_adds_more_than_the_bound(form: str, kind: str, sizes: Sizes, dtype: torch.dtype) -> None:
    bound = BOUNDS[kind](float(np.clip(10.0**sizes.bound, 1e-12, 1e12)))
    gradients = FORMS[form](*sizes.tensors(dtype))
    assert _largest(bound.sums(gradients)) <= bound.norm(gradients.dim)


@pytest.mark.parametrize("form", FORMS)
def test_the_bound_holds_where_scaled_errors_have_few_digits_left(form: str) -> None:
    """Features near the largest number of single precision, whose clipped gradients have errors below 1e-38."""
    for inputs in (18.0, 21.0, 30.0, 36.0, 37.5, 38.4):
        for errors in (-30.0, -9.0, -7.0, -5.0, 0.0):
            columns, slopes = Sizes(inputs, errors, 0.0, 0.3, 2, None, 2).tensors(torch.float32)
            gradients = FORMS[form](columns, slopes)
            for clip_norm in (1e-12, 1e-7, 1e-5, 1e-4):
                assert _largest(ClipNorm(clip_norm).sums(gradients)) <= clip_norm


@pytest.mark.parametrize(("left", "right"), [(3e-163, 3e153), (3e153, 3e-163)])
def test_the_bound_holds_where_squares_leave_double_precision(left: float, right: float) -> None:
    """One factor's square is lost, the other's is not yet infinite."""
    inputs, errors = (torch.full((1, 2), value, dtype=torch.float64) for value in (left, right))
    clients = Owners.of(torch.tensor([1]), torch.device("cpu"))
    outer = OuterGradients((OuterLayer(inputs, errors, False),), torch.tensor([1]))
    layered = LayeredGradients((OuterShare(inputs, errors),), (4,), torch.tensor([1]), clients, numbers=0)
    for gradients in (outer, layered):
        assert _largest(ClipNorm(1e-12).sums(gradients)) <= 1e-12


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_of_reduced_precision_are_refused(precision: str) -> None:
    gradients = WrittenGradients(torch.ones(1, 2), torch.tensor([1]))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        for bound in (ClipNorm(1.0), Normalise(1.0)):
            with pytest.raises(RequestError, match="highest"):
                bound.sums(gradients)
    finally:
        torch.set_float32_matmul_precision(before)
    with torch.autocast("cpu"), pytest.raises(RequestError, match="autocast"):
        ClipNorm(1.0).sums(gradients)


@pytest.mark.parametrize("kind", ["clip", "normalise"])
@settings(max_examples=20)
@given(sizes=sizes)
@example(sizes=HUGE_FEATURES)
def test_remembered_gradients_of_linear_models_keep_the_bound(kind: str, sizes: Sizes) -> None:
    """SVRG and SAGA remember coefficients; what is added is computed from them later."""
    bound = BOUNDS[kind](float(np.clip(10.0**sizes.bound, 1e-12, 1e12)))
    columns, errors = sizes.tensors(torch.float32)
    model = BoundedModel(least_squares(features=WIDTH), bound)
    batch = Batch(columns[:, :, 0], -errors[:, 0, 0], _ones())
    coefficients = model.coefficients(torch.zeros(WIDTH + 1), batch)
    assert coefficients is not None
    assert _largest(model.combined(coefficients, batch)) <= bound.norm(WIDTH + 1)
    # What is added for a difference to an older gradient is that difference, up to rounding.
    old = model.coefficients(torch.zeros(WIDTH + 1), Batch(batch.features, batch.targets * 0.7, _ones()))
    assert old is not None
    apart = model.combined(coefficients, batch).double() - model.combined(old, batch).double()
    together = model.combined(coefficients - old, batch).double()
    assert _largest(together - apart) <= 1e-5 * bound.norm(WIDTH + 1)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e12, 1e25, 3e38])
@pytest.mark.parametrize("clip_norm", [1e-12, 1e-6, 1.0])
def test_networks_keep_the_bound_for_images_of_any_size(size: float, clip_norm: float) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 2))
    model = ModuleModel(module)
    images = torch.randn(4, 1, 4, 4).clamp(-1, 1) * size
    batch = Batch(images, torch.tensor([0, 1, 0, 1]), torch.ones(4, dtype=torch.int64))
    for bound in (ClipNorm(clip_norm), Normalise(clip_norm)):
        sums = bound.sums(model.gradients(torch.cat([p.detach().flatten() for p in module.parameters()]), batch))
        assert _largest(sums) <= clip_norm


def test_many_positions_that_cancel_keep_the_bound() -> None:
    """The longer a sum that cancels, the more its rounding counts beside what is left."""
    generator = torch.Generator().manual_seed(0)
    columns, errors = (torch.randn(4, width, 400, generator=generator) for width in (WIDTH, OUTPUTS))
    columns[:, :, 200:] = columns[:, :, :200]
    errors[:, :, 200:] = -errors[:, :, :200] * (1 + 1e-6)
    share = ProductsShare(columns + 3.0, errors, lambda kept: kept, WIDTH)
    clients = Owners.of(torch.ones(4, dtype=torch.int64), torch.device("cpu"))
    gradients = LayeredGradients((share,), (WIDTH * OUTPUTS,), torch.ones(4, dtype=torch.int64), clients, 0)
    assert _largest(ClipNorm(1.0).sums(gradients)) <= 1.0


def test_features_that_are_merely_large_are_clipped_and_not_dropped() -> None:
    features = torch.logspace(-18, 18, 37)[:, None]
    layer = OuterLayer(features, torch.ones(37, 1), False)
    gradients = OuterGradients((layer,), torch.ones(37, dtype=torch.int64))
    torch.testing.assert_close(ClipNorm(1e-3).sums(gradients), features.clamp(max=1e-3), rtol=2e-4, atol=0.0)
