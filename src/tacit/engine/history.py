"""The history of a run, round by round."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


MEASURED = ("train_loss", "grad_norm_sq", "grad_norm_sq_mean", "signal_to_noise", "seconds", "peak_memory_mb")
"""Values in histories and summaries that no promise covers: they are measured on the records, or on the machine,
without noise. They are only for the researcher who runs the simulation."""


@dataclass(frozen=True)
class HistoryRow:
    """The run after `round` rounds."""

    round: int
    train_loss: float
    grad_norm_sq: float
    """||grad f(x)||^2 of the full objective, unclipped and without noise"""
    grad_norm_sq_mean: float
    """its mean over the evaluated rounds so far: the utility of SoteriaFL"""
    test_metric: float | None
    uplink_bits_per_client: int
    uplink_bits_total: int
    gradient_evaluations: int | None
    """record gradients computed so far by all clients, in expectation over the batches; None where the promise
    protects numbers of records, which this would reveal"""
    epsilon: float | None
    """spent so far by the client that spends most; None in a run without privacy"""
    seconds: float
    signal_to_noise: float | None = None
    """||mean update|| / ||mean noise|| of the last round, for client-level privacy (DP-NormFedAvg, appendix F)"""


@dataclass(frozen=True)
class History:
    """The evaluated rounds of a run, oldest first."""

    rows: tuple[HistoryRow, ...] = ()
    """one for every evaluated round"""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[HistoryRow]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> HistoryRow:
        return self.rows[index]

    def with_row(self, row: HistoryRow) -> History:
        """This history with one more row."""
        return History((*self.rows, row))

    @property
    def frame(self) -> pd.DataFrame:
        """As a pandas frame with one row per evaluated round."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    def to_csv(self) -> str:
        """As CSV text."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [f.name for f in fields(HistoryRow)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in self.rows)
        return text.getvalue()

    def to_list(self) -> list[dict[str, Any]]:
        """As plain data."""
        return [asdict(row) for row in self.rows]

    @classmethod
    def from_list(cls, rows: list[dict[str, Any]]) -> History:
        """The inverse of `to_list`."""
        return cls(tuple(HistoryRow(**row) for row in rows))

    @classmethod
    def read(cls, path: Path) -> History:
        """A history from the CSV file that `to_csv` was written to."""
        whole = {"round", "uplink_bits_per_client", "uplink_bits_total", "gradient_evaluations"}
        try:
            with path.open(newline="") as file:
                rows = [
                    {k: None if v == "" else int(v) if k in whole else float(v) for k, v in row.items()}
                    for row in csv.DictReader(file)
                ]
            if not rows or set(rows[0]) != {f.name for f in fields(HistoryRow)}:
                raise ValueError("columns are missing")
            return cls.from_list(rows)
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{path} is not a history of tacit: {error}") from error

    def at_bits(self, bits: int) -> HistoryRow | None:
        """The last round that a client can afford with this many bits.

        None if it affords no round, or one that was not evaluated: using an earlier one would be unfair to
        algorithms with long messages.
        """
        paid = sum(row.uplink_bits_per_client <= bits for row in self.rows)
        if paid == 0 or self.rows[paid - 1].round == 0:
            return None
        row = self.rows[paid - 1]
        if paid == len(self.rows):
            return row
        further = self.rows[paid]
        more = (bits - row.uplink_bits_per_client) * (further.round - row.round)
        return row if more < further.uplink_bits_per_client - row.uplink_bits_per_client else None


def equal_bits(histories: Sequence[History]) -> int | None:
    """The largest number of bits per client at which all of these can be compared, or None if there is none."""
    reached = min(history[-1].uplink_bits_per_client for history in histories)
    budgets = {row.uplink_bits_per_client for history in histories for row in history}
    affordable = sorted((bits for bits in budgets if bits <= reached), reverse=True)
    return next((bits for bits in affordable if all(h.at_bits(bits) is not None for h in histories)), None)
