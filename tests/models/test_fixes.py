"""`fix`: layers that mix records, or have no gradients per record, are replaced by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit.errors import RequestError
from tacit.federation import Batch
from tacit.models import ModuleModel
from tacit.models.recurrent import GatedLayers


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_keep_their_function(kind: type, batch_first: bool, bidirectional: bool) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, num_layers=2, batch_first=batch_first, bidirectional=bidirectional)
    rows = torch.randn(5, 6, 3)
    expected, last = layer(rows)
    found, ours = GatedLayers(layer)(rows)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        ours if isinstance(ours, tuple) else (ours,), last if kind is nn.LSTM else (last,), strict=True
    ):
        torch.testing.assert_close(one, other)
    again, _ = GatedLayers(layer)(rows, last)
    torch.testing.assert_close(again, layer(rows, last)[0])


class Reader(nn.Module):
    """Tokens to a class, with one of several layers in between."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.layer = layer
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.words(x.long())
        said = self.layer(rows, rows, rows) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(rows)
        rows = said[0] if isinstance(said, tuple) else said
        out: Tensor = self.head(self.norm(rows).mean(1))
        return out


class Picture(nn.Module):
    """An image to a class."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.convolution, self.norm, self.depth = nn.Conv2d(1, 4, 2), norm, nn.Conv2d(4, 4, 2, groups=4)
        self.line, self.head = nn.Conv1d(4, 2, 2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.relu(self.norm(self.convolution(x.unflatten(1, (1, 3, 4)))))
        out: Tensor = self.head(self.line(self.depth(rows).flatten(2)).flatten(1).repeat(1, 3))
        return out


def recurrent(kind: type) -> nn.Module:
    with pytest.warns(UserWarning, match=f"replaced layer 'layer': {kind.__name__} by GatedLayers"):
        return tacit.fix(Reader(kind(4, 4, batch_first=True)))


def layers() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    frozen = nn.BatchNorm2d(4)
    frozen(torch.randn(9, 4, 3, 3))
    return {
        "LSTM": recurrent(nn.LSTM),
        "GRU": recurrent(nn.GRU),
        "attention": Reader(nn.MultiheadAttention(4, 2, batch_first=True)),
        "transformer": Reader(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)),
        "group norm": Picture(nn.GroupNorm(2, 4)),
        "frozen batch norm": Picture(frozen.eval()),
        "instance norm": Picture(nn.InstanceNorm2d(4, affine=True)),
    }


@pytest.mark.parametrize("name", list(layers()))
def test_gradients_are_those_of_one_record_at_a_time(name: str) -> None:
    module = layers()[name]
    model = ModuleModel(module)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 7, (6, 5), generator=generator).float()
    features = tokens if isinstance(module, Reader) else torch.randn(6, 12, generator=generator)
    batch = Batch(features, torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([4, 2]))
    point = model.init(np.random.default_rng(0))
    found = model.gradients(point, batch).rows(0, 6)
    # One at a time, by PyTorch's own backward pass through the module itself.
    for position in range(6):
        module.zero_grad()
        outputs = module(features[position : position + 1])
        nn.functional.cross_entropy(outputs, batch.targets[position : position + 1]).backward()
        rows = [p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in module.parameters()]
        torch.testing.assert_close(found[position], torch.cat(rows), rtol=1e-4, atol=1e-6)


def test_what_cannot_be_taken_apart_is_refused_by_name_with_the_fix() -> None:
    with pytest.raises(RequestError, match=r"layer 'norm' \(BatchNorm2d\) mixes.*tacit\.fix\(module\)"):
        ModuleModel(Picture(nn.BatchNorm2d(4)))
    with pytest.raises(RequestError, match=r"layer 'layer' \(GRU\).*tacit\.fix\(module\)"):
        ModuleModel(Reader(nn.GRU(4, 4, batch_first=True)))
    with pytest.raises(RequestError, match=r"track_running_stats=False"):
        ModuleModel(Picture(nn.InstanceNorm2d(4, track_running_stats=True)))


def test_fix_says_what_it_replaces_and_keeps_the_weights_and_the_original() -> None:
    given = nn.Sequential(nn.Conv2d(1, 6, 2), nn.BatchNorm2d(6), nn.Dropout(0.5), nn.Flatten(), nn.Linear(24, 3))
    nn.init.uniform_(given[1].weight)
    with pytest.warns(UserWarning, match=r"layer '1': BatchNorm2d by GroupNorm, layer '2': Dropout by Identity"):
        fixed = tacit.fix(given)
    assert isinstance(given[1], nn.BatchNorm2d)
    assert torch.equal(fixed[1].weight, given[1].weight)
    ModuleModel(fixed)


def test_fix_is_silent_about_a_network_that_is_fine() -> None:
    assert isinstance(tacit.fix(nn.Linear(2, 2)), nn.Linear)


@pytest.mark.parametrize("channels", [2, 6, 8, 20, 64, 96])
def test_a_normalisation_after_a_linear_layer_keeps_what_it_normalises(channels: int) -> None:
    """There is one number in each channel: in a group of one, it minus its mean is zero for every record."""
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="BatchNorm1d by GroupNorm"):
        fixed = tacit.fix(nn.Sequential(nn.Linear(4, channels), nn.BatchNorm1d(channels), nn.Linear(channels, 3)))
    assert channels // fixed[1].num_groups >= min(channels, 8)
    outputs = fixed(torch.randn(5, 4))
    assert outputs.std(0).min() > 0.01, "records differ behind it"
    ModuleModel(fixed).losses(
        torch.cat([p.detach().flatten() for p in fixed.parameters()]),
        Batch(torch.randn(5, 4), torch.zeros(5, dtype=torch.int64), torch.tensor([5])),
    )


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.BCELoss(), "loss BCELoss fails for one record, with outputs of shape (2,) and one number as target"),
        (nn.GaussianNLLLoss(), "loss GaussianNLLLoss fails for one record"),
        (nn.L1Loss, "not the class L1Loss: write L1Loss()"),
        (3, "the loss must be a function of outputs and targets, not int"),
    ],
)
def test_a_loss_that_does_not_fit_is_refused_before_training(loss: object, message: str) -> None:
    clients = [(np.ones((6, 3)), np.arange(6) % 2)]
    with pytest.raises(RequestError) as refused:
        tacit.make_private(nn.Linear(3, 2), loss, clients, epsilon=1, rounds=1, seed=0)  # type: ignore[arg-type]
    assert message in str(refused.value)


def test_what_is_no_network_yet_is_refused() -> None:
    for given in ("resnet", nn.Linear, lambda: nn.Linear(3, 2)):
        with pytest.raises(RequestError, match=r"must be a torch\.nn\.Module, not"):
            tacit.make_private(given, "cross-entropy", [(np.ones((6, 3)), np.arange(6) % 2)], epsilon=1)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=r"must be a torch\.nn\.Module, not"):
            tacit.fix(given)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"\(LazyLinear\) has no size yet"):
        ModuleModel(nn.LazyLinear(2))


def test_a_frozen_front_may_do_what_a_trained_layer_may_not() -> None:
    class Doubles(nn.Module):
        def forward(self, records: Tensor) -> Tensor:
            return records * 2 if float(records.sum()) > 0 else records

    network = nn.Sequential(nn.Linear(3, 3), Doubles(), nn.Linear(3, 2))
    clients = [(np.ones((6, 3)), np.arange(6) % 2)]
    tacit.make_private(network, "cross-entropy", clients, epsilon=1, rounds=1, seed=0, trainable="head").fit()
