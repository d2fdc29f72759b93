"""What happened in the rounds of a run, for people: one report per round, and the file `rounds.jsonl`.

No decision depends on the file. It serves to say what silos have been charged if the server's checkpoints are
lost.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.deploy.frames import Reply
from tacit.deploy.seam import Code
from tacit.privacy.promises.rounding import up_to


@dataclass(frozen=True)
class RoundReport:
    """What happened in one round, for logs and tables."""

    round: int
    """how many rounds are done now"""
    rounds: int
    used: tuple[str, ...]
    problems: Mapping[str, Code]
    uplink_bytes: int
    replies: Mapping[str, Reply]
    """of the sites whose messages were used: their releases so far, and the cost of their whole run"""
    seconds: float
    run: str = ""

    def to_json(self) -> str:
        """The report as one line of a log."""
        return json.dumps(
            {
                "run": self.run,
                "round": self.round,
                "used": list(self.used),
                "problems": {site: str(code) for site, code in self.problems.items()},
                "uplink_bytes": self.uplink_bytes,
                "seconds": round(self.seconds, 3),
                "releases": {site: reply.releases for site, reply in self.replies.items()},
                "epsilon": {site: reply.epsilon for site, reply in self.replies.items()},
                **({"losses": self.losses} if self.losses else {}),
            }
        )

    @property
    def losses(self) -> dict[str, float]:
        """The noisy mean losses that silos released."""
        return {site: reply.loss for site, reply in self.replies.items() if reply.loss is not None}


@dataclass(frozen=True)
class RoundLog:
    """The reports of all runs in a server's folder, one JSON object per line."""

    path: Path

    def note(self, report: RoundReport) -> None:
        """Append a report."""
        with self.path.open("a+b") as file:
            file.seek(max(0, file.tell() - 1))
            # A full disk may have cut off the last line.
            start = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(start + report.to_json().encode() + b"\n")

    def price_of_another_run(self) -> str:
        """What silos were charged for runs that cannot continue, and how to start a new run."""
        paid = self.paid() or "nothing is noted here"
        return (
            f"What silos were charged for it ({paid}; each silo's own ledger is decisive) stays charged. A new "
            "run is charged in addition, as far as their policies allow; to start one, move checkpoints and "
            f"rounds.jsonl out of {self.path.parent}"
        )

    def paid(self) -> str:
        """What silos sent and what that cost, as they stated it; empty if no round is noted."""
        runs: dict[str, dict[str, str]] = {}
        for line in self._lines():
            silos = runs.setdefault(str(line.get("run")), {})
            # Invalid entries are skipped: no decision depends on the file, so it must not stop the server.
            with contextlib.suppress(AttributeError, KeyError, OverflowError, TypeError, ValueError):
                for site, epsilon in line["epsilon"].items():
                    silos[site] = (
                        f"{site} {line['releases'][site]} messages, epsilon {up_to(epsilon, 4)} for the run"
                    )
        return "; ".join(f"run {run}: {', '.join(silos.values())}" for run, silos in runs.items())

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for text in self.path.read_text(errors="replace").splitlines():
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                # A full disk may have cut off the line.
                continue
            if isinstance(line, dict):
                yield line
