"""Clients' own files in CSV, Parquet, npz or LIBSVM format: one file per client, or a client column."""

from __future__ import annotations

import dataclasses
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.encode import Task, Vector
from tacit.data.frames import namesakes, read_csv, without_namesakes
from tacit.data.schema import Schema
from tacit.data.schema.records import Learn, TableSource, federate, schema_for
from tacit.data.svmlight import read_svmlight
from tacit.errors import DataError, RequestError, count, similar_names
from tacit.federation import Federation
from tacit.privacy.promises.terms import LARGEST_INDEX

if TYPE_CHECKING:
    import pandas as pd

KINDS = {
    ".csv": "table",
    ".parquet": "table",
    ".npz": "arrays",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
}
"""Endings of files that hold records, and what is in them."""
_SPREADSHEETS = (".xls", ".xlsx", ".xlsm", ".ods")
_PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst")


def from_files(
    paths: Sequence[str | os.PathLike[str]],
    *,
    target: str | None = None,
    client: str | None = None,
    test: str | os.PathLike[str] | None = None,
    schema: Schema | Path | str | None = None,
    public_schema: bool = False,
    task: Task | None = None,
    classes: int | Sequence[object] | None = None,
    columns: int | None = None,
    clients: int | None = None,
    learn: Learn | None = None,
    **options: Any,
) -> Federation:
    """A federation from files of one kind: one file per client, or files with a client column.

    Args:
        paths: one file per client, named after the file; or files with a client column.
        target: the column (in an .npz file: the array) to predict.
        client: the column (or array, with a label for each record) that names the client of a record.
        test: a file of test records.
        schema: the public description of a table, or the path of one. A table needs it (`tacit schema draft`).
        public_schema: accept what was taken from the records of a table as public. Without a schema, this is
            everything that a draft would look at; the guarantee lists it by name.
        task: for arrays, as in `Federation.from_arrays`; of a table, the schema says it.
        classes: for arrays, as in `Federation.from_arrays`; of a table, the schema says it.
        columns: how many features the records of LIBSVM files have. By default the largest index, which is
            in somebody's record: the guarantee then lists it as taken as public.
        clients: if nothing says who holds the rows of a table, deal them to this many clients, for a trial.
        learn: how ranges that a schema leaves open are learned; by default it must leave none open.
        options: as in `Federation.from_arrays`.
    """
    if isinstance(paths, str | os.PathLike) or not paths:
        raise RequestError("paths must be a list of at least one file")
    if not isinstance(test, str | os.PathLike | None):
        raise RequestError(
            f"test must be a file of test records, not {test!r}; a schema's [test] holds a share back"
        )
    sources = [Path(path) for path in paths]
    check_distinct(sources)
    held_out = None if test is None else Path(test)
    kind = _kind([*sources, *([] if held_out is None else [held_out])])
    if columns is not None and kind != "svmlight":
        raise RequestError(f"columns = {columns!r} is for LIBSVM files: {sources[0].name} says how many it has")
    if kind == "table":
        if task is not None or classes is not None:
            raise RequestError("a table's task and classes are set by its schema, in [target]")
        return _from_tables(
            sources,
            schema,
            held_out,
            target=target,
            client=client,
            public_schema=public_schema,
            clients=clients,
            learn=learn,
            **options,
        )
    if schema is not None:
        raise RequestError(f"a schema describes tables (.csv, .parquet), not {sources[0].name}")
    options |= {"task": task, "classes": classes}
    if client is not None:
        return _from_arrays(sources, target or "y", client, held_out, options)
    every = [*sources, *([] if held_out is None else [held_out])]
    parts = _pairs(every, kind, target or "y", columns)
    kept = None if held_out is None else parts.pop()
    made = Federation.from_clients(parts, names=_names(sources), test=kept, **options)
    looked = kind == "svmlight" and columns is None
    return dataclasses.replace(made, peeks=(*made.peeks, LARGEST_INDEX)) if looked else made


def _pairs(
    sources: list[Path], kind: str, target: str, columns: int | None = None
) -> list[tuple[Vector, Vector]]:
    if kind == "svmlight":
        features = None if columns is None else count("columns", columns)
        return read_svmlight([existing(source) for source in sources], features)
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
    return Federation.from_arrays(features, targets, labels, test=kept, **options)


