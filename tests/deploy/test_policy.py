"""A silo's policy refuses what it does not allow, with the reason, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tacit.algorithms.calibrate import calibrate
from tacit.deploy.guard import admit
from tacit.deploy.job import Job
from tacit.deploy.party_folder import PartyFolder
from tacit.deploy.policy import Policy
from tacit.deploy.report import Report
from tacit.deploy.silo import Silo
from tacit.errors import RequestError
from tacit.privacy import Target


def _admit(made: Any, **changes: Any) -> Any:
    site = made.job.sites[0]
    policy = Policy.for_job(made.job, site, insecure_reproducible=made.job.insecure, **changes)
    return admit(made.job, policy, site, made.federation.client(0))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithms": ["soteriafl-gd"]}, "algorithm 'soteriafl-svrg' is not among the algorithms"),
        ({"models": []}, "model 'logistic' is not among the models"),
        ({"samplings": ["full"]}, "sampling 'poisson' is not among the samplings"),
        ({"bounds": {"normalise": 9.0}}, "bound 'clip-norm' is not among the bounds"),
        ({"bounds": {"clip-norm": 0.99}}, "clip_norm = 1 of 'clip-norm' is larger"),
        ({"min_records": 25}, "at least 25 records, but there are 24"),
        ({"epsilon": 3.9}, "less noise than the policy"),
        ({"delta": 1e-5}, "less noise than the policy"),
        ({"unit": "client"}, "protects one record"),
    ],
)
def test_what_a_policy_does_not_allow_is_refused_with_the_reason(
    consortium: Callable[..., Any], changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        _admit(consortium(), **changes)


@pytest.mark.parametrize("asks", [{"report": Report(every=1, loss_bound=4.0, epsilon=0.5)}, {"trust": "sum"}])
def test_no_code_of_a_job_runs_before_the_policy_allows_it(
    consortium: Callable[..., Any], disk: Path, monkeypatch: pytest.MonkeyPatch, asks: dict[str, Any]
) -> None:
    """A model may be any function that is installed, with arguments that the job chooses."""
    made = consortium(**asks)
    monkeypatch.syspath_prepend(str(disk))
    (disk / "job_code.py").write_text(f"import pathlib\npathlib.Path({str(disk / 'ran')!r}).touch()\n")
    text, policy = made.job.text, made.policies["site-0"].to_toml()
    text = text.replace('model = "logistic"', 'model = "module:job_code:network"')
    records, key = made.federation.client(0), made.signing["site-0"]
    with pytest.raises(RequestError, match="is not among the models"):
        Silo.open(text, policy, records, disk / "state", site="site-0", key=key)
    folder = disk / "folder"
    folder.mkdir(mode=0o700)
    party = {"party": "site-0", "quorum": 0, "deadline_seconds": 1.0, "host": "localhost", "listen": ""}
    for name, content in {"job": text, "policy": policy, "party": tomli_w.dumps(party)}.items():
        (folder / f"{name}.toml").write_text(content)
    with pytest.raises(RequestError, match="is not among the models"):
        PartyFolder.open(folder)
    assert not (disk / "ran").exists()


def test_a_recipe_of_weaker_neighbours_asks_for_less_noise(consortium: Callable[..., Any]) -> None:
    made = consortium(adjacency="add-remove")
    with pytest.raises(RequestError, match="less noise than the policy"):
        _admit(made, adjacency="replace-one")
    _admit(made)


def test_seeded_noise_is_for_trials_only(consortium: Callable[..., Any]) -> None:
    made = consortium(noise="gaussian")
    site = made.job.sites[0]
    with pytest.raises(RequestError, match="comes from a seed"):
        admit(made.job, Policy.for_job(made.job, site), site, made.federation.client(0))


def test_the_noise_is_derived_from_the_silos_own_records(consortium: Callable[..., Any]) -> None:
    made = consortium(epsilon=2.0)
    terms = _admit(made, epsilon=4.0)
    expected = calibrate(
        made.job.algorithm, made.federation.client(0), releases=6, privacy=Target(2.0, 1e-4)
    ).noise_multipliers[0]
    assert terms.noise_multiplier == float(expected)
    assert terms.epsilon <= 2.0
    assert terms.planned == 6


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-normfedavg"])
def test_a_promise_that_needs_an_aggregator_is_refused(consortium: Callable[..., Any], algorithm: str) -> None:
    settings = dict.fromkeys(("compressor", "snapshot_probability"), "leave out")
    local = {"local_steps": 2, "local_step": 0.1, "step_schedule": "constant", "momentum": 0.0, "output": "last"}
    with pytest.raises(RequestError, match="no aggregator is configured"):
        _admit(consortium(algorithm=algorithm, noise="gaussian", adversary="sum", **local, **settings))


def test_an_algorithm_without_noise_is_refused(consortium: Callable[..., Any]) -> None:
    settings = dict.fromkeys(("compressor", "snapshot_probability"), "leave out")
    made = consortium(algorithm="mb-sgd", projection="none", strong_convexity=0.0, **settings)
    with pytest.raises(RequestError, match="adds no noise"):
        _admit(made)


def test_a_policy_survives_being_written_down(consortium: Callable[..., Any]) -> None:
    policy = Policy.for_job(consortium().job, "site-0", min_records=7)
    assert Policy.from_toml(policy.to_toml()) == policy


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("epsilon = ", "not valid TOML"),
        ("epsilon = 1.0", "must set delta"),
        ('epsilon = 1.0\ndelta = 1e-5\nalgorithms = ["a"]\nmodels = ["m"]\nbound = 3', "unknown setting"),
        ("epsilon = 0\ndelta = 1e-5\nalgorithms = []\nmodels = []\n[bounds]", "epsilon must be"),
        ('epsilon = 1\ndelta = 1e-5\nalgorithms = "a"\nmodels = []\n[bounds]', "algorithms in the policy"),
        ("epsilon = 1\ndelta = 1e-5\nalgorithms = []\nmodels = []\nbounds = 1", "bounds in the policy"),
        ("epsilon = 1\ndelta = 1e-5\nalgorithms = []\nmodels = []\n[bounds]\nclip-norm = -1", "bounds.clip-norm"),
    ],
)
def test_a_wrong_policy_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        Policy.from_toml(text)


def test_a_job_survives_being_written_down(consortium: Callable[..., Any]) -> None:
    job = consortium().job
    again = Job.from_text(job.text)
    assert again == job
    assert again.digest == job.digest


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step": None}, "leaves min_records open"),
        ({"batch": None}, "leaves algorithm.batch open"),
        ({"snapshot_probability": None}, "leaves algorithm.snapshot_probability open"),
        ({"model": None}, "leaves model open"),
        ({"clients": 7}, "the job names 3 sites"),
        ({"privacy": "none"}, "nothing without a promise"),
        ({"weights": "records"}, "depends on the sites' records"),
        ({"epsilon": [1.0, 2.0]}, "epsilon has 2 entries"),
    ],
)
def test_a_job_that_leaves_something_open_is_refused(
    consortium: Callable[..., Any], changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        _admit(consortium(**changes))


@pytest.mark.parametrize("sites", [(), ("a", "a"), ("../a",), ("a b",)])
def test_sites_have_sound_names(consortium: Callable[..., Any], sites: tuple[str, ...]) -> None:
    job = consortium().job
    with pytest.raises(RequestError, match="sites"):
        Job(job.recipe, sites, job.feature_shape, job.classes)


def test_a_silo_has_a_budget_of_its_own(consortium: Callable[..., Any]) -> None:
    made = consortium(epsilon={"site-0": 1.0, "site-1": 2.0, "site-2": 4.0})
    noises = [
        admit(made.job, made.policies[site], site, made.federation.client(i)).noise_multiplier
        for i, site in enumerate(made.job.sites)
    ]
    assert noises[0] > noises[1] > noises[2]


def test_records_of_another_shape_are_refused(consortium: Callable[..., Any]) -> None:
    made = consortium()
    job = Job(made.job.recipe, made.job.sites, (5,), 2)
    with pytest.raises(RequestError, match=r"shape \[5\]"):
        admit(job, made.policies["site-0"], "site-0", made.federation.client(0))
    with pytest.raises(RequestError, match="one client"):
        admit(made.job, made.policies["site-0"], "site-0", made.federation)


def test_rounds_for_which_one_pass_has_no_records_are_refused(consortium: Callable[..., Any]) -> None:
    """Also where nobody takes part in all of them: round 3 would be charged, and nothing but noise."""
    plain = dict.fromkeys(("snapshot_probability", "compressor"), "leave out")
    settings = {"algorithm": "noisy-mb-sgd", "sampling": "one-pass", "batch": 8.0, "cohort": 1, **plain}
    consortium(rounds=3, **settings).silo("site-0")
    with pytest.raises(RequestError, match="only 3 disjoint batches"):
        consortium(rounds=4, **settings).silo("site-0")
