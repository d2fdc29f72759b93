"""Runs whose model is corrected after training: it helps, it is charged, and only where it can be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.algorithms.secure_sum import SecureSum
from tacit.data.schema import Column, Predicted, Schema
from tacit.engine.account import account_run
from tacit.engine.audit import audit_recipe
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import Adversary, calibrate_noise
from tacit.privacy.accountant import accounting
from tacit.privacy.events import composed, gaussian, repeated
from tacit.report.words import corrected_words
from tacit.side.noisy_total import NoisyTotal
from tacit.side.release import NoisyMeans

SCHEMA = Schema(
    Predicted("cost", "regression", range=(0, 100), middle=10),
    (Column("age", "number", range=(0, 100)), Column("ill", "category", categories=("no", "yes"))),
    client="site",
    ends=2.0,
)
RECIPE = Recipe(
    algorithm="noisy-mb-sgd", data="custom", epsilon=4.0, rounds=30, algorithm_settings={"clip_norm": 0.2}
)


def _table(rows: int = 6000) -> pd.DataFrame:
    """Costs with a long tail, whose mean lies far above their median."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.uniform(0, 100, rows), "ill": rng.choice(["no", "yes"], rows)})
    table["cost"] = rng.exponential(2 + table["age"] / 8 + 4 * (table["ill"] == "yes"))
    table["site"], table["who"] = np.arange(rows) % 3, np.arange(rows) // 2
    return table


TABLE = _table()


def _plan(schema: Schema = SCHEMA, rows: int | None = None, **changes: Any) -> Plan:
    return make_plan(replace(RECIPE, **changes), federation=Federation.from_frame(TABLE[:rows], schema))


@pytest.mark.parametrize("trust", [None, "sum"])
@pytest.mark.parametrize("person", [None, "who"])
def test_a_long_tail_is_corrected(trust: str | None, person: str | None) -> None:
    """The mean residual becomes small, and the model that is kept is the one that was measured."""
    schema = replace(SCHEMA, person=person, rows=2, left_out={} if person else {"who": "names"})
    runs = [tacit.simulate(_plan(schema, trust=trust, correction=share)) for share in (0.0, None)]
    errors = [run.last.test_metric for run in runs]
    assert errors[1] < errors[0]
    assert runs[0].correction is None
    assert runs[1].correction is not None
    assert runs[1].correction.shift > 0.01
    batch = runs[1].federation.test_batch()
    assert runs[1].model.metric(batch) * 50 == pytest.approx(errors[1])
    assert "raised by" in corrected_words(runs[1].summary()["correction"])


@pytest.mark.parametrize("trust", [None, "sum"])
def test_the_printed_epsilon_covers_it(trust: str | None, tmp_path: Path) -> None:
    """Recomputed from the parts: training at its noise, and one Gaussian release that alone costs a fifth."""
    plan = _plan(trust=trust)
    assert plan.correction is not None
    assert plan.correction.target is not None
    assert plan.correction.target.epsilon == pytest.approx(0.2 * 4.0)
    event = plan.correction.event(plan.federation)
    assert accounting.epsilon(event, 1e-5) == pytest.approx(0.8, rel=1e-3)
    bare = _plan(trust=trust, correction=0.0)
    assert plan.guarantee is not None
    assert 3.9 < plan.guarantee.epsilon <= 4.0
    more = float(plan.calibration.noise_multipliers[0] / bare.calibration.noise_multipliers[0])
    assert 1.005 < more < 1.04
    alone = replace(plan.calibration, also=None).groups[0]
    training = _plan(trust=trust, correction=0.0).algorithm
    work = training.trust.event(
        training.work, plan.federation.clients, alone.records, alone.noise_multiplier, plan.releases
    )
    assert accounting.epsilon(composed([work, event]), 1e-5) == pytest.approx(plan.guarantee.epsilon, rel=1e-6)
    run = tacit.simulate(plan)
    run.save(tmp_path)
    assert account_run(tmp_path).guarantee.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-6)


