"""The private evaluation of a simulated run: what is held back, what it may cost, and what came out.

    [evaluation]
    held_back = 0.2         # share of every client's records that training does not see, at most 0.5
    epsilon_share = 0.2     # what the evaluation alone would cost, as a share of epsilon
    loss_bound = 4.0        # each record's loss is clipped to it
    edges = [0.1, 0.2]      # limits between which predicted probabilities are counted, for calibration
    group = "sex"           # compare groups of records: by a column of the schema, or by "region = north"
    group_edges = [40, 65]  # limits of the groups, in the unit of the column or feature; for numbers
    group_feature = 3       # without a schema, compare groups by this feature (from 0)
    group_names = ["women", "men"]  # names of the groups

The evaluation's event is composed with training's, and the noise of training leaves room for it. So the printed
promise covers both, for every record, wherever it was used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy
from tacit.algorithms.secure_sum import SecureSum
from tacit.algorithms.trust import Travel
from tacit.data.schema import Schema
from tacit.data.schema.encode import scale, terms
from tacit.engine.choices import secure_sum_of
from tacit.engine.recipe import Recipe
from tacit.errors import DataError, RequestError, unknown_name
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.models.registry import default_model
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Target, Unit
from tacit.side.budget import split_target
from tacit.side.evaluation import (
    PrivateEvaluation,
    evaluation_release,
    exact_evaluation,
    private_evaluation,
    read_total,
    total_release,
)
from tacit.side.noisy_total import NoisyTotal
from tacit.side.release import address_of
from tacit.side.scoring import EDGES, Groups, Scoring, TargetUnit

DEFAULTS: dict[str, Any] = {"held_back": 0.2, "epsilon_share": 0.2}
_GROUPS = ("group_feature", "group_edges", "group_names")
_KNOWN = (*DEFAULTS, "loss_bound", "edges", "group", *_GROUPS)
USUAL_LOSS_BOUND = 4.0
"""For classifiers: a record whose class got a probability of e^-4 = 0.018 or less counts as this."""
SQUARED = {"least-squares": True, "absolute-regression": False}
"""Regressions whose loss tells the error: by half of its square, or as it is."""
LARGE_ERROR = 0.25
"""A share of the targets' range. Unless `loss_bound` says otherwise, a regression's errors count as at most this:
few are larger, and the noise on the mean loss grows with the square of it."""


@dataclass(frozen=True)
class PlannedEvaluation:
    """An evaluation that is ready to be made after training."""

    held: Federation
    """the records that training does not see"""
    scoring: Scoring
    target: Target | None
    """what it may cost on its own; None without privacy"""
    trust: SecureSum | None = None
    """if only the sum over all clients is opened: with whom"""

    @property
    def event(self) -> DpEvent | None:
        """What every client releases for it; None without privacy."""
        if self.target is None:
            return None
        if self.trust is not None:
            total = self._total("", 0, self.target, self.trust)
            return total.event(total.noise_multiplier)
        return evaluation_release(self.scoring, self.held, "", self.target, 0).released(None).event

    @property
    def exposed(self) -> DpEvent | None:
        """The same if all other clients help the server."""
        if self.target is None or self.trust is None:
            return self.event
        total = self._total("", 0, self.target, self.trust)
        return total.exposed(total.noise_multiplier)

    def _total(self, question: str, seed: int, target: Target, trust: SecureSum) -> NoisyTotal:
        return total_release(self.scoring, question, target, seed, clients=self.held.clients, honest=trust.honest)

    def evaluate(self, model: Model, parameters: Tensor, seed: int, stream: str) -> PrivateEvaluation:
        """The evaluation of trained parameters."""
        if self.target is None:
            return exact_evaluation(model, parameters, self.held, self.scoring)
        name = address_of(stream, parameters)
        if self.trust is not None:
            release = self._total(name, seed, self.target, self.trust)
            total = release.total(self.scoring.sums(model, parameters, self.held.batch()))
            noise_std = release.share_std * math.sqrt(self.held.clients)
            return read_total(self.scoring, total, self.held.records, noise_std)
        made = private_evaluation(
            model, parameters, self.held, self.scoring, name=name, target=self.target, seed=seed
        )
        return made.value


def hold_back(federation: Federation, share: float, seed: int) -> tuple[Federation, Federation]:
    """Training records, and those that are held back: this share of every client's records, at least one.

    Which ones is decided by coins that everybody may know; they depend on no record. Never more than half of a
    client's records are held back, so what the promise says about many records of a client together covers those
    that were held back, too. (Where ranges were learned from all of them, `Federation.most_released` says so.)
    """
    if not 0 < share <= 0.5:
        raise RequestError(
            f"evaluation.held_back = {share!r} (--evaluate) must be above 0 and at most 0.5: it is the share of "
            "each client's records to evaluate on, such as 0.2"
        )
    if int(federation.sizes.min()) < 2:
        raise DataError(
            "a client has a single record, so none can be held back for evaluation: leave out [evaluation], or "
            "the clients with fewer than two records"
        )
    counts = (federation.sizes.double() * share).round().long().clamp(min=1).minimum(federation.sizes // 2)
    taken = torch.zeros(federation.records, dtype=torch.bool)
    coins = Randomness(seed)
    each = torch.stack([federation.offsets[:-1], federation.sizes, counts, federation.ids], 1)
    for start, size, held, client in each.tolist():
        chosen = coins.generator(Purpose.DATA, client=client).permutation(size)[:held]
        taken[start + torch.from_numpy(chosen)] = True
    parts = []
    for kept, sizes in ((~taken, federation.sizes - counts), (taken, counts)):
        rows = kept.nonzero()[:, 0].to(federation.features.device)
        parts.append(
            replace(federation, features=federation.features[rows], targets=federation.targets[rows], sizes=sizes)
        )
    return replace(parts[0], held_back=counts), parts[1]


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The settings of a recipe's evaluation, checked, with those that were left out."""
    for name in recipe.evaluation_settings:
        if name not in _KNOWN:
            raise unknown_name("setting of evaluation", f"evaluation.{name}", [f"evaluation.{n}" for n in _KNOWN])
    return DEFAULTS | recipe.evaluation_settings


