"""Features that are fixed before any record is seen: public preparation that costs no privacy.

Noise grows with the number of trained parameters, so a linear model on good fixed features often beats a network
that is trained privately from nothing (Tramer & Boneh 2021). Each record's features depend on that record alone.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tacit.data.scattering import IMAGES_AT_A_TIME, Scattering
from tacit.data.sources import cache_dir
from tacit.errors import RequestError, count, positive, unknown_name

LEAST_VARIANCE = 1e-9
"""Added to a group's variance: far below that of second-layer paths, and far above what rounding makes."""

SCATTERING_NORM = 10.0
"""The norm of scattering features: far above 1, the share of the intercept in a record's gradient."""

WORTH_KEEPING = 5000
"""Features of fewer records are computed again faster than a user finds out what fills the cache."""

JOIN = "+"
"""Between two maps that are applied one after the other."""


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """A fixed function of single records, made of PyTorch's operations so that it can be exported with a model.

    >>> scattering = build_features("scattering", (1, 28, 28))
    >>> scattering(torch.rand(3, 784)).shape, scattering.norm
    (torch.Size([3, 3969]), 10.0)
    """

    spec: str
    """what `build_features` reads"""
    shape: tuple[int, ...]
    """the shape of one record as it was given"""
    module: nn.Module = field(repr=False)
    """maps (records, *shape), or flat records, to features"""
    norm: float | None = None
    """the norm of any record's features is at most this"""
    public: tuple[str, ...] = ()
    """what a guarantee has to take as public"""
    device: str = "cpu"
    """where features are computed; they stay where the records are"""

    def __call__(self, records: Tensor) -> Tensor:
        """The features of every record."""
        rows = records[:1] if records.stride(0) == 0 else records  # one record repeated stands in for all
        module = self.module.to(self.device)
        with torch.no_grad():
            parts = rows.split(64 * IMAGES_AT_A_TIME)
            found = torch.cat([module(part.to(self.device)).to(part.device) for part in parts])
        return found.expand(len(records), *found.shape[1:]) if len(found) < len(records) else found

    @property
    def factors(self) -> Tensor | None:
        """What every feature is multiplied by, if the map does nothing else: (features,) double."""
        if not isinstance(self.module, _Sized):
            return None
        return self.module.factors.double().expand(math.prod(self.shape))

    def then(self, other: FeatureMap) -> FeatureMap:
        """This map, followed by another one."""
        both = nn.Sequential(self.module, other.module)
        public = tuple(dict.fromkeys((*self.public, *other.public)))
        return FeatureMap(f"{self.spec}{JOIN}{other.spec}", self.shape, both, other.norm, public, self.device)


def build_features(spec: str, shape: tuple[int, ...]) -> FeatureMap:
    """The map that a setting names, for records of this shape.

    Args:
        spec: "scattering", or "scattering:SCALES,ANGLES" ("scattering:2,8"); "downsample:FACTOR";
            "random:NUMBER" or "random:NUMBER,WIDTH", the width of the kernel that random features approximate;
            "sizes:SIZE", how large features usually are, or one size for each, by which they are divided.
            Several are joined by "+", as in "downsample:2+random:500".
        shape: of one record: (channels, height, width), (height, width), or a number of features. Flat records of
            n * n or 3 * n * n numbers count as square images with one or three channels.
    """
    made: FeatureMap | None = None
    for one in spec.split(JOIN):
        name, _, rest = one.strip().partition(":")
        if name not in FEATURES:
            raise unknown_name("data.features", name, FEATURES)
        numbers = [_number(one, text) for text in rest.split(",")] if rest else []
        module, norm = FEATURES[name](one, made_shape(made, shape), *numbers)
        step = FeatureMap(one.strip(), shape, module, norm)
        made = step if made is None else made.then(step)
    assert made is not None, "a text has at least one part"
    return made


