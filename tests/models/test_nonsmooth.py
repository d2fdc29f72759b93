"""Losses with a kink and their Moreau envelopes, against minimisation by hand, and their constants."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

import tacit
from tacit.algorithms.isrl_dp import noisy_mb_sgd
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models.linear import (
    LinearModel,
    absolute_regression,
    least_squares,
    logistic_regression,
    quantile_regression,
    softmax_regression,
    support_vector_machine,
)
from tacit.models.losses import Logistic, ScoreLoss, Squared
from tacit.models.nonsmooth import Absolute, Envelope, Hinge, Kinked, Pinball, solve_proximal_slopes
from tacit.models.registry import build_model
from tacit.models.shares import LayeredGradients
from tacit.server.projection import Ball

KinkedLoss = Hinge | Absolute | Pinball

LOSSES: dict[str, KinkedLoss] = {
    "hinge": Hinge(),
    "absolute": Absolute(),
    "pinball 0.1": Pinball(0.1),
    "pinball 0.5": Pinball(0.5),
    "pinball 0.97": Pinball(0.97),
}
kinked = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def _model(loss: Any, features: int, *, intercept: bool = True, smoothing: float | None = None) -> LinearModel:
    return LinearModel(features, 1, loss, intercept, smoothing=smoothing)


def _batch(loss: Any, counts: list[int], features: int, *, seed: int = 0, scale: float = 1.0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    records = sum(counts)
    rows = scale * torch.randn(records, features, generator=generator, dtype=torch.float64)
    targets = torch.randn(records, generator=generator, dtype=torch.float64)
    if isinstance(loss, Hinge | Logistic):
        targets = (targets > 0).long()
    return Batch(rows, targets, torch.tensor(counts))


def _points(model: LinearModel, *shape: int, seed: int = 1, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, model.dim, generator=generator, dtype=torch.float64)


def _inputs(model: LinearModel, batch: Batch) -> Tensor:
    ones = torch.ones(batch.records, int(model.intercept), dtype=batch.features.dtype)
    return torch.cat([batch.features, ones], dim=1)


def _nearest(model: LinearModel, beta: float, point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
    """argmin_v f(v) + (beta/2) ||w - v||^2 over all of v: a quadratic programme in v and a bound on f(v)."""
    assert isinstance(model.loss, Kinked)
    w, a = point.numpy(), inputs.numpy()
    excess, low, high = (
        x.double() for x in model.loss.lines(torch.zeros(1, 1, dtype=torch.float64), target[None])
    )
    kink, slopes = -float(excess), np.array([float(low), float(high)])
    found = minimize(
        lambda z: z[-1] + beta / 2 * np.sum((w - z[:-1]) ** 2),
        np.append(w, float(np.max(slopes * (a @ w - kink)))),
        jac=lambda z: np.append(beta * (z[:-1] - w), 1.0),
        constraints={
            "type": "ineq",
            "fun": lambda z: z[-1] - slopes * (a @ z[:-1] - kink),
            "jac": lambda z: np.column_stack([-np.outer(slopes, a), np.ones(2)]),
        },
        method="SLSQP",
        options={"ftol": 1e-11, "maxiter": 500},
    )
    assert found.success, found.message
    return torch.from_numpy(found.x[:-1])


def test_the_losses_are_those_of_the_textbooks() -> None:
    generator = np.random.default_rng(3)
    s, y, label = generator.normal(size=200) * 3, generator.normal(size=200), generator.integers(0, 2, size=200)
    scores, targets = torch.from_numpy(s)[:, None], torch.from_numpy(y)
    b = np.where(label == 1, 1, -1)
    np.testing.assert_allclose(Hinge().values(scores, torch.from_numpy(label)), np.maximum(0, 1 - b * s))
    np.testing.assert_allclose(Absolute().values(scores, targets), np.abs(s - y))
    for q in (0.1, 0.5, 0.97):
        pinball = np.where(y > s, q * (y - s), (1 - q) * (s - y))
        np.testing.assert_allclose(Pinball(q).values(scores, targets), pinball)


@kinked
@pytest.mark.parametrize(("features", "intercept"), [(1, False), (3, True), (6, False)])
def test_the_envelope_is_the_minimum_over_all_directions(
    loss: KinkedLoss, features: int, intercept: bool
) -> None:
    for beta, scale in ((0.2, 1.0), (1.0, 0.3), (8.0, 2.0)):
        rough = _model(loss, features, intercept=intercept)
        model = replace(rough, smoothing=beta)
        batch, point = _batch(loss, [8], features, scale=scale), _points(model)
        values, rows = model.losses(point, batch), model.gradients(point, batch).rows(0, 8)
        inputs = _inputs(model, batch)
        for j in range(8):
            best = _nearest(model, beta, point, inputs[j], batch.targets[j])
            one = batch.select(torch.tensor([j]), torch.tensor([1]))
            value = float(rough.losses(best, one)) + beta / 2 * float((point - best).square().sum())
            assert float(values[j]) == pytest.approx(value, abs=1e-6)
            torch.testing.assert_close(rows[j], beta * (point - best), atol=1e-4, rtol=1e-4)


@given(data=st.data(), loss=st.sampled_from([*LOSSES.values(), Logistic(), Squared()]))
def test_no_other_point_is_lower_and_one_attains_the_envelope(data: st.DataObject, loss: ScoreLoss) -> None:
    beta, scale = 10 ** data.draw(st.floats(-3, 3)), 10 ** data.draw(st.floats(-2, 2))
    seed = data.draw(st.integers(0, 10**6))
    rough = _model(loss, 3, intercept=data.draw(st.booleans()))
    model = replace(rough, smoothing=beta)
    batch = _batch(loss, [20], 3, seed=seed, scale=scale)
    point = _points(model, seed=seed + 1, scale=3.0)
    values, rows = model.losses(point, batch), model.gradients(point, batch).rows(0, 20)
    own = replace(batch, counts=torch.ones(20, dtype=torch.int64))

    def lifted(moves: Tensor) -> Tensor:
        return rough.losses(point + moves, own) + beta / 2 * moves.square().sum(1)

    torch.testing.assert_close(lifted(-rows / beta), values, atol=1e-9, rtol=1e-7)
    directions = _points(model, 20, seed=seed + 2)
    for length in (1e-4, 1e-2, 1.0):
        assert bool((lifted(length * directions - rows / beta) >= values - 1e-9 * (1 + values.abs())).all())


@pytest.mark.parametrize("loss", [*LOSSES.values(), Logistic(), Squared()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("own_points", [False, True])
def test_gradients_are_the_slopes_of_the_values(loss: ScoreLoss, own_points: bool) -> None:
    model, counts = _model(loss, 4, smoothing=3.0), [5, 0, 70]
    batch = _batch(loss, counts, 4)
    point = _points(model, 3) if own_points else _points(model)
    gradients = model.gradients(point, batch)
    assert isinstance(gradients, LayeredGradients)
    rows, step = gradients.rows(0, 75), 1e-6
    for axis in torch.eye(model.dim, dtype=torch.float64):
        up, down = model.losses(point + step * axis, batch), model.losses(point - step * axis, batch)
        torch.testing.assert_close((up - down) / (2 * step), rows @ axis, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(gradients.norms(), rows.norm(dim=1))


@pytest.mark.parametrize("loss", [*LOSSES.values(), Logistic()], ids=lambda loss: type(loss).__name__)
def test_automatic_differentiation_agrees(loss: ScoreLoss) -> None:
    for smoothing in (None, 0.7):
        model = _model(loss, 4, smoothing=smoothing)
        batch, point = _batch(loss, [30], 4), _points(model).requires_grad_()
        (by_autograd,) = torch.autograd.grad(model.losses(point, batch).sum(), point)
        torch.testing.assert_close(by_autograd, model.gradients(point.detach(), batch).rows(0, 30).sum(0))


@given(
    data=st.data(),
    loss=st.sampled_from([*LOSSES.values(), Logistic()]),
    scales=st.tuples(*[st.floats(-3, 3)] * 3),
)
def test_slope_bend_and_bias_stay_within_their_bounds(
    data: st.DataObject, loss: ScoreLoss, scales: tuple[float, float, float]
) -> None:
    beta, norm, apart = (10**scale for scale in scales)
    rough = _model(loss, 3, intercept=data.draw(st.booleans()))
    model, seed = replace(rough, smoothing=beta), data.draw(st.integers(0, 10**6))
    batch = _batch(loss, [50], 3, seed=seed)
    shrink = norm / batch.features.norm(dim=1, keepdim=True).clamp(min=1e-9)
    batch = replace(batch, features=batch.features * shrink)
    here = _points(model, seed=seed + 1, scale=2 / norm)
    there = here + apart * _points(model, seed=seed + 2, scale=1 / norm)
    lipschitz, smoothness = model.lipschitz(norm), model.smoothness(norm)
    assert lipschitz is not None
    assert smoothness is not None
    assert smoothness <= beta
    first, second = (model.gradients(point, batch).rows(0, 50) for point in (here, there))
    assert float(first.norm(dim=1).max()) <= lipschitz * (1 + 1e-9)
    moved = (first - second).norm(dim=1)
    assert float(moved.max()) <= smoothness * float((here - there).norm()) * (1 + 1e-6) + 1e-9 * lipschitz
    values = rough.losses(here, batch)
    gap = values - model.losses(here, batch)
    slack = 1e-9 * (1 + float(values.max()))
    assert -slack <= float(gap.min())
    assert float(gap.max()) <= lipschitz**2 / (2 * beta) + slack


@kinked
def test_slope_bend_and_bias_reach_their_bounds(loss: KinkedLoss) -> None:
    beta, norm = 0.7, 2.5
    rough = _model(loss, 2)
    model = replace(rough, smoothing=beta)
    inputs = torch.tensor([norm * 0.6, norm * 0.8, 1.0], dtype=torch.float64)
    batches = [
        Batch(inputs[None, :2], torch.tensor([target]).to(torch.int64), torch.tensor([1])) for target in (0, 1)
    ]
    lipschitz = model.lipschitz(norm)
    assert lipschitz is not None
    far = [sign * 1e3 * inputs / inputs.square().sum() for sign in (-1, 1)]
    steep = [(point, batch) for point in far for batch in batches]
    norms = [float(model.gradients(*case).norms()) for case in steep]
    assert max(norms) == pytest.approx(lipschitz)
    gaps = [float(rough.losses(*case) - model.losses(*case)) for case in steep]
    assert max(gaps) == pytest.approx(lipschitz**2 / (2 * beta))
    # Just beside the kink, which hinge losses have at +-1 and the others at the target.
    kink = -float(loss.lines(torch.zeros(1, 1, dtype=torch.float64), batches[1].targets)[0])
    low, high = (float(slope) for slope in loss.lines(torch.zeros(1, 1), batches[1].targets)[1:])
    towards = 1e-3 * (1 if high > -low else -1) * inputs / inputs.norm()
    at = kink * inputs / inputs.square().sum()
    bend = model.gradients(at + towards, batches[1]).rows(0, 1) - model.gradients(at, batches[1]).rows(0, 1)
    assert float(bend.norm() / towards.norm()) == pytest.approx(model.smoothness(norm))
    assert model.smoothness(norm) == beta


@kinked
def test_at_the_kink_the_slope_is_flat_and_beside_it_steep(loss: KinkedLoss) -> None:
    for targets in (torch.tensor([0]), torch.tensor([1])):
        kink = -loss.lines(torch.zeros(1, 1, dtype=torch.float64), targets)[0]
        _, low, high = loss.lines(torch.zeros(1, 1, dtype=torch.float64), targets)
        scores = (kink + torch.tensor([-1e-9, 0.0, 1e-9], dtype=torch.float64))[:, None]
        slopes = loss.slopes(scores, targets.expand(3)).flatten().tolist()
        assert slopes == [float(low), 0.0, float(high)]
        assert float(loss.values(scores, targets.expand(3))[1]) == 0
        for steps in (torch.zeros(3), torch.full((3,), 1e-300), torch.ones(3)):
            assert float(Envelope(loss, steps.double()).slopes(scores, targets.expand(3))[1]) == 0


@kinked
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_solve_finds_the_closed_forms(loss: KinkedLoss, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    scores = 3 * torch.randn(400, 1, generator=generator, dtype=dtype)
    targets = torch.randint(2, (400,), generator=generator)
    steps = 10 ** (8 * torch.rand(400, generator=generator, dtype=dtype) - 4)
    steps[:20] = 0.0
    expected = loss.proximal_slopes(scores, targets, steps)
    found = solve_proximal_slopes(loss, scores, targets, steps)
    assert found.dtype == dtype
    # A slope moves by rounding of the score over the step.
    slack = 1e3 * torch.finfo(dtype).eps
    assert bool(((found - expected).abs() <= slack + slack * scores[:, 0].abs() / steps).all())
    torch.testing.assert_close(found[:20], expected[:20])


def test_the_solve_finds_the_envelope_of_smooth_losses() -> None:
    """(s - y)/(1 + t) is the slope of the squared loss's envelope; the logistic's solves its own equation."""
    generator = torch.Generator().manual_seed(5)
    scores = 30 * torch.randn(500, 1, generator=generator, dtype=torch.float64)
    targets = torch.randint(2, (500,), generator=generator)
    steps = 10 ** (12 * torch.rand(500, generator=generator, dtype=torch.float64) - 6)
    squared = solve_proximal_slopes(Squared(), scores, targets, steps)
    torch.testing.assert_close(squared, (scores[:, 0] - targets) / (1 + steps), atol=1e-12, rtol=1e-9)
    slopes = solve_proximal_slopes(Logistic(), scores, targets, steps)
    residuals = slopes - Logistic().slopes(scores - (steps * slopes)[:, None], targets)[:, 0]
    assert float((residuals.abs() / (1 + steps / 4)).max()) < 1e-15


def test_a_smoothed_smooth_loss_is_smoother_than_either() -> None:
    model = replace(logistic_regression(features=3, intercept=False, ridge=0.1), smoothing=0.25)
    assert model.smoothness(1.0) == pytest.approx(0.125 + 0.1)
    assert least_squares(features=3, intercept=False).smoothness(2.0) == 4.0


@kinked
@pytest.mark.parametrize("smoothing", [None, 2.0])
def test_a_record_without_features_has_its_own_loss_and_no_gradient(
    loss: KinkedLoss, smoothing: float | None
) -> None:
    model = _model(loss, 3, intercept=False, smoothing=smoothing)
    batch = Batch(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([2]))
    point = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    losses = model.losses(point, batch)
    assert torch.equal(losses, loss.values(torch.zeros(2, 1), batch.targets))
    (by_autograd,) = torch.autograd.grad(losses.sum(), point)
    assert torch.equal(by_autograd, torch.zeros(3))
    assert torch.equal(model.gradients(point.detach(), batch).rows(0, 2), torch.zeros(2, 3))


@kinked
def test_huge_features_give_numbers_and_a_score_that_is_none_gives_none(loss: KinkedLoss) -> None:
    model = _model(loss, 2, smoothing=1e-3)
    batch = Batch(torch.tensor([[1e30, 1e30], [3.0, 4.0]]), torch.tensor([0, 1]), torch.tensor([2]))
    point = torch.tensor([1e-30, -5e-31, 0.0])
    assert bool(torch.isfinite(model.losses(point, batch)).all())
    assert bool(torch.isfinite(model.gradients(point, batch).rows(0, 2)).all())
    assert bool(model.gradients(point * math.nan, batch).norms().isnan().all())


def test_without_smoothing_there_is_no_smoothness() -> None:
    for model in (support_vector_machine(features=3, ridge=0.1), absolute_regression(features=3)):
        assert model.loss.curvature == math.inf
        assert model.smoothness(1.0) is None
        assert model.lipschitz(1.0) == pytest.approx(math.sqrt(2))
    assert support_vector_machine(features=3, ridge=0.5, smoothing=3).smoothness(9.0) == 3.5
    assert quantile_regression(features=3, quantile=0.2, intercept=False).lipschitz(2.0) == pytest.approx(1.6)


def test_the_best_constant_is_the_quantile() -> None:
    draws = torch.linspace(0, 1, 101, dtype=torch.float64).square()
    grid = torch.linspace(0, 1, 1001, dtype=torch.float64)
    for loss, quantile in ((Absolute(), 0.5), (Pinball(0.5), 0.5), (Pinball(0.9), 0.9), (Pinball(0.25), 0.25)):
        means = torch.stack([loss.values(c.expand(101, 1), draws).mean() for c in grid])
        assert float(grid[means.argmin()]) == pytest.approx(quantile**2, abs=0.02)


def _federation(task: str, *, clients: int = 4, records: int = 60) -> Federation:
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(clients * records, 3, generator=generator)
    features = features / features.norm(dim=1, keepdim=True)
    scores = features @ torch.tensor([2.0, -1.0, 0.5])
    targets = (scores > 0).long() if task == "classes" else scores
    parts = zip(features.split(records), targets.split(records), strict=True)
    return Federation.from_clients([(x.numpy(), y.numpy()) for x, y in parts])


def test_they_are_built_by_name_for_the_data() -> None:
    classes, real = _federation("classes"), _federation("real")
    svm = build_model("svm", classes, {"smoothing": 2.0, "ridge": 0.1, "intercept": False})
    assert svm == support_vector_machine(features=3, intercept=False, ridge=0.1, smoothing=2.0)
    assert build_model("absolute-regression", real).dim == 4
    assert build_model("quantile-regression", real, {"quantile": 0.9}) == quantile_regression(
        features=3, quantile=0.9
    )
    with pytest.raises(RequestError, match="for two classes"):
        build_model("svm", real)
    with pytest.raises(RequestError, match="for regression"):
        build_model("quantile-regression", classes)
    with pytest.raises(RequestError, match="setting of model 'svm' 'quantile'"):
        build_model("svm", classes, {"quantile": 0.5})


def test_metrics_are_those_of_the_task_and_not_of_the_envelope() -> None:
    batch = Batch(torch.tensor([[1.0], [2.0], [-1.0], [4.0]]), torch.tensor([0.0, 1, 0, 1]), torch.tensor([4]))
    point = torch.tensor([1.0, 0.0])
    for smoothing in (None, 0.01):
        for model, name, value in (
            (support_vector_machine(features=1, smoothing=smoothing), "accuracy", 3 / 4),
            (absolute_regression(features=1, smoothing=smoothing), "mae", (1 + 1 + 1 + 3) / 4),
            (quantile_regression(features=1, quantile=0.8, smoothing=smoothing), "pinball loss", 1.8 / 4),
        ):
            assert model.metric_name == name
            assert model.metric(point, batch) == pytest.approx(value)
    assert absolute_regression(features=1).predict(point, batch.features).tolist() == [1.0, 2.0, -1.0, 4.0]
    assert quantile_regression(features=1).predict(point, batch.features).tolist() == [1.0, 2.0, -1.0, 4.0]
    assert support_vector_machine(features=1).predict(point, batch.features).tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_a_smoothing_that_is_no_positive_number_is_refused(value: Any) -> None:
    for make in (support_vector_machine, absolute_regression, quantile_regression):
        with pytest.raises(RequestError, match="smoothing must be a finite number above 0"):
            make(features=2, smoothing=value)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, 1.5, math.nan, "0.5", True])
def test_a_quantile_outside_of_its_range_is_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="quantile must be strictly between 0 and 1"):
        quantile_regression(features=2, quantile=value)


def test_several_scores_are_not_smoothed() -> None:
    with pytest.raises(RequestError, match="smoothing needs a score of one number, not of 3"):
        replace(softmax_regression(features=2, classes=3), smoothing=1.0)


@pytest.mark.parametrize(
    ("name", "task", "bar"), [("svm", "classes", 0.9), ("absolute-regression", "real", 0.25)]
)
@pytest.mark.parametrize("smoothing", [None, 4.0])
def test_a_private_run_learns(name: str, task: str, bar: float, smoothing: float | None) -> None:
    federation = _federation(task, records=250)
    model = build_model(name, federation, {} if smoothing is None else {"smoothing": smoothing})
    assert isinstance(model, LinearModel)
    clip_norm = model.lipschitz(1.0)
    assert clip_norm is not None
    algorithm = noisy_mb_sgd(
        model,
        bound=tacit.ClipNorm(clip_norm),
        sampling=tacit.Poisson(0.2),
        step=0.25,
        projection=Ball(5.0),
    )
    target = tacit.Target(epsilon=4.0, delta=1e-5)
    run = tacit.simulate(tacit.plan(algorithm, federation, rounds=60, privacy=target))
    assert run.guarantee is not None
    assert 3.9 < run.guarantee.epsilon <= 4.0
    assert run.history[-1].train_loss < run.history[0].train_loss / 2
    reached = model.metric(run.parameters, federation.batch())
    assert reached > bar if task == "classes" else reached < bar
