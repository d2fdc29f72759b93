"""The choices of SoteriaFL (Li et al. 2022) for a run: batch, rounds, step and snapshot probability."""

from __future__ import annotations

from typing import Any

from tacit.models.linear import LinearModel
from tacit.theory.asked import Asked
from tacit.theory.soteriafl.prescription import Prescription, exact_noise_constant, prescribe
from tacit.theory.soteriafl.problem import Problem


def choose(asked: Asked) -> dict[str, Any]:
    """The values of Theorems 1 and 3 if the smoothness is known, and Corollary 2's snapshot probability, b/m."""
    wanted = ["rounds", "step"] + (["batch"] if asked.batch() is not None else [])
    found = prescription(asked) if any(asked.is_open(name) for name in wanted) else None
    chosen: dict[str, Any] = {}
    if found is not None:
        chosen = {"batch": float(found.batch), "rounds": found.rounds, "step": found.step}
    batch = chosen["batch"] if found is not None and asked.is_open("batch") else asked.batch()
    return {**chosen, "snapshot_probability": asked.rate(batch)}


def prescription(asked: Asked) -> Prescription | None:
    """What the paper prescribes, from public numbers alone; None if they are not known."""
    posed = problem(asked)
    if posed is None:
        return None
    return prescribe(asked.algorithm, posed, noise_constant=exact_noise_constant(asked.algorithm))


def problem(asked: Asked) -> Problem | None:
    """The public numbers that the theory depends on; None without a promise or a smoothness constant.

    The smoothness is known for linear models with a public bound on the features.
    """
    model, federation = asked.model, asked.federation
    if asked.epsilon is None or asked.delta is None or asked.feature_norm is None:
        return None
    smoothness = model.smoothness(asked.feature_norm) if isinstance(model, LinearModel) else None
    if smoothness is None:
        return None
    return Problem(
        clients=federation.clients,
        records=int(federation.sizes.min()),
        dim=model.dim,
        omega=asked.omega,
        smoothness=smoothness,
        gradient_bound=asked.gradient_bound,
        epsilon=asked.epsilon,
        delta=asked.delta,
    )
