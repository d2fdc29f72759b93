"""The entrance for users of PyTorch and Opacus: a network, its clients, a promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tacit
from tacit.errors import DataError, RequestError
from tacit.federation import Federation
from tacit.models.record_loss import per_record_loss


def hospitals(number: int = 3) -> list[DataLoader[tuple[Tensor, ...]]]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(240, 5, generator=generator)
    labels = (rows[:, 0] > 0).long()
    return [DataLoader(TensorDataset(rows[k::number], labels[k::number]), batch_size=16) for k in range(number)]


def test_two_lines_train_a_network_with_a_promise() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    before = [p.clone() for p in module.parameters()]
    private = tacit.make_private(module, nn.CrossEntropyLoss(), hospitals(), epsilon=8, rounds=30, seed=1)
    trained = private.fit()
    assert private.guarantee is not None
    assert private.guarantee.epsilon <= 8
    assert private.plan.recipe is not None
    assert all(torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))
    loaded = hospitals()[0].dataset
    assert isinstance(loaded, TensorDataset)
    rows, labels = loaded.tensors
    assert float((trained(rows).argmax(1) == labels).double().mean()) > 0.8
    assert torch.equal(trained(rows).argmax(1), private.run.model.predict(rows))


def test_a_fine_tuned_network_comes_back_whole_and_only_its_head_has_changed() -> None:
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    private = tacit.make_private(
        module, "cross-entropy", hospitals(), epsilon=8, rounds=5, seed=1, trainable="head", clip_norm=0.5
    )
    trained = private.fit()
    assert isinstance(trained, nn.Sequential)
    assert torch.equal(trained[0].weight, module[0].weight)
    assert not torch.equal(trained[2].weight, module[2].weight)
    assert private.plan.federation.feature_shape == (8,)
    assert private.plan.recipe is not None
    assert private.plan.recipe.algorithm_settings["clip_norm"] == 0.5
    assert private.guarantee is not None
    assert any("frozen weights" in said for said in private.guarantee.public)


class Convolution(nn.Module):
    """A network of the user's own class, which needs records of the right shape."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Conv2d(1, 2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        records, _, height, width = x.shape
        inner = torch.relu(self.inner(x)).reshape(records, 2, (height - 1) * (width - 1))
        said: Tensor = self.head(inner.mean(2))
        return said


def test_the_head_of_a_network_of_images_is_fine_tuned() -> None:
    images = [(np.ones((8, 1, 3, 3)), np.arange(8) % 2) for _ in range(2)]
    private = tacit.make_private(
        Convolution(), "cross-entropy", images, epsilon=8, rounds=2, seed=1, trainable="head", clip_norm=0.5
    )
    assert private.plan.federation.feature_shape == (2,)


def test_without_a_seed_noise_comes_from_the_operating_system() -> None:
    private = tacit.make_private(nn.Linear(5, 2), "cross-entropy", hospitals(), epsilon=8, rounds=2)
    assert private.plan.algorithm.work.noise.secret
    assert private.plan.recipe is not None
    assert private.plan.recipe.noise == "lattice"


@pytest.mark.parametrize(
    "loss",
    [
        nn.BCEWithLogitsLoss(),
        nn.L1Loss(),
        nn.HuberLoss(),
        nn.PoissonNLLLoss(),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0])),
        lambda outputs, targets: (outputs[:, 0] - targets).abs().pow(1.5),
    ],
)
def test_other_losses_train_and_their_gradients_are_per_record(loss: object) -> None:
    found = per_record_loss(loss)  # type: ignore[arg-type]
    assert callable(found)
    outputs, targets = torch.randn(6, 1, requires_grad=True), torch.tensor([0.0, 1, 1, 0, 1, 0])
    together = found(outputs, targets)
    assert together.shape == (6,)
    for place in range(6):
        alone = found(outputs[place : place + 1], targets[place : place + 1])
        torch.testing.assert_close(alone[0], together[place])
    (slopes,) = torch.autograd.grad(together[2], outputs)
    assert bool((slopes[[0, 1, 3, 4, 5]] == 0).all())
    torch.manual_seed(0)
    private = tacit.make_private(nn.Linear(5, 1), found, hospitals(), epsilon=8, rounds=3, seed=0)
    assert private.run.last.train_loss < private.run.history[0].train_loss * 1.5


def test_a_loss_that_compares_records_sees_one_at_a_time() -> None:
    found = per_record_loss(lambda outputs, targets: (outputs - outputs.mean(0)).square().sum())
    assert callable(found)
    assert torch.equal(found(torch.randn(4, 2), torch.zeros(4)), torch.zeros(4))


