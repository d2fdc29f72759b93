"""Makes features of CIFAR-10 that need no training, as a stand-in for those of DP-NormFedAvg's Table 2(b).

    python benchmarks/cifar_features.py DIR     # reads DIR/cifar-10, writes DIR/cifar-10-features/features.npz

The paper's are 512 numbers from the last layer of a network trained on ImageNet. These are the scattering
transform of each image (Bruna & Mallat 2013), mapped to 512 numbers by a fixed random matrix and scaled to norms
of about 20. Then: tacit reproduce norm-table2b --data-dir DIR
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import torch

from tacit.data.features import build_features
from tacit.data.images import read_cifar

NUMBERS, LENGTH = 512, 20.0


def main(directory: Path) -> None:
    """Computes the features of all images, and writes them."""
    images, labels, test_images, test_labels = read_cifar(directory / "cifar-10" / "cifar-10-binary.tar.gz")
    scattering = build_features("scattering", (3, 32, 32))
    width = scattering(torch.zeros(1, 3, 32, 32)).shape[1]
    # From a fixed seed: it depends on no image.
    mixed = torch.randn(width, NUMBERS, generator=torch.Generator().manual_seed(0)) * LENGTH / math.sqrt(NUMBERS)

    def features(pixels: np.ndarray) -> np.ndarray:
        parts = np.array_split(pixels, math.ceil(len(pixels) / 1000))
        found = [scattering(torch.from_numpy(part / np.float32(255))) @ mixed for part in parts]
        return np.asarray(torch.cat(found).numpy())

    target = directory / "cifar-10-features" / "features.npz"
    target.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        target,
        train_features=features(images),
        train_labels=labels.astype(np.int64),
        test_features=features(test_images),
        test_labels=test_labels.astype(np.int64),
    )
    print(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
