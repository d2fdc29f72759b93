"""Accounts of recipes and of run directories: the ledger alone must give back what was promised."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tacit.engine.account import account_recipe, account_run
from tacit.engine.execute import execute
from tacit.engine.recipe import Recipe
from tacit.errors import DataError, RequestError
from tacit.planning.needs import Need, Refused, noise_needs
from tacit.privacy import epsilon, events

SMALL = Recipe(
    algorithm="soteriafl-sgd",
    data="breast-cancer",
    clients=3,
    rounds=4,
    epsilon=2.0,
    delta=1e-5,
    algorithm_settings={"step": 0.1, "batch": 0.5},
)


def run(recipe: Recipe, directory: Path) -> dict[str, Any]:
    return execute(recipe, directory)


def edit_ledger(directory: Path, change: Any) -> None:
    path = directory / "ledger.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "soteriafl-svrg", "algorithm.snapshot_probability": 0.2},
        {"algorithm": "soteriafl-saga"},
        {"algorithm": "soteriafl-gd", "algorithm.batch": None},
        {"algorithm.sampling": "without-replacement"},
        {"algorithm.sampling": "with-replacement"},
        {"algorithm.sampling": "one-pass", "algorithm.batch": 20},
        {"partition": "dirichlet:1.0"},
        {"cohort": 2, "rounds": 6},
        {"noise": "lattice"},
        {"adjacency": "add-remove"},
    ],
    ids=str,
)
def test_the_ledger_gives_back_the_promise(changes: dict[str, Any], tmp_path: Path) -> None:
    summary = run(SMALL.with_settings(changes), tmp_path / "run")
    found = account_run(tmp_path / "run")
    assert found.finished
    assert found.differences == ()
    assert found.guarantee is not None
    assert found.rounds == summary["rounds"]
    assert found.guarantee.epsilon <= summary["epsilon"] * (1 + 1e-9)
    assert found.guarantee.epsilon == pytest.approx(summary["epsilon"], rel=1e-6)
    assert sum(found.records) == summary["records"]
    assert found.cost is not None
    assert found.cost.epsilon == found.guarantee.epsilon
    assert json.loads(json.dumps(found.to_dict()))["agrees"] is True


def test_every_client_is_charged_for_its_own_rounds(tmp_path: Path) -> None:
    run(replace(SMALL, clients=4, cohort=1, rounds=5), tmp_path / "run")
    found = account_run(tmp_path / "run")
    assert sum(one.rounds for one in found.spent) == 5
    idle = [one for one in found.spent if not one.rounds]
    assert all(one.epsilon == 0 for one in idle)
    by_rounds = sorted((one.rounds, one.epsilon) for one in found.spent)
    assert [cost for _, cost in by_rounds] == sorted(cost for _, cost in by_rounds)


def test_an_epsilon_that_was_changed_is_seen(tmp_path: Path) -> None:
    run(SMALL, tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "epsilon": 0.99 * summary["epsilon"]}))
    (difference,) = account_run(tmp_path / "run").differences
    assert difference.startswith("epsilon: recomputed from the ledger")
    path.write_text(json.dumps({**summary, "epsilon": None, "adjacency": "add-remove"}))
    assert [text.partition(":")[0] for text in account_run(tmp_path / "run").differences] == [
        "adjacency",
        "epsilon",
    ]


def test_a_ledger_that_was_changed_is_seen(tmp_path: Path) -> None:
    run(SMALL, tmp_path / "run")
    edit_ledger(tmp_path / "run", lambda lines: lines[:-1])
    assert [text.partition(":")[0] for text in account_run(tmp_path / "run").differences] == ["rounds", "epsilon"]
    edit_ledger(tmp_path / "run", lambda lines: [_with_noise(lines[0], 100.0), *lines[1:]])
    assert account_run(tmp_path / "run").differences[-1].startswith("epsilon")


def _with_noise(header: dict[str, Any], noise_multiplier: float) -> dict[str, Any]:
    release = events.gaussian(noise_multiplier)
    group = {**header["groups"][0], "events": [[0, {"kind": "nothing"}], *_after(release, 4)]}
    return {**header, "groups": [group, *header["groups"][1:]]}


def _after(release: Any, rounds: int) -> list[list[Any]]:
    return [[n, events.to_dict(events.repeated(release, n))] for n in range(1, rounds + 1)]


def test_an_unfinished_run_has_spent_what_its_ledger_says(tmp_path: Path) -> None:
    run(SMALL, tmp_path / "run")
    whole = account_run(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    edit_ledger(tmp_path / "run", lambda lines: lines[:3])
    found = account_run(tmp_path / "run")
    assert not found.finished
    assert found.rounds == 2
    assert found.guarantee is not None
    assert whole.guarantee is not None
    assert 0 < found.guarantee.epsilon < whole.guarantee.epsilon
    assert found.to_dict()["agrees"] is False
    edit_ledger(tmp_path / "run", lambda lines: lines[:1])
    fresh = account_run(tmp_path / "run")
    assert fresh.cost is None
    assert fresh.to_dict()["epsilon"] == 0


def test_a_run_without_privacy_has_no_account(tmp_path: Path) -> None:
    run(replace(SMALL, privacy="none", epsilon=None, delta=None), tmp_path / "run")
    found = account_run(tmp_path / "run")
    assert found.guarantee is None
    assert found.differences == ()
    assert found.to_dict()["privacy"] == "none"
    with pytest.raises(RequestError, match="nothing to account for"):
        account_recipe(replace(SMALL, privacy="none", epsilon=None, delta=None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [{}, *lines[1:]], "no 'groups'"),
        (lambda lines: [{**lines[0], "groups": []}, *lines[1:]], "there are no clients"),
        (lambda lines: [_with(lines[0], delta=2.0), *lines[1:]], "delta must be"),
        (lambda lines: [_with(lines[0], epsilon_budget=0), *lines[1:]], "epsilon_budget must be"),
        (lambda lines: [{**lines[0], "adjacency": "other"}, *lines[1:]], "unknown adjacency"),
        (lambda lines: [{**lines[0], "groups": 2 * lines[0]["groups"]}, *lines[1:]], "in two groups"),
        (
            lambda lines: [_with(lines[0], events=[[0, {"kind": "gaussian"}]]), *lines[1:]],
            "needs exactly noise_multiplier",
        ),
        (lambda lines: [_with(lines[0], events=[]), *lines[1:]], "events must start"),
        (lambda lines: [_with(lines[0], release={}), *lines[1:]], "earlier version"),
        (
            lambda lines: [_with(lines[0], events=lines[0]["groups"][0]["events"][::-1]), *lines[1:]],
            "events must start",
        ),
        (lambda lines: [_with(lines[0], events=[[0.5, {"kind": "nothing"}]]), *lines[1:]], "number of releases"),
        (lambda lines: [lines[0], {"round": 0, "clients": [77]}], "names client 77"),
        (lambda lines: [lines[0], {"round": 0, "clients": [1, 1]}], "exactly once"),
        (lambda lines: [lines[0], {"round": 0, "clients": "some"}], "exactly once"),
        (lambda lines: [lines[0], {"round": 0}], "no 'clients'"),
        (lambda lines: [lines[0], lines[2]], "out of order"),
    ],
)
def test_what_is_not_a_ledger_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    header = {
        "version": "0", "unit": "record", "adjacency": "replace-one", "adversary": "server", "delta": 1e-5,
        "groups": [{"clients": [0, 1], "records": 9, "noise_multiplier": 4.0,
                    "delta": 1e-5, "epsilon_budget": 50.0,
                    "events": [[0, {"kind": "nothing"}], *_after(events.gaussian(4.0), 3)]}],
    }  # fmt: skip
    rounds = [{"round": t, "clients": "all"} for t in range(3)]
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [header, *rounds]))
    assert account_run(tmp_path).rounds == 3
    edit_ledger(tmp_path, change)
    with pytest.raises(DataError, match=message):
        account_run(tmp_path)


def _with(header: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**header, "groups": [{**header["groups"][0], **changes}]}


def test_a_directory_without_a_ledger_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no ledger\.jsonl"):
        account_run(tmp_path)


def test_a_recipe_is_accounted_for_before_it_runs(tmp_path: Path) -> None:
    found = account_recipe(replace(SMALL, partition="dirichlet:1.0"))
    summary = run(replace(SMALL, partition="dirichlet:1.0"), tmp_path / "run")
    assert found.guarantee.epsilon == summary["epsilon"]
    assert found.cost.epsilon == pytest.approx(summary["epsilon"], rel=1e-9)
    assert found.cost.rounds == 4
    assert sum(found.records) == summary["records"]


def test_needs_of_every_algorithm() -> None:
    needs = noise_needs(replace(SMALL, algorithm="cdp-sgd"), algorithms=["cdp-sgd", "soteriafl-gd", "ldp-svrg"])
    planned = {row.algorithm: row for row in needs.planned}
    assert list(planned) == ["cdp-sgd", "soteriafl-gd", "ldp-svrg"]
    for row in planned.values():
        assert isinstance(row, Need)
        assert row.epsilon <= 2.0
        assert row.rounds == 4
    gd, svrg = planned["soteriafl-gd"], planned["ldp-svrg"]
    assert isinstance(gd, Need)
    assert isinstance(svrg, Need)
    spent = epsilon(events.repeated(events.gaussian(gd.noise_multiplier), 4), 1e-5)
    assert spent == pytest.approx(2.0, rel=0.005)
    assert svrg.uplink_bits_per_client >= gd.uplink_bits_per_client


def test_a_plan_says_whether_anything_can_be_learned() -> None:
    """Noise hides three whole clients, and the plan says how many it would take; records stand out."""
    needs = noise_needs(replace(SMALL, epsilon=4.0), algorithms=["noisy-mb-sgd", "dp-fedavg"])
    ahead = [row.outlook for row in needs.planned if isinstance(row, Need) and row.outlook is not None]
    assert [found.verdict == "hidden" for found in ahead] == [False, True]
    assert "clients instead of" in ahead[1].sentence


def test_small_batches_need_more_noise() -> None:
    needs = noise_needs(SMALL, algorithms=["soteriafl-sgd", "soteriafl-saga", "soteriafl-gd"])
    for name in ("soteriafl-sgd", "soteriafl-saga"):
        stds = {f: row.noise_std for f, row in needs.by_batch if isinstance(row, Need) and row.algorithm == name}
        assert list(stds) == [0.01, 0.1, 0.3, 1.0]
        assert stds[0.01] > stds[0.1] > 0.99 * stds[1.0]
    full = {row.algorithm: row.noise_multiplier for f, row in needs.by_batch if isinstance(row, Need) and f == 1}
    (gd,) = [row for row in needs.planned if row.algorithm == "soteriafl-gd"]
    assert isinstance(gd, Need)
    assert full == pytest.approx(dict.fromkeys(full, gd.noise_multiplier), rel=1e-6)


def test_what_does_not_go_is_said_and_the_rest_is_planned() -> None:
    needs = noise_needs(
        SMALL.with_algorithm_settings(sampling="one-pass", batch=20), algorithms=["ldp-sgd", "soteriafl-saga"]
    )
    good, bad = needs.planned
    assert isinstance(good, Need)
    assert isinstance(bad, Refused)
    assert "saga" in bad.why
    # Four batches of a third of the records do not fit into one pass.
    assert any(isinstance(row, Refused) for fraction, row in needs.by_batch if fraction == 0.3)
    with pytest.raises(RequestError, match="no algorithm fits this recipe"):
        noise_needs(SMALL.with_algorithm_settings(sampling="one-pass", batch=20), algorithms=["soteriafl-saga"])
    with pytest.raises(RequestError, match="unknown algorithm"):
        noise_needs(SMALL, algorithms=["sgd"])
    with pytest.raises(RequestError, match="no noise is needed"):
        noise_needs(replace(SMALL, privacy="none", epsilon=None, delta=None))
