"""Loads the records that a recipe names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tacit.data import DATASETS, from_files, load
from tacit.engine.fronts import GIVEN, LEARN, with_features
from tacit.engine.ranges import learner
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError, unknown_name
from tacit.federation import Federation
from tacit.models.quadratic import quadratic_federation

NOT_SETTINGS = ("name", "clients", "partition", "data_dir", "paths", "learn", "options")
"""Parameters of functions that read records which are no settings of the data."""


def _settings(make: Callable[..., Federation]) -> list[str]:
    """The settings of data that this function makes."""
    taken = (*inspect.signature(make).parameters, "features")
    return [name for name in dict.fromkeys(taken) if name not in NOT_SETTINGS]


DATA_SETTINGS = frozenset([*_settings(load), *_settings(from_files)])
"""Settings of named data sets and of the user's own files."""


def load_federation(recipe: Recipe, data_dir: Path | None, *, look: bool = True) -> Federation:
    """The records that a recipe names, without weights.

    They follow from the data's own settings, or else from the seed. Without `look`, for planning, open ranges are
    not learned from them: that would be a release which only a run charges.
    """
    makers = {"quadratic": quadratic_federation}
    known = _settings(from_files if names_files(recipe) else makers.get(recipe.data, load))
    for name in recipe.data_settings:
        if name not in known and name in ("schema", "public_schema"):
            option = f"--{name.replace('_', '-')}"
            raise RequestError(
                f"{option} describes a table of your own: name it with --data, not {recipe.data!r}"
            )
        if name not in known:
            raise unknown_name("setting of data", f"data.{name}", [f"data.{key}" for key in known])
    _check_switches(from_files if names_files(recipe) else makers.get(recipe.data, load), recipe.data_settings)
    if recipe.data == "quadratic":
        return quadratic_federation(clients=recipe.clients or 100, **recipe.data_settings)
    if names_files(recipe):
        return _own_files(recipe, look)
    if recipe.data not in DATASETS and Path(recipe.data).is_dir():
        raise RequestError(f"data = {recipe.data!r} is a directory; name the files in it, separated by commas")
    settings: dict[str, Any] = {"seed": recipe.seed, **recipe.data_settings}
    if settings.get("features") in (LEARN, GIVEN):
        del settings["features"]
    return load(recipe.data, clients=recipe.clients, partition=recipe.partition, data_dir=data_dir, **settings)


def _check_switches(make: Callable[..., Federation], settings: Mapping[str, Any]) -> None:
    """Refuse "no" where true or false belongs: as text, it would count as true."""
    for name, setting in inspect.signature(make).parameters.items():
        if isinstance(setting.default, bool) and not isinstance(settings.get(name, False), bool):
            raise RequestError(f"data.{name} must be true or false, not {settings[name]!r}")


def names_files(recipe: Recipe) -> bool:
    """Whether the records are the user's own files, which do not depend on a seed."""
    return "." in recipe.data


def _own_files(recipe: Recipe, look: bool) -> Federation:
    """The user's own files: one per client, joined by commas, or one with a client column (`data.client`)."""
    if recipe.partition != Recipe.partition:
        raise RequestError(
            f"partition = {recipe.partition!r} is only for named data sets; files say whose records they hold"
        )
    paths = recipe.data.split(",")
    if "" in paths:
        raise RequestError(f"data = {recipe.data!r} has a comma without a file beside it; remove it")
    name = Path(paths[0]).stem if len(paths) == 1 else "custom"
    settings = {key: value for key, value in recipe.data_settings.items() if key != "features"}
    learn = learner(recipe, look=look)
    federation = from_files(paths, clients=recipe.clients, name=name, learn=learn, **settings)
    if recipe.clients not in (None, federation.clients):
        raise RequestError(
            f"clients = {recipe.clients}, but the files hold {federation.clients}: leave it out, "
            f"or with tacit deploy write --local {federation.clients}"
        )
    return with_features(federation, recipe.data_settings.get("features"))
