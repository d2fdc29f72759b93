"""The promise of a recipe as targets: one for all clients, or one for each."""

from __future__ import annotations

from tacit.algorithms.calibrate import Privacy
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError, unknown_name
from tacit.federation import Federation
from tacit.privacy import Adjacency, Target


def check_promise(recipe: Recipe, private: bool) -> None:
    """Refuses a promise for an algorithm that cannot keep any."""
    if recipe.privacy != "none" and not private:
        raise RequestError(
            f"algorithm {recipe.algorithm!r} adds no noise, so it promises nothing: set privacy = 'none', and "
            "leave epsilon and delta out"
        )


def privacy_of(recipe: Recipe, federation: Federation) -> Privacy:
    """The targets of all clients, or "none"."""
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


def client_target(recipe: Recipe) -> Target | None:
    """The target for whole clients, in addition to that of their records (ISRL-DP, appendix D.3.5), or None."""
    if recipe.client_epsilon is None:
        return None
    delta = recipe.client_delta if recipe.client_delta is not None else recipe.delta
    if not isinstance(delta, float):
        raise RequestError("client_epsilon needs a client_delta, because delta is not the same for all clients")
    return Target(recipe.client_epsilon, delta, Adjacency(recipe.adjacency))


def for_each_client(
    setting: str, value: float | list[float] | dict[str, float], federation: Federation
) -> list[float]:
    """The value of every client: the same for all, in order, or by name."""
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
        raise RequestError(f"{setting} has no value for {', '.join(missing)}: give one for every client")
    return [value[name] for name in names]
