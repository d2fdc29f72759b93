"""How much memory this process has and had, where the system says so."""

from __future__ import annotations

import sys


def memory_mb() -> float | None:
    """What it has now, in MiB."""
    return _status("VmRSS")


def peak_memory_mb() -> float | None:
    """The most that it has had, in MiB: since it began, or since `forget_peak`."""
    peak = _status("VmHWM")
    if peak is not None or sys.platform == "win32":
        return peak
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def forget_peak() -> None:
    """Begin to look for the peak anew, where the system allows it."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as references:
            references.write("5")
    except OSError:
        pass


def _status(name: str) -> float | None:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
            return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError):
        return None
