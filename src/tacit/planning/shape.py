"""Planning from public numbers, when no data are available."""

from __future__ import annotations

from dataclasses import replace

import torch

from tacit.engine.bound_source import check_bound_unseen
from tacit.engine.middle import with_middle
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.sizes import with_sizes
from tacit.errors import count
from tacit.federation import Federation

STAND_IN = "a given shape"
"""The name of records that are not available."""


USUAL_RECORDS = 100
"""How many records a client is taken to have where their number is protected."""


def plan_unseen(recipe: Recipe, federation: Federation) -> Plan:
    """The plan of a recipe, made without a look at a record.

    Sizes of features and the middle of targets are only charged, not learned, and a bound that only the records
    could tell is refused.
    """
    check_bound_unseen(recipe)
    if federation.name == STAND_IN:
        federation = replace(federation, name=recipe.data)
    recipe, federation = with_middle(*with_sizes(recipe, federation, look=False), look=False)
    return make_plan(recipe, federation=federation)


def records_of_shape(*, clients: int, records: int, features: int, classes: int | None) -> Federation:
    """A stand-in for records that are not available: the same number for every client, all zeros.

    It is for planning, which needs only the numbers of records, and for trials on similar records. It takes
    almost no memory.

    >>> records_of_shape(clients=3, records=10, features=5, classes=2)
    a given shape: 3 clients, 30 records (10 each), 5 features, 2 classes
    """
    clients, records = count("clients", clients), count("records", records)
    features = count("dim", features)
    kind = torch.float32 if classes is None else torch.int64
    return Federation(
        features=torch.zeros(1, 1).expand(clients * records, features),
        targets=torch.zeros(1, dtype=kind).expand(clients * records),
        sizes=torch.full((clients,), records),
        ids=torch.arange(clients),
        classes=None if classes is None else count("classes", classes, at_least=2),
        name=STAND_IN,
    )


def with_usual_sizes(federation: Federation) -> Federation:
    """A stand-in for records whose numbers are protected: every client has `USUAL_RECORDS` of them, all zeros."""
    number = federation.clients * USUAL_RECORDS
    return replace(
        federation,
        features=torch.zeros(()).expand(number, *federation.feature_shape),
        targets=federation.targets.new_zeros(()).expand(number),
        sizes=torch.full((federation.clients,), USUAL_RECORDS),
    )
