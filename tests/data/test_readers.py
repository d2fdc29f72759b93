"""Readers refuse damaged files, and say which."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tacit.data import datasets, images, load
from tacit.data.images import read_cifar, read_idx
from tacit.data.svmlight import read_svmlight
from tacit.data.tabular import INSURANCE, PublishedTable, read_table
from tacit.errors import DataError


def idx(values: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    return header + values.astype(np.uint8).tobytes()


IMAGES = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize("packed", [True, False])
def test_idx_round_trip(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(gzip.compress(idx(IMAGES)) if packed else idx(IMAGES))
    assert np.array_equal(read_idx(path, (2, 3, 4)), IMAGES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(idx(IMAGES), mtime=0)[:-9], "is damaged"),
        (b"<html>not found</html>", "is damaged"),
        (gzip.compress(b"PK\3\4 something else", mtime=0), "is not an idx file"),
        (gzip.compress(b"", mtime=0), "is not an idx file"),
        (gzip.compress(idx(IMAGES)[:10], mtime=0), "ends within its header"),
        (gzip.compress(idx(IMAGES)[:-1], mtime=0), "23 values instead of 24"),
        (gzip.compress(idx(IMAGES[:1]), mtime=0), r"shape \(1, 3, 4\), expected \(2, 3, 4\)"),
    ],
)
def test_damaged_idx(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, (2, 3, 4))
    assert str(path) in str(caught.value)


def test_truncated_mnist_through_load(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for file in datasets.DATASETS["mnist"].files:
        (tmp_path / "mnist" / file.name).write_bytes(gzip.compress(idx(IMAGES))[:-9])
    with pytest.raises(DataError, match=r"mnist/train-images-idx3-ubyte.gz is damaged .*fetch it again"):
        load("mnist", data_dir=tmp_path)


def cifar(path: Path, records: int = 20) -> None:
    record = np.zeros((records, 3073), dtype=np.uint8)
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for part, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
            record[:, 0] = part
            record[:, 1:] = 10 * part
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            info.size = record.nbytes
            archive.addfile(info, io.BytesIO(record.tobytes()))


def test_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_CIFAR_BATCH", 20)
    (tmp_path / "cifar-10").mkdir()
    cifar(tmp_path / "cifar-10" / "cifar-10-binary.tar.gz")
    federation = load(
        "cifar-10", data_dir=tmp_path, image=True, records_per_client=3, partition="sorted", clients=5
    )
    assert federation.feature_shape == (3, 32, 32)
    assert federation.targets.tolist() == [label for label in range(5) for _ in range(3)]
    assert federation.features[-1].unique().tolist() == pytest.approx([40 / 255])
    assert federation.test_batch().targets.unique().tolist() == [5]


def test_damaged_cifar(tmp_path: Path) -> None:
    cifar(tmp_path / "short.tar.gz", records=9)
    with pytest.raises(DataError, match=r"data_batch_1.bin has 27657 bytes instead of 30730000"):
        read_cifar(tmp_path / "short.tar.gz")
    (tmp_path / "other.tar.gz").write_bytes(b"html")
    with pytest.raises(DataError, match=r"other.tar.gz is damaged or not the binary version"):
        read_cifar(tmp_path / "other.tar.gz")


def test_svmlight_files_share_their_columns(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("+1 1:0.5 3:2\n-1 2:1\n")
    (tmp_path / "b").write_text("-1 5:1\n")
    (features, targets), (other, _) = read_svmlight([tmp_path / "a", tmp_path / "b"])
    assert features.tolist() == [[0.5, 0, 2, 0, 0], [0, 1, 0, 0, 0]]
    assert other.tolist() == [[0, 0, 0, 0, 1]]
    assert targets.dtype == np.int64


def test_no_record_moves_the_features_of_others(tmp_path: Path) -> None:
    """An index 0 in one record must not say that all records count from 0."""
    (tmp_path / "a").write_text("+1 1:0.5 3:2\n-1 2:1\n")
    (tmp_path / "near").write_text("+1 1:0.5 3:2\n-1 0:1\n")
    assert read_svmlight([tmp_path / "a"], features=4)[0][0][0].tolist() == [0.5, 0, 2, 0]
    with pytest.raises(DataError, match="count from 1"):
        read_svmlight([tmp_path / "near"], features=4)


def test_svmlight_regression(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 1:1\n")
    (tmp_path / "b").write_text("2.5 1:1\n")
    assert [targets.dtype.kind for _, targets in read_svmlight([tmp_path / "a", tmp_path / "b"])] == ["f", "f"]


@pytest.mark.parametrize("content", ["<html>", "1 2:x\n", "1 1:1 99999999999:1\n"])
def test_damaged_svmlight(tmp_path: Path, content: str) -> None:
    (tmp_path / "a").write_text(content)
    with pytest.raises(DataError, match="not in LIBSVM format, or damaged"):
        read_svmlight([tmp_path / "a"])


def test_svmlight_too_wide(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 600000000:1\n")
    with pytest.raises(DataError, match="too many for dense arrays"):
        read_svmlight([tmp_path / "a"])


def test_a9a_with_lines_missing(tmp_path: Path) -> None:
    (tmp_path / "a9a").mkdir()
    for name in ("a9a", "a9a.t"):
        (tmp_path / "a9a" / name).write_text("+1 3:1 11:1\n-1 123:1\n")
    with pytest.raises(DataError, match="a9a/a9a holds 2 records instead of 32561"):
        load("a9a", data_dir=tmp_path)


TINY = PublishedTable("y", 2, ("x",), {"c": ("low", "high")}, ("x",))


def test_table_numbers_categories_as_listed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("c,x,y\nhigh,3,1.5\nlow,4,2.5\n")
    raw = read_table(tmp_path / "t.csv", TINY)
    assert raw.features.tolist() == [[3, 1], [4, 0]]
    assert raw.targets.tolist() == [1.5, 2.5]
    assert list(raw.columns["c"]) == ["high", "low"]
    assert raw.standardised == (0,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("c,x\nhigh,3\nlow,4\n", "has no column 'y'; it has c, x"),
        ("c,x,y\nhigh,3,1\n", "holds 1 records instead of 2"),
        ("c,x,y\nhigh,3,1\nmiddle,4,2\n", r"row 2: c is 'middle', not one of \('low', 'high'\)"),
        ("c,x,y\nhigh,3,1\nlow,four,2\n", "row 2: x is 'four', which is not a number"),
        ("c,x,y\nhigh,3,1\nlow,4,\n", "row 2: y is .*nan.*, which is not a number"),
        ("", "cannot be read as CSV"),
    ],
)
def test_damaged_tables(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "t.csv", TINY)


def test_the_registry_agrees_with_the_schemas() -> None:
    assert len(INSURANCE.numbers) + len(INSURANCE.categories) == datasets.DATASETS["insurance"].features
