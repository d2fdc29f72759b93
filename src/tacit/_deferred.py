"""Parts of SciPy that few runs use, imported when they are first used: this spares every start 0.6 s.

tacit imports them from here. dp-accounting imports the same when it is imported itself; while that happens, they
are stood in for.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands for a module. The import system makes sure that it is imported once, whichever thread asks first."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            # dp-accounting is being imported, and keeps this for later.
            return _Part(self, name)
        return getattr(importlib.import_module(self.__name__), name)


class _Part:
    """Stands for something in a module, such as the distribution `scipy.stats.norm`."""

    def __init__(self, module: _Deferred, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._module, self._name), name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return getattr(self._module, self._name)(*arguments, **named)


fft: Any = _Deferred("scipy.fft")
optimize: Any = _Deferred("scipy.optimize")
signal: Any = _Deferred("scipy.signal")
stats: Any = _Deferred("scipy.stats")


class _Loader(importlib.abc.Loader):
    """Loads dp-accounting with the stand-ins in the place of modules that have not been imported."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # SciPy's own modules must not see the stand-ins.
        importlib.import_module("scipy.special")
        placed = [
            one for one in (fft, optimize, signal, stats) if sys.modules.setdefault(one.__name__, one) is one
        ]
        try:
            self._loader.exec_module(module)
        finally:
            for one in placed:
                if sys.modules.get(one.__name__) is one:
                    del sys.modules[one.__name__]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds dp-accounting as usual, and changes how it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "dp_accounting":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def defer() -> None:
    """Called once, when tacit is imported."""
    sys.meta_path.insert(0, _Finder())
