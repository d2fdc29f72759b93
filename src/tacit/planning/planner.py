"""The planner: finds the batch, rounds, step, compressor and clip norm with the smallest theoretical bound.

Every candidate is charged by the exact accountant, so candidates are compared at the same promise, and the bounds
hold for the noise that would really be added. They are worst cases: their order says more than their size, and a
trial on synthetic data of the same shape says more than both (`tacit.planning.trials`). Only the numbers of
clients, records, features and classes are used, never a record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.registry import algorithm_entry
from tacit.client.bounds import ClipNorm, build_bound
from tacit.client.estimators import Minibatch
from tacit.client.sampling import Full, Poisson, Sampling
from tacit.client.work import PrivateGradient
from tacit.compress import Direct, Identity, parse_compressor
from tacit.engine.choices import feature_norm
from tacit.engine.plan import plan
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.engine.targets import privacy_of
from tacit.errors import RequestError, positive
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.models.registry import build_model, default_model
from tacit.privacy import Target
from tacit.server.projection import parse_projection
from tacit.server.update import Descent
from tacit.theory import isrl_dp, soteriafl
from tacit.theory.known import start_loss

ROUNDS = (5, 10, 20, 50, 100, 200, 500, 1000)
FRACTIONS = (0.01, 0.03, 0.1, 0.3, 1.0)
COMPRESSORS = ("identity", "natural", "rand-k:0.3", "rand-k:0.1", "rand-k:0.05", "rand-k:0.01")

GRADIENT = ("soteriafl-gd", "soteriafl-sgd", "cdp-sgd", "ldp-sgd")
"""Algorithms with bounds on the mean squared gradient norm (SoteriaFL (Li et al. 2022), Theorems 1 and 3)."""

RISK = ("noisy-mb-sgd", "accelerated-mb-sgd")
"""Algorithms with bounds on the excess risk (ISRL-DP (Lowy & Razaviyayn 2023), Lemmas D.6, E.1; convex)."""

NOT_PLANNED = ("client_epsilon", "cohort", "weights")
"""Settings that the bounds do not cover: they assume one promise, full participation and equal weights."""


@dataclass(frozen=True)
class Candidate:
    """One way to keep the promise, and what theory promises about its result."""

    algorithm: str
    rounds: int
    batch: float | None
    """a fraction of a client's records; None for all of them"""
    compressor: str | None
    step: float
    clip_norm: float
    lipschitz: float | None
    """the largest norm of a record's gradient; None if the loss has no such constant, and the bound then assumes
    that none is larger than the clip norm"""
    noise_std: float
    uplink_bits_per_client: int
    bound: float | None
    """None for a clip norm that shortens gradients, which the theory does not cover"""
    quantity: str
    """the quantity that is bounded"""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    def recipe(self, base: Recipe) -> Recipe:
        """The recipe that runs this candidate."""
        chosen = replace(base, rounds=self.rounds).with_algorithm_settings(
            sampling="full" if self.batch is None else "poisson",
            batch=self.batch,
            compressor=self.compressor,
            step=self.step if self.algorithm != "accelerated-mb-sgd" else None,
            bound="clip-norm",
            clip_norm=self.clip_norm,
            bound_from=None,
        )
        return chosen.for_algorithm(self.algorithm)


@dataclass(frozen=True)
class Public:
    """The public numbers of the problem."""

    federation: Federation
    model: LinearModel
    feature_norm: float
    diameter: float | None
    lipschitz: float | None
    clip_norm: float
    target: Target
    loss_gap: float

    @property
    def records(self) -> int:
        return int(self.federation.sizes.min())


def candidates(
    recipe: Recipe,
    *,
    algorithms: Sequence[str] | None = None,
    rounds: Sequence[int] = ROUNDS,
    fractions: Sequence[float] = FRACTIONS,
    compressors: Sequence[str] = COMPRESSORS,
    bit_budget: float | None = None,
    federation: Federation | None = None,
    data_dir: Path | None = None,
) -> list[Candidate]:
    """All candidates, best bound first; `bit_budget` is the most bits that a client may send in the whole run.

    Needs public constants: a linear model, `feature_norm` (or `data.unit_norm`), and for the bounds on the excess
    risk a ball that contains the model. The clip norm is the loss's own Lipschitz constant, which changes no
    gradient; if it has none, that of the recipe. `federation` replaces the recipe's records, if those are not
    available.
    """
    if bit_budget is not None:
        positive("bit_budget", bit_budget)
    names = _of_one_measure(recipe, algorithms)
    public = public_numbers(
        recipe, load_federation(recipe, data_dir) if federation is None else federation, names
    )
    found = [
        candidate
        for fraction in fractions
        for many in rounds
        for candidate in _at(public, fraction, many, names, compressors)
        if bit_budget is None or candidate.uplink_bits_per_client <= bit_budget
    ]
    if not found:
        raise RequestError(f"no candidate sends at most bit_budget = {bit_budget:g} bits; raise it")
    return sorted(found, key=lambda candidate: candidate.bound or 0.0)