def _from_tables(
    sources: list[Path],
    schema: Schema | Path | str | None,
    test: Path | None,
    *,
    target: str | None,
    client: str | None,
    public_schema: bool,
    clients: int | None,
    learn: Learn | None,
    name: str = "custom",
) -> Federation:
    """Tables of one client each, or with a client column, as their schema describes them."""
    frames = [read_table(source) for source in sources]
    alone = schema is not None or len(frames) == 1
    first = TableSource(frames[0] if alone else _together(frames, sources), str(sources[0]))
    remedy = (
        f"Write one with `tacit schema draft {first.where}`, and give it as --schema (data.schema); or accept "
        "all of this by name with --public-schema (public_schema=True)"
    )
    said = schema_for(first, schema, target=target, client=client, public_schema=public_schema, remedy=remedy)
    own = said.client is None and len(sources) > 1
    names = _names(sources) if own else (None,) * len(sources)
    tables = [TableSource(frame, str(path), own) for frame, path, own in zip(frames, sources, names, strict=True)]
    kept = None if test is None else TableSource(read_table(test), str(test))
    return federate(tables, said, test=kept, clients=clients, name=name, learn=learn)


def _together(frames: list[pd.DataFrame], sources: list[Path]) -> pd.DataFrame:
    """All tables as one, for a draft; they must have the same columns."""
    import pandas as pd

    if len(frames) == 1:
        return frames[0]
    every = sorted({name for frame in frames for name in frame.columns if name not in namesakes(frames[0])})
    whole = [without_namesakes(frame, every, str(source)) for source, frame in zip(sources, frames, strict=True)]
    return pd.concat(whole, ignore_index=True)


def _kind(sources: Sequence[Path]) -> str:
    kinds = {KINDS.get(source.suffix.lower()) for source in sources}
    kind = kinds.pop()
    if kind is None or kinds:
        ends = ", ".join(KINDS)
        raise RequestError(f"{_unreadable(sources)}: all files must be of one kind, whose name ends in {ends}")
    return kind


def _unreadable(sources: Sequence[Path]) -> str:
    """Names the files that are of no known kind, and says what to do with them."""
    for source in sources:
        if source.is_dir():
            return f"{source} is a directory; name the files in it, separated by commas"
        if source.suffix.lower() in _PACKED:
            return f"{source} is compressed; unpack it first"
        if source.suffix.lower() in _SPREADSHEETS:
            return f"{source} is a spreadsheet; save it as CSV"
    return ", ".join(str(source) for source in sources)


def _names(sources: Sequence[Path]) -> tuple[str, ...]:
    stems = tuple(source.stem for source in sources)
    return stems if len(set(stems)) == len(stems) else tuple(str(source) for source in sources)


def check_distinct(sources: Sequence[Path]) -> None:
    """Refuse a file that is listed twice: a promise to one record would cover each of its copies alone."""
    if len({source.resolve() for source in sources}) < len(sources):
        raise RequestError("a file is listed twice: its records would count twice")


def existing(source: Path) -> Path:
    """The file, if there is one."""
    if source.is_dir():
        raise DataError(f"{source} is a directory, not a file")
    if not source.is_file():
        beside = source.parent.iterdir() if source.parent.is_dir() else ()
        # An ending alone makes no two names similar.
        alike = [one.name for one in beside if similar_names(source.stem, [one.stem]) or one.stem == source.stem]
        close = [str(source.parent / name) for name in similar_names(source.name, alike)]
        raise DataError(f"{source} does not exist" + (f"; did you mean {' or '.join(close)}?" if close else ""))
    return source


def read_table(source: Path) -> pd.DataFrame:
    """A table from a CSV or Parquet file; one without rows is refused."""
    import pandas as pd

    if KINDS.get(existing(source).suffix.lower()) != "table":
        raise RequestError(f"{_unreadable([source])}: a table must be a .csv or .parquet file")
    if source.suffix.lower() == ".csv":
        frame = read_csv(source)
    else:
        try:
            frame = pd.read_parquet(source)
        except ImportError as error:
            raise RequestError(
                f"{source}: reading Parquet needs pyarrow: pip install 'tacit[parquet]', or save it as .csv"
            ) from error
        except Exception as error:
            # Damaged metadata raise many kinds of errors.
            raise DataError(f"{source} cannot be read as Parquet: {error!r}") from error
    if frame.empty:
        raise DataError(f"{source} holds no records, only the names of columns: give a file with records")
    return frame.rename(columns=str)


def read_arrays(source: Path, names: Sequence[str]) -> list[Vector]:
    """The named arrays of an .npz file, read without pickle."""
    try:
        # Opened here, because numpy does not close a file that turns out not to be an archive.
        with existing(source).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive.files]
            if missing:
                raise DataError(f"{source} has no array {missing[0]!r}; it has {', '.join(archive.files)}")
            return [archive[name] for name in names]
    except (OSError, ValueError, EOFError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{source} cannot be read as npz: {error}") from error
