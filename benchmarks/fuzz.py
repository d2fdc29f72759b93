"""Hostile messages against every reader of bytes from outside, and hostile settings against every reader of text.

    python benchmarks/fuzz.py                               a million messages, ten thousand settings
    python benchmarks/fuzz.py --seconds 3600 --seed 7       as many of them as an hour holds
    python benchmarks/fuzz.py --only certificate --case 12  one case again, with its traceback

Whatever comes in, a reader returns or raises one of tacit's own errors, without a warning, within seconds and
within a gigabyte. Anything else is a finding: it is printed with what repeats it, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import logging
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from fuzzing.hostile import Target

from tacit.errors import TacitError

MESSAGES, SETTINGS = 1_000_000, 10_000
MESSAGE_SECONDS, SETTING_SECONDS = 10, 60
"""How much of a processor's time one may take to be read; settings may have to be calibrated."""

_PATIENCE = 30
"""How many times as long it may take on a clock, where others use the processor as well."""

MEMORY_LIMIT_BYTES = 2**30
"""beyond what the process has when it begins"""

_BLOCK = 1000


class TooLong(BaseException):
    """A reader took longer than it may; no reader should catch it."""


@dataclass
class Tally:
    """What came of the inputs to one target."""

    target: Target
    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    findings: dict[str, list[int]] = field(default_factory=dict)
    """kind and place of an error -> the cases that led to it"""

    @property
    def inputs(self) -> int:
        """How many there were."""
        return self.read + self.refused + sum(map(len, self.findings.values()))

    def feed(self, seed: int, seconds: int) -> None:
        """One more input."""
        case, began = self.inputs, time.process_time()
        try:
            if read(self.target, seed, case, seconds):
                self.read += 1
            else:
                self.refused += 1
        except (Exception, TooLong) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:160]}"
            self.findings.setdefault(kind, []).append(case)
        self.slowest = max(self.slowest, time.process_time() - began)

    def report(self, seed: int) -> list[str]:
        """One line a finding."""
        return [
            f"{self.target.name}: {kind} ({len(cases)} times; --only '{self.target.name}' --case {cases[0]} "
            f"--seed {seed})"
            for kind, cases in self.findings.items()
        ]


def read(target: Target, seed: int, case: int, seconds: int) -> bool:
    """Whether one input was read; False if it was refused as it should be. Everything else is raised."""
    value = target.hostile(random.Random(f"{seed} {target.name} {case}"))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(_PATIENCE * seconds)
    try:
        target.read(value)
    except TacitError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    return True


def fuzz(targets: list[Target], inputs: int, until: float, seed: int, seconds: int) -> list[Tally]:
    """Feed all targets in turn, each its share, until there were enough inputs or the time is over."""
    tallies, whole = [Tally(target) for target in targets], sum(target.share for target in targets)
    for block in range(1, 2 + inputs // _BLOCK):
        for tally in tallies:
            wanted = min(block * _BLOCK, inputs) * tally.target.share / whole
            while tally.inputs < wanted:
                if time.monotonic() > until:
                    return tallies
                tally.feed(seed, seconds)
    return tallies


def summary(tallies: list[Tally], spent: float) -> dict[str, Any]:
    """Numbers of all targets."""
    inputs = sum(tally.inputs for tally in tallies)
    return {
        "inputs": inputs,
        "inputs_per_second": round(inputs / max(spent, 1e-9)),
        "findings": sum(len(tally.findings) for tally in tallies),
        "targets": {tally.target.name: [tally.read, tally.refused, round(tally.slowest, 3)] for tally in tallies},
    }


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """An alarm for what takes too long, a limit to what may be allocated, and warnings as errors."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TooLong("it took longer than it may")

    before = {kind: signal.signal(kind, too_long) for kind in (signal.SIGALRM, signal.SIGPROF)}
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT_BYTES, resource.RLIM_INFINITY))
    faulthandler.enable()
    try:
        with warnings.catch_warnings(action="error"):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for kind, handler in before.items():
            signal.signal(kind, handler)


def main() -> int:
    """Print one JSON object: for every target, inputs read and refused, and the seconds of the slowest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--settings", type=int, default=SETTINGS)
    parser.add_argument("--seconds", type=float, default=86_400.0, help="for messages and settings together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one target")
    parser.add_argument("--case", type=int, help="one input of it, again")
    options = parser.parse_args()
    # Silos tell their people about hostile requests.
    logging.disable()

    from fuzzing.messages import message_targets
    from fuzzing.settings import setting_targets

    quick = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=quick if quick.is_dir() else None) as place:
        kinds = {
            "settings": (setting_targets(Path(place)), options.settings, 0.3, SETTING_SECONDS),
            "messages": (message_targets(Path(place)), options.messages, 1.0, MESSAGE_SECONDS),
        }
        began, results, found = time.monotonic(), {}, list[str]()
        with limits():
            for kind, (targets, inputs, share, seconds) in kinds.items():
                chosen = [target for target in targets if options.only in (None, target.name)]
                if options.case is not None:
                    for target in chosen:
                        print("read" if read(target, options.seed, options.case, seconds) else "refused")
                    continue
                start = time.monotonic()
                tallies = fuzz(chosen, inputs, began + share * options.seconds, options.seed, seconds)
                results[kind] = summary(tallies, time.monotonic() - start)
                found += [line for tally in tallies for line in tally.report(options.seed)]
    for line in found:
        print(line, file=sys.stderr)
    if results:
        print(json.dumps({"seed": options.seed, "seconds": round(time.monotonic() - began, 1), **results}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
