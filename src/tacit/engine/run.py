"""The results of a run: the model, the history, the promise, and methods to inspect them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from tacit._version import __version__
from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Calibration
from tacit.engine.brief_repr import BriefRepr
from tacit.engine.files import write_atomically
from tacit.engine.findings import best_constant, findings
from tacit.engine.history import MEASURED, History, HistoryRow
from tacit.engine.ledger import RunLedger
from tacit.engine.model_card import MODEL, ModelCard
from tacit.engine.outlook import outlook
from tacit.engine.plan import Plan
from tacit.engine.sizes import learned_sizes
from tacit.engine.trained import Trained
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Guarantee, Target
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
        summary = json.dumps(self.summary(directory), indent=2) + "\n"
        # Written last, because a directory with a summary is a finished run.
        write_atomically(directory / "summary.json", summary.encode())
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

    def _own(self) -> list[dict[str, Any]]:
        """The target of each client, if clients have separate budgets."""
        guarantee, calibration, federation = self.guarantee, self.calibration, self.federation
        if guarantee is None or isinstance(self.plan.privacy, Target):
            return []
        names = federation.names or tuple(map(str, federation.ids.tolist()))
        rows = []
        for position, (name, epsilon) in enumerate(zip(names, guarantee.epsilons, strict=True)):
            group = calibration.groups[int(calibration.group_of_client[position])]
            assert group.target is not None, "a run with a guarantee has targets"
            rows.append(
                {
                    "client": name,
                    **({} if group.records is None else {"records": group.records}),
                    "epsilon_budget": group.target.epsilon,
                    "epsilon": epsilon,
                    "delta": group.target.delta,
                    "noise_multiplier": group.noise_multiplier,
                    "noise_std": float(calibration.noise_stds[position]),
                    "weight": 1.0 if federation.weights is None else float(federation.weights[position]),
                }
            )
        return rows

    def _own_test(self) -> tuple[str, ...]:
        """What is known about test records, if they are records of the clients and not public ones.

        Their number is a share of all records of every client.
        """
        if self.federation.schema is None:
            return ()
        tested = ("test_metric", "naive_metric")
        return tested if self.calibration.shows_sizes else (*tested, "test_records")

    def _evaluated(self, evaluation: PrivateEvaluation) -> dict[str, Any]:
        planned = self.plan.evaluation
        assert planned is not None, "an evaluation was planned"
        alone = None if planned.target is None else planned.target.epsilon
        return {"epsilon_alone": alone, **planned.scoring.told, **evaluation.to_dict()}

    def _corrected(self) -> dict[str, Any] | None:
        planned = self.plan.correction
        if self.correction is None or planned is None:
            return None
        alone = None if planned.target is None else planned.target.epsilon
        return {"epsilon_alone": alone, **self.correction.to_dict(self.federation.target_scale)}

    def _learned(self) -> dict[str, Any] | None:
        """The ranges or sizes that were learned from the records, and what that would cost alone."""
        schema, charged, guarantee = self.federation.schema, self.federation.charged, self.guarantee
        if charged is None or guarantee is None:
            return None
        alone = replace(guarantee, events=(charged,) * len(guarantee.events)).epsilon
        if schema is None:
            return {"epsilon_alone": alone, "sizes": learned_sizes(self.federation)}
        found = {column.name: column.range for column in schema.columns if column.name in schema.learned}
        if schema.target.column in schema.learned:
            found[schema.target.column] = schema.target.range
        return {"epsilon_alone": alone, "ranges": {name: list(range or ()) for name, range in found.items()}}

    def summary(self, directory: Path | None = None) -> dict[str, Any]:
        """The run as one flat JSON object. Numbers of records are None where the promise protects them."""
        federation, work, last = self.federation, self.algorithm.work, self.last
        guarantee, sizes = self.guarantee, federation.sizes
        shows_sizes = self.calibration.shows_sizes
        # Which client is the smallest also reveals something about its size.
        one = int(sizes.argmin()) if shows_sizes else 0
        stds, multipliers = self.calibration.noise_stds, self.calibration.noise_multipliers
        return {
            "algorithm": self.algorithm.name,
            "data": federation.name,
            "clients": federation.clients,
            "records": federation.records if shows_sizes else None,
            "records_per_client": [int(sizes.min()), int(sizes.max())] if shows_sizes else None,
            "dim": work.model.dim,
            "rounds": self.rounds,
            "privacy": "none" if guarantee is None else str(guarantee.unit),
            "epsilon": None if guarantee is None else guarantee.epsilon,
            "epsilon_without_trust": self.calibration.epsilon_without_trust,
            "delta": None if guarantee is None else guarantee.delta,
            "unit": None if guarantee is None else str(guarantee.unit),
            "adjacency": None if guarantee is None else str(guarantee.adjacency),
            "adversary": None if guarantee is None else str(guarantee.adversary),
            "promise": "no privacy: noise was switched off" if guarantee is None else guarantee.sentence(),
            "public": [] if guarantee is None else list(guarantee.public),
            "protection": [row.to_dict() for row in self.protection()],
            "clients_own": self._own(),
            "noise": work.noise.name,
            "entropy": "from the operating system, on a lattice"
            if work.noise.secret
            else "seeded: a simulation, not private to whoever knows the seed",
            "sampling": work.sampling.name,
            # Clients may differ in these: the values are those of the smallest client, or of the first.
            "sampling_rate": work.sampling.rate(int(sizes[one])) if shows_sizes else None,
            "clip_norm": bound if math.isfinite(bound := work.bound.norm(work.bounded)) else None,
            "noise_std": float(stds[one]),
            "noise_multiplier": float(multipliers[one]),
            "noise_std_range": [float(stds.min()), float(stds.max())],
            "noise_multiplier_range": [float(multipliers.min()), float(multipliers.max())],
            "compressor": self.algorithm.uplink.compressor.spec(),
            "uplink_bits_per_client": last.uplink_bits_per_client,
            "uplink_bits_total": last.uplink_bits_total,
            "gradient_evaluations": last.gradient_evaluations,
            "train_loss": last.train_loss,
            "grad_norm_sq": last.grad_norm_sq,
            "grad_norm_sq_mean": last.grad_norm_sq_mean,
            "test_metric": last.test_metric,
            "test_metric_name": work.model.metric_name,
            "naive_metric": None if (best := best_constant(self)) is None else [best.metric, best.name],
            "test_records": None if federation.test_targets is None else len(federation.test_targets),
            "schema": federation.schema is not None,
            "learned": self._learned(),
            "correction": self._corrected(),
            "evaluation": None if self.evaluation is None else self._evaluated(self.evaluation),
            "signal_to_noise": last.signal_to_noise,
            "outlook": None if (ahead := outlook(self.plan)) is None else ahead.to_dict(),
            "findings": [finding.to_dict() for finding in findings(self)],
            "seed": self.plan.seed,
            "seconds": self.seconds,
            "peak_memory_mb": self.peak_memory_mb,
            # A comparison names run_dir by a digest of the user's own files.
            "not_covered": [] if guarantee is None else [*MEASURED, *self._own_test(), "findings", "run_dir"],
            "run_dir": None if directory is None else str(directory),
        }
