"""The weak adversary: someone who sees only the final model, and guesses which records it was trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.engine.plan import plan
from tacit.engine.simulate import simulate
from tacit.errors import DataError, RequestError
from tacit.federation import Batch, Federation
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency, Target
from tacit.privacy.audit import AuditResult, ClaimedPoint, one_run_finding

ON_RECORDS = (
    "measured on the clients' own records, without noise: it is for the researcher, and no promise covers it"
)


def audit_final_model(
    algorithm: Algorithm,
    federation: Federation,
    *,
    rounds: int,
    privacy: Target,
    confidence: float = 0.95,
    seed: int = 0,
) -> AuditResult:
    """A lower bound on epsilon from a membership attack on the model of a real training run.

    The records of every client are paired at random. A coin decides which of the two is used for training, and
    the adversary, who has both, guesses the one with the smaller loss. Only the data change: half of the records
    take part.

    Guarantee: that of `one_run_p_value`; turning a coin replaces one record by another. Expect low bounds: the
    promise holds against the server, which sees far more.
    """
    if not isinstance(privacy, Target):
        raise RequestError(
            f"privacy must be a Target(epsilon, delta), not {privacy!r}: there is nothing to audit"
        )
    if privacy.adjacency is not Adjacency.REPLACE_ONE:
        raise RequestError(
            f"adjacency {str(privacy.adjacency)!r} promises nothing about replacing one record by another, which "
            "is what this attack guesses; use 'replace-one'"
        )
    generator = Randomness(seed).generator(Purpose.DATA)
    firsts, seconds, alone = _pairs(federation, generator)
    chosen = generator.random(len(firsts)) < 0.5
    members = torch.where(torch.from_numpy(chosen), firsts, seconds)
    half = _only(federation, torch.cat([members, alone]))
    planned = plan(algorithm, half, rounds=rounds, privacy=privacy, seed=seed)
    run = simulate(planned, evaluate_every=rounds)
    losses = [_losses(algorithm, federation, rows, run.parameters) for rows in (seconds, firsts)]
    scores = (losses[0] - losses[1]).double().numpy()
    assert run.guarantee is not None, "a target gives a guarantee"
    claim = ClaimedPoint(run.guarantee.epsilon, run.guarantee.delta)
    return AuditResult(
        method="final model",
        algorithm=algorithm.name,
        data=federation.name,
        adjacency=privacy.adjacency,
        rounds=rounds,
        records=int(run.federation.sizes.min()),
        noise_multiplier=float(run.calibration.noise_multipliers.min()),
        at_claim=one_run_finding(scores, chosen, claim, confidence=confidence, attack="smaller loss"),
        notes=(ON_RECORDS,),
    )


def _pairs(federation: Federation, generator: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Flat indices of the paired records of every client, in two columns, and of the unpaired ones."""
    firsts, seconds, alone = [], [], []
    for start, size in zip(federation.offsets.tolist(), federation.sizes.tolist(), strict=False):
        order = start + torch.from_numpy(generator.permutation(size))
        firsts.append(order[: size // 2])
        seconds.append(order[size // 2 : size // 2 * 2])
        alone.append(order[size // 2 * 2 :])
    if all(len(part) == 0 for part in firsts):
        raise DataError("no client has two records: there are no pairs for the attack")
    return torch.cat(firsts), torch.cat(seconds), torch.cat(alone)


def _only(federation: Federation, rows: Tensor) -> Federation:
    rows = rows.sort().values
    owners = torch.searchsorted(federation.offsets, rows, right=True) - 1
    return replace(
        federation,
        features=federation.features[rows],
        targets=federation.targets[rows],
        sizes=torch.bincount(owners, minlength=federation.clients),
    )


def _losses(algorithm: Algorithm, federation: Federation, rows: Tensor, point: Tensor) -> Tensor:
    batch = Batch(federation.features[rows], federation.targets[rows], torch.tensor([len(rows)]))
    return algorithm.work.model.losses(point, batch)
