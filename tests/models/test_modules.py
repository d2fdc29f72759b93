"""Per-record gradients of networks: equal to `vmap(grad)`, whatever the module's code does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import ClipNorm
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models import ModuleModel, build_model, layers
from tacit.models.cnn import cifar_cnn, mnist_cnn
from tacit.models.convolution import Geometry, HalvingMaxPool
from tacit.models.layers import ProductsShare, RowsShare
from tacit.models.layers_chain import LayerChain, keeps_records_apart
from tacit.models.module import _ChunkedGradients
from tacit.models.shares import LayeredGradients, OuterShare, WrittenShare

CLASSES = 3
IMAGE = (2, 9, 8)
COUNTS = ([3, 3], [4, 0, 2], [1], [0, 0, 5], [2, 70])


class PlainForward(nn.Module):
    """Code of a user's own: functions instead of layers, in place, and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Linear(4 * 4 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.first(x.to(self.first.weight.dtype)))
        x = x + torch.tanh(self.second(x))
        return self.last(F.max_pool2d(x, 2).reshape(-1, 4 * 4 * 4))  # type: ignore[no-any-return]


class Mixing(nn.Module):
    """A network that would centre the batch, if it saw one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(IMAGE[0] * IMAGE[1] * IMAGE[2], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.layer(x + 3 * x.mean(0) + x.square().sum())  # type: ignore[no-any-return]


class Unusual(nn.Module):
    """Parameters that are used twice, outside of layers, in part, without a gradient, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(8, 8)
        self.outside = nn.Linear(8, 8, bias=False)
        self.decayed = nn.Linear(8, 4)
        self.unused = nn.Linear(3, 2)
        self.untold = nn.Linear(8, 4)
        self.constant = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.last = nn.Linear(4, CLASSES)
        self.last.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(torch.sigmoid(self.twice(x[:, 0, 0])))
        x = x @ self.outside.weight
        with torch.no_grad():
            told = self.untold(x)
        y = self.decayed(x) * self.decayed.weight.square().sum() + told * 0.1
        return self.last(y * self.scale / self.temperature + self.constant(torch.ones(1, 4, dtype=x.dtype)))  # type: ignore[no-any-return]


