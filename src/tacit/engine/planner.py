"""The planner: batch, rounds, step, compressor and clip norm that make the theory's bound smallest.

Every candidate is charged by the exact accountant, so that candidates are compared at the same promise. The
bounds hold for the noise that would really be added. They are worst cases: their order says more than their size,
and a trial on synthetic data of the same shape says more than both. Nothing here looks at a private record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tacit.algorithms.registry import algorithm_entry
from tacit.client.estimators import Minibatch
from tacit.client.sampling import Full, Poisson, Sampling
from tacit.client.work import PrivateGradient
from tacit.compress import parse_compressor
from tacit.engine.choices import feature_norm
from tacit.engine.parts import bound_of
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.engine.rehearsal import synthetic_like
from tacit.engine.simulate import simulate
from tacit.engine.targets import privacy_of
from tacit.errors import DivergedError, RequestError, count, positive
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.models.losses import CrossEntropy, Logistic
from tacit.models.registry import build_model, default_model
from tacit.privacy import Target, calibrate_noise
from tacit.server.projection import parse_projection
from tacit.theory import isrl_dp, soteriafl

ROUNDS = (5, 10, 20, 50, 100, 200, 500, 1000)
FRACTIONS = (0.01, 0.03, 0.1, 0.3, 1.0)
COMPRESSORS = ("identity", "natural", "rand-k:0.3", "rand-k:0.1", "rand-k:0.05", "rand-k:0.01")

GRADIENT = ("soteriafl-gd", "soteriafl-sgd", "cdp-sgd", "ldp-sgd")
"""Bounds on the mean squared gradient norm (papers/000, Theorems 1 and 3)."""

RISK = ("noisy-mb-sgd", "accelerated-mb-sgd")
"""Bounds on the excess empirical risk of convex losses (papers/001, Lemmas D.6 and E.1)."""


@dataclass(frozen=True)
class Candidate:
    """One way to keep the promise, and what the theory promises about its result."""

    algorithm: str
    rounds: int
    batch: float | None
    """a fraction of a client's records; None for all of them"""
    compressor: str | None
    step: float
    clip_norm: float
    noise_std: float
    uplink_bits_per_client: int
    bound: float
    quantity: str
    """what the bound is on"""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)

    def recipe(self, base: Recipe) -> Recipe:
        """The recipe that runs it."""
        takes = algorithm_entry(self.algorithm).settings
        sampling = None if "sampling" not in takes else "full" if self.batch is None else "poisson"
        return replace(
            base,
            algorithm=self.algorithm,
            rounds=self.rounds,
            sampling=sampling,
            batch=self.batch if sampling == "poisson" else None,
            compressor=self.compressor if "compressor" in takes else None,
            step=self.step if self.algorithm != "accelerated-mb-sgd" else None,
            clip_norm=self.clip_norm,
        )


@dataclass(frozen=True)
class _Public:
    """What everybody knows about the problem."""

    federation: Federation
    model: LinearModel
    feature_norm: float
    diameter: float | None
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
    data_dir: Path | None = None,
) -> list[Candidate]:
    """All candidates, best bound first; `bit_budget` is the most bits that a client may send in the whole run.

    Needs public constants: a linear model, `feature_norm` (or `data.unit_norm`), and for the bounds on the excess
    risk a ball in which the model lies. The clip norm is the loss's own Lipschitz constant, which changes no
    gradient; where it has none, the recipe's.
    """
    if bit_budget is not None:
        positive("bit_budget", bit_budget)
    public = _public(recipe, load_federation(recipe, data_dir))
    names = algorithms or (RISK if public.diameter is not None else GRADIENT)
    for name in names:
        if name not in (*GRADIENT, *RISK):
            raise RequestError(f"algorithm {name!r} has no bound that could be planned by; take one of "
                               f"{', '.join((*GRADIENT, *RISK))}")  # fmt: skip
        if name in RISK and public.diameter is None:
            raise RequestError(f"{name}: give projection = 'ball:RADIUS', the public set in which the model lies")
    found = [
        candidate
        for fraction in fractions
        for many in rounds
        for candidate in _at(public, _sampling(fraction), many, names, compressors)
        if bit_budget is None or candidate.uplink_bits_per_client <= bit_budget
    ]
    if not found:
        raise RequestError(f"no candidate sends at most bit_budget = {bit_budget:g} bits; allow more")
    return sorted(found, key=lambda candidate: candidate.bound)


def _sampling(fraction: float) -> Sampling:
    return Full() if fraction == 1 else Poisson(fraction)