def _of_one_measure(recipe: Recipe, algorithms: Sequence[str] | None) -> Sequence[str]:
    """The algorithms to choose from. Refuses bounds on different quantities, which cannot be ranked together."""
    in_ball = _diameter(recipe) is not None
    names = algorithms or (RISK if in_ball else GRADIENT)
    for name in names:
        if name not in (*GRADIENT, *RISK):
            raise RequestError(f"algorithm {name!r} has no bound to plan with; use one of "
                               f"{', '.join((*GRADIENT, *RISK))}")  # fmt: skip
        if name in RISK and not in_ball:
            raise RequestError(
                f"{name}: give algorithm.projection = 'ball:RADIUS', the public set in which the model lies"
            )
    risk, gradient = ([name for name in names if name in measure] for measure in (RISK, GRADIENT))
    if risk and gradient:
        raise RequestError(
            f"algorithm: the bounds of {', '.join(risk)} are on the excess risk, those of {', '.join(gradient)} "
            "on the mean squared gradient norm, and cannot be ranked together; plan for one of the two at a time"
        )
    return names


def public_numbers(recipe: Recipe, federation: Federation, algorithms: Sequence[str]) -> Public:
    """The numbers that the bounds of these algorithms (of one measure) depend on. Refuses if any is unknown."""
    for setting in NOT_PLANNED:
        if getattr(recipe, setting) is not None:
            raise RequestError(
                f"{setting} = {getattr(recipe, setting)!r}: the planner's bounds assume that all clients "
                f"take part with equal weights under one promise; leave {setting} out"
            )
    norm = feature_norm(recipe)
    name = recipe.model or default_model(federation)
    model = build_model(name, federation, recipe.model_settings)
    target = privacy_of(recipe, federation)
    if not isinstance(target, Target):
        raise RequestError("planning needs one epsilon and one delta for all clients")
    if not isinstance(model, LinearModel):
        raise RequestError(
            f"model = {name!r}: planning by theory needs a linear model, whose constants are known; use "
            "runs to compare others (tacit compare --grid)"
        )
    if norm is None:
        raise RequestError(
            "feature_norm must be given, a public bound on the features' norm, or data.unit_norm = true: the "
            "model's constants follow from it"
        )
    if model.smoothness(norm) is None:
        raise RequestError(f"model = {name!r}: its loss is not smooth; give model.smoothing")
    diameter, lipschitz = None, model.lipschitz(norm)
    if set(algorithms) <= set(RISK):
        diameter = _diameter(recipe)
        assert diameter is not None, "checked where the algorithms were chosen"
        known = isrl_dp.model_constants(
            model, feature_norm=norm, diameter=diameter, target_bound=recipe.target_bound
        )
        lipschitz = known.record_lipschitz
    said = recipe.algorithm_settings
    clip = lipschitz or build_bound(said.get("bound", "clip-norm"), said.get("clip_norm", 1.0)).norm(model.dim)
    gap = _loss_gap(model, federation.classes, recipe.target_bound)
    return Public(federation, model, norm, diameter, lipschitz, clip, target, gap)


def _diameter(recipe: Recipe) -> float | None:
    return parse_projection(recipe.algorithm_settings.get("projection", "none")).diameter


def _loss_gap(model: LinearModel, classes: int | None, target_bound: float | None) -> float:
    """The largest loss at zero, where training starts; losses are never negative."""
    gap = start_loss(model, classes, target_bound)
    if gap is None:
        raise RequestError("target_bound must be given: the largest absolute target, a public number")
    return gap


def clipped(candidate: Candidate, public: Public, clip_norm: float) -> Candidate:
    """A candidate with a smaller clip norm, the noise that it needs, and the step that suits that noise."""
    fraction = 1.0 if candidate.batch is None else candidate.batch
    at = replace(public, clip_norm=clip_norm)
    compressors = (candidate.compressor or "identity",)
    (smaller,) = _at(at, fraction, candidate.rounds, (candidate.algorithm,), compressors)
    return replace(smaller, bound=None)