def test_an_evaluation_beside_it_is_charged_as_well() -> None:
    """Training leaves room for both; the strictest of several budgets decides what they may cost."""
    asked = {"held_back": 0.2, "loss_bound": 1.0, "epsilon_share": 0.3}
    plan = _plan(evaluation_settings=asked, epsilon=[4.0, 2.0, 3.0])
    assert plan.correction is not None
    assert plan.evaluation is not None
    both = composed([plan.correction.event(plan.federation), plan.evaluation.event])
    assert plan.calibration.also == both
    assert accounting.epsilon(plan.correction.event(plan.federation), 1e-5) == pytest.approx(0.4, rel=1e-3)
    assert plan.guarantee is not None
    for epsilon, budget in zip(plan.guarantee.epsilons, (4.0, 2.0, 3.0), strict=True):
        assert 0.97 * budget < epsilon <= budget
    assert tacit.simulate(plan).evaluation is not None


def test_what_is_sent_has_the_noise_that_is_charged() -> None:
    """The noise on the sum of all clients' messages, over many seeds: its deviation is that of the event."""
    plan = _plan()
    planned, federation = plan.correction, plan.federation
    assert planned is not None
    assert planned.target is not None
    model, point = plan.algorithm.work.model, torch.zeros(plan.algorithm.work.model.dim)
    sums = planned.moments.sums(model, point, federation.batch())
    releases = [planned._release(federation, planned.target, seed, "") for seed in range(300)]
    noise = torch.stack([release.messages(sums) - sums for release in releases])
    z = releases[0].noise_multiplier
    assert accounting.epsilon(gaussian(z), 1e-5, adjacency=planned.target.adjacency) == pytest.approx(
        0.8, rel=1e-3
    )
    # 4,500 draws: a relative deviation of 1% on average.
    assert float(noise.std()) == pytest.approx(z * 5**0.5, rel=0.08)


def test_the_same_seed_gives_the_same_correction_also_after_an_interruption(tmp_path: Path) -> None:
    runs = [tacit.simulate(_plan(), out=tmp_path / "run") for _ in range(2)]
    assert runs[0].correction == runs[1].correction
    assert torch.equal(runs[0].parameters, runs[1].parameters)
    other = tacit.simulate(_plan(seed=1))
    assert other.correction != runs[0].correction


def test_noise_of_the_operating_system() -> None:
    """Nobody knows this noise beforehand, so there is little of it: six runs had shifts of 0.048 to 0.050."""
    run = tacit.simulate(_plan(noise="lattice", epsilon=60.0))
    assert run.correction is not None
    assert run.correction.shift > 0.03
    assert run.guarantee is not None
    assert run.guarantee.epsilon <= 60.0


