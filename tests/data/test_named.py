"""Named data sets: the embedded ones everywhere, the others where their files are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.data import DATASETS, Partition, load
from tacit.data.embedded import read_digits
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.randomness import Purpose, Randomness

EMBEDDED = [name for name in sorted(DATASETS) if DATASETS[name].embedded]
FILED = ["a9a", "fashion-mnist", "insurance", "mnist", "obesity"]


def check_entry(name: str, federation: Federation) -> None:
    entry = DATASETS[name]
    assert federation.records + federation.test_batch().records == entry.records
    assert federation.feature_shape == (entry.features,)
    assert federation.classes == entry.classes
    assert federation.clients == 10
    assert federation.name == name
    assert (entry.task == "regression") == (federation.classes is None)
    assert federation.peeks == (() if entry.peek is None else (entry.peek,))


def test_the_registry() -> None:
    assert EMBEDDED == ["breast-cancer", "diabetes", "digits"]
    assert sorted(DATASETS) == sorted([*EMBEDDED, *FILED, "cifar-10"])


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded(name: str) -> None:
    check_entry(name, load(name))


def same(one: Federation, other: Federation) -> bool:
    return torch.equal(one.features, other.features) and torch.equal(one.sizes, other.sizes)


def test_the_seed_decides() -> None:
    assert same(load("digits", seed=3), load("digits", seed=3))
    assert not same(load("digits", seed=3), load("digits", seed=4))


def test_the_partition_is_drawn_at_its_own_address() -> None:
    federation = load("digits", seed=3, clients=1, test_fraction=0)
    order = Randomness(3).generator(Purpose.PARTITION).permutation(1797)
    assert federation.targets.tolist() == read_digits().targets[order].tolist()


def test_split_and_partition_draw_apart() -> None:
    tests = [load("digits", partition=p).test_batch().features for p in ("iid", "sorted", "dirichlet:1")]
    assert torch.equal(tests[0], tests[1])
    assert torch.equal(tests[0], tests[2])


def test_the_test_split_is_stratified() -> None:
    counts = torch.bincount(load("digits").test_batch().targets)
    assert counts.min() >= 34
    assert counts.max() <= 37


def test_no_test_set_on_request() -> None:
    federation = load("diabetes", test_fraction=0)
    assert federation.test_features is None
    assert federation.records == 442


def test_digits_are_scaled_by_the_format_not_by_the_data() -> None:
    federation = load("digits", records_per_client=1)
    assert set((federation.features * 16).unique().tolist()) <= set(range(17))


def test_normalise() -> None:
    federation = load("breast-cancer")
    torch.testing.assert_close(federation.features.mean(0), torch.zeros(30), atol=1e-5, rtol=0)
    torch.testing.assert_close(federation.features.std(0, correction=0), torch.ones(30), atol=1e-5, rtol=0)
    plain = load("breast-cancer", normalise=False)
    assert plain.features.max() > 1000
    assert plain.peeks == ()


def test_unit_norm() -> None:
    federation = load("digits", unit_norm=True)
    assert federation.features.norm(dim=1).max() <= 1 + 1e-6
    assert federation.test_batch().features.norm(dim=1).max() <= 1 + 1e-6
    assert federation.peeks == ()


def test_pca_is_noted() -> None:
    federation = load("digits", pca=20)
    assert federation.feature_shape == (20,)
    assert federation.peeks == ("the first 20 principal components of the training records",)


def test_images() -> None:
    flat, image = load("digits"), load("digits", image=True)
    assert image.feature_shape == (1, 8, 8)
    assert torch.equal(image.features.flatten(1), flat.features)
    assert image.test_batch().features.shape[1:] == (1, 8, 8)


def test_records_per_client() -> None:
    federation = load("digits", clients=7, records_per_client=30)
    assert federation.sizes.tolist() == [30] * 7
    with pytest.raises(RequestError, match=r"records_per_client=500, but client \d has only 20"):
        load("digits", clients=7, records_per_client=500)


def test_digit_pairs_become_odd_or_even() -> None:
    federation = load("digits", partition="digit-pairs")
    assert federation.clients == 25
    assert federation.classes == 2
    assert federation.class_names == ("even", "odd")
    assert federation.names is not None
    assert federation.names[7] == "3 and 4"
    assert federation.test_batch().targets.unique().tolist() == [0, 1]
    raw = load("digits", partition="natural-id:target")
    threes = {tuple(row) for row in raw.client(3).features.tolist()}
    odd = federation.client(7).features[federation.client(7).targets == 1]
    assert all(tuple(row) in threes for row in odd.tolist())


def test_natural_id_by_target() -> None:
    federation = load("breast-cancer", partition=Partition("natural-id", "target"))
    assert federation.names == ("malignant", "benign")
    assert federation.client(1).targets.unique().tolist() == [1]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "unknown data set 'digit'; did you mean 'digits'"),
        ("digits", {"partition": "iidd"}, "unknown partition"),
        ("digits", {"clients": 0}, "clients must be a whole number"),
        ("digits", {"clients": 5000}, "needs at least 5000 records"),
        ("digits", {"seed": -1}, "seed must be"),
        ("digits", {"pca": 65}, "pca must be 1 to 64"),
        ("digits", {"image": True, "pca": 3}, "image=True needs"),
        ("diabetes", {"image": True}, "image=True needs"),
        ("diabetes", {"partition": "digit-pairs"}, "is for digits and mnist"),
        ("digits", {"partition": "digit-pairs", "clients": 7}, "makes 25 clients, not 7"),
        ("diabetes", {"partition": "natural-id:sexe"}, "unknown column of diabetes 'sexe'; did you mean 'sex'"),
        ("digits", {"partition": "natural-id:target", "clients": 3}, "makes 10 clients here, not 3"),
    ],
)
def test_bad_requests(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        load(name, **options)  # type: ignore[arg-type]


class TestRealData:
    def test_a9a(self, data_dir: Path) -> None:
        federation = load("a9a", data_dir=data_dir, partition="sorted")
        check_entry("a9a", federation)
        assert federation.records == 32_561
        assert int(federation.targets.sum()) == 7_841
        assert federation.features.unique().tolist() == [0, 1]
        assert federation.client(0).targets.unique().tolist() == [0]
        assert federation.client(9).targets.unique().tolist() == [1]
        assert int(federation.features.sum()) == 451_592

    def test_mnist(self, data_dir: Path) -> None:
        federation = load("mnist", data_dir=data_dir, partition="shards:2")
        check_entry("mnist", federation)
        assert torch.bincount(federation.targets).tolist() == [
            5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
        ]  # fmt: skip
        assert 0 <= federation.features.min() < federation.features.max() == 1
        assert float(federation.features.mean()) == pytest.approx(0.1307, abs=1e-4)

    def test_fashion_mnist_as_images(self, data_dir: Path) -> None:
        federation = load("fashion-mnist", data_dir=data_dir, image=True, records_per_client=50)
        assert federation.feature_shape == (1, 28, 28)
        assert federation.sizes.tolist() == [50] * 10
        assert torch.bincount(federation.test_batch().targets).tolist() == [1000] * 10

    def test_insurance_follows_the_paper(self, data_dir: Path) -> None:
        check_entry("insurance", load("insurance", data_dir=data_dir))
        federation = load("insurance", data_dir=data_dir, clients=3, partition="sorted-target")
        assert (federation.records, federation.test_batch().records) == (1070, 268)
        assert federation.sizes.tolist() == [357, 357, 356]
        ages = federation.features[:, 0]
        assert float(ages.mean()) == pytest.approx(0, abs=1e-5)
        assert set(federation.features[:, 5].unique().tolist()) == {0, 1, 2, 3}
        assert torch.equal(federation.targets, federation.targets.sort().values)

    def test_insurance_by_region(self, data_dir: Path) -> None:
        federation = load("insurance", data_dir=data_dir, partition="natural-id:region")
        assert federation.names == ("northeast", "northwest", "southeast", "southwest")
        assert federation.client(2).features[:, 5].unique().tolist() == [2]

    def test_obesity_follows_the_paper(self, data_dir: Path) -> None:
        check_entry("obesity", load("obesity", data_dir=data_dir))
        federation = load("obesity", data_dir=data_dir, partition="natural-id:target", records_per_client=217)
        assert federation.sizes.tolist() == [217] * 7
        assert federation.names == federation.class_names
        assert np.array_equal(federation.targets.numpy(), np.repeat(np.arange(7), 217))
