"""From a recipe to the things it names, with every open choice made."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy, calibrate, releases
from tacit.algorithms.registry import algorithm_entry, build_algorithm
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.client.sampling import build_sampling
from tacit.compress import parse_compressor
from tacit.data import from_files, load
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError, count, positive, unknown_name
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.models.model import Model
from tacit.models.penalty import Ridge
from tacit.models.quadratic import quadratic_federation
from tacit.models.registry import build_model, default_model
from tacit.noise.additive import build_noise
from tacit.noise.randomness import Randomness
from tacit.privacy import Adjacency, Target
from tacit.server.accelerated import Stage
from tacit.server.participation import parse_participation
from tacit.server.projection import parse_projection
from tacit.theory import soteriafl as theory

BOUNDS: dict[str, Callable[[float], Bound]] = {
    "clip-norm": ClipNorm,
    "normalise": Normalise,
    "clip-each-coordinate": ClipEachCoordinate,
}

OPTIONAL_SETTINGS = (
    "compressor",
    "sampling",
    "shift_step",
    "snapshot_probability",
    "projection",
    "stages",
    "local_steps",
)
"""Settings that only some algorithms take: for the others they must be left out."""

FALLBACKS = {"batch": 0.1, "rounds": 100, "step": 0.1}
"""Where the theory's constants are not known; the step is the middle of the grid of papers/000, appendix A."""

EXACT_NOISE_CONSTANT = 32.0
"""The paper's unknown c of Theorem 2, for exactly calibrated full batches and replace-one.

The noise that T releases need is about sigma^2 = (2 G/m)^2 T 2 ln(1/delta) / epsilon^2, and G_A = G, G_B = 0.
"""


@dataclass(frozen=True)
class Plan:
    """All that a run needs; `recipe` has no open choice left and reproduces it."""

    recipe: Recipe
    federation: Federation
    algorithm: Algorithm
    privacy: Privacy
    rounds: int


def make_plan(recipe: Recipe, *, data_dir: Path | None = None) -> Plan:
    """Load the data, build the parts, and fill in what the recipe leaves open."""
    privacy = _privacy(recipe)
    count("memory_limit_mb", recipe.memory_limit_mb)
    _check_device(recipe.device)
    entry = algorithm_entry(recipe.algorithm)
    federation = load_federation(recipe, data_dir)
    recipe = replace(recipe, model=recipe.model or default_model(federation), clients=federation.clients)
    model = build_model(recipe.model or "", federation, recipe.model_settings)
    recipe = _resolved(recipe, model, federation, entry.settings)
    rounds = count("rounds", recipe.rounds or 0)
    algorithm = _algorithm(recipe, model)
    # Whatever the accountant refuses is refused here, before anything is written or run.
    times = releases(algorithm, federation, rounds, Randomness(recipe.seed))
    calibrate(algorithm, federation, releases=times, privacy=privacy)
    return Plan(recipe, federation, algorithm, privacy, rounds)


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RequestError(f"device {device!r} is not available: {str(error).splitlines()[0]}") from error


def _privacy(recipe: Recipe) -> Privacy:
    if recipe.privacy == "none":
        return "none"
    if recipe.epsilon is None or recipe.delta is None:
        raise RequestError("epsilon and delta must be given, unless privacy = 'none'")
    return Target(recipe.epsilon, recipe.delta, Adjacency(recipe.adjacency))


def load_federation(recipe: Recipe, data_dir: Path | None) -> Federation:
    """The records that a recipe names."""
    makers = {"quadratic": quadratic_federation}
    known = inspect.signature(from_files if "." in recipe.data else makers.get(recipe.data, load)).parameters
    for name in recipe.data_settings:
        if name not in known or name in ("name", "clients", "partition", "data_dir", "paths", "options"):
            raise unknown_name("setting of data", f"data.{name}", [f"data.{key}" for key in known])
    if recipe.data == "quadratic":
        return quadratic_federation(clients=recipe.clients or 100, **recipe.data_settings)
    if "." in recipe.data:
        return _own_files(recipe)
    settings: dict[str, Any] = {"seed": recipe.seed, **recipe.data_settings}
    return load(recipe.data, clients=recipe.clients, partition=recipe.partition, data_dir=data_dir, **settings)


def _own_files(recipe: Recipe) -> Federation:
    """The user's own files: one a client, joined by commas, or one with a client column (`data.client`)."""
    if recipe.partition != Recipe.partition:
        raise RequestError(
            f"partition = {recipe.partition!r} is for named data sets; files say whose records they hold"
        )
    federation = from_files(recipe.data.split(","), **recipe.data_settings)
    if recipe.clients not in (None, federation.clients):
        raise RequestError(f"clients = {recipe.clients}, but the files hold {federation.clients}; leave it out")
    return federation


def _resolved(recipe: Recipe, model: Model, federation: Federation, takes: frozenset[str]) -> Recipe:
    """The recipe with the theory's choices for what was left open, and nothing the algorithm does not take."""
    for setting in OPTIONAL_SETTINGS:
        if setting not in takes and getattr(recipe, setting) is not None:
            raise RequestError(f"algorithm {recipe.algorithm!r} takes no {setting}; leave it out")
    if "compressor" in takes and recipe.compressor is None:
        recipe = replace(recipe, compressor="rand-k:0.05")
    if "sampling" not in takes:
        recipe = replace(recipe, batch=None)
    elif recipe.sampling is None:
        recipe = replace(recipe, sampling="poisson")
    if recipe.sampling == "full":
        recipe = replace(recipe, batch=None)
    recipe = _convex_choices(recipe, model, takes)
    return _prescribed(recipe, model, federation, takes)


