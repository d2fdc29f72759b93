"""A plan: what is run, on which data, with which promise, and the noise that keeps the promise.

Every run goes through here, whether simulated, audited or deployed. A plan is made from an algorithm and a
federation (`plan`), or from a recipe (`make_plan`). Invalid requests are refused at this point, before anything
is written or run. The noise is derived once and is part of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from dp_accounting import DpEvent

from tacit.algorithms import secure_sum
from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Calibration, Privacy, attendance, calibrate, releases
from tacit.algorithms.hybrid import protect_clients
from tacit.algorithms.prospect import settle_steps
from tacit.algorithms.registry import algorithm_entry, build_algorithm
from tacit.algorithms.secure_sum import secured
from tacit.algorithms.settings import About
from tacit.algorithms.shuffled import fitted, settled
from tacit.algorithms.trust import Travel
from tacit.compress.uplink import Uplink
from tacit.engine.bound_source import find_bound
from tacit.engine.brief_repr import BriefRepr
from tacit.engine.choices import (
    THEORY,
    feature_norm,
    participation_of,
    resolved,
    secure_sum_of,
    with_theory_smoothing,
)
from tacit.engine.correction import PlannedCorrection, plan_correction
from tacit.engine.evaluation import PlannedEvaluation, coins_of, hold_back, plan_evaluation, settings_of
from tacit.engine.fronts import LEARN, model_and_records, with_features
from tacit.engine.middle import bounded_targets, left_open, with_middle
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.engine.sizes import with_sizes
from tacit.engine.targets import check_promise, client_target, privacy_of
from tacit.engine.weights import good_weights, weighted
from tacit.errors import RequestError, count
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.models.registry import build_model, default_model
from tacit.models.trial import check_keeps_apart
from tacit.noise.additive import build_noise
from tacit.noise.randomness import Randomness, fresh_secret
from tacit.privacy import Guarantee, Target, Unit
from tacit.privacy.events import composed
from tacit.server.participation import Attendance
from tacit.server.update import ServerUpdate
from tacit.side import SideRelease
from tacit.sums.encoding import Encoding


@dataclass(frozen=True, repr=False)
class Plan(BriefRepr):
    """A run that is ready to start. Made by `plan` or `make_plan`.

    Guarantee: `calibration` holds the least noise that keeps `privacy` for this algorithm, these records and
    these rounds; parts that do not fit together are refused.
    """

    algorithm: Algorithm
    """the composition that runs"""
    federation: Federation
    """the records of all clients"""
    rounds: int
    """the number of rounds"""
    privacy: Privacy
    """the targets; if whole clients are protected as well, the stricter targets that this needs"""
    seed: int
    """the seed of all randomness"""
    stream: str
    """the stream of the seed that clients draw from"""
    attended: Attendance
    """how often clients take part"""
    calibration: Calibration
    """the noise of every client, and the guarantee that it gives"""
    clients: Target | None = None
    """the target for all records of a client together, if one was asked for"""
    recipe: Recipe | None = None
    """the recipe that the plan was made from, if any, with all choices filled in: it reproduces the run"""
    evaluation: PlannedEvaluation | None = None
    """the evaluation on records that are held back, if one was asked for; the guarantee covers it"""
    correction: PlannedCorrection | None = None
    """how the trained model is corrected, if it is; the guarantee covers it"""

    def __post_init__(self) -> None:
        calibration = self.calibration
        known = [-1 if group.records is None else group.records for group in calibration.groups]
        sizes = torch.tensor(known)[calibration.group_of_client]
        if (
            calibration.algorithm is not self.algorithm
            or calibration.releases != releases(self.algorithm, self.attended)
            or self.attended.rounds != self.rounds
            or len(sizes) != self.federation.clients
            or not torch.equal(sizes, torch.where(sizes < 0, sizes, self.federation.sizes))
        ):
            raise RequestError("this noise was derived for another run: make a plan for this one")

    @property
    def guarantee(self) -> Guarantee | None:
        """What is promised, to whom, against whom; None without privacy."""
        return self.calibration.guarantee

    @property
    def releases(self) -> int:
        """The number of rounds that a client is charged for."""
        return self.calibration.releases

    def brief(self) -> dict[str, str]:
        """The plan in a few lines."""
        promise = "none: this run is not private" if self.guarantee is None else self.guarantee.sentence()
        facts = f"{self.algorithm.name} on {self.federation.name}, {self.rounds} rounds"
        return {"algorithm": facts, "promise": promise}

    def randomness(self) -> Randomness:
        """Randomness from the seed. With secret noise, clients' own draws do not come from it."""
        secret = fresh_secret() if self.algorithm.work.noise.secret else None
        return Randomness(self.seed, secret, self.stream)

    def with_server(self, server: ServerUpdate) -> Plan:
        """The same plan with another server, whose steps may be derived from the noise.

        What the server does with messages does not change them, so they need the same noise.
        """
        return self._with(replace(self.algorithm, server=server))

    def with_uplink(self, uplink: Uplink) -> Plan:
        """The same plan with another uplink: what happens after the noise does not change what it has to be."""
        return self._with(replace(self.algorithm, uplink=uplink))

    def _with(self, algorithm: Algorithm) -> Plan:
        return replace(self, algorithm=algorithm, calibration=replace(self.calibration, algorithm=algorithm))