class Sequence(nn.Module):
    """A linear layer that meets a record at many positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 6)
        self.norm = nn.LayerNorm(6)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.embed(x.flatten(1, 2)))).mean(1))  # type: ignore[no-any-return]


def _tied() -> nn.Module:
    first, second = nn.Linear(144, 144), nn.Linear(144, 144)
    second.weight = first.weight
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.Linear(144, CLASSES))


def _chain(*convolutions: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(features, CLASSES))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.Sigmoid(), nn.Linear(5, CLASSES)),
    "no bias": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(144, 5, bias=False), nn.Tanh(), nn.Linear(5, CLASSES)
    ),
    "pooled": lambda: _chain(nn.Conv2d(2, 5, 3), nn.MaxPool2d(2), nn.ReLU(), features=45),
    "strided": lambda: _chain(nn.Conv2d(2, 5, (2, 3), stride=(2, 1), padding=(1, 2)), features=5 * 5 * 10),
    "two": lambda: _chain(nn.Conv2d(2, 4, 3, bias=False), nn.Tanh(), nn.Conv2d(4, 5, 3, stride=2), features=30),
    "averaged": lambda: _chain(nn.Conv2d(2, 4, 3, padding=1), nn.AvgPool2d(2, stride=1), features=4 * 8 * 7),
    "overlapping": lambda: _chain(nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, stride=1, padding=1), features=4 * 7 * 6),
    "many filters": lambda: _chain(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 40, 6), features=80),
    "dilated": lambda: _chain(nn.Conv2d(2, 4, 3, dilation=2), features=4 * 5 * 4),
    "grouped": lambda: _chain(nn.Conv2d(2, 4, 3, groups=2), features=4 * 7 * 6),
    "same": lambda: _chain(nn.Conv2d(2, 2, 3, padding="same"), features=144),
    "reflecting": lambda: _chain(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), features=144),
    "normalised": lambda: _chain(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), features=4 * 7 * 6),
    "plain forward": PlainForward,
    "mixing": Mixing,
    "unusual": Unusual,
    "sequence": Sequence,
    "tied": _tied,
}


def _batch(counts: list[int], dtype: torch.dtype, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(sum(counts), *IMAGE, generator=generator, dtype=dtype)
    return Batch(features, torch.randint(CLASSES, (sum(counts),), generator=generator), torch.tensor(counts))


def _model(name: str, dtype: torch.dtype) -> ModuleModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return ModuleModel(MODULES[name]().to(dtype))


def _point(model: ModuleModel, clients: int | None, dtype: torch.dtype) -> Tensor:
    shape = (model.dim,) if clients is None else (clients, model.dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=dtype) * 0.3


def _by_vmap(model: ModuleModel, point: Tensor, batch: Batch) -> Tensor:
    """One gradient for each record, by differentiating the loss of each alone."""

    def one(point: Tensor, features: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(model.module, model._state(point), (features[None],))
        return F.cross_entropy(outputs, target[None])

    points = point.expand(batch.records, -1) if point.dim() == 1 else point[batch.owners()]
    rows: Tensor = vmap(grad(one))(points, batch.features, batch.targets)
    return rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("own_points", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_gradients_equal_those_of_vmap(name: str, own_points: bool, dtype: torch.dtype) -> None:
    model = _model(name, dtype)
    close = {"atol": 2e-4, "rtol": 2e-4} if dtype == torch.float32 else {"atol": 1e-11, "rtol": 1e-9}
    for counts in COUNTS[:2] if dtype == torch.float32 else COUNTS:
        batch = _batch(counts, dtype)
        point = _point(model, len(counts) if own_points else None, dtype)
        expected = _by_vmap(model, point, batch)
        gradients = model.gradients(point, batch)
        assert gradients.dim == model.dim
        assert torch.equal(gradients.counts, batch.counts)
        torch.testing.assert_close(gradients.rows(0, batch.records), expected, **close)
        torch.testing.assert_close(gradients.rows(1, 2), expected[1:2], **close)
        torch.testing.assert_close(gradients.norms(), expected.double().norm(dim=1), **close)
        weights = torch.rand(batch.records, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        weights[::3] = 0
        sums = torch.zeros(len(counts), model.dim, dtype=dtype)
        sums.index_add_(0, batch.owners(), expected * weights[:, None].to(dtype))
        found = gradients.weighted_sums(weights)
        assert found.dtype == dtype
        assert not found.requires_grad
        torch.testing.assert_close(found, sums, **close)


def test_what_one_record_adds_does_not_depend_on_the_others() -> None:
    model = _model("mixing", torch.float64)
    point = _point(model, None, torch.float64)
    batch = _batch([5], torch.float64)
    alone = model.gradients(point, Batch(batch.features[:1], batch.targets[:1], torch.tensor([1])))
    torch.testing.assert_close(model.gradients(point, batch).rows(0, 1), alone.rows(0, 1))


def test_what_is_said_of_one_record_does_not_depend_on_the_others() -> None:
    """An evaluation and a report of losses bound what one record adds, so it must not change the others'."""
    model = _model("mixing", torch.float64)
    point, batch = _point(model, None, torch.float64), _batch([5], torch.float64)
    alone = Batch(batch.features[:1], batch.targets[:1], torch.tensor([1]))
    torch.testing.assert_close(model.outputs(point, batch.features)[:1], model.outputs(point, alone.features))
    own = ModuleModel(model.module, loss=lambda out, y: (out[:, 0] - out.mean() - y).square())
    for one in (model, own):
        torch.testing.assert_close(one.losses(point, batch)[:1], one.losses(point, alone))
        torch.testing.assert_close(one.losses(point[None], batch)[:1], one.losses(point[None], alone))
    assert own.losses(point, _batch([0], torch.float64)).shape == (0,)


@pytest.mark.parametrize("own_points", [False, True])
def test_a_batch_without_records_has_gradients_of_nothing(own_points: bool) -> None:
    model = _model("pooled", torch.float32)
    batch = _batch([0, 0], torch.float32)
    gradients = model.gradients(_point(model, 2 if own_points else None, torch.float32), batch)
    assert gradients.norms().shape == (0,)
    assert torch.equal(gradients.weighted_sums(torch.zeros(0)), torch.zeros(2, model.dim))