def made_shape(made: FeatureMap | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a record after the maps so far."""
    return shape if made is None else tuple(made(torch.zeros(1, *shape)).shape[1:])


def _number(spec: str, text: str) -> float:
    try:
        return int(text) if text.strip().isdigit() else float(text)
    except ValueError:
        raise RequestError(f"data.features = {spec!r}: {text!r} is not a number") from None


def image_shape(spec: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of an image; flat records count as square images of one or three channels.

    >>> image_shape("scattering", (784,)), image_shape("scattering", (3072,)), image_shape("scattering", (9, 7))
    ((1, 28, 28), (3, 32, 32), (1, 9, 7))
    """
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    for channels in (1, 3):
        side = math.isqrt(math.prod(shape) // channels)
        if channels * side**2 == math.prod(shape):
            return channels, side, side
    raise RequestError(
        f"data.features = {spec!r} is for images; {math.prod(shape)} numbers are neither n x n nor 3 x n x n: "
        "give the records as (records, channels, height, width), or use random:NUMBER"
    )


class _Image(nn.Module):
    """Records, flat or not, as images."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, records: Tensor) -> Tensor:
        return records.reshape(len(records), *self.shape)


class _NormalisedScattering(nn.Module):
    """Scattering features, normalised in groups of paths, evened out and scaled to norm 10.

    Tramer & Boneh (2021) normalise over groups as well: it uses one record at a time, where a normalisation by
    channel would need a private estimate of each channel's mean and variance. In images, neighbouring positions,
    angles and scales are alike, so most of the features' norm is in a few smooth patterns, and gradient descent
    takes long to see the others. A cosine transform separates the patterns, and those of frequency f are weighted
    by (1 + f)^(1/2): a rule for all images, not an estimate.
    """

    def __init__(self, scattering: Scattering, groups: int) -> None:
        super().__init__()
        self.scattering, self.groups = scattering, groups
        down, across = (_cosines(math.ceil(size / 2**scattering.scales)) for size in _sizes(scattering))
        rates = torch.arange(len(down))[:, None] ** 2 + torch.arange(len(across))[None] ** 2
        mixes = {"down": down, "across": across, "paths": _path_patterns(scattering)}
        for name, mix in {**mixes, "weights": (1 + rates.double().sqrt()).sqrt()}.items():
            self.register_buffer(name, mix.float(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        paths = self.scattering(images.float())
        flat = nn.functional.group_norm(paths.flatten(1, 2), self.groups, eps=LEAST_VARIANCE)
        places = self.get_buffer("down") @ flat @ self.get_buffer("across").T * self.get_buffer("weights")
        patterns = torch.einsum("pq,ncqyx->ncpyx", self.get_buffer("paths"), places.reshape(paths.shape)).flatten(
            1
        )
        norms = torch.linalg.vector_norm(patterns, dim=1, keepdim=True)
        scaled: Tensor = (patterns * (SCATTERING_NORM / norms.clamp(min=1e-6))).to(images.dtype)
        return scaled


def _sizes(scattering: Scattering) -> tuple[int, int]:
    return scattering.height, scattering.width


def _cosines(size: int) -> Tensor:
    """The orthonormal cosine transform: (frequencies, places)."""
    places, rates = torch.arange(size).double(), torch.arange(size).double()[:, None]
    waves = torch.cos(math.pi * rates * (places + 0.5) / size) * math.sqrt(2 / size)
    waves[0] /= math.sqrt(2)
    return waves


def _path_patterns(scattering: Scattering) -> Tensor:
    """Cosine transforms over scales and angles, each frequency f weighted by (1 + f)^(1/2): (paths, paths)."""
    over_scales, over_angles = (
        _cosines(size) * torch.arange(1, size + 1).double().sqrt()[:, None]
        for size in (scattering.scales, scattering.angles)
    )
    pairs = scattering.scales * (scattering.scales - 1) // 2
    second = [torch.kron(over_angles, over_angles)] * pairs
    all_paths: Tensor = torch.block_diag(torch.ones(1, 1).double(), torch.kron(over_scales, over_angles), *second)
    return all_paths


class _RandomFourier(nn.Module):
    """sqrt(2 / m) cos(W x + b): their products approximate a Gaussian kernel (Rahimi & Recht 2007)."""

    weight: Tensor
    bias: Tensor

    def __init__(self, features: int, number: int, width: float) -> None:
        super().__init__()
        # Drawn from a fixed seed: everybody has the same features.
        generator = np.random.default_rng(0)
        weight = generator.standard_normal((number, features)) / width
        bias = generator.uniform(0, 2 * math.pi, number)
        self.register_buffer("weight", torch.from_numpy(weight).float(), persistent=False)
        self.register_buffer("bias", torch.from_numpy(bias).float(), persistent=False)

    def forward(self, records: Tensor) -> Tensor:
        scores = nn.functional.linear(records.flatten(1).to(self.weight.dtype), self.weight, self.bias)
        return (torch.cos(scores) * math.sqrt(2 / len(self.bias))).to(records.dtype)


class _Sized(nn.Module):
    """Features that are divided by twice their usual sizes, so that they are of about 1/2 each."""

    factors: Tensor

    def __init__(self, sizes: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("factors", 0.5 / torch.tensor(sizes, dtype=torch.float64), persistent=False)

    def forward(self, records: Tensor) -> Tensor:
        return (records.flatten(1) * self.factors.to(records.dtype)).reshape(records.shape)


def _scattering(
    spec: str, shape: tuple[int, ...], scales: int = 2, angles: int = 8
) -> tuple[nn.Module, float | None]:
    channels, height, width = image_shape(spec, shape)
    made = Scattering(
        height=height,
        width=width,
        scales=count("data.features: scales", scales),
        angles=count("data.features: angles", angles),
    )
    paths = channels * made.paths
    # Three paths to a group, as in the paper, which has 27 groups of 81 paths; or fewer, if that divides evenly.
    groups = next(paths // size for size in (3, 2, 1) if paths % size == 0)
    return nn.Sequential(_Image((channels, height, width)), _NormalisedScattering(made, groups)), SCATTERING_NORM


def _downsample(spec: str, shape: tuple[int, ...], factor: int = 2) -> tuple[nn.Module, float | None]:
    image = image_shape(spec, shape)
    factor = count("data.features: downsample", factor)
    if factor > min(image[1:]):
        raise RequestError(f"data.features = {spec!r}: images of {image[1]} x {image[2]} are smaller than that")
    return nn.Sequential(_Image(image), nn.AvgPool2d(factor), nn.Flatten()), None


def _random(
    spec: str, shape: tuple[int, ...], number: int = 1000, width: float | None = None
) -> tuple[nn.Module, float | None]:
    features = math.prod(shape)
    # Features of about 1/2 each differ by a distance of this order.
    usual = math.sqrt(features) / 2 if width is None else positive("data.features: width", width)
    return _RandomFourier(features, count("data.features: random", number), usual), math.sqrt(2)


def _sized(spec: str, shape: tuple[int, ...], *sizes: float) -> tuple[nn.Module, float | None]:
    if len(sizes) not in (1, math.prod(shape)):
        raise RequestError(
            f"data.features = {spec[:40]!r} names {len(sizes)} sizes: give one, or one for each of the "
            f"{math.prod(shape)} features"
        )
    return _Sized(tuple(positive("data.features: size", size) for size in sizes)), None


FEATURES: dict[str, Callable[..., tuple[nn.Module, float | None]]] = {
    "scattering": _scattering,
    "downsample": _downsample,
    "random": _random,
    "sizes": _sized,
}
"""Makers of maps by name: a module, and the largest norm of what it returns if there is one."""


def cached_features(features: FeatureMap, records: Tensor) -> Tensor:
    """The features of published records, computed once and kept in the user's cache.

    Only for named data sets: a cache must not hold a copy of anyone's private records.
    """
    if len(records) < WORTH_KEEPING:
        return features(records)
    said = hashlib.sha256(f"{features.spec} {features.shape} {tuple(records.shape)} {_code()}".encode())
    said.update(records.contiguous().numpy().reshape(-1).data)
    path = cache_dir().parent / "features" / f"{said.hexdigest()}.npy"
    if not path.is_file():
        found = features(records).numpy()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
            try:
                np.save(part, found)
                part.close()
                os.replace(part.name, path)
            except BaseException:
                os.unlink(part.name)
                raise
        return torch.from_numpy(found)
    return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))


def _code() -> str:
    """A digest of the code that computes features: other code, other files."""
    files = (Path(__file__), Path(__file__).with_name("scattering.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
