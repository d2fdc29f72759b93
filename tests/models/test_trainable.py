"""Fine-tuning: what is trained, what is frozen, and that frozen parts are evaluated once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit.engine.fronts import model_and_records
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models import ModuleModel
from tacit.models.trainable import RecordByRecord, fine_tuned


class Residual(nn.Module):
    """A network with a batch normalisation, a skip and a head that is defined first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.second = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = torch.tanh(self.norm(self.first(x)))
        said: Tensor = self.head(hidden + torch.tanh(self.second(hidden)))
        return said


def network() -> Residual:
    torch.manual_seed(0)
    return Residual()


def records(number: int = 12) -> Federation:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(number, 6, generator=generator)
    clients = [
        (features[: number // 2], [0, 1, 2] * (number // 6)),
        (features[number // 2 :], [2, 1, 0] * (number // 6)),
    ]
    return Federation.from_clients(clients, test=(features[:4], [0, 1, 2, 0]))


def trained(module: nn.Module) -> list[str]:
    return [name for name, p in module.named_parameters() if p.requires_grad]


def test_what_is_trained() -> None:
    assert trained(fine_tuned(network(), "head")) == ["head.weight", "head.bias"]
    assert trained(fine_tuned(network(), "bias")) == [
        "first.bias", "norm.bias", "second.bias", "head.weight", "head.bias",
    ]  # fmt: skip
    assert trained(fine_tuned(network(), "second, head.bias")) == ["second.weight", "second.bias", "head.bias"]
    assert trained(fine_tuned(network(), ["norm"])) == ["norm.weight", "norm.bias"]
    assert trained(fine_tuned(network(), "lora:2")) == [
        "first.down.weight", "first.up.weight", "second.down.weight", "second.up.weight", "head.weight",
        "head.bias",
    ]  # fmt: skip
    given = network()
    fine_tuned(given, "lora:2")
    assert len(trained(given)) == 8, "the user's own module stays as it is"


@pytest.mark.parametrize(
    ("trainable", "said"), [("hed", "did you mean 'head'"), ("lora:x", "needs a rank"), ("lora", "needs a rank")]
)
def test_what_is_not_there_is_refused(trainable: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        ModuleModel(network(), trainable=trainable)


@pytest.mark.parametrize("trainable", ["head", "bias", "lora:2", "second"])
def test_gradients_are_those_of_one_record_at_a_time(trainable: str) -> None:
    model = ModuleModel(network(), trainable=trainable)
    federation, point = records(), model.init(np.random.default_rng(0)) + 0.1
    found = model.gradients(point, federation.batch()).rows(0, federation.records)
    for position in range(federation.records):
        flat = point.clone().requires_grad_()
        one = slice(position, position + 1)
        alone = Batch(federation.features[one], federation.targets[one], torch.tensor([1]))
        (expected,) = torch.autograd.grad(model.losses(flat, alone).sum(), flat)
        torch.testing.assert_close(found[position], expected)


def test_low_rank_updates_start_at_the_network_itself() -> None:
    given = network().eval()
    model = ModuleModel(given, trainable="lora:2")
    features = records().features
    torch.testing.assert_close(model.outputs(model.init(np.random.default_rng(0)), features), given(features))


@pytest.mark.parametrize(
    "module",
    [network(), nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))],
    ids=["own", "sequential"],
)
def test_a_frozen_front_is_evaluated_once_and_the_rest_is_the_same_function(module: nn.Module) -> None:
    whole, federation = ModuleModel(module, trainable="head"), records()
    rest, mapped = model_and_records("", {}, federation, whole)
    assert rest.dim == whole.dim < 30
    assert isinstance(rest, ModuleModel)
    assert isinstance(rest.module, nn.Linear | nn.Sequential)
    point = whole.init(np.random.default_rng(0)) + 0.3
    torch.testing.assert_close(rest.losses(point, mapped.batch()), whole.losses(point, federation.batch()))
    assert torch.equal(rest.init(np.random.default_rng(0)), whole.init(np.random.default_rng(0)))
    assert any("must not have been trained on these records" in peek for peek in mapped.peeks)
    assert rest.public == ()


def test_training_does_not_call_the_front_again() -> None:
    model, federation = ModuleModel(network(), trainable="head"), records()
    recipe = tacit.Recipe(algorithm="soteriafl-gd", data="custom", rounds=5, epsilon=8.0)
    plan = tacit.make_plan(recipe, federation=federation, model=model)
    assert isinstance(plan.algorithm.work.model, ModuleModel)
    assert type(plan.algorithm.work.model.module) is nn.Linear
    assert plan.guarantee is not None
    assert any("frozen weights" in said for said in plan.guarantee.public)
    run = tacit.simulate(plan)
    raw = federation.features[:3]
    assert torch.equal(run.model.predict(raw), model.predict(run.parameters, raw))


def test_frozen_weights_in_the_middle_are_named_as_public() -> None:
    model = ModuleModel(network(), trainable="first")
    plan = tacit.make_plan(
        tacit.Recipe(algorithm="soteriafl-gd", data="custom", rounds=2), federation=records(), model=model
    )
    assert plan.guarantee is not None
    assert any("frozen weights" in said for said in plan.guarantee.public)
    assert plan.federation.features_by is None, (
        "what is trained comes first, so nothing can be computed in advance"
    )


def test_a_weight_that_two_layers_share_is_trained_once() -> None:
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3))
    module[1].weight = module[0].weight
    model, federation = ModuleModel(module), records()
    assert model.public == ()
    point = model.init(np.random.default_rng(0)).requires_grad_()
    (expected,) = torch.autograd.grad(model.losses(point, federation.batch()).sum(), point)
    found = model.gradients(point.detach(), federation.batch()).rows(0, federation.records).sum(0)
    torch.testing.assert_close(found, expected)


class Mixing(nn.Module):
    """A front that subtracts the mean of the batch: one record's features would depend on the others."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


def test_a_front_cannot_mix_records() -> None:
    rows = torch.randn(4, 3)
    assert torch.equal(RecordByRecord(Mixing())(rows), torch.zeros(4, 3)), "each record is its own mean"


class RunningMean(nn.Module):
    """What `nn.BatchNorm1d` does in training: it changes its statistics in place."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.mean


class RunningLargest(RunningMean):
    """It says nothing else of records of zeros, whatever it has seen."""

    def forward(self, x: Tensor) -> Tensor:
        self.mean.copy_(torch.maximum(self.mean, x.abs().amax(0)))
        return x / self.mean.clamp(min=1e-6)


@pytest.mark.parametrize("kind", [RunningMean, RunningLargest])
def test_a_front_cannot_remember_records(kind: type[nn.Module]) -> None:
    """PyTorch cannot run it for all records at once, and one by one each changed the features of the next."""
    remembering = nn.Sequential(kind(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.raises(RequestError, match="other features after it has seen another one"):
        model_and_records("", {}, records(), ModuleModel(remembering, trainable="head"))


class Remembering(nn.Module):
    """Keeps the records of one call for the next, unless it is told not to."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 4), nn.Linear(4, 3)
        self.keeps = keeps
        self.last: Tensor | None = None
        self.places: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.places is None:
            self.places = torch.linspace(0, 1, x.shape[1])
        inner = torch.tanh(self.inner(x + self.places))
        before, self.last = self.last, inner.detach() if self.keeps else None
        said: Tensor = self.head(inner if before is None else inner - before)
        return said


@pytest.mark.parametrize("trainable", ["all", "inner", "head"])
def test_a_network_cannot_remember_records(trainable: str) -> None:
    """What follows from settings alone may be kept."""

    def made(*, keeps: bool) -> object:
        module = Remembering(keeps=keeps)
        return tacit.make_private(module, "cross-entropy", records(), epsilon=8, seed=0, trainable=trainable)

    made(keeps=False)
    with pytest.raises(RequestError, match="after it has seen"):
        made(keeps=True)


class Largest(nn.Module):
    """Keeps the largest number that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head, self.most = nn.Linear(6, 4), nn.Linear(4, 3), torch.ones(())

    def forward(self, x: Tensor) -> Tensor:
        most = torch.maximum(self.most, x.detach().abs().amax())
        self.most = most
        said: Tensor = self.head(torch.tanh(self.inner(x / most)))
        return said


def test_a_network_that_remembers_only_large_numbers_is_found() -> None:
    with pytest.raises(RequestError, match="after it has seen others"):
        tacit.make_private(Largest(), "cross-entropy", records(), epsilon=8, seed=0)


def test_a_loss_cannot_remember_records() -> None:
    kept = [torch.zeros(())]

    def relative(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
        before, kept[0] = kept[0], loss.detach().mean()
        return loss * (1 + before)

    with pytest.raises(RequestError, match="in forward or the loss"):
        tacit.make_private(nn.Linear(6, 3), relative, records(), epsilon=8, seed=0)


class Recurrent(nn.Module):
    """PyTorch cannot run an LSTM for records one at a time in one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(2, 4, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.head(self.memory(x.unflatten(1, (3, 2)))[0][:, -1])
        return said


def test_a_frozen_recurrent_layer_is_run_record_by_record() -> None:
    whole, federation = ModuleModel(Recurrent(), trainable="head"), records()
    rest, mapped = model_and_records("", {}, federation, whole)
    point = whole.init(np.random.default_rng(0))
    torch.testing.assert_close(
        rest.losses(point, mapped.batch()), whole.losses(point, federation.batch()), rtol=1e-4, atol=1e-5
    )


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.head(self.inner(x) + torch.randn(4))
        return said


def test_a_front_that_draws_random_numbers_is_refused() -> None:
    with pytest.raises(RequestError, match="draws random numbers"):
        model_and_records("", {}, records(), ModuleModel(Noisy(), trainable="head"))