@pytest.mark.parametrize("own_points", [False, True])
@pytest.mark.parametrize("name", ["linear", "pooled", "two", "many filters", "plain forward", "sequence"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_a_record_that_is_not_finite_spoils_no_other(name: str, own_points: bool, bad: float) -> None:
    model = _model(name, torch.float32)
    counts = [3, 2]
    point = _point(model, 2 if own_points else None, torch.float32)
    batch = _batch(counts, torch.float32)
    spoilt = batch.features.clone()
    spoilt[1] = bad
    gradients = model.gradients(point, Batch(spoilt, batch.targets, batch.counts))
    rows, norms = gradients.rows(0, 5), gradients.norms()
    finite, known = torch.isfinite(rows).all(1), torch.isfinite(norms)
    assert finite.tolist() == [True, bool(finite[1]), True, True, True]
    # A norm is known only where the gradient is finite, and for every ordinary record.
    assert known.tolist() == [True, bool(known[1] & finite[1]), True, True, True]
    weights = torch.tensor([0.5, 0.0, 1.0, 2.0, 0.0])
    sums = gradients.weighted_sums(weights)
    without = model.gradients(point, batch).weighted_sums(weights)
    torch.testing.assert_close(sums, without, atol=1e-5, rtol=1e-5)
    assert torch.equal(gradients.weighted_sums(torch.zeros(5)), torch.zeros(2, model.dim))
    bounded = ClipNorm(0.5).sums(gradients)
    assert bool(torch.isfinite(bounded).all())


def test_only_chains_of_known_layers_see_all_records() -> None:
    assert keeps_records_apart(mnist_cnn())
    assert keeps_records_apart(cifar_cnn())
    assert not keeps_records_apart(Mixing())
    assert not keeps_records_apart(nn.Sequential(nn.Linear(2, 2), Mixing()))
    assert not keeps_records_apart(nn.Sequential(nn.Flatten(0), nn.Linear(2, 2)))
    assert not keeps_records_apart(nn.Sequential(nn.Unflatten(0, (1, -1)), nn.Linear(2, 2)))
    assert not keeps_records_apart(nn.Sequential(nn.Softmax(dim=0)))
    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked[0].register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    assert not keeps_records_apart(hooked)
    patched = nn.Sequential(nn.Linear(2, 2))
    patched[0].forward = lambda inputs: inputs - inputs.mean(0)  # type: ignore[method-assign]  # as wrappers do
    assert not keeps_records_apart(patched)


def test_a_chain_trains_every_parameter_in_one_place() -> None:
    chain = LayerChain.of(nn.Sequential(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), nn.Linear(2, 2, bias=False)))
    assert chain is not None
    assert [names for _, names in chain.layers] == [("0.0.weight", "0.0.bias"), (), ("1.weight",)]
    layer, frozen = nn.Linear(3, 3), nn.Linear(3, 3)
    frozen.bias.requires_grad_(False)
    for module in (nn.Sequential(layer, layer), nn.Sequential(layer, frozen), *map(_made, _NO_CHAINS)):
        assert LayerChain.of(module) is None


_NO_CHAINS = ("tied", "dilated", "grouped", "same", "reflecting", "normalised", "plain forward", "mixing")


def _made(name: str) -> nn.Module:
    return MODULES[name]()


def test_a_chain_may_be_told_to_work_in_place() -> None:
    batch = _batch([2, 3], torch.float64)
    for inplace in (False, True):
        module = _chain(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=inplace), nn.MaxPool2d(2), features=36).double()
        model = ModuleModel(module)
        point = _point(model, 2, torch.float64)
        gradients = model.gradients(point, batch)
        torch.testing.assert_close(gradients.rows(0, 5), _by_vmap(model, point, batch))