def _convex_choices(recipe: Recipe, model: Model, takes: frozenset[str]) -> Recipe:
    ridge = model.penalty.strength if isinstance(model.penalty, Ridge) else 0.0
    defaults: dict[str, Any] = {"projection": "none", "strong_convexity": ridge, "stages": 1, "local_steps": 10}
    return replace(
        recipe, **{name: v for name, v in defaults.items() if name in takes and getattr(recipe, name) is None}
    )


def _prescribed(recipe: Recipe, model: Model, federation: Federation, takes: frozenset[str]) -> Recipe:
    wanted = {"rounds", "step"} | ({"snapshot_probability"} & takes)
    if "sampling" in takes and recipe.sampling != "full":
        wanted.add("batch")
    missing = {name for name in wanted if getattr(recipe, name) is None}
    if missing - {"snapshot_probability"}:
        prescription = prescribe(recipe, model, federation)
        chosen: dict[str, Any] = dict(FALLBACKS)
        if prescription is not None:
            chosen = {"batch": prescription.batch, "rounds": prescription.rounds, "step": prescription.step}
        recipe = replace(recipe, **{name: chosen[name] for name in missing - {"snapshot_probability"}})
    if "snapshot_probability" in missing:
        # Corollary 2: p = b/m.
        sampling = build_sampling(recipe.sampling or "full", recipe.batch)
        recipe = replace(recipe, snapshot_probability=sampling.rate(int(federation.sizes.min())))
    return recipe


def prescribe(recipe: Recipe, model: Model, federation: Federation) -> theory.Prescription | None:
    """What papers/000 prescribes for this recipe, from public numbers alone; None where they are not known.

    The theory needs a smoothness constant, which is known for linear models with a public bound on the
    features (`feature_norm`, or `data.unit_norm`), and a target.
    """
    asked = problem(recipe, model, federation)
    if asked is None or recipe.algorithm not in theory.AS_PUBLISHED:
        return None
    return theory.prescribe(recipe.algorithm, **asdict(asked), noise_constant=EXACT_NOISE_CONSTANT)


def problem(recipe: Recipe, model: Model, federation: Federation) -> theory.Problem | None:
    """The public numbers of a recipe that the theory depends on."""
    smoothness = _smoothness(recipe, model)
    if smoothness is None or recipe.epsilon is None or recipe.delta is None:
        return None
    return theory.Problem(
        clients=federation.clients,
        records=int(federation.sizes.min()),
        dim=model.dim,
        omega=parse_compressor(recipe.compressor or "identity").omega(model.dim),
        smoothness=smoothness,
        gradient_bound=_bound(recipe).norm(model.dim),
        epsilon=recipe.epsilon,
        delta=recipe.delta,
    )


def _smoothness(recipe: Recipe, model: Model) -> float | None:
    norm = recipe.feature_norm
    if norm is None and recipe.data_settings.get("unit_norm") is True:
        norm = 1.0
    return model.smoothness(norm) if isinstance(model, LinearModel) and norm is not None else None


def _bound(recipe: Recipe) -> Bound:
    if recipe.bound not in BOUNDS:
        raise unknown_name("bound", recipe.bound, BOUNDS)
    return BOUNDS[recipe.bound](recipe.clip_norm)


def _growth(strong_convexity: float, step: float) -> float:
    """Lemma D.6: later points weigh 1/(1 - mu step) more in a strongly convex problem."""
    if not 0 <= strong_convexity < math.inf:
        raise RequestError(f"strong_convexity must be a finite number of at least 0, not {strong_convexity!r}")
    if strong_convexity * step >= 1:
        raise RequestError(
            f"step = {step:g} is too long for strong_convexity = {strong_convexity:g}: take less than its inverse"
        )
    return 1 / (1 - strong_convexity * step)


def _stages(stages: int, rounds: int, step: float) -> tuple[Stage, ...]:
    """The rounds cut into stages as equal as they can be, each of first curvature 1/step."""
    if not 1 <= stages <= rounds:
        raise RequestError(f"stages must be between 1 and the {rounds} rounds, not {stages}")
    lengths = [rounds // stages + (k < rounds % stages) for k in range(stages)]
    return tuple(Stage(length, 1 / step) for length in lengths)


def _algorithm(recipe: Recipe, model: Model) -> Algorithm:
    positive("step", recipe.step or 0.0)
    mu, step, rounds = recipe.strong_convexity or 0.0, recipe.step or 0.0, recipe.rounds or 1
    settings = {
        "bound": _bound(recipe),
        "sampling": build_sampling(recipe.sampling, recipe.batch) if recipe.sampling is not None else None,
        "compressor": parse_compressor(recipe.compressor) if recipe.compressor is not None else None,
        "step": recipe.step,
        "shift_step": recipe.shift_step,
        "snapshot_probability": recipe.snapshot_probability,
        "projection": parse_projection(recipe.projection or "none"),
        "growth": _growth(mu, step),
        "stages": _stages(recipe.stages or 1, rounds, step),
        "strong_convexity": mu,
        "local_steps": recipe.local_steps,
        "noise": build_noise(recipe.noise),
        "participation": parse_participation(recipe.cohort),
    }
    return build_algorithm(recipe.algorithm, model, settings)