def plan(
    algorithm: Algorithm,
    federation: Federation,
    *,
    rounds: int,
    privacy: Privacy,
    seed: int = 0,
    stream: str = "",
    clients: Target | None = None,
    attended: Attendance | None = None,
    also: DpEvent | None = None,
    exposed: DpEvent | None = None,
) -> Plan:
    """Plans a run of an algorithm on a federation, with the noise that its promise needs, or refuses it.

    Args:
        algorithm: the algorithm to run.
        federation: the records of every client.
        rounds: number of rounds of the run.
        privacy: a `Target`, one for each client if they have separate budgets, or "none".
        seed: seed of all randomness that is not secret. Whoever knows it can subtract seeded noise.
        stream: the stream of the seed that clients draw from. Two runs with the same seed and stream share their
            noise; with different streams they share only the start and public coins.
        clients: an additional target for all records of a client together.
        attended: how often clients take part, if the federation is only one of them; counted by default.
        also: what every client releases besides its messages; the noise leaves room for it.
        exposed: what that is to adversaries who see more than the promise assumes; `also` itself by default.
    """
    check_keeps_apart(algorithm.work.model, federation)
    algorithm = fitted(algorithm, federation)
    also = _with_preparation(algorithm, federation, privacy, also)
    if exposed is not None:
        exposed = _with_preparation(algorithm, federation, privacy, exposed)
    attended = attended or attendance(algorithm, federation.clients, rounds, Randomness(seed))
    times = releases(algorithm, attended)
    algorithm.trust.check_target(algorithm.work, privacy)
    if clients is not None:
        if also is not None:
            raise RequestError(
                "what is released besides messages is accounted per record: leave out client_epsilon"
            )
        privacy = protect_clients(algorithm, federation, releases=times, privacy=privacy, clients=clients)
    found = calibrate(
        algorithm, federation, releases=times, privacy=privacy, attended=attended, also=also, exposed=exposed
    )
    # Must come after the checks that do not depend on the records, because this uses their numbers.
    algorithm.work.sampling.check_rounds(federation.sizes, rounds * algorithm.work.batches_per_round)
    algorithm = settled(algorithm, float(found.noise_multipliers[0]))
    algorithm = settle_steps(algorithm, federation, found.noise_stds, float(found.noise_multipliers[0]), rounds)
    found = replace(found, algorithm=algorithm)
    made = Plan(algorithm, federation, rounds, privacy, seed, stream, attended, found, clients)
    if not algorithm.uplink.shared:
        return made
    return made.with_uplink(algorithm.uplink.with_bits(encoding_of(made).ring.bits))


def _with_preparation(
    algorithm: Algorithm, federation: Federation, privacy: Privacy, also: DpEvent | None
) -> DpEvent | None:
    """What is released besides messages, with what was released to prepare the records."""
    if federation.charged is None or privacy == "none":
        return also
    if algorithm.work.unit is not Unit.RECORD or algorithm.travel is Travel.COUNTED:
        raise RequestError(
            f"what was learned to prepare records is accounted per record, which messages of {algorithm.name!r} "
            "cannot be added to: give ranges in the schema, sizes of arrays as data.features = 'sizes:SIZE', and "
            "a public target_bound"
        )
    return federation.charged if also is None else composed([federation.charged, also])


def encoding_of(plan: Plan) -> Encoding:
    """How the messages of a secure sum become integers; every party derives the same from the plan."""
    found = plan.calibration
    return secure_sum.encoding_of(
        plan.algorithm, plan.federation, found.noise_stds, found.noise_multipliers, plan.rounds
    )