def plan_evaluation(
    recipe: Recipe, held: Federation, algorithm: Algorithm, privacy: Privacy
) -> PlannedEvaluation:
    """The evaluation of a recipe, or a refusal if its cost cannot be stated."""
    asked = settings_of(recipe)
    scoring = scoring_of(asked, held, recipe.model)
    if isinstance(privacy, str):
        return PlannedEvaluation(held, scoring, None)
    if algorithm.work.unit is not Unit.RECORD or recipe.client_epsilon is not None:
        raise RequestError("an evaluation is accounted per record, not per client: leave out [evaluation]")
    if algorithm.travel is Travel.COUNTED:
        raise RequestError(
            f"no accountant can add an evaluation to the coins of {recipe.algorithm!r}: leave out [evaluation]"
        )
    target = target_of(asked, privacy)
    return PlannedEvaluation(held, scoring, target, secure_sum_of(recipe, held.clients))


def target_of(asked: dict[str, Any], privacy: Target | Sequence[Target]) -> Target:
    """What an evaluation with these settings may cost alone."""
    return split_target(privacy, float(asked["epsilon_share"]), "evaluation.epsilon_share")


def coins_of(recipe: Recipe) -> int:
    """The seed of the coins that choose which records are held back: that of the data."""
    return int(recipe.data_settings.get("seed", recipe.seed))


def scoring_of(asked: dict[str, Any], records: Federation, model: str | None = None) -> Scoring:
    """What is asked of every record, from the settings of an evaluation; of `records`, only what is public.

    Args:
        asked: the settings.
        records: those that are held back, or a stand-in for them.
        model: the name of the model; None for the usual one.
    """
    model = model or default_model(records)
    unit = _unit(records, model)
    bound = asked["loss_bound"] if "loss_bound" in asked else _usual_bound(records, model)
    edges = _numbers("edges", asked.get("edges", EDGES))
    return Scoring(records.classes, bound, edges, _groups(asked, records), unit)


