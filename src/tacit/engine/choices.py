"""Fills in what a recipe leaves open, from its algorithm's theory where the public constants are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Privacy, attendance, calibrate, releases
from tacit.algorithms.registry import algorithm_entry
from tacit.algorithms.secure_sum import SecureSum
from tacit.algorithms.settings import checked_settings, usual_settings
from tacit.client.bounds import build_bound
from tacit.client.estimators import Minibatch
from tacit.client.private_gradient import PrivateGradient
from tacit.client.sampling import Sampling, build_sampling
from tacit.compress import Direct, Identity, parse_compressor
from tacit.engine.defaults import ROUNDS, good_settings
from tacit.engine.recipe import Recipe
from tacit.engine.targets import for_each_client
from tacit.errors import RequestError, positive
from tacit.federation import Federation
from tacit.models.model import Model
from tacit.noise.randomness import Randomness
from tacit.server.participation import Participation, PoissonClients, parse_participation
from tacit.server.projection import parse_projection
from tacit.server.update import Descent
from tacit.theory.asked import CHOSEN, Asked
from tacit.theory.isrl_dp.choices import smoothing

THEORY = "theory"
"""Value of model.smoothing that asks for the Moreau envelope prescribed by the theorem."""


def resolved(recipe: Recipe, model: Model, federation: Federation, privacy: Privacy) -> Recipe:
    """The recipe with every setting of its algorithm filled in: as given, else from theory, else the default."""
    recipe = checked(recipe, federation)
    entry, said = algorithm_entry(recipe.algorithm), recipe.algorithm_settings
    asked = question(recipe, model, federation, privacy)
    if recipe.settings_from == "theory":
        still_open = (CHOSEN & entry.settings) - said.keys() or recipe.rounds is None
        chosen = entry.theory.choose(asked) if entry.theory is not None and still_open else {}
    else:
        chosen = good_settings(asked, privacy)
    rounds = chosen.pop("rounds", ROUNDS) if recipe.rounds is None else recipe.rounds
    chosen = {name: value for name, value in chosen.items() if name in entry.settings}
    settings = {**usual_settings(entry.make), **chosen, **said}
    # Without sampling there is no batch, and the recipe's algorithm drops it.
    return replace(recipe, rounds=rounds, algorithm_settings=settings).for_algorithm(recipe.algorithm)


def checked(recipe: Recipe, federation: Federation) -> Recipe:
    """Checks that the algorithm takes all settings of the recipe. Behind a shuffler, makes all batches equal."""
    make = algorithm_entry(recipe.algorithm).make
    given = checked_settings(recipe.algorithm, make, recipe.algorithm_settings)
    recipe = replace(recipe, algorithm_settings=given)
    sampling = given.get("sampling", usual_settings(make).get("sampling"))
    if sampling == "full" and "batch" in given:
        raise RequestError(
            f"sampling = 'full' draws every record, not batch = {given['batch']:g} of them: leave out the batch, "
            "or set algorithm.sampling = 'poisson', for example"
        )
    return _equal_batches(recipe, sampling, federation) if algorithm_entry(recipe.algorithm).shuffled else recipe


def with_defaults(recipe: Recipe) -> Recipe:
    """The recipe with every default of its algorithm's signature written out, and no other choice made."""
    make = algorithm_entry(recipe.algorithm).make
    settings = usual_settings(make) | checked_settings(recipe.algorithm, make, recipe.algorithm_settings)
    return replace(recipe, algorithm_settings=settings).for_algorithm(recipe.algorithm)


def _equal_batches(recipe: Recipe, sampling: str | None, federation: Federation) -> Recipe:
    """Makes the batch the same number of records for every client, since other sizes would stand out.

    A fraction is taken of the smallest client; one pass spreads that client's records over the rounds.
    """
    smallest, batch = int(federation.sizes.min()), recipe.algorithm_settings.get("batch")
    if sampling == "one-pass" and batch is None:
        rounds = recipe.rounds or min(ROUNDS, smallest)
        batch = smallest // rounds
        recipe = replace(recipe, rounds=rounds)
    elif sampling != "full" and (batch is None or 0 < batch < 1):
        batch = round((0.1 if batch is None else batch) * smallest)
    else:
        return recipe
    return recipe.with_algorithm_settings(batch=float(max(1, batch)))


