"""Features that are fixed before any record is seen: scattering, downsampling, random features."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tacit
from tacit.data import features as module
from tacit.data.features import build_features, cached_features
from tacit.data.scattering import Scattering, morlet
from tacit.errors import RequestError


def test_first_layer_is_the_modulus_of_a_convolution_with_wavelets_averaged_over_windows() -> None:
    image = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    found = Scattering(height=16, width=16)(image)[0, 0]
    padded = F.pad(image, (4, 4, 4, 4), mode="reflect")[0, 0].double()
    spectrum = morlet(24, 24, 0, 3 * math.pi / 8, 0.5).double()
    wavelet = torch.fft.ifft2(spectrum)
    # A circular convolution, written as a sum over shifts.
    shifts = [(i, j) for i in range(24) for j in range(24)]
    coefficients = sum(wavelet[i, j] * padded.roll((i, j), (0, 1)) for i, j in shifts)
    assert isinstance(coefficients, torch.Tensor)
    distances = torch.arange(24.0).double()[None] - torch.arange(4.0, 20.0, 4.0).double()[:, None]
    window = torch.exp(-(((distances + 12) % 24 - 12) ** 2) / (2 * 1.6**2))
    window /= window.sum(1, keepdim=True)
    torch.testing.assert_close(
        found[1 + 3].double(), window @ coefficients.abs() @ window.T, rtol=1e-4, atol=1e-6
    )


def test_only_the_first_path_sees_a_constant_image() -> None:
    found = Scattering(height=16, width=16)(torch.full((1, 1, 16, 16), 0.7))[0, 0]
    torch.testing.assert_close(found[0], torch.full((4, 4), 0.7))
    assert float(found[1:].abs().max()) < 1e-6


def test_mirroring_an_image_mirrors_features_and_swaps_angles() -> None:
    image = torch.rand(1, 1, 17, 17, generator=torch.Generator().manual_seed(1))
    both = Scattering(height=17, width=17, scales=2, angles=4)(torch.cat([image, image.transpose(2, 3)]))
    first, turned = both[0, 0], both[1, 0].transpose(1, 2)
    # Swapping the axes turns an angle t into pi / 2 - t, which is one of the four angles again.
    for scale in range(2):
        for angle in range(4):
            path, other = 1 + 4 * scale + angle, 1 + 4 * scale + (2 - angle) % 4
            torch.testing.assert_close(first[path], turned[other], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "spec", ["scattering", "scattering:1,4", "downsample:2", "random:20", "downsample:2+random:7"]
)
def test_a_record_s_features_depend_on_it_alone_and_keep_the_stated_norm(spec: str) -> None:
    records = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    features = build_features(spec, (3, 8, 8))
    together = features(records)
    alone = torch.cat([features(record[None]) for record in records])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(together, features(records.flatten(1)))
    assert together.dim() == 2
    assert features.norm is None or float(together.norm(dim=1).max()) <= features.norm * (1 + 1e-5)


def test_colour_images_have_three_times_the_paths() -> None:
    assert build_features("scattering", (3072,))(torch.rand(1, 3, 32, 32)).shape == (1, 3 * 81 * 8 * 8)


@pytest.mark.parametrize(
    ("spec", "shape", "said"),
    [
        ("scatter", (64,), "did you mean 'scattering'"),
        ("scattering", (65,), "neither n x n nor"),
        ("scattering:3", (64,), "at least 16 x 16"),
        ("downsample:9", (64,), "are smaller"),
        ("random:many", (64,), "'many' is not a number"),
        ("random:0", (64,), "at least 1"),
    ],
)
def test_bad_maps_are_refused_with_the_fix(spec: str, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        build_features(spec, shape)


def test_a_federation_keeps_the_map_and_its_norm() -> None:
    plain = tacit.load("digits", clients=3)
    mapped = tacit.load("digits", clients=3, features="random:30")
    assert mapped.feature_shape == (30,)
    assert mapped.feature_norm == math.sqrt(2)
    assert mapped.peeks == ()
    assert mapped.features_by is not None
    torch.testing.assert_close(mapped.features, mapped.features_by(plain.features))
    assert torch.equal(mapped.targets, plain.targets)
    by_hand = plain.mapped(build_features("random:30", (64,)))
    torch.testing.assert_close(by_hand.features, mapped.features)
    with pytest.raises(RequestError, match="normalise = false"):
        tacit.load("breast-cancer", features="random:30")


def test_features_of_published_records_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cache_dir", lambda: tmp_path / "data")
    monkeypatch.setattr(module, "WORTH_KEEPING", 4)
    records = torch.rand(4, 64)
    features = build_features("random:5", (64,))
    first = cached_features(features, records)
    (kept,) = (tmp_path / "features").iterdir()
    monkeypatch.setattr(module.FeatureMap, "__call__", lambda *_: pytest.fail("computed again"))
    assert torch.equal(cached_features(features, records), first)
    assert kept.suffix == ".npy"