def _unit(records: Federation, model: str) -> TargetUnit | None:
    """The unit of a regression's errors, where the loss tells them and the range of targets is known."""
    target = None if records.schema is None else records.schema.target
    if records.classes is not None or model not in SQUARED or (target is not None and target.open):
        return None
    return TargetUnit(records.target_scale, SQUARED[model], "" if target is None else target.unit)


def _usual_bound(records: Federation, model: str) -> float:
    """For classifiers the usual one; for regressions the loss of a large error.

    In a model's units, half of a schema's range is 1, whatever the range is: it may still have to be learned.
    """
    if records.classes is not None:
        return USUAL_LOSS_BOUND
    half = 1.0 if records.schema is not None else records.target_bound
    if model not in SQUARED or half is None:
        raise RequestError(
            "evaluation.loss_bound is needed for this regression: a public bound on a record's loss (of least "
            "squares, half of its squared error). It follows from the target's range for least-squares and "
            "absolute-regression, if a schema or target_bound gives one. With a schema, half of the range counts "
            "as 1: try evaluation.loss_bound = 0.5"
        )
    large = 2 * half * LARGE_ERROR
    return large**2 / 2 if SQUARED[model] else large


def _groups(asked: dict[str, Any], records: Federation) -> Groups | None:
    if "group" in asked:
        return _by_column(asked, records.schema)
    named = [name for name in _GROUPS if name in asked]
    if named and len(named) < len(_GROUPS):
        raise RequestError(f"evaluation: {', '.join(_GROUPS)} go together; only {', '.join(named)} is set")
    if not named:
        return None
    feature, edges, names = (asked[name] for name in _GROUPS)
    groups = Groups(feature, _numbers("group_edges", edges), tuple(map(str, names)))
    groups.check(records.inputs)
    return groups


def _by_column(asked: dict[str, Any], schema: Schema | None) -> Groups:
    """Groups by a column of the schema, in its own words and units."""
    if schema is None or "group_feature" in asked:
        raise RequestError("evaluation.group names a column of a schema: without one, set group_feature instead")
    name, found = asked["group"], {term.name: (n, term) for n, term in enumerate(terms(schema))}
    if name in found and found[name][1].kind in ("is", "missing"):
        return Groups(found[name][0], (0.5,), (f"not {name}", name))
    column = next((column for column in schema.columns if column.name == name), None)
    two = column is not None and len(column.categories) == 2 and not column.other
    if column is None:
        raise unknown_name("evaluation.group", str(name), [*(c.name for c in schema.columns), *found])
    if column.type == "category" and not two:
        raise RequestError(
            f"evaluation.group = {name!r} has more than two categories: compare one of them with all others, as "
            f"in group = {f'{name} = {column.categories[0]}'!r}"
        )
    if column.open or name in schema.learned:
        # Whether limits fit a learned range would tell it, also where no run charges it.
        raise RequestError(
            f"evaluation.group = {name!r} has an open range, and silos must know where its groups lie: give it"
        )
    position = next(n for n, term in found.values() if schema.columns[term.place] is column)
    if column.type == "category":
        first, second = column.categories
        # A gap is 0, between the two.
        gaps = column.missing == "indicate"
        return (
            Groups(position, (-0.5, 0.5), (first, "unknown", second))
            if gaps
            else Groups(position, (0.0,), (first, second))
        )
    edges = _numbers("group_edges", asked.get("group_edges", ()))
    if not edges:
        raise RequestError(
            f"evaluation.group = {name!r} is a number: set evaluation.group_edges, in its own unit"
        )
    shown = [f"{edge:g}" for edge in edges]
    between = [f"{a} to {b}" for a, b in itertools.pairwise(shown)]
    usual = [f"below {shown[0]}", *between, f"{shown[-1]} and above"]
    names = tuple(map(str, asked.get("group_names", usual)))
    # In the precision of features, so that a value on a limit stays on it.
    limits = scale(np.array(edges), column).astype(np.float32)
    return Groups(position, tuple(limits.tolist()), names)


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    try:
        return tuple(float(value) for value in values)
    except (TypeError, ValueError) as error:
        raise RequestError(f"evaluation.{name} must be a list of numbers, not {values!r}") from error