@pytest.mark.parametrize("first", [nn.ReLU(inplace=True), nn.LeakyReLU(inplace=True)])
def test_a_first_layer_in_place_leaves_the_records_alone(first: nn.Module) -> None:
    model = ModuleModel(nn.Sequential(first, nn.Flatten(), nn.Linear(144, CLASSES)))
    batch, untouched = _batch([2, 3], torch.float32), _batch([2, 3], torch.float32)
    point = _point(model, None, torch.float32)
    model.gradients(point, batch)
    model.outputs(point, batch.features)
    model.losses(point, batch)
    assert torch.equal(batch.features, untouched.features)


def test_records_are_never_taken_for_features() -> None:
    model = ModuleModel(nn.Sequential(nn.Linear(1, 1)), loss="squared")
    batch = Batch(torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3), torch.tensor([3]))
    gradients = model.gradients(torch.tensor([1.0, 0.0]), batch)
    torch.testing.assert_close(gradients.rows(0, 3), torch.tensor([[1.0, 1.0], [4.0, 2.0], [9.0, 3.0]]))


def test_rows_are_never_pooled_with_the_rows_of_other_records() -> None:
    model = ModuleModel(nn.Sequential(nn.Linear(3, 4), nn.MaxPool2d(2)), loss="squared")
    batch = Batch(torch.randn(6, 3), torch.zeros(6), torch.tensor([6]))
    with pytest.raises((RuntimeError, ValueError)):
        model.gradients(torch.ones(model.dim), batch)


