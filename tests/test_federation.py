"""Federations: indexing, checks that name the client, and the four ways to build one."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from tacit.errors import DataError, RequestError
from tacit.federation import Batch, Federation


def small(**changes: object) -> Federation:
    """Three clients with 2, 1 and 3 records; the feature of a record is its flat index."""
    settings: dict[str, object] = {
        "features": torch.arange(6.0)[:, None],
        "targets": torch.tensor([0, 1, 1, 0, 0, 1]),
        "sizes": torch.tensor([2, 1, 3]),
        "ids": torch.arange(3),
        "classes": 2,
    }
    return Federation(**(settings | changes))  # type: ignore[arg-type]


class TestBatch:
    def test_owners_skip_clients_without_records(self) -> None:
        batch = Batch(torch.zeros(3, 1), torch.zeros(3), torch.tensor([0, 2, 0, 1]))
        assert batch.owners().tolist() == [1, 1, 3]
        assert (batch.clients, batch.records) == (4, 3)

    def test_select(self) -> None:
        part = small().batch().select(torch.tensor([1, 5, 3]), torch.tensor([1, 0, 2]))
        assert part.features.flatten().tolist() == [1, 5, 3]
        assert part.targets.tolist() == [1, 1, 0]
        assert part.owners().tolist() == [0, 2, 2]

    @pytest.mark.parametrize(
        ("targets", "counts", "message"),
        [
            (torch.zeros(2), torch.tensor([3]), "one target per record"),
            (torch.zeros(3), torch.tensor([2]), "counts add up to 2"),
            (torch.zeros(3), torch.tensor([3.0]), "int64 vector"),
        ],
    )
    def test_shapes_must_agree(self, targets: torch.Tensor, counts: torch.Tensor, message: str) -> None:
        with pytest.raises(DataError, match=message):
            Batch(torch.zeros(3, 1), targets, counts)


class TestIndexing:
    def test_properties(self) -> None:
        federation = small()
        assert (federation.clients, federation.records, federation.feature_shape) == (3, 6, (1,))
        assert federation.offsets.tolist() == [0, 2, 3, 6]

    @given(
        st.lists(st.integers(1, 5), min_size=1, max_size=8).flatmap(
            lambda sizes: st.tuples(st.just(sizes), st.lists(st.integers(0, len(sizes) - 1), max_size=10))
        )
    )
    def test_records_of_equals_the_loop(self, drawn: tuple[list[int], list[int]]) -> None:
        sizes, chosen = drawn
        records = sum(sizes)
        federation = Federation(
            torch.arange(float(records))[:, None],
            torch.arange(float(records)),
            torch.tensor(sizes),
            torch.arange(len(sizes)),
        )
        starts = np.cumsum([0, *sizes])
        expected = [row for client in chosen for row in range(starts[client], starts[client + 1])]
        clients = torch.tensor(chosen, dtype=torch.int64)
        assert federation.records_of(clients).tolist() == expected
        batch = federation.batch(clients)
        assert batch.features.flatten().tolist() == expected
        assert batch.counts.tolist() == [sizes[client] for client in chosen]

    def test_take(self) -> None:
        batch = small().take(torch.tensor([4, 0]), torch.tensor([1, 1]))
        assert batch.features.flatten().tolist() == [4, 0]

    @pytest.mark.parametrize("bad", [[3], [-1, 0]])
    def test_positions_out_of_range(self, bad: list[int]) -> None:
        with pytest.raises(RequestError, match="positions 0 to 2"):
            small().batch(torch.tensor(bad))

    def test_client_keeps_id_name_and_test_set(self) -> None:
        test = {"test_features": torch.ones(2, 1), "test_targets": torch.tensor([0, 1])}
        federation = small(ids=torch.tensor([7, 3, 5]), names=("a", "b", "c"), **test)
        alone = federation.client(2)
        assert alone.ids.tolist() == [5]
        assert alone.names == ("c",)
        assert alone.features.flatten().tolist() == [3, 4, 5]
        assert alone.test_batch().records == 2
        # The offsets are worked out anew, not inherited from the whole federation.
        assert alone.records_of(torch.tensor([0])).tolist() == [0, 1, 2]
        with pytest.raises(RequestError, match="position 0 to 2"):
            federation.client(3)

    def test_to_keeps_everything(self) -> None:
        federation = small(test_features=torch.ones(2, 1), test_targets=torch.tensor([0, 1]), name="six")
        moved = federation.to("cpu")
        assert moved.describe() == federation.describe()
        assert torch.equal(moved.batch().features, federation.batch().features)

    def test_no_test_set(self) -> None:
        with pytest.raises(DataError, match="has no test set"):
            small().test_batch()

    def test_describe(self) -> None:
        assert small().describe() == "custom: 3 clients, 6 records (1 to 3 each), 1 feature, 2 classes"
        assert repr(small()) == small().describe()

    def test_a_hundred_thousand_clients(self) -> None:
        rng = np.random.default_rng(0)
        clients, each = 100_000, 20
        features = rng.standard_normal((clients * each, 2), dtype=np.float32)
        owners = rng.permutation(np.repeat(np.arange(clients), each))
        federation = Federation.from_arrays(features, np.zeros(len(owners)), owners)
        chosen = torch.from_numpy(rng.permutation(clients)[:50_000])
        batch = federation.batch(chosen)
        assert batch.records == 1_000_000
        last = int(chosen[-1])
        np.testing.assert_array_equal(batch.features[-each:].numpy(), features[owners == last])


class TestChecks:
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_bad_feature_names_the_client_and_the_record(self, value: float) -> None:
        features = torch.arange(6.0)[:, None].clone()
        features[4] = value
        with pytest.raises(
            DataError, match=r"client 2 \('Ulm'\), record 1: feature 0 is missing or not a finite"
        ):
            small(features=features, names=("Bonn", "Kiel", "Ulm"))

    def test_bad_target_names_the_client(self) -> None:
        targets = torch.tensor([0.0, 1.0, float("nan"), 0.0, 0.0, 1.0])
        with pytest.raises(DataError, match="client 1, record 0"):
            small(targets=targets, classes=None)

    def test_empty_client_is_named(self) -> None:
        with pytest.raises(DataError, match="client 1 has no records"):
            small(sizes=torch.tensor([3, 0, 3]))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"classes": 1}, "client 0, record 1: the label is 1; with 1 classes"),
            ({"targets": torch.tensor([0, 0, -1, 0, 0, 0])}, "client 1, record 0: the label is -1"),
            ({"classes": None}, "give `classes`"),
            ({"targets": torch.zeros(6)}, "must be int64 labels"),
            ({"targets": torch.zeros(5, dtype=torch.int64)}, "6 training records but targets of shape"),
            ({"features": torch.zeros(6)}, "must have shape"),
            ({"features": torch.zeros(6, 0)}, "must have shape"),
            ({"features": torch.zeros(6, 1, dtype=torch.int64)}, "float32 or float64"),
            ({"sizes": torch.tensor([2, 1, 4])}, "sizes add up to 7"),
            ({"ids": torch.tensor([0, 1])}, "ids must have 3 entries"),
            ({"ids": torch.tensor([0, 1, 1])}, "distinct"),
            ({"ids": torch.tensor([0, 1, -2])}, "not negative"),
            ({"names": ("a",)}, "names must have 3 entries"),
            ({"class_names": ("a",)}, "class_names must have 2 entries"),
            ({"test_features": torch.zeros(1, 1)}, "go together"),
            (
                {"test_features": torch.zeros(1, 2), "test_targets": torch.tensor([0])},
                "test features must have shape",
            ),
            (
                {"test_features": torch.full((1, 1), torch.nan), "test_targets": torch.tensor([0])},
                "test record 0",
            ),
            (
                {"test_features": torch.zeros(1, 1), "test_targets": torch.tensor([9])},
                "test record 0: the label is 9",
            ),
        ],
    )
    def test_what_does_not_fit_is_refused(self, changes: dict[str, object], message: str) -> None:
        with pytest.raises(DataError, match=message):
            small(**changes)

    def test_no_clients(self) -> None:
        nothing = torch.zeros(0, dtype=torch.int64)
        with pytest.raises(DataError, match="at least one client"):
            Federation(torch.zeros(0, 1), torch.zeros(0), nothing, nothing)

    def test_float64_is_kept(self) -> None:
        assert small(features=torch.zeros(6, 1, dtype=torch.float64)).features.dtype == torch.float64


class TestFromArrays:
    def test_labels_become_sorted_names(self) -> None:
        federation = Federation.from_arrays(
            np.arange(8).reshape(4, 2), np.array([1.5, 2.5, 3.5, 4.5]), ["b", "a", "b", "c"]
        )
        assert federation.names == ("a", "b", "c")
        assert federation.ids.tolist() == [0, 1, 2]
        assert federation.targets.tolist() == [2.5, 1.5, 3.5, 4.5]
        assert federation.features.tolist() == [[2, 3], [0, 1], [4, 5], [6, 7]]
        assert federation.classes is None

    def test_integer_labels_sort_as_numbers(self) -> None:
        assert Federation.from_arrays([[0.0]] * 3, [0.5] * 3, [10, 9, 10]).names == ("9", "10")

    def test_index_lists(self) -> None:
        federation = Federation.from_arrays(
            torch.arange(4.0)[:, None], torch.tensor([0, 1, 2, 1]), [np.array([3]), torch.tensor([0, 2])]
        )
        assert federation.sizes.tolist() == [1, 2]
        assert federation.targets.tolist() == [1, 0, 2]
        assert federation.names is None

    @pytest.mark.parametrize(
        ("clients", "message"),
        [
            ([[0, 1], [1, 2]], "record 1 was given more than once"),
            ([[0], [3]], "0 to 2, not 0 to 3"),
            ([[0, 1, 2], []], "client 1 has no records"),
            ([[0.5], [1]], "whole numbers"),
            (["a", "b"], "3 labels, one per record"),
            (np.array(["a", None, "b"], dtype=object), "client of record 1 is missing"),
        ],
    )
    def test_bad_clients(self, clients: object, message: str) -> None:
        with pytest.raises(DataError, match=message):
            Federation.from_arrays([[0.0]] * 3, [0, 1, 1], clients)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("targets", "options", "expected", "classes"),
        [
            ([-1, 1, -1], {}, [0, 1, 0], 2),
            ([-1.0, 1.0, -1.0], {"classes": 2}, [0, 1, 0], 2),
            ([0, 4, 2], {}, [0, 4, 2], 5),
            ([0, 0, 0], {}, [0, 0, 0], 2),
            ([True, False, True], {}, [1, 0, 1], 2),
            (["x", "y", "x"], {}, [0, 1, 0], 2),
            (["x", "y", "x"], {"classes": ["z", "y", "x"]}, [2, 1, 2], 3),
            ([1, 2, 3], {"classes": [3, 2, 1]}, [2, 1, 0], 3),
            ([0, 1, 2], {"task": "regression"}, [0.0, 1.0, 2.0], None),
            ([0.0, 1.0, 2.0], {"task": "classification"}, [0, 1, 2], 3),
            ([0.5, 1.0, 2.0], {}, [0.5, 1.0, 2.0], None),
        ],
    )
    def test_targets(
        self, targets: list[object], options: dict[str, object], expected: list[float], classes: int | None
    ) -> None:
        federation = Federation.from_arrays([[0.0]] * 3, targets, [0, 0, 0], **options)  # type: ignore[arg-type]
        assert federation.targets.tolist() == expected
        assert federation.classes == classes
        assert federation.targets.dtype == (torch.float32 if classes is None else torch.int64)

    @pytest.mark.parametrize(
        ("targets", "options", "message"),
        [
            ([-2, 1, 0], {}, "not -2"),
            ([0.5, 1, 0], {"classes": 2}, "whole numbers, not 0.5"),
            (["x", "y", "z"], {"classes": 2}, "hold 3 labels"),
            (["x", "y", "z"], {"classes": ["x", "y"]}, "record 2 is 'z'"),
            (np.array(["x", None, "x"], dtype=object), {}, "target of record 1 is missing"),
            (["x", "y", "z"], {"task": "regression"}, "must be numbers"),
            ([0, 1, 2], {"task": "regression", "classes": 3}, "has no classes"),
            ([0, 1, 2], {"classes": [0, 1, 1]}, "every label once"),
            ([0, 1], {}, "3 records but 2 targets"),
            ([[0, 1], [1, 0], [2, 2]], {}, "one value per record"),
        ],
    )
    def test_bad_targets(self, targets: object, options: dict[str, object], message: str) -> None:
        with pytest.raises(DataError, match=message):
            Federation.from_arrays([[0.0]] * 3, targets, [0, 0, 0], **options)  # type: ignore[arg-type]

    def test_unknown_task(self) -> None:
        with pytest.raises(RequestError, match="unknown task 'ranking'"):
            Federation.from_arrays([[0.0]], [1], [0], task="ranking")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("features", "message"),
        [
            ([0.0, 1.0], "must have shape"),
            ([[0.0], [1.0, 2.0]], "do not form an array"),
            ([["a"], ["b"]], "encode words first"),
            ([[1e300], [1.0]], "client 0.*not a finite float32"),
        ],
    )
    def test_bad_features(self, features: npt.ArrayLike, message: str) -> None:
        with pytest.raises(DataError, match=message):
            Federation.from_arrays(features, [0, 1], [0, 0])

    def test_float64_on_request(self) -> None:
        federation = Federation.from_arrays([[1e300]], [0.5], [0], dtype=torch.float64)
        assert federation.features.dtype == federation.targets.dtype == torch.float64
        with pytest.raises(DataError, match="dtype must be"):
            Federation.from_arrays([[1.0]], [0.5], [0], dtype=torch.float16)

    def test_test_labels_are_numbered_with_the_training_labels(self) -> None:
        federation = Federation.from_arrays([[0.0], [1.0]], ["b", "c"], [0, 1], test=([[2.0], [3.0]], ["a", "c"]))
        assert federation.targets.tolist() == [1, 2]
        assert federation.test_batch().targets.tolist() == [0, 2]
        assert federation.class_names == ("a", "b", "c")

    def test_the_callers_array_is_not_shared(self) -> None:
        features = np.zeros((2, 1), dtype=np.float32)
        federation = Federation.from_arrays(features, [0, 1], [0, 1], test=(features, [0, 1]))
        features[:] = 5
        assert federation.features.sum() == federation.test_batch().features.sum() == 0


class TestFromClients:
    def test_in_the_order_given(self) -> None:
        federation = Federation.from_clients(
            [([[2.0]], [1]), (np.zeros((2, 1)), torch.tensor([0, 2]))], names=["b", "a"]
        )
        assert federation.names == ("b", "a")
        assert federation.sizes.tolist() == [1, 2]
        assert federation.targets.tolist() == [1, 0, 2]

    def test_a_column_of_targets_is_one_target_for_each_record(self) -> None:
        """PyTorch's losses of numbers want targets of shape (records, 1)."""
        column = torch.tensor([[0.5], [1.5]])
        federation = Federation.from_clients(
            [(torch.zeros(2, 1), column)], test=(torch.zeros(2, 1), 2 * column), name="doses"
        )
        assert federation.targets.tolist() == [0.5, 1.5]
        assert federation.test_targets is not None
        assert federation.test_targets.tolist() == [1.0, 3.0]
        assert Federation.from_arrays([[0.0], [1.0]], [["a"], ["b"]], [0, 0]).class_names == ("a", "b")

    @pytest.mark.parametrize(
        ("clients", "message"),
        [
            ([], "at least one client"),
            ([([[1.0]], [0]), ([], [])], "client 1 has no records"),
            ([([[1.0]], [0]), ([[1.0, 2.0]], [0])], r"client 1: records have shape \(2,\)"),
            ([([[1.0]], [0, 1])], "client 0: 1 records but targets of shape"),
            ([([[1.0]], [[0, 1]])], "give one target per record"),
            ([([[1.0]], [0]), ([[float("nan")]], [0])], "client 1, record 0"),
        ],
    )
    def test_bad_clients_are_named(self, clients: list[tuple[list[float], list[int]]], message: str) -> None:
        with pytest.raises(DataError, match=message):
            Federation.from_clients(clients)

    def test_as_many_names_as_clients(self) -> None:
        with pytest.raises(DataError, match="names must have 1 entries"):
            Federation.from_clients([([[1.0]], [0])], names=["a", "b"])


