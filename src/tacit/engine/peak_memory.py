"""Current and peak memory of this process, where the system reports them."""

from __future__ import annotations

import sys


def memory_mb() -> float | None:
    """Current memory, in MiB."""
    return _status("VmRSS")


def peak_memory_mb() -> float | None:
    """Peak memory since the process started, or since `forget_peak`, in MiB."""
    peak = _status("VmHWM")
    if peak is not None or sys.platform == "win32":
        return peak
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)


def forget_peak() -> None:
    """Resets the peak, where the system allows it."""
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
