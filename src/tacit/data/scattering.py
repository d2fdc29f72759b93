"""The scattering transform of images (Bruna & Mallat 2013): features that are fixed before any image is seen.

An image is convolved with wavelets of several scales and angles, the modulus is taken, and the result is averaged
over small windows; the second layer does the same with the moduli of the first. A linear model on these features
beats a private network trained from nothing (Tramer & Boneh 2021), because only the linear model needs noise.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import RequestError

IMAGES_AT_A_TIME = 16
"""Larger parts do not fit into the processor's cache."""


class Scattering(nn.Module):
    """Two layers of Morlet wavelets: (images, channels, height, width) to (images, channels, paths, y, x).

    With J scales and L angles there are 1 + J L + L^2 J (J - 1) / 2 paths, at every 2^J-th position. Each image's
    features depend on that image alone.

    >>> Scattering(height=28, width=28)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1, 81, 7, 7])
    """

    def __init__(self, *, height: int, width: int, scales: int = 2, angles: int = 8) -> None:
        """
        Args:
            height, width: the size of an image, at least 2^scales.
            scales: the number J of wavelet scales; features are averages over windows of about 2^J pixels.
            angles: the number L of directions.
        """
        super().__init__()
        step = 2**scales
        if min(height, width) < 2 * step:
            raise RequestError(
                f"scattering over {scales} scales needs images of at least {2 * step} x {2 * step} pixels, not "
                f"{height} x {width}"
            )
        self.height, self.width, self.scales, self.angles = height, width, scales, angles
        # A margin of reflected pixels, and sizes that can be halved `scales` times.
        self.rows, self.columns = (step * (math.ceil(size / step) + 2) for size in (height, width))
        for scale in range(scales):
            turns = [
                morlet(self.rows, self.columns, scale, k * math.pi / angles, 4 / angles) for k in range(angles)
            ]
            for level in range(scale + 1):
                # If only every 2^level-th pixel is kept, these frequencies are one.
                folded = _aliases(torch.stack(turns), 2**level).sum(-3)
                self.register_buffer(f"wavelets{scale}{level}", folded, persistent=False)
        for level in range(scales + 1):
            for name, size, whole in (("down", height, self.rows), ("across", width, self.columns)):
                means = _window_means(size, whole, step, level)
                self.register_buffer(f"{name}{level}", means, persistent=False)

    @property
    def paths(self) -> int:
        """The number of features of one position."""
        return 1 + self.scales * self.angles + self.angles**2 * self.scales * (self.scales - 1) // 2

    def forward(self, images: Tensor) -> Tensor:
        """The features of every image."""
        parts = [self._paths(part) for part in images.flatten(0, 1).split(IMAGES_AT_A_TIME)]
        together: Tensor = torch.cat(parts).unflatten(0, images.shape[:2])
        return together

    def _paths(self, images: Tensor) -> Tensor:
        """(images, height, width) to (images, paths, rows, columns)."""
        above, left = (2**self.scales,) * 2
        below, right = self.rows - self.height - above, self.columns - self.width - left
        padded = F.pad(images[:, None], (left, right, above, below), mode="reflect")
        paths = [self._means(padded, 0)]
        spectrum = torch.fft.fft2(padded)
        later = []
        for scale in range(self.scales):
            moduli = self._moduli(spectrum, scale, 0)
            paths.append(self._means(moduli, scale))
            if scale + 1 < self.scales:
                inner = torch.fft.fft2(moduli)
                later += [
                    self._means(self._moduli(inner[:, :, None], finer, scale).flatten(1, 2), finer)
                    for finer in range(scale + 1, self.scales)
                ]
        return torch.cat([*paths, *later], dim=1)

    def _moduli(self, spectrum: Tensor, scale: int, level: int) -> Tensor:
        """Moduli of one scale's coefficients at every 2^scale-th pixel; the spectrum is of every 2^level-th.

        A coarser scale holds only lower frequencies, so fewer pixels describe it.
        """
        factor = 2 ** (scale - level)
        products = _aliases(spectrum, factor), _aliases(self.get_buffer(f"wavelets{scale}{level}"), factor)
        total = products[0][..., 0, :, :] * products[1][..., 0, :, :]
        for alias in range(1, factor**2):
            total = total + products[0][..., alias, :, :] * products[1][..., alias, :, :]
        moduli: Tensor = torch.fft.ifft2(total / factor**2).abs()
        return moduli

    def _means(self, moduli: Tensor, level: int) -> Tensor:
        """Averages over Gaussian windows at every 2^scales-th pixel of the image itself, without the margin."""
        down, across = self.get_buffer(f"down{level}"), self.get_buffer(f"across{level}")
        return down @ moduli @ across.T


def _aliases(spectrum: Tensor, factor: int) -> Tensor:
    """The parts of a spectrum that become one if only every factor-th pixel is kept: (..., parts, y, x)."""
    rows, columns = (size // factor for size in spectrum.shape[-2:])
    parts = spectrum.unflatten(-1, (factor, columns)).unflatten(-3, (factor, rows))
    together: Tensor = parts.transpose(-3, -2).flatten(-4, -3)
    return together


def morlet(rows: int, columns: int, scale: int, angle: float, slant: float) -> Tensor:
    """The spectrum of a Morlet wavelet, a plane wave under a Gaussian window, with mean zero: (rows, columns).

    Its frequency is 3 pi / 4 / 2^scale, and its window has a standard deviation of 0.8 * 2^scale along the wave.
    """
    sigma, frequency = 0.8 * 2**scale, 3 * math.pi / 4 / 2**scale
    down, across = _centred(rows)[:, None], _centred(columns)[None, :]
    along = across * math.cos(angle) + down * math.sin(angle)
    aside = down * math.cos(angle) - across * math.sin(angle)
    window = torch.exp(-(along**2 + (slant * aside) ** 2) / (2 * sigma**2))
    wave = window * torch.exp(1j * frequency * along)
    # The window times a constant is taken off, so that a flat image has coefficients of zero.
    wavelet = wave - window * (wave.sum() / window.sum())
    norm = 2 * math.pi * sigma**2 / slant
    # The spectrum of a wave that is symmetric about the origin is real.
    spectrum: Tensor = torch.fft.fft2(wavelet / norm).real.float()
    return spectrum


def _centred(size: int) -> Tensor:
    """Distances from the origin on a circle of this many pixels."""
    places = torch.arange(size, dtype=torch.float64)
    return torch.where(places < size / 2, places, places - size)


def _window_means(size: int, whole: int, step: int, level: int) -> Tensor:
    """The matrix that averages a padded row over Gaussian windows: (size / step, whole / 2^level)."""
    kept = 2**level
    centres = step + torch.arange(math.ceil(size / step), dtype=torch.float64) * step
    places = torch.arange(0, whole, kept, dtype=torch.float64)
    distances = (places[None] - centres[:, None] + whole / 2) % whole - whole / 2
    weights = torch.exp(-(distances**2) / (2 * (0.8 * step / 2) ** 2))
    return (weights / weights.sum(1, keepdim=True)).float()