class Squares(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, records: int) -> None:
        self.records = records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((1, 2, 2), float(index)), index % 2


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1])


class TestFromDatasets:
    def test_items_and_tensors(self) -> None:
        tensors = TensorDataset(torch.zeros(2, 1, 2, 2), torch.tensor([1, 0]))
        federation = Federation.from_datasets([Squares(3), tensors, Subset(Squares(9), [4, 5])], test=Squares(2))
        assert federation.sizes.tolist() == [3, 2, 2]
        assert federation.feature_shape == (1, 2, 2)
        assert federation.targets.tolist() == [0, 1, 0, 1, 0, 0, 1]
        assert federation.test_batch().records == 2

    @pytest.mark.parametrize(
        ("dataset", "message"),
        [
            (Stream(), "client 1: data sets must be map-style"),
            (Squares(0), "client 1 has no records"),
            ([(object(), 1)], "client 1: need .*pairs"),
        ],
    )
    def test_bad_data_sets_are_named(self, dataset: Dataset[object], message: str) -> None:
        with pytest.raises(DataError, match=message):
            Federation.from_datasets([Squares(1), dataset])

    @pytest.mark.parametrize(
        "single",
        [
            DataLoader(Squares(4)),
            Squares(4),
            (torch.zeros(4, 2), torch.zeros(4)),
            SimpleNamespace(column_names=["features", "label"]),
        ],
    )
    def test_a_single_data_set_is_not_taken_for_a_list_of_clients(self, single: Any) -> None:
        with pytest.raises(DataError, match=r"one data set or loader for each client.*write \[data\]"):
            Federation.from_datasets(single)


def test_records_lie_where_pytorch_would_put_them() -> None:
    """Or matrix products would round differently from process to process, and in a silo that runs alone."""
    memory = torch.zeros(1 + 7 * 3)[1:].reshape(7, 3)
    federation = Federation.from_clients([(memory[:3], [0, 1, 0]), (memory[3:], [1, 1, 0, 0])])
    assert federation.features.data_ptr() % 64 == 0
    assert federation.client(1).features.data_ptr() % 64 == 0
    direct = Federation(memory, torch.zeros(7), torch.tensor([7]), torch.tensor([0]), memory, torch.zeros(7))
    assert direct.features.data_ptr() % 64 == 0
    assert direct.test_features is not None
    assert direct.test_features.data_ptr() % 64 == 0
