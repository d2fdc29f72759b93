"""From a recipe to the things it names, with every open choice made."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy, attendance, calibrate, releases
from tacit.algorithms.hybrid import protect_clients
from tacit.algorithms.registry import AlgorithmEntry, algorithm_entry, build_algorithm
from tacit.algorithms.shuffled import settled
from tacit.algorithms.shuffler import Shuffler, check_target
from tacit.algorithms.trust import Aggregator, Nobody
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.client.sampling import build_sampling
from tacit.compress import parse_compressor
from tacit.data import from_files, load
from tacit.engine.bound_source import check_paid, find_bound
from tacit.engine.convex import accelerated_choices, convex_problem, descent_step, with_theory_smoothing
from tacit.engine.crowd import equal_batches, shuffler_for
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
from tacit.privacy.side import SideRelease
from tacit.schedules import parse_schedule
from tacit.server.accelerated import Stage
from tacit.server.participation import PoissonClients, parse_participation
from tacit.server.projection import parse_projection
from tacit.server.update import parse_output
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
    "regularisation",
    "local_steps",
    "local_step",
    "step_schedule",
    "momentum",
    "beta_1",
    "beta_2",
    "kappa",
    "bits",
    "bound_from",
    "output",
    "adversary",
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
    count("memory_limit_mb", recipe.memory_limit_mb)
    _check_device(recipe.device)
    entry = algorithm_entry(recipe.algorithm)
    _check_promise(recipe, entry.private)
    federation = load_federation(recipe, data_dir)
    privacy = _privacy(recipe, federation)
    recipe = replace(recipe, model=recipe.model or default_model(federation), clients=federation.clients)
    make_model = partial(_model, federation)
    recipe = with_theory_smoothing(recipe, make_model, federation, feature_norm(recipe))
    model = make_model(recipe)
    recipe = _resolved(recipe, model, federation, entry, privacy)
    rounds = count("rounds", recipe.rounds or 0)
    recipe, before = find_bound(recipe, model, federation, privacy, data_dir)
    algorithm = _algorithm(recipe, model, federation, before)
    unit = str(algorithm.work.unit)
    if privacy != "none" and recipe.privacy not in (None, unit):
        raise RequestError(
            f"algorithm {recipe.algorithm!r} protects every {unit}: privacy = {recipe.privacy!r} is not for it"
        )
    recipe = replace(recipe, privacy="none" if privacy == "none" else unit)
    # Whatever the accountant refuses is refused here, before anything is written or run.
    times = releases(algorithm, attendance(algorithm, federation, rounds, Randomness(recipe.seed)))
    if isinstance(algorithm.trust, Shuffler):
        check_target(algorithm.work, privacy)
    if recipe.client_epsilon is not None:
        whole = _client_target(recipe.client_epsilon, recipe)
        privacy = protect_clients(algorithm, federation, releases=times, privacy=privacy, clients=whole)
    calibration = calibrate(algorithm, federation, releases=times, privacy=privacy)
    algorithm = settled(algorithm, float(calibration.noise_multipliers[0]))
    return Plan(recipe, federation, algorithm, privacy, rounds)


def _client_target(client_epsilon: float, recipe: Recipe) -> Target:
    delta = recipe.client_delta if recipe.client_delta is not None else recipe.delta
    if not isinstance(delta, float):
        raise RequestError("client_epsilon needs a client_delta, because delta is not one number for all clients")
    return Target(client_epsilon, delta, Adjacency(recipe.adjacency))


def _check_promise(recipe: Recipe, private: bool) -> None:
    if recipe.privacy != "none" and not private:
        raise RequestError(
            f"algorithm {recipe.algorithm!r} adds no noise and promises nothing: say privacy = 'none'"
        )


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RequestError(f"device {device!r} is not available: {str(error).splitlines()[0]}") from error


def _privacy(recipe: Recipe, federation: Federation) -> Privacy:
    if recipe.privacy == "none":
        return "none"
    if recipe.epsilon is None or recipe.delta is None:
        raise RequestError("epsilon and delta must be given, unless privacy = 'none'")
    adjacency = Adjacency(recipe.adjacency)
    if isinstance(recipe.epsilon, float) and isinstance(recipe.delta, float):
        return Target(recipe.epsilon, recipe.delta, adjacency)
    epsilons = for_each_client("epsilon", recipe.epsilon, federation)
    deltas = for_each_client("delta", recipe.delta, federation)
    return tuple(Target(e, d, adjacency) for e, d in zip(epsilons, deltas, strict=True))


def for_each_client(
    setting: str, value: float | list[float] | dict[str, float], federation: Federation
) -> list[float]:
    """The number of every client: the same for all, in order, or by name."""
    names = federation.names or tuple(map(str, federation.ids.tolist()))
    if isinstance(value, float):
        return [value] * federation.clients
    if isinstance(value, list):
        if len(value) != federation.clients:
            raise RequestError(f"{setting} has {len(value)} entries, but there are {federation.clients} clients")
        return value
    for name in value:
        if name not in names:
            raise unknown_name(f"client in {setting}", name, names)
    missing = [name for name in names if name not in value]
    if missing:
        raise RequestError(f"{setting} says nothing about {', '.join(missing)}: name every client")
    return [value[name] for name in names]


def load_federation(recipe: Recipe, data_dir: Path | None) -> Federation:
    """The records that a recipe names, and how much each client counts."""
    federation = _records(recipe, data_dir)
    if recipe.weights is None:
        return federation
    if isinstance(recipe.weights, str):
        return federation.weighted(recipe.weights)
    return federation.weighted(for_each_client("weights", recipe.weights, federation))


def _records(recipe: Recipe, data_dir: Path | None) -> Federation:
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


def _model(federation: Federation, recipe: Recipe) -> Model:
    return build_model(recipe.model or "", federation, recipe.model_settings)


def _resolved(
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
        "strong_convexity": ridge,
        "local_steps": 10,
        "beta_1": 0.9,
        "beta_2": 0.99,
        "kappa": 1e-3,
        "bits": 16,
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
    posed = convex_problem(recipe, model, federation, _bound(recipe), privacy, feature_norm(recipe))
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
        recipe = replace(recipe, stages=recipe.stages or 1, regularisation=recipe.regularisation or 0.0)
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
    epsilons = for_each_client("epsilon", recipe.epsilon, federation)
    deltas = for_each_client("delta", recipe.delta, federation)
    return theory.Problem(
        clients=federation.clients,
        records=int(federation.sizes.min()),
        dim=model.dim,
        omega=parse_compressor(recipe.compressor or "identity").omega(model.dim),
        smoothness=smoothness,
        gradient_bound=_bound(recipe).norm(model.dim),
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


def _stages(stages: int | list[list[float]], rounds: int, step: float) -> tuple[Stage, ...]:
    """The stages as given, or the rounds cut into stages as equal as they can be, of first curvature 1/step."""
    if isinstance(stages, list):
        if not all(isinstance(stage, list) and len(stage) == 2 for stage in stages):
            raise RequestError(f"stages must be a number, or [rounds, curvature] for each stage, not {stages!r}")
        made = tuple(Stage(int(length), curvature) for length, curvature in stages)
        if sum(stage.rounds for stage in made) != rounds:
            raise RequestError(
                f"stages have {sum(stage.rounds for stage in made)} rounds in all, the recipe {rounds}"
            )
        return made
    if not 1 <= stages <= rounds:
        raise RequestError(f"stages must be between 1 and the {rounds} rounds, not {stages}")
    lengths = [rounds // stages + (k < rounds % stages) for k in range(stages)]
    return tuple(Stage(length, 1 / step) for length in lengths)


def _algorithm(
    recipe: Recipe, model: Model, federation: Federation, before: SideRelease[float] | None = None
) -> Algorithm:
    check_paid(recipe, before)
    positive("step", recipe.step or 0.0)
    mu, step, rounds = recipe.strong_convexity or 0.0, recipe.step or 0.0, recipe.rounds or 1
    entry = algorithm_entry(recipe.algorithm)
    central = entry.client_coins and recipe.adversary != "server"
    participation = _client_coins(recipe, federation) if central else parse_participation(recipe.cohort)
    settings = {
        "bound": _bound(recipe),
        "before": before,
        "clip_norm": recipe.clip_norm,
        "sampling": build_sampling(recipe.sampling, recipe.batch) if recipe.sampling is not None else None,
        "compressor": parse_compressor(recipe.compressor) if recipe.compressor is not None else None,
        "step": recipe.step,
        "shift_step": recipe.shift_step,
        "snapshot_probability": recipe.snapshot_probability,
        "projection": parse_projection(recipe.projection or "none"),
        "growth": _growth(mu, step),
        "stages": _stages(recipe.stages or 1, rounds, step),
        "strong_convexity": mu,
        "regularisation": recipe.regularisation or 0.0,
        "local_steps": recipe.local_steps,
        "local_step": recipe.local_step,
        "schedule": parse_schedule(recipe.step_schedule or "constant"),
        "momentum": recipe.momentum,
        "beta_1": recipe.beta_1,
        "beta_2": recipe.beta_2,
        "kappa": recipe.kappa,
        "bits": recipe.bits,
        "output": parse_output(recipe.output or "last", rounds, Randomness(recipe.seed)),
        "trust": Aggregator(participation.expected) if isinstance(participation, PoissonClients) else Nobody(),
        "shuffler": shuffler_for(participation, federation) if "shuffler" in entry.settings else None,
        "noise": build_noise(recipe.noise),
        "participation": participation,
    }
    return build_algorithm(recipe.algorithm, model, settings)


def _client_coins(recipe: Recipe, federation: Federation) -> PoissonClients:
    """Every client by a secret coin, `cohort` of them on average."""
    try:
        return PoissonClients(float(federation.clients if recipe.cohort is None else recipe.cohort))
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"cohort must be a number of clients here, not {recipe.cohort!r}") from error