def _public(recipe: Recipe, federation: Federation) -> _Public:
    norm = feature_norm(recipe)
    model = build_model(recipe.model or default_model(federation), federation, recipe.model_settings)
    target = privacy_of(recipe, federation)
    if not isinstance(target, Target):
        raise RequestError("planning needs one epsilon and one delta for all clients")
    if norm is None or not isinstance(model, LinearModel) or model.smoothness(norm) is None:
        raise RequestError(
            "planning by theory needs a linear model with a smooth loss and a public bound on its features: give "
            "feature_norm, or data.unit_norm = true"
        )
    gap = {CrossEntropy: math.log(model.outputs or 1), Logistic: math.log(2)}.get(type(model.loss))
    if gap is None and recipe.target_bound is not None:
        gap = recipe.target_bound**2 / 2
    if gap is None:
        raise RequestError("target_bound must be given: the largest absolute target, a public number")
    clip = model.lipschitz(norm) or bound_of(recipe).norm(model.dim)
    diameter = parse_projection(recipe.projection or "none").diameter
    return _Public(federation, model, norm, diameter, clip, target, gap)


def _at(
    public: _Public, sampling: Sampling, rounds: int, names: Sequence[str], compressors: Sequence[str]
) -> Iterator[Candidate]:
    work = PrivateGradient(public.model, Minibatch(sampling), bound_of(Recipe(clip_norm=public.clip_norm)))
    multiplier = calibrate_noise(
        partial(work.event, public.records, rounds=rounds),
        epsilon=public.target.epsilon,
        delta=public.target.delta,
        adjacency=public.target.adjacency,
    )
    sizes = public.federation.sizes
    smallest = sizes[sizes.argmin()][None]
    noise_std = float(work.noise_stds(smallest, sizes.new_tensor([1.0]).double() * multiplier)[0])
    batch = max(1, round(sampling.rate(public.records) * public.records))
    full = isinstance(sampling, Full)
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
                noise_std=noise_std,
                uplink_bits_per_client=bits,
                bound=bound,
                quantity="excess risk" if name in RISK else "mean squared gradient norm",
            )


def _bound(
    public: _Public, name: str, rounds: int, batch: int, noise_std: float, omega: float
) -> tuple[float, float]:
    """The theory's bound and the step that it holds for."""
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
        # a/step + b step is smallest at sqrt(a/b); both follow from two values.
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


def _risk(public: _Public, name: str, rounds: int, batch: int, noise_std: float) -> tuple[float, float]:
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
        step = isrl_dp.mb_sgd_step(problem, rounds=rounds, noise_std=noise_std, setting="erm")
        bound = isrl_dp.mb_sgd_bound(problem, rounds=rounds, step=step, noise_std=noise_std, setting="erm")
        return bound, step
    variance = isrl_dp.gradient_variance(problem, batch=batch, noise_std=noise_std, empirical=True)
    if problem.is_strongly_convex:
        stages = isrl_dp.fit_stages(problem, rounds=rounds, variance=variance)
        return isrl_dp.multi_stage_bound(problem, stages, variance=variance), 1 / stages[0].curvature
    strength = isrl_dp.best_regularisation(problem, rounds=rounds, variance=variance)
    bound = isrl_dp.regularised_bound(problem, rounds=rounds, variance=variance, regularisation=strength)
    return bound, 1 / (problem.smooth + strength)


@dataclass(frozen=True)
class Trial:
    """How a candidate did on synthetic data."""

    candidate: Candidate
    train_loss: float


def try_out(
    found: Sequence[Candidate], recipe: Recipe, *, most: int, data_dir: Path | None = None
) -> list[Trial]:
    """The first `most` candidates, run on synthetic data of the recipe's shape; the lowest training loss first.

    As many clients and records, as many features of the same norm, and labels from a random linear teacher.
    """
    public = _public(recipe, load_federation(recipe, data_dir))
    federation = synthetic_like(public.federation, public.feature_norm, seed=recipe.seed)
    trials = []
    for candidate in found[: count("trials", most)]:
        plan = make_plan(candidate.recipe(recipe), federation=federation)
        try:
            run = simulate(
                plan.algorithm,
                federation,
                rounds=plan.rounds,
                privacy=plan.privacy,
                seed=recipe.seed,
                evaluate_every=plan.rounds,
            )
        except DivergedError:
            continue
        trials.append(Trial(candidate, run.last.train_loss))
    if not trials:
        raise RequestError("every candidate that was tried diverged on synthetic data; allow others")
    return sorted(trials, key=lambda trial: trial.train_loss)