def _noise(plan: Plan, point: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """What a correction at this point adds to the sums, of every client or of all together."""
    seen: list[torch.Tensor] = []
    with monkeypatch.context() as patch:
        for release, name in ((NoisyMeans, "messages"), (NoisyTotal, "total")):
            make = getattr(release, name)

            def noted(self: Any, sums: torch.Tensor, make: Any = make) -> torch.Tensor:
                made: torch.Tensor = make(self, sums)
                seen.append((made - sums).flatten() if made.shape == sums.shape else made - sums.sum(0))
                return made

            patch.setattr(release, name, noted)
        assert plan.correction is not None
        sums = plan.correction.moments.sums(plan.algorithm.work.model, point, plan.federation.batch())
        plan.correction.learned(sums, point, plan.federation, plan.seed, plan.stream)
    return seen[0]


@pytest.mark.parametrize("trust", [None, "sum"])
def test_no_two_models_share_the_noise_of_their_corrections(
    trust: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference of two corrections would have none. Noise of the operating system is never drawn again."""
    points = torch.zeros(3), torch.ones(3), torch.zeros(3)
    seeded, other, again = (_noise(_plan(trust=trust), point, monkeypatch) for point in points)
    torch.testing.assert_close(seeded, again)
    assert float((seeded - other).abs().min()) > 1e-6
    secret, anew = (_noise(_plan(trust=trust, noise="lattice"), points[0], monkeypatch) for _ in range(2))
    assert float((secret - anew).abs().min()) > 1e-6


def test_what_a_secure_sum_leaves_counts_the_clients_own_share() -> None:
    """If all others help the server, the correction has one share of its noise, as every message has."""
    plan = _plan(trust="sum", algorithm_settings={"clip_norm": 0.2, "sampling": "full"})
    found, trust = plan.calibration.without_trust, plan.algorithm.trust
    assert isinstance(trust, SecureSum)
    assert found is not None
    assert plan.correction is not None
    assert plan.correction.target is not None
    z = calibrate_noise(gaussian, epsilon=plan.correction.target.epsilon, delta=1e-5)
    multiplier = float(plan.calibration.noise_multipliers[0])
    train = repeated(gaussian(multiplier / trust.honest**0.5), plan.rounds)
    own = composed([train, gaussian(z / trust.honest**0.5)])
    assert found.epsilons[0] == pytest.approx(accounting.epsilon(own, 1e-5), rel=1e-3)


def test_without_privacy_it_is_exact() -> None:
    run = tacit.simulate(_plan(privacy="none", epsilon=None, delta=None))
    assert run.correction is not None
    batch = run.federation.batch()
    residuals = batch.targets - run.model.predict(batch.features)
    assert abs(float(residuals.mean())) < 0.01


def test_few_records_are_not_asked() -> None:
    """Public numbers say so, and the recipe then says that nothing is corrected."""
    plan = _plan(rows=600)
    assert plan.correction is None
    assert plan.recipe is not None
    assert plan.recipe.correction == 0.0
    assert _plan(rows=600, correction=0.2).correction is not None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_settings": {"ridge": 0.1}}, "no penalty"),
        ({"model": "absolute-regression"}, "only least squares"),
        ({"client_epsilon": 20.0}, "per record"),
        ({"settings_from": "theory"}, "theory"),
    ],
)
def test_where_nothing_is_corrected(changes: dict[str, Any], why: str) -> None:
    assert _plan(**changes).correction is None
    with pytest.raises(RequestError, match=f"{why}.*set correction = 0"):
        _plan(**changes, correction=0.2)


@pytest.mark.parametrize("share", [1.0, 1.5, -0.2])
def test_a_share_that_is_none_is_named(share: float) -> None:
    with pytest.raises(RequestError, match="correction must be above 0 and below 1"):
        _plan(correction=share)


def test_without_a_schema_nothing_changes() -> None:
    rows = torch.randn(300, 2)
    plan = make_plan(RECIPE, federation=Federation.from_arrays(rows, rows[:, 0], np.arange(300) % 3))
    assert plan.correction is None
    assert plan.recipe is not None
    assert plan.recipe.correction is None
    assert "correction" not in plan.recipe.to_toml()


def test_an_audit_plays_it(tmp_path: Path) -> None:
    TABLE[:60].to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "s.toml").write_text(replace(SCHEMA, left_out={"who": "names"}).to_toml())
    asked = replace(
        RECIPE,
        data=str(tmp_path / "t.csv"),
        data_settings={"schema": str(tmp_path / "s.toml")},
        rounds=1,
        correction=0.2,
    )
    result = audit_recipe(asked, trials=500, dim=4)
    assert not result.violated
    assert [one.algorithm for one in result.beside] == ["correction of the model"]
    summed = audit_recipe(replace(asked, trust="sum"), trials=500, dim=4)
    assert not summed.violated
    assert summed.beside[-1].algorithm == "correction of the model"
    assert summed.beside[-1].adversary is Adversary.SECURE_SUM
