"""What an exported ledger says about one run, for the silo's certificate of that run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent

from tacit.deploy.finals import Final
from tacit.deploy.ledger_account import Account, read_export
from tacit.privacy import Adversary, events
from tacit.privacy.promises.terms import weakest


@dataclass(frozen=True)
class Spent:
    """What a silo's ledger says about one run, and about all of them together."""

    run: DpEvent
    together: DpEvent
    adversary: Adversary | None
    """the adversary against whom all runs together keep a promise; None without any run"""
    points: Mapping[int, str]
    """the digest of the point of every round that was answered"""
    ledger: Mapping[str, Any]
    """head of the ledger, at the end and before the run"""
    colluding: int | None = None
    """with sums: the fewest silos whose help to the server its runs withstand"""

    @classmethod
    def read(cls, exported: bytes, run: str, epsilon: float) -> Spent:
        """From an exported ledger, whose chain is checked; `epsilon` is that of the policy it was kept under."""
        account = read_export(exported)
        mine, head = account.run(run), {"lines": account.lines, "hash": account.hash}
        lines, hash = Account().lines, Account().hash
        before: dict[str, Any] | None = None
        points: dict[int, str] = {}
        for text in exported.decode().splitlines():
            written = json.loads(text)
            line = json.loads(written["body"])
            if line["run"] == run:
                before = before or {"lines": lines, "hash": hash}
                points |= {line["round"]: line["point"]} if line["kind"] == "release" else {}
            lines, hash = lines + 1, written["hash"]
        return cls(
            mine.event if mine else events.nothing(),
            account.event(epsilon),
            weakest(map(Adversary, account.adversaries)) if account.runs else None,
            points,
            {**head, "before_run": before or head},
            account.colluding,
        )

    def events(self) -> dict[str, Any]:
        """Both events as plain values."""
        return {"run": events.to_dict(self.run), "collaboration": events.to_dict(self.together)}


def finals_in(exported: bytes, run: str) -> dict[Final, dict[str, Any]]:
    """Point and sums of a run's final releases in an exported ledger, and the keys that mask them, if any."""
    mine = read_export(exported).run(run)
    made = {} if mine is None else mine.finals
    return {
        final: {name: line[name] for name in ("point", "sums", "batch") if name in line}
        for final, line in made.items()
    }


def learned_in(exported: bytes, run: str) -> dict[str, Any] | None:
    """The ranges of a run in an exported ledger, with the digest of what they follow from, if it has any.

    And the sums of every step that the silo answered, with the number of records in them.
    """
    mine = read_export(exported).run(run)
    learned = None if mine is None else mine.learned
    if learned is None:
        return None
    lines = (json.loads(json.loads(text)["body"]) for text in exported.decode().splitlines())
    steps = {str(one["step"]): one["sums"] for one in lines if one["run"] == run and one["kind"] == "range"}
    return {"point": learned["point"], "ranges": learned["ranges"], "records": learned["records"], "steps": steps}
