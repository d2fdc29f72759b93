"""What a network computes for one record depends neither on its place among others nor on what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tacit
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models import ModuleModel
from tacit.models.trainable import RecordByRecord

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

WORDS = torch.tensor([[0.0, 1, 2], [3, 0, 0], [0, 1, 2], [4, 2, 2], [0, 1, 2]])
LABELS = torch.tensor([0, 1, 0, 2, 0])


class Coded(nn.Module):
    """A network whose code is given as a function of itself and its inputs."""

    def __init__(self, code: Callable[[Any, Tensor], Tensor], **parts: object) -> None:
        super().__init__()
        self.code = code
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.code(self, x)


def _words(table: nn.Module) -> Coded:
    """Words to classes, by the mean of their rows in a table."""

    def code(self: Any, x: Tensor) -> Tensor:
        rows = self.table(x.long())
        out: Tensor = self.head(rows if rows.dim() == 2 else rows.mean(1))
        return out

    return Coded(code, table=table, head=nn.Linear(4, 3))


def _called(function: Callable[[Tensor, Tensor], Tensor]) -> Coded:
    return Coded(
        lambda self, x: self.head(function(x.long(), self.table).mean(1)),
        table=nn.Parameter(torch.randn(5, 4)),
        head=nn.Linear(4, 3),
    )


def _plan(module: nn.Module, features: Tensor, labels: Tensor) -> object:
    halves = [(features[k::2], labels[k::2]) for k in (0, 1)]
    return tacit.make_private(
        module, "cross-entropy", Federation.from_clients(halves, classes=3), epsilon=8, rounds=2, seed=0
    )


PADDED: dict[str, Callable[[], nn.Module]] = {
    "embedding": lambda: _words(nn.Embedding(5, 4, padding_idx=0)),
    "counted from the end": lambda: _words(nn.Embedding(5, 4, padding_idx=-3)),
    "bag": lambda: _words(nn.EmbeddingBag(5, 4, padding_idx=0)),
    "function": lambda: _called(lambda x, table: F.embedding(x, table, 2)),
    "operator": lambda: _called(lambda x, table: torch.embedding(table, x, 1)),
    "operator by its name": lambda: _called(lambda x, table: torch.ops.aten.embedding(table, x, 2)),
    "overload": lambda: _called(lambda x, table: torch.ops.aten.embedding.default(table, x, 2)),
}


@pytest.mark.parametrize("own_points", [False, True])
@pytest.mark.parametrize("name", PADDED)
def test_padding_is_padding_for_every_record_of_a_batch(name: str, own_points: bool) -> None:
    """PyTorch's `vmap` knew the padding of the first record only, so a draw changed the others' gradients."""
    torch.manual_seed(0)
    module = PADDED[name]()
    model = ModuleModel(module)
    point = torch.randn(model.dim)
    batch = Batch(WORDS, LABELS, torch.tensor([2, 3]))
    found = model.gradients(point.repeat(2, 1) if own_points else point, batch).rows(0, 5)
    for k, (words, label) in enumerate(zip(WORDS, LABELS, strict=True)):
        free = point.clone().requires_grad_()
        outputs = torch.func.functional_call(module, model._state(free), (words[None],))
        expected = torch.autograd.grad(F.cross_entropy(outputs, label[None]), free)[0]
        torch.testing.assert_close(found[k], expected)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_tables_that_shorten_their_own_rows_are_refused(kind: type) -> None:
    """They write into the model itself the words that records have."""
    with pytest.raises(RequestError, match=r"layer 'table' \(Embedding.*max_norm"):
        _plan(_words(kind(5, 4, max_norm=0.5)), WORDS, LABELS)


def _clipped(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.weight.clamp_(-0.3, 0.3)
    out: Tensor = x @ self.weight
    return out


def _shortened(self: Any, x: Tensor) -> Tensor:
    return F.embedding(x.long(), self.weight, max_norm=0.5).mean(1)


@pytest.mark.parametrize("code", [_clipped, _shortened])
def test_a_network_that_changes_its_own_weights_is_refused_and_changes_nothing(code: Any) -> None:
    shape = (3, 3) if code is _clipped else (5, 3)
    module = Coded(code, weight=nn.Parameter(torch.randn(shape, generator=torch.manual_seed(0)) * 3))
    with pytest.raises(RequestError, match="changes its own weights"):
        _plan(module, WORDS, LABELS)
    model, batch = ModuleModel(module), Batch(WORDS, LABELS, torch.tensor([5]))
    for asked in (model.gradients, model.losses):
        point = 3 * torch.randn(model.dim, generator=torch.manual_seed(1))
        before = point.clone()
        with pytest.raises(RequestError, match="changes its own weights"):
            asked(point, batch)
        assert torch.equal(point, before)


class Centred(torch.autograd.Function):
    """An operation whose own rule for `vmap` mixes records."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *errors: Any) -> Any:
        return errors[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return x - x.mean(in_dims[0], keepdim=True), in_dims[0]


def test_an_operation_that_mixes_records_by_a_rule_of_its_own_is_refused() -> None:
    apply: Any = Centred.apply
    module = Coded(lambda self, x: self.head(apply(self.layer(x))), layer=nn.Linear(3, 4), head=nn.Linear(4, 3))
    with pytest.raises(RequestError, match="depends on the other records"):
        _plan(module, torch.randn(6, 3, generator=torch.manual_seed(0)), torch.arange(6) % 3)


def test_a_layer_under_two_names_is_one_layer() -> None:
    layer = nn.Linear(3, 3)
    private: Any = _plan(nn.Sequential(layer, nn.Tanh(), layer), torch.randn(6, 3), torch.arange(6) % 3)
    trained = private.fit()
    assert trained[0].weight is trained[2].weight
    assert all(type(parameter) is nn.Parameter for parameter in layer.parameters())


TRAINED_LAST: dict[str, tuple[Callable[[], nn.Module], str | None]] = {
    "random": (lambda: Coded(lambda self, x: self.a(F.dropout(x)), a=nn.Linear(3, 3)), "no gradients per record"),
    "numbers": (
        lambda: Coded(lambda self, x: self.a(x * float(x.sum())), a=nn.Linear(3, 3)), "no gradients per record",
    ),
    "twice": (lambda: Coded(lambda self, x: self.a(x, x), a=nn.Bilinear(3, 3, 3)), None),
    "script": (lambda: torch.jit.ScriptModule(), "TorchScript"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED_LAST)
def test_code_before_the_only_layer_is_tried_too(name: str) -> None:
    """Nothing is frozen, so all of it runs in training; it was tried without that code."""
    make, refused = TRAINED_LAST[name]
    features, labels = torch.randn(6, 3, generator=torch.manual_seed(0)), torch.arange(6) % 3
    if refused is None:
        fitted: Any = _plan(make(), features, labels)
        assert fitted.fit()(features).shape == (6, 3)
        return
    with pytest.raises(RequestError, match=refused):
        _plan(make(), features, labels)


def test_what_a_network_keeps_of_records_is_not_handed_out() -> None:
    """Such as its last activations. The trained network could not even be copied."""

    def code(self: Any, x: Tensor) -> Tensor:
        self.last = self.first(x)
        self.all.append(self.last)
        out: Tensor = self.head(torch.tanh(self.last))
        return out

    module = Coded(code, first=nn.Linear(3, 4), head=nn.Linear(4, 3), last=None, all=[])
    private: Any = _plan(module, torch.randn(6, 3), torch.arange(6) % 3)
    seen = len(module.all)
    trained = private.fit()
    assert len(module.all) == len(trained.all) == seen
    assert trained(torch.zeros(2, 3)).shape == (2, 3)


def test_what_a_frozen_front_keeps_of_records_is_not_exported() -> None:
    def code(self: Any, x: Tensor) -> Tensor:
        self.last = [float(number) for number in x.flatten()]
        return torch.tanh(x)

    front = RecordByRecord(Coded(code, last=[]))
    assert torch.equal(front(WORDS), torch.tanh(WORDS))
    # Exports copy `module` (engine/exported.py).
    assert front.module.last == []


def test_a_network_that_cannot_be_copied_is_refused_before_it_is_trained() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    module.weight = module[0].weight * 2
    with pytest.raises(RequestError, match="cannot be copied"):
        _plan(module, torch.randn(6, 3), torch.arange(6) % 3)
