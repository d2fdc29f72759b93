"""The results of a run: the model, the history, the promise, and methods to inspect them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from tacit._version import __version__
from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Calibration
from tacit.engine.brief_repr import BriefRepr
from tacit.engine.files import write_atomically
from tacit.engine.history import History, HistoryRow
from tacit.engine.ledger import RunLedger
from tacit.engine.model_card import MODEL, ModelCard
from tacit.engine.plan import Plan
from tacit.engine.summary import summary
from tacit.engine.trained import Trained
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Guarantee
from tacit.privacy.promises.protection import Protection, protection
from tacit.side.correction import Correction
from tacit.side.evaluation import PrivateEvaluation

_MOST_SIZES = 4


@dataclass(frozen=True, repr=False)
class Run(BriefRepr):
    """A finished run."""

    plan: Plan
    """the plan that was run"""
    history: History
    """the evaluated rounds"""
    parameters: Tensor
    """the parameters of the trained model"""
    seconds: float
    """the duration of the run"""
    peak_memory_mb: float | None = None
    """peak memory of the process during the run, including data and libraries"""
    charged: tuple[Tensor, ...] | None = None
    """the positions of the clients that released something, for every round; None if a ledger was written"""
    correction: Correction | None = None
    """how the trained model was corrected, if it was; `parameters` have it in them"""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that was run."""
        return self.plan.algorithm

    @property
    def federation(self) -> Federation:
        """The records that it was run on."""
        return self.plan.federation

    @property
    def calibration(self) -> Calibration:
        """The noise of every client."""
        return self.plan.calibration

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.plan.rounds

    @property
    def model(self) -> Trained:
        """The trained model."""
        return Trained(self.algorithm.work.model, self.parameters, self.federation.features_by)

    @property
    def guarantee(self) -> Guarantee | None:
        """What was promised, to whom, against whom; None for a run without privacy."""
        return self.calibration.guarantee

    @property
    def last(self) -> HistoryRow:
        """The history's last row."""
        return self.history[-1]

    @cached_property
    def evaluation(self) -> PrivateEvaluation | None:
        """The private evaluation on records that were held back, if the plan has one."""
        if self.plan.evaluation is None:
            return None
        return self.plan.evaluation.evaluate(
            self.algorithm.work.model, self.parameters, self.plan.seed, self.plan.stream
        )

    def brief(self) -> dict[str, str]:
        """The run in a few lines: its plan, and what came out."""
        last, name = self.last, self.algorithm.work.model.metric_name
        return {
            **self.plan.brief(),
            "measured without noise": f"training loss {last.train_loss:.4g}"
            + ("" if last.test_metric is None else f", test {name} {last.test_metric:.4g}"),
        }

    def save(self, directory: Path | str) -> Path:
        """Writes everything that is needed to use the run (`tacit.load_run`) and to account for it.

        That is recipe, schema, ledger, history, model and summary. A run with an `out` of its own has written its
        ledger and checkpoints there already. A directory that holds another run is refused.
        """
        directory = Path(directory)
        self._refuse_another(directory)
        if self.charged is not None:
            RunLedger(directory / "ledger.jsonl").write(
                {"version": __version__, **self.calibration.facts(self.federation)},
                [self.federation.ids[positions] for positions in self.charged],
                self.federation.clients,
            )
        if self.plan.recipe is not None:
            write_atomically(directory / "recipe.toml", self.plan.recipe.to_toml().encode())
        write_atomically(directory / "history.csv", self.history.to_csv().encode())
        card = ModelCard.of(self.federation, self.algorithm.work.model, self.plan.recipe)
        card.save(directory, self.model)
        text = json.dumps(self.summary(directory), indent=2) + "\n"
        # Written last, because a directory with a summary is a finished run.
        write_atomically(directory / "summary.json", text.encode())
        return directory

    def _refuse_another(self, directory: Path) -> None:
        """Files of two runs would be mixed, and the first one's ledger would be lost."""
        marks = ["summary.json"] if self.charged is None else ["summary.json", "ledger.jsonl"]
        model = directory / MODEL
        same = model.is_file() and model.read_bytes() == self.model.to_bytes()
        if not same and any((directory / mark).exists() for mark in marks):
            raise RequestError(
                f"{directory} holds another run, whose ledger would be lost: choose another directory, or remove "
                "it if nobody needs it"
            )

    def protection(self) -> tuple[Protection, ...]:
        """Who is protected against whom."""
        return self._protection

    @cached_property
    def _protection(self) -> tuple[Protection, ...]:
        if self.guarantee is None:
            return ()
        # The guarantee for all records of a client together takes long to compute for clients of many sizes.
        # Unless it was promised, and so computed before, it is left to `tacit account`.
        sizes, whole = self.federation.most_released, self.plan.clients
        records = sizes.tolist() if whole is not None or len(sizes.unique()) <= _MOST_SIZES else None
        return protection(self.guarantee, beside=self.calibration.beside, records=records, groups=(), whole=whole)

    def summary(self, directory: Path | None = None) -> dict[str, Any]:
        """The run as one flat JSON object. Numbers of records are None where the promise protects them."""
        return summary(self, directory)
