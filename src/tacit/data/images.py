"""Readers of image files: idx (MNIST and similar) and the binary version of CIFAR-10."""

from __future__ import annotations

import gzip
import math
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tacit.errors import DataError

Bytes = npt.NDArray[np.uint8]

_UNSIGNED_BYTES = 0x08
_CIFAR_FOLDER = "cifar-10-batches-bin"
_CIFAR_RECORD = 1 + 3 * 32 * 32
_CIFAR_BATCH = 10_000


def read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """The unsigned bytes of an idx file, gzipped or not; they must have the given shape.

    The format: two zero bytes, the type, the number of dimensions, each dimension as a big-endian 32-bit number,
    then the values.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); fetch it again") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTES:
        raise DataError(f"{path} is not an idx file of bytes: it starts with {content[:4]!r}")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(f"{path} is damaged (it ends within its header); fetch it again")
    found = struct.unpack(f">{content[3]}I", content[4:start])
    if found != shape:
        raise DataError(f"{path} holds an array of shape {found}, expected {shape}: is it from another data set?")
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path} is damaged ({len(content) - start} values instead of {math.prod(shape)}); fetch it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def read_cifar(path: Path) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Training images and labels, test images and labels of cifar-10-binary.tar.gz; images are (3, 32, 32).

    This is the binary version, because the Python version is a pickle, which can run any code.
    """
    train = [f"{_CIFAR_FOLDER}/data_batch_{part}.bin" for part in range(1, 6)]
    try:
        with tarfile.open(path, "r:gz") as archive:
            parts = [_cifar_batch(archive, name) for name in [*train, f"{_CIFAR_FOLDER}/test_batch.bin"]]
    except (OSError, EOFError, KeyError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{path} is damaged or not the binary version of CIFAR-10 ({error})") from error
    batch, test = np.concatenate(parts[:-1]), parts[-1]
    return batch[:, 1:].reshape(-1, 3, 32, 32), batch[:, 0], test[:, 1:].reshape(-1, 3, 32, 32), test[:, 0]


def _cifar_batch(archive: tarfile.TarFile, name: str) -> Bytes:
    member = archive.extractfile(name)
    content = b"" if member is None else member.read()
    expected = _CIFAR_BATCH * _CIFAR_RECORD
    if len(content) != expected:
        raise DataError(f"{name} has {len(content)} bytes instead of {expected}; fetch it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, _CIFAR_RECORD)
