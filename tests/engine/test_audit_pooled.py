"""Audits play sums as the simulator makes them, with the noise of all shares drawn at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.engine.audited import ALGORITHMS, Audited, promises, sgd

from tacit.algorithms.secure_sum import SecureSum, secured
from tacit.client.sampling import Poisson
from tacit.client.span import SpanUpdates
from tacit.engine import round as rounds
from tacit.engine.audit import audit_recipe
from tacit.engine.audit import pooled as games
from tacit.engine.audit.measured import measured
from tacit.engine.audit.pooled import PooledGame
from tacit.engine.audit.stage import AuditStage
from tacit.engine.recipe import Recipe
from tacit.models.linear import least_squares


def _linear() -> Audited:
    """Updates of a linear model: the simulator adds them up without writing them out."""
    whole = ALGORITHMS["dp-fedavg"]
    model = least_squares(features=4, intercept=False)
    return Audited(replace(whole.algorithm, work=replace(whole.algorithm.work, model=model)), whole.run)  # type: ignore[type-var]


SUMS = {
    "an aggregator": ALGORITHMS["dp-fedavg"],
    "an aggregator, linear": _linear(),
    "a secure sum": Audited(
        secured(sgd(Poisson(0.5)), SecureSum(5, 4, 1)), {"records": 4, "rounds": 3, "clients": 5}
    ),
}


def game(name: str) -> PooledGame:
    found = [promise.stage for promise in promises(SUMS[name], pooled=True, dim=64, rounds=2)]
    stage = found[-1]
    assert isinstance(stage, PooledGame)
    assert stage.adversary is found[0].adversary
    return stage


def violated(stage: AuditStage) -> list[str]:
    return [check.name for check in measured(stage, 0) if check.violated]


@pytest.mark.parametrize("name", SUMS)
def test_a_correct_sum_passes_and_records_reach_as_far_as_the_event_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = game(name)
    if stage.linear:  # The quick way: no message is written out.
        for module in (rounds, games):
            monkeypatch.setattr(module, "client_round", None)
    noise, *others = measured(stage, 0)
    assert not noise.violated
    assert not any(check.violated for check in others)
    assert 0.95 * noise.promised < noise.measured < 1.06 * noise.promised


def _halve(patch: pytest.MonkeyPatch) -> None:
    whole = games.with_pooled_noise
    patch.setattr(games, "with_pooled_noise", lambda total, std, *rest: whole(total, std / 2, *rest))


def _halve_shares(patch: pytest.MonkeyPatch) -> None:
    whole = games.pooled_std
    patch.setattr(
        games, "pooled_std", lambda work, sizes, shares, weights: whole(work, sizes, shares / 2, weights)
    )


def _add_variances_wrongly(patch: pytest.MonkeyPatch) -> None:
    """The mean of the shares' deviations instead of the root of their squares."""
    patch.setattr(
        games, "pooled_std", lambda work, sizes, shares, _: float(work.noise_stds(sizes, shares).double().mean())
    )


def _same_noise_in_all_rounds(patch: pytest.MonkeyPatch) -> None:
    whole = games.with_pooled_noise
    patch.setattr(
        games, "with_pooled_noise", lambda total, std, at, round, source: whole(total, std, at, 0, source)
    )


def _unbounded(patch: pytest.MonkeyPatch) -> None:
    """Norms that come out too short, so that updates are scaled too little."""
    whole = SpanUpdates.norms
    patch.setattr(SpanUpdates, "norms", lambda self: whole(self) / 2)


SABOTAGED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "half of the noise": (_halve, tuple(SUMS)),
    "half of the shares": (_halve_shares, ("an aggregator",)),
    "shares averaged": (_add_variances_wrongly, ("a secure sum",)),
    "the same noise in all rounds": (_same_noise_in_all_rounds, ("a secure sum",)),
    "norms too short": (_unbounded, ("an aggregator, linear",)),
}


@pytest.mark.parametrize("name", SABOTAGED)
def test_sabotage_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage, where = SABOTAGED[name]
    stages = [game(one) for one in where]
    sabotage(monkeypatch)
    assert all(violated(stage) for stage in stages)


def test_the_audit_plays_the_code_of_the_simulator() -> None:
    """The same functions: sabotage of the module that the simulator imports is sabotage of the game."""
    from tacit.engine import simulation

    for name in ("add_messages", "pooled_std", "with_pooled_noise", "sent_as_they_are"):
        assert getattr(games, name) is getattr(simulation, name)


def test_recipes_are_audited_both_ways_where_the_simulator_draws_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("tacit.engine.audit.recipe.audit", lambda *_, pooled, **__: asked.append(pooled))
    summed = Recipe(algorithm="dp-fedavg", data="breast-cancer", clients=8, cohort=4, rounds=2, epsilon=4.0)
    secure = Recipe(algorithm="noisy-mb-sgd", data="breast-cancer", clients=5, rounds=2, epsilon=4.0, trust="sum")
    for recipe in (summed, secure, replace(secure, noise="lattice"), replace(secure, trust=None)):
        audit_recipe(recipe)
    assert asked == [True, True, False, False]