def test_inputs_that_are_changed_in_place_are_not_mistaken_for_what_the_layer_saw() -> None:
    class ChangesItsInput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(144, 144), nn.Linear(144, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(x.flatten(1))
            y = self.first(x)
            x += 1
            return self.last(y + x)  # type: ignore[no-any-return]

    model = ModuleModel(ChangesItsInput())
    with pytest.raises(RuntimeError, match="inplace operation"):
        model.gradients(_point(model, 2, torch.float32), _batch([2, 2], torch.float32))


def test_a_loss_of_the_users_own_cannot_mix_records() -> None:
    model = ModuleModel(
        nn.Sequential(nn.Flatten(), nn.Linear(144, 1)),
        loss=lambda out, y: (out.flatten() - out.mean() - y).square() + out.flatten(),
    )
    batch = _batch([3, 1], torch.float32)
    gradients = model.gradients(_point(model, None, torch.float32), batch)
    torch.testing.assert_close(gradients.rows(0, 4)[:, :-1], batch.features.flatten(1))


def test_nothing_of_full_length_is_written_down_for_the_networks_of_the_paper() -> None:
    def kinds(module: nn.Module, features: int, records: int) -> list[type]:
        model = ModuleModel(module)
        batch = Batch(torch.rand(records, features), torch.arange(records) % 10, torch.tensor([records]))
        gradients = model.gradients(model.init(np.random.default_rng(0)), batch)
        assert isinstance(gradients, LayeredGradients)
        return [type(share) for share in gradients.shares[::2]]

    assert kinds(mnist_cnn(), 784, 4) == [WrittenShare, WrittenShare, OuterShare, OuterShare]
    assert kinds(cifar_cnn(), 3072, 2) == [WrittenShare] * 2 + [ProductsShare] + [OuterShare] * 3


@pytest.mark.parametrize("name", ["linear", "pooled", "averaged"])
def test_one_ordinary_pass_gives_the_weighted_sum_of_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = _model(name, torch.float64), _batch([7], torch.float64)
    point, weights = _point(model, None, torch.float64), torch.linspace(0, 1, 7, dtype=torch.float64)
    whole = model.outputs(point, batch.features)
    monkeypatch.setattr("tacit.models.module.EVALUATED_AT_A_TIME", 3)
    torch.testing.assert_close(model.outputs(point, batch.features), whole)
    found = model.weighted_loss(point, batch, weights)
    assert found is not None
    torch.testing.assert_close(found[0], (model.losses(point, batch) * weights).sum())
    torch.testing.assert_close(found[1], model.gradients(point, batch).weighted_sums(weights)[0])


@pytest.mark.parametrize(("make", "features"), [(mnist_cnn, 784), (cifar_cnn, 3072)])
def test_the_outputs_of_a_chain_are_those_of_the_module(make: Callable[[], nn.Module], features: int) -> None:
    module, records = make(), torch.rand(5, features)
    model = ModuleModel(module)
    start = model.init(np.random.default_rng(0))
    assert torch.equal(model.outputs(start, records), module(records))


def test_a_module_that_might_mix_records_has_no_ordinary_pass() -> None:
    model, batch = _model("mixing", torch.float32), _batch([3], torch.float32)
    assert model.weighted_loss(_point(model, None, torch.float32), batch, torch.ones(3)) is None


@pytest.mark.parametrize("name", ["pooled", "two", "many filters", "unusual"])
@pytest.mark.parametrize("own_points", [False, True])
def test_large_batches_are_computed_in_chunks(
    name: str, own_points: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = _model(name, torch.float32), _batch([7, 0, 6], torch.float32)
    point = _point(model, 3 if own_points else None, torch.float32)
    whole = model.gradients(point, batch)
    weights = torch.linspace(0, 1, 13)
    expected = whole.norms(), whole.weighted_sums(weights), whole.rows(2, 9)
    for setting in ("module.ROWS_AT_A_TIME", "layers.KEEP_ROWS"):
        monkeypatch.setattr(f"tacit.models.{setting}", 1000)
        chunked = model.gradients(point, batch)
        found = chunked.norms(), chunked.weighted_sums(weights), chunked.rows(2, 9)
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f, e, atol=1e-5, rtol=1e-4)
    assert type(chunked) is not type(whole)


@pytest.mark.parametrize("own_points", [False, True])
@pytest.mark.parametrize("at", [None, [0, 3, 8]])
def test_bounded_sums_of_what_does_not_fit_into_memory_compute_every_record_once(
    own_points: bool, at: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [3, 0, 2, 7, 1, 1]
    model, batch = _model("pooled", torch.float32), _batch(counts, torch.float32)
    point = _point(model, len(counts) if own_points else None, torch.float32)
    bounded = BoundedModel(model, ClipNorm(0.01))
    kept = None if at is None else torch.tensor([[k + c for k in at] for c in range(len(counts))])
    whole = bounded.sums(point, batch, kept)
    chunked, captured = _ChunkedGradients(model, point, batch, 4), ModuleModel._captured
    records: list[int] = []

    def counting(self: ModuleModel, at: Tensor, part: Batch) -> LayeredGradients:
        records.append(part.records)
        return captured(self, at, part)

    monkeypatch.setattr(ModuleModel, "_captured", counting)
    monkeypatch.setattr(ModuleModel, "gradients", lambda self, at, part: chunked)
    torch.testing.assert_close(bounded.sums(point, batch, kept), whole, atol=1e-7, rtol=1e-4)
    assert records == [3, 2, 4, 3, 2]


def _positions(records: int, outputs: int, width: int, positions: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    columns = torch.randn(records, width, positions, generator=generator)
    return columns, torch.randn(records, outputs, positions, generator=generator)


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=3).filter(any),
    outputs=st.integers(1, 5),
    width=st.integers(1, 5),
    positions=st.integers(2, 4),
    seed=st.integers(0, 1000),
)
def test_all_forms_of_a_share_are_the_same_share(
    counts: list[int], outputs: int, width: int, positions: int, seed: int
) -> None:
    columns, errors = _positions(sum(counts), outputs, width, positions, seed)
    written = WrittenShare(torch.einsum("jol,jwl->jow", errors, columns).flatten(1))
    weights = torch.linspace(0, 1, sum(counts))
    for form in (RowsShare, ProductsShare):
        share = form(columns, errors, lambda kept: kept, width)
        torch.testing.assert_close(share.rows(0, sum(counts)), written.gradients, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(share.squares(), written.squares(), atol=1e-5, rtol=1e-4)
        found, expected = (
            LayeredGradients((one,), torch.tensor(counts)).weighted_sums(weights) for one in (share, written)
        )
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(left_over=st.floats(-8, 0), size=st.floats(-3, 8), seed=st.integers(0, 1000))
@example(left_over=-6.5, size=8, seed=0)
def test_positions_that_cancel_do_not_carry_a_record_past_its_bound(
    left_over: float, size: float, seed: int
) -> None:
    columns, errors = _positions(2, 256, 128, 8, seed)
    columns[:, :, 4:] = columns[:, :, :4] * (1 + 10**left_over)
    errors[:, :, 4:] = -errors[:, :, :4]
    columns *= 10**size
    share = layers.weight_share(columns, errors, lambda kept: kept, 128)
    assert isinstance(share, ProductsShare)
    gradients = LayeredGradients((share,), torch.tensor([1, 1]))
    assert float(ClipNorm(1.0).sums(gradients).double().norm(dim=1).max()) <= 1.0


def test_a_weight_that_carries_errors_out_of_range_adds_zero() -> None:
    share = OuterShare(torch.full((2, 3), 1e-38), torch.tensor([[1e30], [1.0]]))
    sums = LayeredGradients((share,), torch.tensor([2])).weighted_sums(torch.tensor([1e20, 1e30]))
    torch.testing.assert_close(sums, torch.full((1, 3), 1e-8))


def test_double_precision_sums_only_gradients_that_were_bounded_as_they_are() -> None:
    columns, errors = _positions(2, 64, 48, 2, 0)
    assert isinstance(layers.weight_share(columns, errors, lambda kept: kept, 48), ProductsShare)
    doubled = layers.weight_share(columns.double(), errors.double(), lambda kept: kept, 48)
    assert isinstance(doubled, WrittenShare)


@pytest.mark.parametrize("height", [2, 5, 8])
@pytest.mark.parametrize("width", [3, 6])
def test_pooling_by_halves_equals_pytorchs(height: int, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(-2, 3, (3, 4, height, width), generator=generator).float().requires_grad_()
    mine, theirs = HalvingMaxPool.apply(images), F.max_pool2d(images, 2)
    assert torch.equal(mine, theirs)
    errors = torch.randn(theirs.shape, generator=generator)
    found, expected = (torch.autograd.grad(pooled, images, errors)[0] for pooled in (mine, theirs))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("geometry", [Geometry((3, 2), (2, 1), (1, 2)), Geometry((1, 1), (1, 3), (0, 0))])
def test_columns_are_those_of_unfold(geometry: Geometry) -> None:
    images = torch.randn(2, *IMAGE, generator=torch.Generator().manual_seed(0))
    expected = F.unfold(images, geometry.kernel, padding=geometry.padding, stride=geometry.stride)
    assert torch.equal(geometry.columns(images), expected)
    down, across = geometry.positions(*IMAGE[1:])
    assert down * across == expected.shape[2]


def _images(features: int, *shape: int) -> Federation:
    generator = torch.Generator().manual_seed(0)
    records = torch.rand(4, *(shape or (features,)), generator=generator)
    return Federation.from_clients([(records[:3], [0, 9, 3]), (records[3:], [1])], classes=10)


@pytest.mark.parametrize(("name", "features", "dim"), [("mnist-cnn", 784, 21_840), ("cifar-cnn", 3072, 537_610)])
def test_the_networks_of_the_paper_have_names(name: str, features: int, dim: int) -> None:
    before = torch.random.get_rng_state()
    model = build_model(name, _images(features))
    assert model.dim == dim
    start = model.init(np.random.default_rng(3))
    assert torch.equal(start, model.init(np.random.default_rng(3)))
    assert not torch.equal(start, model.init(np.random.default_rng(4)))
    assert torch.equal(before, torch.random.get_rng_state())
    losses = model.losses(start, _images(features).batch())
    assert bool(((losses > 1.5) & (losses < 3.5)).all())
    with pytest.raises(RequestError, match=f"{features} features, not 12"):
        build_model(name, _images(12))


def test_the_start_is_pytorchs_layer_by_layer() -> None:
    model = build_model("mnist-cnn", _images(784, 1, 28, 28))
    start = model.init(np.random.default_rng(0))
    for part, inputs in zip(start.split([260, 5020, 16_050, 510]), (25, 250, 320, 50), strict=True):
        assert 0.95 < float(part.abs().max()) * inputs**0.5 <= 1
