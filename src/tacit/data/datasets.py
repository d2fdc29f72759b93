"""The named data sets: contents, publisher, and which preparation looks at the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.data.embedded import read_breast_cancer, read_diabetes, read_digits
from tacit.data.encode import Task
from tacit.data.images import read_cifar, read_idx
from tacit.data.raw import Raw
from tacit.data.sources import SourceFile
from tacit.data.svmlight import read_svmlight
from tacit.data.tabular import INSURANCE, OBESITY, read_table
from tacit.errors import DataError


@dataclass(frozen=True)
class DatasetEntry:
    """The registry's entry for a data set."""

    summary: str
    task: Task
    records: int
    """number of training and test records together"""
    features: int
    homepage: str
    licence: str
    read: Callable[[Mapping[str, Path]], Raw]
    """reads the data from the paths of its files, by name"""
    files: tuple[SourceFile, ...] = ()
    """empty if the data come with scikit-learn"""
    class_names: tuple[str, ...] | None = None
    """the meaning of labels 0, 1, ...; None for regression"""
    image_shape: tuple[int, ...] | None = None
    """(channels, height, width), if the records are images"""
    peek: str | None = None
    """what `normalise` takes from the private records as if it were public; None if nothing"""

    @property
    def embedded(self) -> bool:
        """Whether it needs no files."""
        return not self.files

    @property
    def classes(self) -> int | None:
        """The number of classes; None for regression."""
        return None if self.class_names is None else len(self.class_names)


def _read_a9a(paths: Mapping[str, Path]) -> Raw:
    (train, labels), test = read_svmlight([paths["a9a"], paths["a9a.t"]], features=123)
    for name, found, expected in (("a9a", len(labels), 32_561), ("a9a.t", len(test[1]), 16_281)):
        if found != expected:
            raise DataError(f"{paths[name]} holds {found} records instead of {expected}; fetch it again")
    return Raw(train, (labels + 1) // 2, test=(test[0], (test[1] + 1) // 2))


def _read_mnist(paths: Mapping[str, Path]) -> Raw:
    parts = []
    for part, records in (("train", 60_000), ("t10k", 10_000)):
        images = read_idx(paths[f"{part}-images-idx3-ubyte.gz"], (records, 28, 28))
        labels = read_idx(paths[f"{part}-labels-idx1-ubyte.gz"], (records,))
        parts.append((images.reshape(records, 784), labels.astype(np.int64)))
    return Raw(*parts[0], test=parts[1], divisor=255.0)


def _read_cifar(paths: Mapping[str, Path]) -> Raw:
    images, labels, test_images, test_labels = read_cifar(paths["cifar-10-binary.tar.gz"])
    test = (test_images.reshape(-1, 3072), test_labels.astype(np.int64))
    return Raw(images.reshape(-1, 3072), labels.astype(np.int64), test=test, divisor=255.0)


def _mnist_files(base: str, hashes: tuple[str, str, str, str]) -> tuple[SourceFile, ...]:
    names = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return tuple(SourceFile(name, sha256, base + name) for name, sha256 in zip(names, hashes, strict=True))


_DIGITS = tuple("0123456789")
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_STANDARDISED = "standardised with the training records' own mean and standard deviation"

DATASETS: Mapping[str, DatasetEntry] = {
    "digits": DatasetEntry(
        summary="8 x 8 images of handwritten digits",
        task="classification",
        records=1797,
        features=64,
        homepage="https://archive.ics.uci.edu/dataset/80",
        licence="CC BY 4.0",
        read=lambda _: read_digits(),
        class_names=_DIGITS,
        image_shape=(1, 8, 8),
    ),
    "breast-cancer": DatasetEntry(
        summary="malignant and benign tumours from measures of cell nuclei",
        task="classification",
        records=569,
        features=30,
        homepage="https://archive.ics.uci.edu/dataset/17",
        licence="CC BY 4.0",
        read=lambda _: read_breast_cancer(),
        class_names=("malignant", "benign"),
        peek=f"all features {_STANDARDISED}",
    ),
    "diabetes": DatasetEntry(
        summary="progress of diabetes after a year",
        task="regression",
        records=442,
        features=10,
        homepage="https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html",
        licence="published with Efron et al. 2004, distributed with scikit-learn",
        read=lambda _: read_diabetes(),
        peek=f"all features {_STANDARDISED}",
    ),
    "a9a": DatasetEntry(
        summary="whether a person of the 1994 census earns more than $50,000 (UCI Adult, binary features)",
        task="classification",
        records=48_842,
        features=123,
        homepage=f"{_LIBSVM}.html#a9a",
        licence="CC BY 4.0 (UCI Adult)",
        read=_read_a9a,
        files=(
            SourceFile(
                "a9a",
                "7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca",
                f"{_LIBSVM}/a9a",
            ),
            SourceFile(
                "a9a.t",
                "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
                f"{_LIBSVM}/a9a.t",
            ),
        ),
        class_names=("at most $50,000", "more"),
    ),
    "mnist": DatasetEntry(
        summary="28 x 28 images of handwritten digits",
        task="classification",
        records=70_000,
        features=784,
        homepage="https://ossci-datasets.s3.amazonaws.com/mnist/",
        licence="CC BY-SA 3.0",
        read=_read_mnist,
        files=_mnist_files(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        class_names=_DIGITS,
        image_shape=(1, 28, 28),
    ),
    "fashion-mnist": DatasetEntry(
        summary="28 x 28 images of clothes",
        task="classification",
        records=70_000,
        features=784,
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        licence="MIT",
        read=_read_mnist,
        files=_mnist_files(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        class_names=(
            "T-shirt",
            "trouser",
            "pullover",
            "dress",
            "coat",
            "sandal",
            "shirt",
            "sneaker",
            "bag",
            "ankle boot",
        ),
        image_shape=(1, 28, 28),
    ),
    "cifar-10": DatasetEntry(
        summary="32 x 32 colour images of animals and vehicles",
        task="classification",
        records=60_000,
        features=3072,
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; cite Krizhevsky 2009",
        read=_read_cifar,
        files=(
            SourceFile(
                "cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            ),
        ),
        class_names=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
        image_shape=(3, 32, 32),
    ),
    "insurance": DatasetEntry(
        summary="medical charges from age, sex, body mass, children, smoking and region",
        task="regression",
        records=1338,
        features=6,
        homepage="https://www.kaggle.com/datasets/mirichoi0218/insurance",
        licence="ODbL",
        read=lambda paths: read_table(paths["insurance.csv"], INSURANCE),
        files=(SourceFile("insurance.csv", "505c1cbc2e63d0363bac59501563df2530aadf4cdb9cfee226f4ef32f5468281"),),
        peek=f"age and bmi {_STANDARDISED}",
    ),
    "obesity": DatasetEntry(
        summary="seven levels of obesity from eating habits and physical condition",
        task="classification",
        records=2111,
        features=16,
        homepage="https://archive.ics.uci.edu/dataset/544",
        licence="CC BY 4.0",
        read=lambda paths: read_table(paths["ObesityDataSet_raw_and_data_sinthetic.csv"], OBESITY),
        files=(
            SourceFile(
                "ObesityDataSet_raw_and_data_sinthetic.csv",
                "b2fbeeba9ad5da5c2a53f8c7fff2cfaa23c76d9d96912085f1b82ca9738756df",
                "https://archive.ics.uci.edu/static/public/544/estimation+of+obesity+levels+based+on+eating"
                "+habits+and+physical+condition.zip",
            ),
        ),
        class_names=OBESITY.classes,
        peek=f"the continuous features {_STANDARDISED}",
    ),
}
