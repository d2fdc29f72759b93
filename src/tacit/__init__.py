"""Federated learning in which nobody has to trust the server.

>>> import tacit
>>> federation = tacit.load("digits", clients=10, unit_norm=True)
>>> model = tacit.build_model("softmax", federation)
>>> algorithm = tacit.soteriafl_gd(
...     model, bound=tacit.ClipNorm(1.0), compressor=tacit.parse_compressor("rand-k:0.2"), step=1.0)
>>> plan = tacit.plan(algorithm, federation, rounds=5, privacy=tacit.Target(epsilon=8, delta=1e-5))
>>> run = tacit.simulate(plan)
>>> run.guarantee.epsilon <= 8
True
"""

from __future__ import annotations

import importlib
import os

from tacit._deferred import defer


def _homes() -> dict[str, str]:
    """Map each public name to its module, read from `__init__.pyi`, which editors and type checkers use, too."""
    with open(os.path.splitext(__file__)[0] + ".pyi", encoding="utf-8") as stub:
        lines = [line.split() for line in stub if line.startswith("from ")]
    return {name: home for _, home, _, name, *_ in lines}


_HOMES = _homes()
defer()

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    # Names are looked up when they are first used, so that `tacit --help` does not wait for PyTorch.
    if name not in _HOMES:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    if _HOMES[name] == __name__:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
