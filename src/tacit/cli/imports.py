"""Imports of a command, without a search for garbage among them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports() -> Iterator[None]:
    """Wraps the imports of a command.

    PyTorch and SciPy make half a million objects that stay until the process ends. Python would search all of
    them for garbage again and again: while they are imported, during the run, and at its end. That is a fifth of
    the processor time of a short command. What exists after the imports is left out of these searches;
    everything that is made later is collected as usual. Only commands do this: a library leaves it to its caller.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
