"""What a recipe leaves open, chosen: by the papers' theory where its public constants are known."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from tacit.algorithms.calibrate import Privacy
from tacit.algorithms.registry import AlgorithmEntry
from tacit.client.estimators import DIFFERENCE_BOUND
from tacit.client.sampling import build_sampling
from tacit.compress import parse_compressor
from tacit.engine.convex import accelerated_choices, convex_problem, descent_step
from tacit.engine.crowd import equal_batches
from tacit.engine.parts import bound_of
from tacit.engine.recipe import Recipe
from tacit.engine.targets import for_each_client
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.models.model import Model
from tacit.models.penalty import Ridge
from tacit.theory import soteriafl as theory

OPTIONAL_SETTINGS = (
    "compressor",
    "sampling",
    "shift_step",
    "snapshot_probability",
    "difference_bound",
    "projection",
    "stages",
    "regularisation",
    "local_steps",
    "local_step",
    "step_schedule",
    "momentum",
    "beta_1",
    "beta_2",
    "kappa",
    "bits",
    "rotate",
    "bound_from",
    "output",
    "adversary",
)
"""Settings that only some algorithms take: for the others they must be left out."""

FALLBACKS = {"batch": 0.1, "rounds": 100, "step": 0.1}
"""Where the theory's constants are not known; the step is the middle of the grid of papers/000, appendix A."""


def resolved(
    recipe: Recipe, model: Model, federation: Federation, entry: AlgorithmEntry, privacy: Privacy
) -> Recipe:
    """The recipe with the theory's choices for what was left open, and nothing the algorithm does not take."""
    takes = recipe_names(entry)
    for setting in OPTIONAL_SETTINGS:
        if setting not in takes and getattr(recipe, setting) is not None:
            raise RequestError(f"algorithm {recipe.algorithm!r} takes no {setting}; leave it out")
    if "compressor" in takes and recipe.compressor is None:
        recipe = replace(recipe, compressor="rand-k:0.05")
    if "sampling" not in takes:
        recipe = replace(recipe, batch=None)
    elif recipe.sampling is None:
        recipe = replace(recipe, sampling=entry.sampling)
    if "step_schedule" in takes and recipe.step_schedule is None:
        recipe = replace(recipe, step_schedule=entry.schedule)
    if recipe.sampling == "full":
        recipe = replace(recipe, batch=None)
    if "shuffler" in takes:
        recipe = equal_batches(recipe, federation)
    recipe = _open_choices(recipe, model, takes)
    recipe = _prescribed(recipe, model, federation, takes, privacy)
    if "local_step" in takes and recipe.local_step is None:
        recipe = replace(recipe, local_step=recipe.step)
    return recipe


_RECIPE_NAMES = {
    "before": "bound_from",
    "schedule": "step_schedule",
    "trust": "adversary",
    "growth": "strong_convexity",
}
"""What algorithms call a part, and what recipes call the choice of it."""


def recipe_names(entry: AlgorithmEntry) -> frozenset[str]:
    """The settings of a recipe that an algorithm takes."""
    return frozenset(_RECIPE_NAMES.get(name, name) for name in entry.settings)


def _open_choices(recipe: Recipe, model: Model, takes: frozenset[str]) -> Recipe:
    ridge = model.penalty.strength if isinstance(model.penalty, Ridge) else 0.0
    defaults: dict[str, Any] = {
        "projection": "none",
        "difference_bound": DIFFERENCE_BOUND,
        "strong_convexity": ridge,
        "local_steps": 10,
        "beta_1": 0.9,
        "beta_2": 0.99,
        "kappa": 1e-3,
        "bits": 16,
        "rotate": False,
        "momentum": 0.0,
        "output": "last",
        "adversary": "sum",
    }
    return replace(
        recipe, **{name: v for name, v in defaults.items() if name in takes and getattr(recipe, name) is None}
    )


def _convex_choices(
    recipe: Recipe, model: Model, federation: Federation, takes: frozenset[str], privacy: Privacy
) -> Recipe:
    """Steps, stages and regularisation of papers/001 for what is still open, where its constants are known."""
    open_steps = recipe.step is None and recipe.stages is None
    if "strong_convexity" not in takes or not open_steps:
        return recipe
    filled: dict[str, Any] = {
        name: FALLBACKS[name] for name in ("rounds", "batch") if getattr(recipe, name) is None
    }
    if recipe.sampling == "full":
        filled.pop("batch", None)
    posed = convex_problem(recipe, model, federation, bound_of(recipe), privacy, feature_norm(recipe))
    if posed is None:
        return recipe
    if recipe.sampling == "one-pass" and recipe.rounds is None:
        # As many rounds as there are disjoint batches: R = floor(n / K).
        sampling = build_sampling("one-pass", filled.get("batch", recipe.batch))
        sizes = federation.sizes.double()
        filled["rounds"] = int((sizes / sampling.batch_sizes(federation.sizes)).floor().min())
    recipe = replace(recipe, **filled)
    if "stages" not in takes:
        return replace(recipe, step=descent_step(posed, recipe))
    chosen = accelerated_choices(posed, recipe)
    if recipe.regularisation is not None:
        chosen["regularisation"] = recipe.regularisation
    return replace(recipe, step=1 / chosen["stages"][0][1], **chosen)


def _prescribed(
    recipe: Recipe, model: Model, federation: Federation, takes: frozenset[str], privacy: Privacy
) -> Recipe:
    recipe = _convex_choices(recipe, model, federation, takes, privacy)
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
    if "stages" in takes:
        recipe = replace(
            recipe,
            stages=1 if recipe.stages is None else recipe.stages,
            regularisation=recipe.regularisation or 0.0,
        )
    return recipe


def prescribe(recipe: Recipe, model: Model, federation: Federation) -> theory.Prescription | None:
    """What papers/000 prescribes for this recipe, from public numbers alone; None where they are not known.

    The theory needs a smoothness constant, which is known for linear models with a public bound on the
    features (`feature_norm`, or `data.unit_norm`), and a target.
    """
    asked = problem(recipe, model, federation)
    if asked is None or recipe.algorithm not in theory.AS_PUBLISHED:
        return None
    constant = theory.exact_noise_constant(recipe.algorithm)
    return theory.prescribe(recipe.algorithm, **asdict(asked), noise_constant=constant)


def problem(recipe: Recipe, model: Model, federation: Federation) -> theory.Problem | None:
    """The public numbers of a recipe that the theory depends on."""
    smoothness = _smoothness(recipe, model)
    if smoothness is None or recipe.epsilon is None or recipe.delta is None:
        return None
    epsilons = for_each_client("epsilon", recipe.epsilon, federation)
    deltas = for_each_client("delta", recipe.delta, federation)
    return theory.Problem(
        clients=federation.clients,
        records=int(federation.sizes.min()),
        dim=model.dim,
        omega=parse_compressor(recipe.compressor or "identity").omega(model.dim),
        smoothness=smoothness,
        gradient_bound=bound_of(recipe).norm(model.dim),
        # The strictest client's: the theory has one budget for all.
        epsilon=min(epsilons),
        delta=min(deltas),
    )


def feature_norm(recipe: Recipe) -> float | None:
    """The public bound on the norm of a record's features, where there is one."""
    if recipe.feature_norm is None and recipe.data_settings.get("unit_norm") is True:
        return 1.0
    return recipe.feature_norm


def _smoothness(recipe: Recipe, model: Model) -> float | None:
    norm = feature_norm(recipe)
    return model.smoothness(norm) if isinstance(model, LinearModel) and norm is not None else None
