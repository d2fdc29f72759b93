"""Every model's gradients against automatic differentiation, and the layers that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models import (
    Model,
    ModuleModel,
    Quadratic,
    SigmoidNetwork,
    build_model,
    least_squares,
    logistic_regression,
    nonconvex_logistic_regression,
    quadratic_federation,
    quadratic_minimiser,
    softmax_regression,
)

FEATURES, CLASSES = 5, 3


def _batch(counts: list[int], *, classes: int | None = CLASSES, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    records = sum(counts)
    features = torch.randn(records, FEATURES, generator=generator)
    if classes is None:
        targets = torch.randn(records, generator=generator)
    else:
        targets = torch.randint(classes, (records,), generator=generator)
    return Batch(features, targets, torch.tensor(counts))


def _module() -> ModuleModel:
    torch.manual_seed(0)
    return ModuleModel(nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES)))


MODELS: dict[str, tuple[Model, int | None]] = {
    "softmax": (softmax_regression(features=FEATURES, classes=CLASSES), CLASSES),
    "softmax, no intercept": (softmax_regression(features=FEATURES, classes=CLASSES, intercept=False), CLASSES),
    "logistic": (logistic_regression(features=FEATURES), 2),
    "logistic-nonconvex": (nonconvex_logistic_regression(features=FEATURES), 2),
    "least squares": (least_squares(features=FEATURES, ridge=0.1), None),
    "network": (SigmoidNetwork(FEATURES, hidden=4, classes=CLASSES), CLASSES),
    "module": (_module(), CLASSES),
}


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> tuple[Model, int | None]:
    return MODELS[request.param]


def _point(model: Model, clients: int | None = None) -> Tensor:
    shape = (model.dim,) if clients is None else (clients, model.dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 0.5


def _by_autograd(model: Model, point: Tensor, batch: Batch) -> Tensor:
    rows = []
    for j in range(batch.records):
        own = point if point.dim() == 1 else point[batch.owners()[j]]
        x = own.clone().requires_grad_()
        one = Batch(batch.features[j : j + 1], batch.targets[j : j + 1], torch.tensor([1]))
        model.losses(x, one).sum().backward()
        assert x.grad is not None
        rows.append(x.grad)
    return torch.stack(rows)


@pytest.mark.parametrize("own_points", [False, True])
@pytest.mark.parametrize("counts", [[4, 4, 4], [3, 0, 5], [1], [70, 90]])
def test_gradients_are_the_derivatives_of_the_losses(
    case: tuple[Model, int | None], counts: list[int], own_points: bool
) -> None:
    model, classes = case
    batch = _batch(counts, classes=classes)
    point = _point(model, len(counts) if own_points else None)
    expected = _by_autograd(model, point, batch)
    gradients = model.gradients(point, batch)
    torch.testing.assert_close(gradients.rows(0, batch.records), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradients.norms().float(), expected.norm(dim=1), atol=1e-5, rtol=1e-4)
    weights = torch.rand(batch.records, generator=torch.Generator().manual_seed(2))
    sums = torch.zeros(len(counts), model.dim).index_add_(0, batch.owners(), expected * weights[:, None])
    torch.testing.assert_close(gradients.weighted_sums(weights), sums, atol=1e-4, rtol=1e-4)


def test_the_penalty_has_the_derivative_it_claims(case: tuple[Model, int | None]) -> None:
    model, _ = case
    if model.penalty is None:
        pytest.skip("no penalty")
    x = _point(model).requires_grad_()
    model.penalty.value(x).backward()
    assert x.grad is not None
    torch.testing.assert_close(model.penalty.gradient(x.detach()), x.grad)


def test_an_infinite_gradient_of_weight_zero_adds_nothing() -> None:
    model = least_squares(features=FEATURES)
    batch = _batch([2, 2], classes=None)
    batch.targets[1] = 1e38
    gradients = model.gradients(torch.full((model.dim,), -1e38), batch)
    sums = gradients.weighted_sums(torch.tensor([0.0, 0.0, 0.0, 0.0]))
    assert torch.equal(sums, torch.zeros(2, model.dim))


def test_large_batches_of_a_module_are_computed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = _module(), _batch([7, 6])
    point = _point(model)
    whole = model.gradients(point, batch)
    monkeypatch.setattr("tacit.models.module.ROWS_AT_A_TIME", 3 * model.dim)
    chunked = model.gradients(point, batch)
    assert type(chunked) is not type(whole)
    weights = torch.linspace(0, 1, 13)
    torch.testing.assert_close(chunked.norms(), whole.norms())
    torch.testing.assert_close(chunked.weighted_sums(weights), whole.weighted_sums(weights))


@pytest.mark.parametrize(
    ("layer", "advice"),
    [
        (nn.BatchNorm1d(4), "GroupNorm"),
        (nn.InstanceNorm1d(4, track_running_stats=True), "track_running_stats=False"),
        (nn.Dropout(0.5), "eval"),
    ],
)
def test_layers_that_break_the_promise_are_refused_by_name(layer: nn.Module, advice: str) -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 4), layer, nn.Linear(4, 2))
    with pytest.raises(RequestError, match=f"'1' .{type(layer).__name__}.*{advice}"):
        ModuleModel(module)


def test_a_module_takes_a_loss_of_the_users_own() -> None:
    model = ModuleModel(nn.Linear(FEATURES, 1), loss=lambda out, y: (out.flatten() - y).abs())
    batch = _batch([3], classes=None)
    expected = _by_autograd(model, _point(model), batch)
    torch.testing.assert_close(model.gradients(_point(model), batch).rows(0, 3), expected)
    assert model.metric_name == "loss"


def test_smoothness_and_lipschitz_bound_what_they_say() -> None:
    generator = torch.Generator().manual_seed(3)
    for model, classes in (
        (softmax_regression(features=FEATURES, classes=CLASSES), CLASSES),
        (logistic_regression(features=FEATURES), 2),
    ):
        batch = _batch([200], classes=classes)
        unit = Batch(batch.features / batch.features.norm(dim=1, keepdim=True), batch.targets, batch.counts)
        a, b = (torch.randn(model.dim, generator=generator) for _ in range(2))
        first, second = model.gradients(a, unit), model.gradients(b, unit)
        lipschitz = model.lipschitz(1.0)
        assert lipschitz is not None
        assert float(first.norms().max()) <= lipschitz
        change = (first.rows(0, 200) - second.rows(0, 200)).norm(dim=1).max()
        assert float(change) <= model.smoothness(1.0) * float((a - b).norm())
    assert least_squares(features=2).lipschitz(1.0) is None


def test_the_quadratic_is_minimal_at_its_minimiser() -> None:
    federation = quadratic_federation(clients=8, dim=6, rank=3, seed=2)
    model = Quadratic(dim=6, rank=3)
    best = quadratic_minimiser(federation).float()
    gradients = model.gradients(best, federation.batch())
    assert float(gradients.rows(0, 8).mean(0).norm()) < 1e-5
    x = torch.zeros(6, requires_grad=True)
    model.losses(x, federation.batch()).sum().backward()
    assert x.grad is not None
    rows = model.gradients(x.detach(), federation.batch()).rows(0, 8)
    torch.testing.assert_close(rows.sum(0), x.grad)
    with pytest.raises(RequestError, match="shape"):
        model.losses(best, _batch([1], classes=None))


@pytest.fixture
def two_classes() -> Federation:
    return Federation.from_clients([([[0.0, 1.0], [1.0, 0.0]], [0, 1])])


def test_models_are_built_by_name_for_the_data(two_classes: Federation) -> None:
    assert build_model("logistic", two_classes).dim == 3
    assert build_model("network", two_classes, {"hidden": 2}).dim == 2 * 3 + 3 * 2
    with pytest.raises(RequestError, match=r"unknown model 'logistik'; did you mean 'logistic'"):
        build_model("logistik", two_classes)
    with pytest.raises(RequestError, match="for regression"):
        build_model("least-squares", two_classes)
    with pytest.raises(RequestError, match=r"setting of model 'network' 'hiden'"):
        build_model("network", two_classes, {"hiden": 2})
    with pytest.raises(RequestError, match="cannot be loaded"):
        build_model("module:no_such_package:make", two_classes)


def test_a_module_of_the_users_own_starts_where_the_runs_generator_says(two_classes: Federation) -> None:
    """Not where PyTorch's global generator happens to be, which it leaves alone."""
    before = torch.random.get_rng_state()
    starts = [
        build_model("module:torch.nn:Linear", two_classes, {"in_features": 2, "out_features": 2}).init(
            np.random.default_rng(seed)
        )
        for seed in (0, 0, 1)
    ]
    torch.testing.assert_close(starts[0], starts[1], atol=0, rtol=0)
    assert not torch.equal(starts[0], starts[2])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_wrong_sizes_are_refused(two_classes: Federation) -> None:
    model = build_model("logistic", two_classes)
    with pytest.raises(RequestError, match="3 parameters, but the point has 4"):
        model.losses(torch.zeros(4), two_classes.batch())
    with pytest.raises(RequestError, match="classes"):
        softmax_regression(features=3, classes=1)
    assert model.init(np.random.default_rng(0)).shape == (3,)
