"""What a recipe leaves open where a shuffler mixes the messages: how many, and of how many records each."""

from __future__ import annotations

from dataclasses import replace

from tacit.algorithms.shuffler import Shuffler
from tacit.engine.recipe import Recipe
from tacit.federation import Federation
from tacit.server.participation import FixedNumber, Participation

FRACTION, ROUNDS = 0.1, 100
"""The batch of the smallest client, and the rounds of one pass, unless a recipe says otherwise."""


def shuffler_for(participation: Participation, federation: Federation) -> Shuffler:
    """The shuffler of a recipe: of all clients, or of a fixed number of them."""
    cohort = participation.number if isinstance(participation, FixedNumber) else federation.clients
    return Shuffler(cohort, int(federation.sizes.min()))


def equal_batches(recipe: Recipe, federation: Federation) -> Recipe:
    """The recipe with a batch that is the same number of records for every client.

    A fraction is taken of the smallest client; one pass uses as many records a round as it has.
    """
    smallest = int(federation.sizes.min())
    if recipe.sampling == "one-pass" and recipe.batch is None:
        rounds = recipe.rounds or min(ROUNDS, smallest)
        return replace(recipe, rounds=rounds, batch=float(max(1, smallest // rounds)))
    batch = FRACTION if recipe.batch is None else recipe.batch
    if recipe.sampling == "full" or batch >= 1:
        return recipe
    return replace(recipe, batch=float(max(1, round(batch * smallest))))