def make_plan(
    recipe: Recipe,
    *,
    data_dir: Path | None = None,
    federation: Federation | None = None,
    model: Model | None = None,
    look: bool = True,
) -> Plan:
    """Plans a recipe: loads the data (unless given), fills in open settings and builds the parts.

    Args:
        recipe: what to run, on which data, with which promise.
        data_dir: where data sets are looked for first.
        federation: the recipe's records, if they have already been read.
        model: the model, if it is one of your own that has no name.
        look: if False, what only records can tell (ranges, sizes of features, bounds) is charged but not learned:
            for plans that are shown and not run.
    """
    asked = recipe
    count("memory_limit_mb", recipe.memory_limit_mb, at_least=0)
    _check_device(recipe.device)
    check_promise(recipe, algorithm_entry(recipe.algorithm).private)
    federation = load_federation(recipe, data_dir, look=look) if federation is None else federation
    recipe, federation, built = _prepared(recipe, federation, model, look=look)
    federation = bounded_targets(recipe, federation)
    held = None
    if recipe.evaluation_settings:
        recipe = replace(recipe, evaluation_settings=settings_of(recipe))
        federation, held = hold_back(federation, recipe.evaluation_settings["held_back"], coins_of(recipe))
    privacy = privacy_of(recipe, federation)
    recipe = replace(recipe, weights=good_weights(recipe, federation))
    federation = weighted(recipe, federation, privacy, built.dim)
    if federation.feature_norm is None and feature_norm(recipe) is not None:
        federation = replace(federation, feature_norm=feature_norm(recipe))
    if federation.schema is not None and recipe.target_bound is not None:
        raise RequestError(
            "target_bound is for targets that no schema describes: leave it out, or change the range of [target] "
            "in the schema"
        )
    recipe = replace(recipe, clients=federation.clients)
    known = _known_settings(recipe)

    def make_model(settings: dict[str, Any]) -> Model:
        return built if settings == known else build_model(recipe.model or "", federation, settings)

    recipe = with_theory_smoothing(recipe, make_model, federation, privacy)
    model = make_model(recipe.model_settings)
    recipe = resolved(recipe, model, federation, privacy)
    before = None
    if "bound_from" in recipe.algorithm_settings:
        recipe, before = find_bound(recipe, model, federation, privacy, data_dir, look=look)
    algorithm = algorithm_of(recipe, model, federation, before)
    recipe = _with_promise_of(algorithm, recipe, privacy)
    evaluation = None if held is None else plan_evaluation(recipe, held, algorithm, privacy)
    recipe, correction = plan_correction(recipe, federation, algorithm, privacy)
    also = [
        *([] if correction is None else [(correction.event(federation), correction.exposed(federation))]),
        *([] if evaluation is None else [(evaluation.event, evaluation.exposed)]),
    ]
    made = plan(
        algorithm,
        federation,
        rounds=recipe.rounds or 0,
        privacy=privacy,
        seed=recipe.seed,
        stream=recipe.stream or "",
        clients=client_target(recipe),
        also=_together(event for event, _ in also),
        exposed=_together(exposed for _, exposed in also),
    )
    return replace(made, recipe=left_open(recipe, asked), evaluation=evaluation, correction=correction)


def _prepared(
    recipe: Recipe, federation: Federation, model: Model | None, *, look: bool
) -> tuple[Recipe, Federation, Model]:
    """The records as the model takes them, the model, and the recipe with what these settle."""
    if model is not None and recipe.target_bound == LEARN:
        raise RequestError(
            f'target_bound = "{LEARN}" is for models with a name: give a public bound on the targets'
        )
    if model is None:
        recipe, federation = with_middle(*with_sizes(recipe, federation, look=look), look=look)
    federation = with_features(federation, recipe.data_settings.get("features"), recipe.device)
    recipe = replace(recipe, model=None if model else recipe.model or default_model(federation))
    known = _known_settings(recipe)
    built, federation = model_and_records(recipe.model or "", known, federation, model, recipe.device)
    if recipe.feature_norm is None and federation.features_by is not None:
        recipe = replace(recipe, feature_norm=federation.features_by.norm)
    return recipe, federation, built


def _known_settings(recipe: Recipe) -> dict[str, Any]:
    """The model's settings, without those that a theory has yet to choose."""
    return {name: value for name, value in recipe.model_settings.items() if value != THEORY}


def _with_promise_of(algorithm: Algorithm, recipe: Recipe, privacy: Privacy) -> Recipe:
    """The recipe with the unit that the algorithm protects, and the quorum of its sums."""
    if recipe.trust == "sum":
        recipe = replace(recipe, quorum=algorithm.trust.quorum, colluding=algorithm.trust.colluding)
    unit = str(algorithm.work.unit)
    if privacy != "none" and recipe.privacy not in (None, unit):
        raise RequestError(
            f"algorithm {recipe.algorithm!r} protects every {unit}, not privacy = {recipe.privacy!r}: leave "
            "privacy out, or choose another algorithm (dp-fedavg and dp-normfedavg protect whole clients)"
        )
    return replace(recipe, privacy="none" if privacy == "none" else unit)


def _together(events: Iterable[DpEvent | None]) -> DpEvent | None:
    """What is released by all of these; None if nothing is."""
    known = [event for event in events if event is not None]
    return composed(known) if len(known) > 1 else next(iter(known), None)


def algorithm_of(
    recipe: Recipe, model: Model, federation: Federation, before: SideRelease[float] | None = None
) -> Algorithm:
    """The algorithm of a recipe; `before` is the release that its bound was derived from, if any."""
    who = participation_of(recipe, federation.clients)
    about = About(federation, recipe.rounds or 1, recipe.seed, who, before)
    made = build_algorithm(
        recipe.algorithm, model, recipe.algorithm_settings, about, noise=build_noise(recipe.noise)
    )
    trust = secure_sum_of(recipe, federation.clients)
    return made if trust is None or recipe.privacy == "none" else secured(made, trust)


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        if why.startswith("Expected one of"):
            # A list of twenty kinds of devices, most of which nobody has.
            why = "write cpu, cuda, cuda:1 or mps"
        elif device.startswith("cuda"):
            why = f"{why}. Use a machine and a PyTorch with CUDA, or device cpu"
        raise RequestError(f"device {device!r} is not available: {why}") from error
