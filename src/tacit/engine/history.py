"""The history of a run, round by round."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

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
