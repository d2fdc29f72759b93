"""Clients' own files in CSV, Parquet, npz or LIBSVM format: one file per client, or a client column."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tacit.data import build
from tacit.data.encode import Grouping, Vector
from tacit.data.frames import check_columns, is_number, read_csv
from tacit.data.svmlight import read_svmlight
from tacit.errors import DataError, RequestError
from tacit.federation import Federation

_KINDS = {
    ".csv": "table",
    ".parquet": "table",
    ".npz": "arrays",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
}


def from_files(
    paths: Sequence[str | os.PathLike[str]],
    *,
    target: str | None = None,
    client: str | None = None,
    test: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Federation:
    """A federation from files of one kind: one file per client, or files with a client column.

    Args:
        paths: one file per client, named after the file; or files with a client column.
        target: the column (in an .npz file: the array) to predict.
        client: the column (or array, with a label for each record) that names the client of a record.
        test: a file of test records.
        options: as in `Federation.from_arrays`.
    """
    if isinstance(paths, str | os.PathLike) or not paths:
        raise RequestError("paths must be a list of at least one file")
    sources = [Path(path) for path in paths]
    held_out = None if test is None else Path(test)
    kind = _kind([*sources, *([] if held_out is None else [held_out])])
    if kind == "table":
        return _from_tables(sources, _required(target), client, held_out, options)
    if client is not None:
        return _from_arrays(sources, target or "y", client, held_out, options)
    every = [*sources, *([] if held_out is None else [held_out])]
    parts = _pairs(every, kind, target or "y")
    kept = None if held_out is None else parts.pop()
    return build.from_clients(parts, names=_names(sources), test=kept, **options)


def _pairs(sources: list[Path], kind: str, target: str) -> list[tuple[Vector, Vector]]:
    if kind == "svmlight":
        return read_svmlight([_existing(source) for source in sources])
    return [(arrays[0], arrays[1]) for arrays in (read_arrays(source, ["X", target]) for source in sources)]


def _from_arrays(
    sources: list[Path], target: str, client: str, test: Path | None, options: dict[str, Any]
) -> Federation:
    if _kind(sources) == "svmlight":
        raise RequestError(f"client={client!r}: LIBSVM files have no columns; give one file for each client")
    parts = [read_arrays(source, ["X", target, client]) for source in sources]
    try:
        features, targets, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    except ValueError as error:
        raise DataError(f"the arrays of the files do not fit together: {error}") from error
    kept = None if test is None else _pairs([test], "arrays", target)[0]
    return build.from_arrays(features, targets, labels, test=kept, **options)


def _from_tables(
    sources: list[Path], target: str, client: str | None, test: Path | None, options: dict[str, Any]
) -> Federation:
    frames = [_table(source, target) for source in sources]
    kept = None if test is None else _table(test, target)
    first = frames[0]
    for source, frame in zip(sources, frames, strict=True):
        check_columns(frame, [*first.columns, *([] if client is None else [client])], str(source))
        check_columns(first, list(frame.columns), str(sources[0]))
        for name in first.columns:
            # A single stray word would turn a whole column of numbers into categories.
            if name != client and is_number(frame[name]) != is_number(first[name]):
                raise DataError(f"column {name!r} holds numbers in only one of {sources[0]} and {source}")
    table = pd.concat([frame[first.columns] for frame in frames], ignore_index=True)
    if client is not None:
        return build.from_frame(table, target=target, client=client, test=kept, **options)
    sizes = np.array([len(frame) for frame in frames], dtype=np.int64)
    grouping = Grouping(np.arange(len(table)), sizes, _names(sources))
    return build.from_table(table, target=target, grouping=grouping, test=kept, **options)


def _kind(sources: Sequence[Path]) -> str:
    kinds = {_KINDS.get(source.suffix.lower()) for source in sources}
    kind = kinds.pop()
    if kind is None or kinds:
        names = ", ".join(str(source) for source in sources)
        raise RequestError(
            f"all files must be of one kind, with a name that ends in {', '.join(_KINDS)}: {names}"
        )
    return kind


def _names(sources: Sequence[Path]) -> tuple[str, ...]:
    stems = tuple(source.stem for source in sources)
    names = stems if len(set(stems)) == len(stems) else tuple(str(source) for source in sources)
    if len(set(names)) < len(names):
        raise RequestError("a file is listed twice: its records would count twice")
    return names


def _required(target: str | None) -> str:
    if target is None:
        raise RequestError("target is missing: name the column to predict")
    return target


def _existing(source: Path) -> Path:
    if not source.is_file():
        raise DataError(f"{source} does not exist")
    return source


def _table(source: Path, target: str) -> pd.DataFrame:
    if _existing(source).suffix.lower() == ".csv":
        frame = read_csv(source)
    else:
        try:
            frame = pd.read_parquet(source)
        except ImportError as error:
            raise RequestError(f"{source}: reading Parquet needs pyarrow; pip install pyarrow") from error
        except Exception as error:
            # Damaged metadata raise many kinds of errors.
            raise DataError(f"{source} cannot be read as Parquet: {error!r}") from error
    check_columns(frame, [target], str(source))
    if frame.empty:
        raise DataError(f"{source} holds no records; leave the file out")
    return frame


def read_arrays(source: Path, names: Sequence[str]) -> list[Vector]:
    """The named arrays of an .npz file, read without pickle."""
    try:
        # Opened here, because numpy does not close a file that turns out not to be an archive.
        with _existing(source).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive.files]
            if missing:
                raise DataError(f"{source} has no array {missing[0]!r}; it has {', '.join(archive.files)}")
            return [archive[name] for name in names]
    except (OSError, ValueError, EOFError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{source} cannot be read as npz: {error}") from error
