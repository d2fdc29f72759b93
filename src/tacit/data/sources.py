"""Finds the files of a data set, and downloads those that may be downloaded.

The search order is: the `data_dir` argument, the directory in the environment variable TACIT_DATA, and the user's
cache. A missing file is downloaded into the cache if its publisher allows that without an account: only over
https, and it gets its name only after its SHA-256 has been checked. Files that the user provides are not compared
with a hash; the readers refuse damaged ones.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import platformdirs

from tacit.errors import DataError

ENVIRONMENT = "TACIT_DATA"
_TIMEOUT_SECONDS = 60
_MAX_DOWNLOAD_BYTES = 2**29
_FAILURES = (DataError, OSError, EOFError, HTTPException, zlib.error, zipfile.BadZipFile)


@dataclass(frozen=True)
class SourceFile:
    """One file of a data set, `DIR/<data set>/<name>`, and its source."""

    name: str
    sha256: str
    """hash of the content; for a .gz file, of the unpacked content, since its header differs between mirrors"""
    url: str | None = None
    """None if an account is needed to download it; that of a .zip if the file is a member of that archive"""


def cache_dir() -> Path:
    """The directory for downloads: the user's cache, which depends on the operating system."""
    return Path(platformdirs.user_cache_dir("tacit", appauthor=False)) / "data"


def find_files(
    dataset: str, files: Sequence[SourceFile], data_dir: str | os.PathLike[str] | None, homepage: str
) -> dict[str, Path]:
    """The path of each file, by name. Downloads missing files, or says exactly which files to put where."""
    roots = [Path(root) for root in (data_dir, os.environ.get(ENVIRONMENT)) if root] + [cache_dir()]
    if data_dir is not None and not Path(data_dir).is_dir():
        raise DataError(f"data_dir={str(data_dir)!r} is not a directory")
    found, problems = {}, []
    for file in files:
        for root in roots:
            if (root / dataset / file.name).is_file():
                found[file.name] = root / dataset / file.name
                break
        else:
            try:
                found[file.name] = _download(file, cache_dir() / dataset)
            except _FAILURES as error:
                problems.append(f"{file.name}: {error}")
                break  # The next download would fail too, perhaps after another timeout.
    if problems:
        raise DataError(_instructions(dataset, files, roots, homepage, problems))
    return found


def _instructions(
    dataset: str, files: Sequence[SourceFile], roots: Sequence[Path], homepage: str, problems: Sequence[str]
) -> str:
    names = ", ".join(file.name for file in files)
    places = ", ".join(str(root / dataset) for root in roots)
    them = "it" if len(files) == 1 else "them"
    return (
        f"the data set {dataset!r} was not found. Looked in {places}. "
        f"Download failed: {'; '.join(problems)}. "
        f"Get {names} from {homepage} and put {them} into DIR/{dataset}/, where DIR is the value of "
        f"data_dir or of the environment variable {ENVIRONMENT}."
    )


def _download(file: SourceFile, folder: Path) -> Path:
    if file.url is None:
        raise DataError("its publisher requires an account, so tacit cannot download it")
    content = _fetch(file.url)
    if file.url.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if file.name not in archive.namelist():
                raise DataError(f"{file.url} holds no {file.name}")
            content = archive.read(file.name)
    packed = file.name.endswith(".gz") and not file.name.endswith(".tar.gz")
    digest = hashlib.sha256(gzip.decompress(content) if packed else content).hexdigest()
    if digest != file.sha256:
        raise DataError(f"{file.url} has changed: its SHA-256 is {digest}, expected {file.sha256}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part", delete=False) as part:
        try:
            part.write(content)
            part.close()
            os.replace(part.name, folder / file.name)
        except BaseException:
            os.unlink(part.name)
            raise
    return folder / file.name


def _fetch(url: str) -> bytes:
    if not url.startswith("https://"):
        raise DataError(f"{url} is not an https address")
    request = urllib.request.Request(url, headers={"User-Agent": "tacit"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
        if not response.geturl().startswith("https://"):
            raise DataError(f"{url} redirects to {response.geturl()}, which is not an https address")
        content: bytes = response.read(_MAX_DOWNLOAD_BYTES + 1)
    if len(content) > _MAX_DOWNLOAD_BYTES:
        raise DataError(f"{url} is larger than {_MAX_DOWNLOAD_BYTES:,} bytes")
    return content
