"""A bound that was not given: paid for, public, or refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dp_accounting import dp_event

import tacit
from tacit.client.bounds import ClipEachCoordinate
from tacit.client.local_steps import NoisyLocalSteps, as_one_pass
from tacit.data import load
from tacit.engine import bound_source
from tacit.engine.account import account_run
from tacit.engine.execute import execute
from tacit.engine.plan import algorithm_of, make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import DataError, RequestError
from tacit.models import softmax_regression
from tacit.noise.additive import LatticeGaussian
from tacit.noise.randomness import Purpose, Randomness
from tacit.planning.shape import records_of_shape
from tacit.privacy import events
from tacit.privacy.accountant.accounting import epsilon

GIVEN = Recipe(
    algorithm="fed-spa",
    data="digits",
    clients=5,
    rounds=3,
    epsilon=4.0,
    algorithm_settings={"bound": "clip-each-coordinate", "batch": 0.1},
)
PAID = GIVEN.with_algorithm_settings(bound_from="quantile:0.2")


def _norms() -> torch.Tensor:
    plan = make_plan(GIVEN)
    start = plan.algorithm.work.model.init(Randomness(0).generator(Purpose.INIT))
    return plan.algorithm.work.model.gradients(start, plan.federation.batch()).norms()


def test_a_private_median_is_paid_for_by_more_noise() -> None:
    plan, free = make_plan(PAID), make_plan(GIVEN)
    work = plan.algorithm.work
    assert isinstance(work, NoisyLocalSteps)
    assert work.before is not None
    truth = float(_norms().median()) / math.sqrt(work.model.dim)
    assert plan.recipe.algorithm_settings["clip_norm"] == pytest.approx(truth, rel=0.25)
    assert work.bound == ClipEachCoordinate(plan.recipe.algorithm_settings["clip_norm"])
    runs = [tacit.simulate(p) for p in (plan, free)]
    assert all(run.guarantee is not None and 3.9 < run.guarantee.epsilon <= 4.0 for run in runs)
    paid, unpaid = (float(run.calibration.noise_multipliers[0]) for run in runs)
    assert paid > unpaid * 1.005
    assert runs[0].guarantee is not None
    assert "the bounds of gradient norms, 0.001 to 1000" in runs[0].guarantee.public
    # Counted again by hand: what the search released, and every local step, are one composition.
    alone = events.repeated(events.poisson(0.1, paid), 30)
    again = epsilon(events.composed([work.before.event, alone]), 1e-5)
    assert again == pytest.approx(runs[0].guarantee.epsilon, rel=2e-3)
    assert epsilon(alone, 1e-5) < again


def test_it_is_in_the_ledger_once(tmp_path: Path) -> None:
    execute(PAID, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    account = account_run(tmp_path / "run")
    assert account.to_dict()["epsilon"] == pytest.approx(summary["epsilon"], rel=1e-6)


def test_clients_that_never_train_are_charged_for_it(tmp_path: Path) -> None:
    few = replace(PAID, algorithm="dp-fed", clients=10, cohort=2, rounds=2).with_algorithm_settings(
        bound="clip-norm", local_steps=2
    )
    execute(few, out=tmp_path / "run")
    work = make_plan(few).algorithm.work
    assert isinstance(work, NoisyLocalSteps)
    assert work.before is not None
    alone = epsilon(work.before.event, 1e-5)
    account = account_run(tmp_path / "run")
    assert account.to_dict()["agrees"]
    idle = [one.epsilon for one in account.spent if one.rounds == 0]
    assert len(idle) >= 6
    assert idle == pytest.approx([alone] * len(idle), rel=1e-9)
    assert all(alone < one.epsilon <= one.budget for one in account.spent if one.rounds)
    first = (tmp_path / "run" / "history.csv").read_text().splitlines()
    column = first[0].split(",").index("epsilon")
    assert float(first[1].split(",")[column]) == pytest.approx(alone, rel=1e-6)
    # The ledger begins with the release: it is spent even if no round ever comes.
    header = (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[0]
    none, event = json.loads(header)["groups"][0]["events"][0]
    assert (none, events.from_dict(event)) == (0, work.before.event)
    (tmp_path / "run" / "ledger.jsonl").write_text(header + "\n")
    (tmp_path / "run" / "summary.json").unlink()
    started = account_run(tmp_path / "run")
    assert started.guarantee is not None
    assert started.guarantee.epsilon == pytest.approx(alone, rel=1e-9)


def test_once_is_once_however_many_rounds() -> None:
    releases = events.repeated(events.gaussian(8.0), 4)
    for rounds in (1, 50):
        assert epsilon(as_one_pass(releases, rounds), 1e-5) == pytest.approx(epsilon(releases, 1e-5), rel=1e-3)
    charged = LatticeGaussian().charged(releases, 1, 4)
    kinds = [type(part) for part in as_one_pass(charged, 9).events]
    assert dp_event.GaussianDpEvent not in kinds
    assert epsilon(as_one_pass(charged, 9), 1e-5) >= epsilon(releases, 1e-5)


def test_public_data_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the data set stands in for a public one: the norm is then the exact median of all records."""
    with pytest.raises(RequestError, match="the clients' own records, not public data"):
        make_plan(GIVEN.with_algorithm_settings(bound_from="public:digits"))
    named = {"published": "digits"}
    monkeypatch.setattr(bound_source, "load", lambda name, **options: load(named.get(name, name), **options))
    plan = make_plan(GIVEN.with_algorithm_settings(bound_from="public:published"))
    work = plan.algorithm.work
    assert isinstance(work, NoisyLocalSteps)
    assert work.before is None
    assert plan.recipe.algorithm_settings["clip_norm"] * math.sqrt(work.model.dim) == pytest.approx(
        float(_norms().median()), rel=1e-3
    )
    with pytest.raises(DataError, match="classes"):
        make_plan(GIVEN.with_algorithm_settings(bound_from="public:breast-cancer"))


def test_the_median_of_the_paper_promises_nothing() -> None:
    with pytest.raises(RequestError, match="privacy = 'none'"):
        make_plan(GIVEN.with_algorithm_settings(bound_from="median"))
    plan = make_plan(replace(GIVEN, privacy="none").with_algorithm_settings(bound_from="median"))
    assert 0 < plan.recipe.algorithm_settings["clip_norm"] < float(_norms().max())
    assert plan.privacy == "none"


@pytest.mark.parametrize("bad", ["quantile", "quantile:2", "quantile:x", "public", "public:", "mean"])
def test_others_are_refused(bad: str) -> None:
    with pytest.raises(RequestError):
        make_plan(GIVEN.with_algorithm_settings(bound_from=bad))


def test_a_release_that_nobody_makes_is_refused() -> None:
    shape = records_of_shape(clients=5, records=20, features=64, classes=10)
    with pytest.raises(RequestError, match="give clip_norm"):
        algorithm_of(PAID, softmax_regression(features=64, classes=10), shape)
    with pytest.raises(RequestError, match="is only for simulations"):
        make_plan(replace(PAID, noise="lattice"))
    with pytest.raises(RequestError, match="takes no bound_from"):
        make_plan(replace(PAID, algorithm="cpsgd"))
