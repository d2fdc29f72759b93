"""What happened in the rounds of a run, for people: one report a round, and the file `rounds.jsonl`.

The file decides nothing. It is what is left to say what silos have paid if the server's checkpoints are lost.
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
    """of the sites that were used: their releases so far, and what their part will have cost in the end"""
    seconds: float
    run: str = ""

    def to_json(self) -> str:
        """As one line of a log."""
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
        """What silos released about their mean losses, with noise."""
        return {site: reply.loss for site, reply in self.replies.items() if reply.loss is not None}


@dataclass(frozen=True)
class RoundLog:
    """The reports of all runs of a server's folder, one JSON object a line."""

    path: Path

    def note(self, report: RoundReport) -> None:
        """One more line."""
        with self.path.open("a+b") as file:
            file.seek(max(0, file.tell() - 1))
            # A full disk may have cut the last one off.
            start = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(start + report.to_json().encode() + b"\n")

    def price_of_another_run(self) -> str:
        """What silos have paid for runs that cannot go on, and how to begin another one."""
        paid = self.paid() or "nothing is noted here"
        return (
            f"What silos have paid for it ({paid}; each silo's own ledger has the truth) stays paid. A new run "
            "is charged on top, as far as their policies allow; to begin one, move checkpoints and rounds.jsonl "
            f"out of {self.path.parent}"
        )

    def paid(self) -> str:
        """What silos have sent, and what their parts cost, by their own word; empty where no round is noted."""
        runs: dict[str, dict[str, str]] = {}
        for line in self._lines():
            silos = runs.setdefault(str(line.get("run")), {})
            # What is no number stays out: the file decides nothing, and must not keep a server from starting.
            with contextlib.suppress(AttributeError, KeyError, OverflowError, TypeError, ValueError):
                for site, epsilon in line["epsilon"].items():
                    silos[site] = f"{site} {line['releases'][site]} messages, epsilon {epsilon:.4g} for the run"
        return "; ".join(f"run {run}: {', '.join(silos.values())}" for run, silos in runs.items())

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for text in self.path.read_text(errors="replace").splitlines():
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                # A full disk may have cut it off.
                continue
            if isinstance(line, dict):
                yield line