def question(recipe: Recipe, model: Model, federation: Federation, privacy: Privacy) -> Asked:
    """The recipe in the form that a theory takes."""
    usual = usual_settings(algorithm_entry(recipe.algorithm).make)
    settings = {**usual, **recipe.algorithm_settings}
    smallest = int(federation.sizes.min())
    bound = build_bound(settings.get("bound", "clip-norm"), settings.get("clip_norm", 1.0))
    who = participation_of(recipe, federation.clients)
    trust = secure_sum_of(recipe, federation.clients)
    shares = 1 if trust is None else trust.honest
    compressor = parse_compressor(settings.get("compressor", "identity"))

    def sampling(batch: float | None) -> Sampling:
        name = settings.get("sampling", "full")
        # Where the defaults may choose, no batch means that they have chosen all records.
        everything = batch is None and name == "poisson" and "sampling" not in recipe.algorithm_settings
        return build_sampling("full" if everything else name, batch)

    def noise_std(rounds: int, batch: float | None) -> float:
        if privacy == "none":
            return 0.0
        work = PrivateGradient(model, Minibatch(sampling(batch)), bound)
        algorithm = Algorithm("planned", work, Direct(Identity()), Descent(1.0), who)
        attended = attendance(algorithm, federation.clients, rounds, Randomness(recipe.seed))
        found = calibrate(algorithm, federation, releases=releases(algorithm, attended), privacy=privacy)
        # Silos add independent noise, so the averaged gradient has their mean square.
        return math.sqrt(float(found.noise_stds.square().mean()) / shares)

    return Asked(
        algorithm=recipe.algorithm,
        model=model,
        federation=federation,
        given={**recipe.algorithm_settings, **({} if recipe.rounds is None else {"rounds": recipe.rounds})},
        usual={**usual, "rounds": ROUNDS},
        epsilon=_strictest("epsilon", recipe.epsilon, federation),
        delta=_strictest("delta", recipe.delta, federation),
        gradient_bound=bound.norm(model.dim),
        omega=compressor.omega(model.dim) if compressor.unbiased else 0.0,
        diameter=parse_projection(settings.get("projection", "none")).diameter,
        feature_norm=feature_norm(recipe),
        target_bound=_target_bound(recipe, federation),
        mean_cohort=None if who.secret else who.typical(federation.clients),
        shares=shares,
        rate=lambda batch: sampling(batch).rate(smallest),
        disjoint_batches=lambda batch: _disjoint(federation, sampling(batch)),
        noise_std=noise_std,
    )


def _target_bound(recipe: Recipe, federation: Federation) -> float | None:
    if federation.schema is not None:
        return federation.schema.target.most
    # What was learned bounds few targets, not all: theories do not get it.
    return recipe.public_target_bound


def _disjoint(federation: Federation, sampling: Sampling) -> int:
    return int((federation.sizes.double() / sampling.batch_sizes(federation.sizes)).floor().min())


def _strictest(
    setting: str, value: float | list[float] | dict[str, float] | None, federation: Federation
) -> float | None:
    """The smallest value over all clients: the theory has one budget for all."""
    return None if value is None else min(for_each_client(setting, value, federation))


def participation_of(recipe: Recipe, clients: int) -> Participation:
    """Who takes part: `cohort` clients by public coins, or about as many by their own secret coins."""
    coins = algorithm_entry(recipe.algorithm).client_coins and recipe.trust is None
    if not coins or recipe.algorithm_settings.get("adversary") == "server":
        return parse_participation(recipe.cohort)
    try:
        return PoissonClients(float(clients if recipe.cohort is None else recipe.cohort))
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"cohort must be a number of clients here, not {recipe.cohort!r}") from error


def secure_sum_of(recipe: Recipe, clients: int) -> SecureSum | None:
    """The trust of a recipe that asks for secure sums."""
    if recipe.trust is None:
        return None
    if recipe.algorithm_settings.get("adversary") == "server":
        raise RequestError(
            "adversary = 'server' asks for epsilon against a server that sees every message, and trust = 'sum' "
            "promises it only against one that opens nothing but sums: leave out one of them"
        )
    number = participation_of(recipe, clients).number_of(clients)
    return SecureSum.of(number or clients, recipe.quorum, recipe.colluding)


def feature_norm(recipe: Recipe) -> float | None:
    """The public bound on the norm of a record's features, if there is one."""
    if recipe.feature_norm is None and recipe.data_settings.get("unit_norm") is True:
        return 1.0
    return None if recipe.feature_norm is None else positive("feature_norm", recipe.feature_norm)


def with_theory_smoothing(
    recipe: Recipe, make_model: Callable[[dict[str, Any]], Model], federation: Federation, privacy: Privacy
) -> Recipe:
    """The recipe with the smoothing of its loss that the theory prescribes, if it asks for that."""
    if recipe.model_settings.get("smoothing") != THEORY:
        return recipe
    plain = {name: value for name, value in recipe.model_settings.items() if name != "smoothing"}
    beta = smoothing(question(recipe, make_model(plain), federation, privacy))
    return replace(recipe, model_settings={**plain, "smoothing": beta})