class Table:
    """What a Hugging Face data set looks like to us."""

    def __init__(self, **columns: list[object]) -> None:
        self.columns = columns
        self.column_names = list(columns)
        self.features: dict[str, object] = {}

    def __len__(self) -> int:
        return len(self.columns[self.column_names[0]])

    def __getitem__(self, key: str | int) -> object:
        return self.columns[key] if isinstance(key, str) else {k: v[key] for k, v in self.columns.items()}


class Declared:
    num_classes = 4


def test_hugging_face_data_sets_are_clients() -> None:
    first = Table(embedding=[[0.0, 1.0], [2.0, 3.0]], label=[0, 1])
    first.features = {"label": Declared()}
    federation = Federation.from_datasets([first, Table(embedding=[[4.0, 5.0]], label=[2])])
    assert (federation.clients, federation.classes) == (2, 4)
    assert federation.features.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    two = Table(text=["a", "b"], embedding=[[0.0], [1.0]], label=[0, 1])
    assert Federation.from_datasets([two], inputs="embedding").records == 2
    with pytest.raises(DataError, match="inputs="):
        Federation.from_datasets([two])
    with pytest.raises(DataError, match=r"holds str, not numbers.*dataset\.map"):
        Federation.from_datasets([two], inputs="text")
    with pytest.raises(ValueError, match="did you mean 'label'"):
        Federation.from_datasets([two], target="labels")


def test_loaders_with_their_own_batches_are_read_batch_by_batch() -> None:
    rows, labels = torch.arange(10.0)[:, None], torch.arange(10) % 2
    pairs = TensorDataset(rows, labels)

    def doubled(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return torch.stack([row for row, _ in items]) * 2, torch.stack([label for _, label in items])

    loader = DataLoader(pairs, batch_size=4, collate_fn=doubled)
    assert Federation.from_datasets([loader]).features.flatten().tolist() == (rows * 2).flatten().tolist()
    shuffled = DataLoader(pairs, batch_size=4, shuffle=True, drop_last=True)
    assert Federation.from_datasets([shuffled]).records == 10, "no record is left out, and their order is fixed"
    with pytest.raises(DataError, match="drop_last=False"):
        Federation.from_datasets([DataLoader(pairs, batch_size=4, drop_last=True, collate_fn=doubled)])


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.head(self.words(x).mean(1))
        return said


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Tokens(), r"layer 'words' \(Embedding\) takes whole ones: write self\.words\(x\.long\(\)\)"),
        (nn.Sequential(nn.Linear(5, 3), nn.Linear(4, 2)), r"a record with 5 features: in layer '1' \(Linear\)"),
        (nn.Linear(5, 1), "has 1 outputs, but the clients' records have 2 classes"),
    ],
)
def test_networks_that_do_not_fit_are_refused_before_training(module: nn.Module, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        tacit.make_private(module, "cross-entropy", hospitals(), epsilon=8)


def test_clients_in_a_dictionary_are_told_how_to_become_a_list() -> None:
    named: Any = dict(zip("ab", hospitals(), strict=False))
    with pytest.raises(DataError, match=r"not a dictionary: write list\(clients.values\(\)\)"):
        tacit.make_private(nn.Linear(5, 2), "cross-entropy", named, epsilon=8)


def test_mistakes_name_the_layer_and_the_fix() -> None:
    with pytest.raises(RequestError, match=r"layer '1' \(BatchNorm1d\).*tacit\.fix"):
        tacit.make_private(
            nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2)), "cross-entropy", hospitals(), epsilon=8
        )


def test_a_saved_network_is_loaded_with_the_network_itself(tmp_path: Path) -> None:
    private = tacit.make_private(nn.Linear(5, 2), "cross-entropy", hospitals(), epsilon=8, rounds=2, seed=0)
    trained = private.fit()
    private.run.save(tmp_path)
    with pytest.raises(DataError, match="give the network as model="):
        tacit.load_run(tmp_path)
    rows = torch.randn(4, 5)
    loaded = tacit.load_run(tmp_path, model=nn.Linear(5, 2))
    assert loaded.predict(rows.numpy()).tolist() == trained(rows).argmax(1).tolist()


def test_classes_that_were_found_in_records_are_taken_as_public() -> None:
    found = tacit.make_private(nn.Linear(5, 2), "cross-entropy", hospitals(), epsilon=8, rounds=2)
    assert "which class labels occur" in found.guarantee.public
    told = tacit.Federation.from_datasets(hospitals(), classes=2)
    given = tacit.make_private(nn.Linear(5, 2), "cross-entropy", told, epsilon=8, rounds=2)
    assert "which class labels occur" not in given.guarantee.public
