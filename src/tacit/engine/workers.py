"""Processes that do the work of another one."""

from __future__ import annotations

import multiprocessing
import os
import threading


def begin_worker() -> None:
    """For a pool's initializer: one thread, because there are other workers, and an end with the parent's."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker outlives a parent that was killed, and would go on in directories where the next one starts."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers have one"
    parent.join()
    os._exit(1)
