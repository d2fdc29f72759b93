"""Checking final releases in a run's certificate, against what silos have signed and the model's file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from tacit.deploy.correcting import JobCorrection
from tacit.deploy.final_parts import Gathered
from tacit.deploy.final_release import FinalRelease
from tacit.deploy.finals import Final
from tacit.deploy.frames import point_from_bytes, point_to_bytes
from tacit.deploy.job import Job
from tacit.deploy.signatures import CertificateError
from tacit.deploy.statements import MODEL_FILE
from tacit.deploy.summing import Summing
from tacit.errors import MessageError, TacitError
from tacit.models.named import flat_parameters
from tacit.sums.group import SumGroup

_SLACK = 1e-5
"""The largest relative difference from recomputed parameters: other processors round differently."""

Bodies = Mapping[str, Mapping[str, Any]]
"""Certificates of silos, by name."""


@dataclass
class FinalChecks:
    """What was found out about the final releases of a run."""

    job: Job
    body: Mapping[str, Any]
    silos: Bodies
    parameters: Tensor | None
    """those of the model's file, if it is there"""
    checked: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    correction: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Check all of them; `CertificateError` if one does not follow from what silos signed."""
        asked = {release.name: release for release in self.job.separate_finals}
        for name in Final:
            if name in self.body and name not in asked:
                raise CertificateError(f"it has parts of a {name}, which its job does not ask the silos for")
        for release in asked.values():
            if release.name not in self.body:
                self.missing.append(f"the {release.name}: the server states none")
                continue
            try:
                self._check(release)
            except (MessageError, ValueError) as error:
                raise CertificateError(f"the {release.name} cannot be opened: {error}") from error
        if self.job.evaluation is not None and Final.EVALUATION not in asked:
            self.evaluation = self.job.evaluation.read(self.silos)
            self.missing += self._not_evaluated()
        if self.evaluation is not None and self.parameters is not None:
            if hashlib.sha256(point_to_bytes(self.parameters)).hexdigest() != self.evaluation["point"]:
                raise CertificateError(f"the evaluation is about other parameters than {MODEL_FILE}")
            self.checked.append(f"the evaluation is about {MODEL_FILE}")

    def _not_evaluated(self) -> list[str]:
        """The silos whose certificates add nothing to the evaluation."""
        point = None if self.evaluation is None else self.evaluation["point"]
        made = {site: silo.get(Final.EVALUATION.made) for site, silo in self.silos.items()}
        return [
            f"{site} has {'evaluated nothing' if one is None else 'evaluated another model, which is left out'}"
            for site, one in made.items()
            if one is None or one["point"] != point
        ]

    def _check(self, release: FinalRelease) -> None:
        told = dict(self.body[release.name])
        trained = told.pop("trained", None)
        gathered = Gathered.from_dict(
            told, self.job.sites, release.question.dim, masked=release.trust is not None
        )
        self._compare(release, gathered)
        group = Summing(self.job).group(self.body["run"]) if self.job.summed else None
        if isinstance(release, JobCorrection):
            self.correction = release.told(gathered, group)
            self._check_corrected(release, gathered, group, trained)
        elif self.job.evaluation is not None and group is not None:
            self.evaluation = self.job.evaluation.read_sum(gathered, group)
        what = "opened sum" if self.job.summed else "sum"
        self.checked.append(f"the {release.name} is the {what} of the parts that silos signed")

    def _compare(self, release: FinalRelease, gathered: Gathered) -> None:
        """Compare parts with what silos have signed."""
        name, sites = release.name, self.job.sites
        if gathered.round != release.round or not gathered.parts:
            raise MessageError("it is of another round, or of nobody")
        common = {"batch": hashlib.sha256(gathered.batch).hexdigest()} if gathered.batch else {}
        for site, silo in self.silos.items():
            part, made = gathered.parts.get(sites.index(site)), silo.get(name.made)
            if made is not None and made["point"] != gathered.point:
                raise MessageError(f"the server showed {site} another model than it states")
            signed = None if made is None else (made, silo[name]["records"])
            stated = {"point": gathered.point, "sums": [] if part is None else list(part.sums), **common}
            if part is not None and signed != (stated, part.records):
                raise MessageError(f"{site} has signed another part of the sum")
            if part is None:
                why = "it has none" if made is None else "the server has left it out"
                self.missing.append(f"the part of {site} in the {name}: {why}")
        unsigned = (sites[number] for number in gathered.parts if sites[number] not in self.silos)
        self.missing += [f"the part of {site} in the {name}: only the server states it" for site in unsigned]

    def _check_corrected(
        self, release: JobCorrection, gathered: Gathered, group: SumGroup | None, trained: object
    ) -> None:
        """Check that the model's file is the trained model, with this correction."""
        if not isinstance(trained, str) or hashlib.sha256(bytes.fromhex(trained)).hexdigest() != gathered.point:
            raise MessageError("the trained model is not the one that silos were shown")
        if self.parameters is None:
            return
        model = self.job.algorithm.work.model
        after = release.corrected(model, point_from_bytes(bytes.fromhex(trained), model.dim), gathered, group)
        # Not even NaN is within the slack.
        if not float((after - self.parameters).abs().max()) <= _SLACK * float(after.abs().max()):
            raise CertificateError(f"{MODEL_FILE} is not the trained model with the correction of its silos")
        self.checked.append(f"{MODEL_FILE} is the trained model with that correction")


def parameters_in(model: bytes, job: Job) -> Tensor:
    """The parameters in a model's file."""
    try:
        return flat_parameters(job.algorithm.work.model, safetensors.torch.load(model))
    except (TacitError, safetensors.SafetensorError) as error:
        raise CertificateError(f"{MODEL_FILE} holds no parameters: {error}") from error
