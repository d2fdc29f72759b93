"""Files that only the user can provide: searched in the data directories, never downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from tacit.data.sources import ENVIRONMENT, cache_dir
from tacit.errors import DataError


def provided(folder: str, file: str, data_dir: Path | None, what: str) -> Path:
    """The path of DIR/folder/file, or an error that says what to put where."""
    roots = [Path(root) for root in (data_dir, os.environ.get(ENVIRONMENT)) if root] + [cache_dir()]
    for root in roots:
        if (root / folder / file).is_file():
            return root / folder / file
    raise DataError(
        f"{file} is not in {', '.join(str(root / folder) for root in roots)}: put {what} into DIR/{folder}/{file}"
        f", where DIR is the value of --data-dir or of {ENVIRONMENT}"
    )