def _at(
    public: Public, fraction: float, rounds: int, names: Sequence[str], compressors: Sequence[str]
) -> Iterator[Candidate]:
    sampling: Sampling = Full() if fraction == 1 else Poisson(fraction)
    work = PrivateGradient(public.model, Minibatch(sampling), ClipNorm(public.clip_norm))
    algorithm = Algorithm("planned", work, Direct(Identity()), Descent(1.0))
    smallest = public.federation.client(int(public.federation.sizes.argmin()))
    planned = plan(algorithm, smallest, rounds=rounds, privacy=public.target)
    noise_std = float(planned.calibration.noise_stds[0])
    batch = max(1, round(sampling.rate(public.records) * public.records))
    full = fraction == 1
    for name in names:
        if (name == "soteriafl-gd") != full and name in ("soteriafl-gd", "soteriafl-sgd"):
            continue
        takes_compressor = "compressor" in algorithm_entry(name).settings
        for spec in compressors if takes_compressor else ("identity",):
            if name == "cdp-sgd" and spec == "identity":
                continue  # that is ldp-sgd
            omega = parse_compressor(spec).omega(public.model.dim)
            bound, step = _bound(public, name, rounds, batch, noise_std, omega)
            bits = 8 * rounds * parse_compressor(spec).message_bytes(public.model.dim)
            yield Candidate(
                algorithm=name,
                rounds=rounds,
                batch=None if full else sampling.rate(public.records),
                compressor=spec if takes_compressor else None,
                step=step,
                clip_norm=public.clip_norm,
                lipschitz=public.lipschitz,
                noise_std=noise_std,
                uplink_bits_per_client=bits,
                bound=bound,
                quantity="excess risk" if name in RISK else "mean squared gradient norm",
            )


def _bound(
    public: Public, name: str, rounds: int, batch: int, noise_std: float, omega: float
) -> tuple[float, float]:
    """The theory's bound, and the step for which it holds."""
    if name in RISK:
        return _risk(public, name, rounds, batch, noise_std)
    model, federation, target = public.model, public.federation, public.target
    smoothness = model.smoothness(public.feature_norm)
    assert smoothness is not None, "checked where the public numbers were read"
    problem = soteriafl.Problem(
        clients=federation.clients,
        records=public.records,
        dim=model.dim,
        omega=omega,
        epsilon=target.epsilon,
        delta=target.delta,
        smoothness=smoothness,
        gradient_bound=public.clip_norm,
        loss_gap=public.loss_gap,
    )
    if name in ("cdp-sgd", "ldp-sgd"):
        at = partial(soteriafl.cdp_utility_bound, problem, rounds=rounds, batch=batch, noise_std=noise_std)
        # a/step + b step is smallest at sqrt(a/b); a and b follow from two values.
        step = 1 / smoothness
        a = 2 * public.loss_gap / rounds
        b = (at(step=step) - a / step) / step
        step = min(step, math.sqrt(a / b))
        return at(step=step), step
    constants = soteriafl.sgd_constants(records=public.records, batch=batch, gradient_bound=public.clip_norm)
    beta = soteriafl.balanced_beta(federation.clients, omega)
    numbers: dict[str, Any] = {
        "beta": beta, "clients": federation.clients, "omega": omega, "smoothness": smoothness,
    }  # fmt: skip
    step = soteriafl.largest_step(constants, **numbers)
    potential = soteriafl.initial_potential(
        public.loss_gap, beta=beta, smoothness=smoothness, shift_gap_squared=public.clip_norm**2
    )
    bound = soteriafl.utility_bound(
        constants, step=step, rounds=rounds, noise_std=noise_std, potential=potential, dim=model.dim, **numbers
    )
    return bound, step


def _risk(public: Public, name: str, rounds: int, batch: int, noise_std: float) -> tuple[float, float]:
    problem = isrl_dp.problem_of(
        public.model,
        public.federation,
        epsilon=public.target.epsilon,
        delta=public.target.delta,
        feature_norm=public.feature_norm,
        diameter=public.diameter or 1.0,
        target_bound=math.sqrt(2 * public.loss_gap),
    )
    if name == "noisy-mb-sgd":
        step = isrl_dp.mb_sgd_step(problem, rounds=rounds, noise_std=noise_std)
        bound = isrl_dp.mb_sgd_bound(problem, rounds=rounds, step=step, noise_std=noise_std)
        return bound, step
    variance = isrl_dp.gradient_variance(problem, batch=batch, noise_std=noise_std, empirical=True)
    if problem.is_strongly_convex:
        stages = isrl_dp.fit_stages(problem, rounds=rounds, variance=variance)
        return isrl_dp.multi_stage_bound(problem, stages, variance=variance), 1 / stages[0][1]
    strength = isrl_dp.best_regularisation(problem, rounds=rounds, variance=variance)
    bound = isrl_dp.regularised_bound(problem, rounds=rounds, variance=variance, regularisation=strength)
    return bound, 1 / (problem.smooth + strength)
