"""Losses leave a silo clipped, noised, charged, allowed by its policy, and not at all unless asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.client.cohort import Cohort
from tacit.deploy.frames import Reply
from tacit.deploy.guard import admit
from tacit.deploy.job import Job
from tacit.deploy.policy import Policy
from tacit.deploy.report import Report
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models.registry import build_model
from tacit.noise.additive import LatticeGaussian, SeededGaussian
from tacit.noise.randomness import Randomness
from tacit.privacy import Target, events
from tacit.privacy.accountant import accounting

REPORT = Report(every=2, loss_bound=2.0, epsilon=0.5)


class _Losses:
    """A model of which only the losses matter: a record's feature is its loss."""

    def losses(self, point: torch.Tensor, batch: Batch) -> torch.Tensor:
        return batch.features[:, 0]


def _measured(losses: list[float], noise_multiplier: float, noise: Any = None) -> float:
    finite = Federation.from_clients([([[0.0]] * len(losses), [0] * len(losses))])
    federation = replace(finite)
    object.__setattr__(federation, "features", torch.tensor(losses)[:, None])
    cohort = Cohort(federation, torch.zeros(1, dtype=torch.int64), 0, Randomness(0))
    kind = noise or SeededGaussian()
    return REPORT.measure(_Losses(), torch.zeros(1), cohort, noise_multiplier, kind)  # type: ignore[arg-type]  # a stub


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=9),
    st.floats(width=32),
)
def test_no_record_moves_the_sum_by_more_than_the_bound(losses: list[float], other: float) -> None:
    """Replaced by any other loss whatever, infinite or not a number: at most B; left out: at most B/2."""
    before, after = (_measured(values, 1e-12) for values in (losses, [other, *losses[1:]]))
    assert abs(before - after) * len(losses) <= REPORT.loss_bound * (1 + 1e-6)
    middle = _measured([1.0, *losses[1:]], 1e-12)
    assert abs(before - middle) * len(losses) <= REPORT.loss_bound / 2 * (1 + 1e-6)
    assert 0 - 1e-6 <= before <= REPORT.loss_bound + 1e-6


def test_the_noise_has_the_deviation_that_is_charged() -> None:
    draws = torch.tensor([_measured([0.5, 1.0, 7.0, -3.0], 3.0, LatticeGaussian()) for _ in range(600)])
    # Mean of 0.5, 1, 2 (clipped) and 0 (clipped); deviation 3 (2/2) / 4; each within six of its own deviations.
    assert abs(float(draws.mean()) - 0.875) < 6 * 0.75 / math.sqrt(600)
    assert abs(float(draws.std()) / 0.75 - 1) < 6 / math.sqrt(2 * 600)


@pytest.mark.parametrize("settings", [{}, {"algorithm": "ldp-sgd"}, {"noise": "gaussian"}])
def test_the_budget_is_set_aside_and_everything_is_charged(
    consortium: Callable[..., Any], settings: dict[str, Any]
) -> None:
    if settings.get("algorithm") == "ldp-sgd":
        settings = {**settings, **dict.fromkeys(("snapshot_probability", "compressor"), "leave out")}
    made, plain = consortium(report=REPORT, **settings), consortium(**settings)
    terms, without = made.silo("site-0").terms, plain.silo("site-0").terms
    assert terms.noise_multiplier > without.noise_multiplier
    assert terms.epsilon <= 4.0
    job = made.job
    # The reports alone cost what was agreed on, and one step less noise on the training would cost too much.
    reports = REPORT.event(terms.report_noise, 6, job.noise.kind)
    assert 0.4 < accounting.epsilon(reports, 1e-4) <= 0.5
    less = replace(terms, noise_multiplier=terms.noise_multiplier * 0.99)
    assert accounting.epsilon(less.event(6), 1e-4) > 4.0
    assert events.to_dict(terms.event(1)) == events.to_dict(replace(terms, report_noise=9.0).event(1))
    assert accounting.epsilon(terms.event(2), 1e-4) > accounting.epsilon(
        job.algorithm.work.event(24, terms.noise_multiplier, 2), 1e-4
    )


def test_reports_come_with_every_second_message_and_are_in_ledger_and_certificate(
    consortium: Callable[..., Any],
) -> None:
    made = consortium(report=REPORT)
    seen: list[Any] = []
    finished = made.server(quorum=3, progress=seen.append).run()
    assert [sorted(report.losses) for report in seen] == [[], list(made.job.sites)] * 3
    assert all(math.isfinite(loss) for report in seen for loss in report.losses.values())
    logged = [json.loads(line) for line in (made.directory / "server" / "rounds.jsonl").read_text().splitlines()]
    assert ["losses" in line for line in logged] == [False, True] * 3
    silo = made.verified(finished.certificate).body["silos"]["site-1"]
    assert silo["report"] == {**vars(REPORT), "noise_multiplier": made.silo("site-1").terms.report_noise}
    assert silo["epsilon"]["run"] <= 4.0
    with made.silo("site-1").ledger.page() as page:
        rows = [json.loads(row[0]) for row in page.connection.execute("SELECT body FROM lines").fetchall()]
    assert rows[0]["event"] == events.to_dict(made.silo("site-1").terms.event(6))
    assert [line["releases"] for line in rows[1:]] == [1, 2, 3, 4, 5, 6]


def test_a_repeated_request_gets_the_same_report(consortium: Callable[..., Any]) -> None:
    made = consortium(report=Report(1, 2.0, 0.5))
    first = made.silo("site-0").step(made.request(0))
    assert Reply.decode(first, body_limit=10_000).loss is not None
    assert made.silo("site-0").step(made.request(0)) == first


def test_a_silo_that_nobody_asked_says_nothing(consortium: Callable[..., Any]) -> None:
    made = consortium()
    made.server(quorum=3).run()
    replies = [Reply.decode(frame, body_limit=2**20) for frames in made.left.values() for frame in frames]
    assert replies
    assert all(reply.loss is None for reply in replies)


def test_who_does_not_want_reports_is_not_made_to(consortium: Callable[..., Any]) -> None:
    made = consortium(report=REPORT)
    policy = made.policies["site-0"]
    assert policy.report_epsilon == 0.5
    assert Policy.for_job(consortium().job, "site-0").report_epsilon == 0.0
    with pytest.raises(RequestError, match=r"report_epsilon = 0\.4"):
        admit(made.job, replace(policy, report_epsilon=0.4), "site-0", made.federation.client(0))


def test_reports_that_make_no_sense_are_refused(consortium: Callable[..., Any]) -> None:
    for wrong in ({"every": 0}, {"loss_bound": math.inf}, {"epsilon": 0.0}, {"loss_bound": "x"}):
        with pytest.raises(RequestError):
            replace(REPORT, **wrong)
    for table in ({}, 3, {**vars(REPORT), "more": 1}):
        with pytest.raises(RequestError, match="table of every"):
            Report.from_values(table)
    with pytest.raises(RequestError, match="more than the 6 messages"):
        consortium(report=replace(REPORT, every=7)).silo("site-0")
    with pytest.raises(RequestError, match="must be less than"):
        REPORT.noise_multiplier(4, Target(0.5, 1e-4), SeededGaussian())


def test_a_job_with_reports_survives_being_written_down(consortium: Callable[..., Any]) -> None:
    job = consortium(report=REPORT).job
    assert Job.from_text(job.text).report == REPORT
    assert Job.from_text(job.text).digest == job.digest != consortium().job.digest


def test_a_failing_loss_stops_the_silo_and_says_nothing(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consortium(report=Report(1, 2.0, 0.5))
    silo = made.silo("site-0")

    def fail(*arguments: Any) -> float:
        raise ValueError("patient 4711")

    monkeypatch.setattr(Report, "measure", fail)
    frame = silo.step(made.request(0))
    assert Reply.decode(frame, body_limit=0).code == "failed"
    assert b"4711" not in frame
    assert (made.directory / "site-0" / "halted").exists()


def test_models_have_losses_for_a_report() -> None:
    federation = Federation.from_clients([([[0.0, 1.0], [2.0, 0.5]], [0, 1])])
    model = build_model("softmax", federation, {})
    cohort = Cohort(federation, torch.zeros(1, dtype=torch.int64), 0, Randomness(0))
    found = REPORT.measure(model, torch.zeros(model.dim), cohort, 1e-9, SeededGaussian())
    assert found == pytest.approx(math.log(2), abs=1e-5)


@pytest.mark.parametrize("stricter", [{"delta": 1e-6}, {"adjacency": "replace-one"}])
def test_what_reports_may_cost_is_counted_by_the_policy(
    consortium: Callable[..., Any], stricter: dict[str, Any]
) -> None:
    """A job with a large delta of its own, or a weaker adjacency, makes them no cheaper."""
    made = consortium(report=REPORT, delta=1e-2, adjacency="add-remove", policy={"epsilon": 50.0})
    policy = made.policies["site-0"]
    admit(made.job, policy, "site-0", made.federation.client(0))
    with pytest.raises(RequestError, match=r"allows report_epsilon = 0\.5"):
        admit(made.job, replace(policy, **stricter), "site-0", made.federation.client(0))


def test_reports_beside_coins_are_refused_with_the_reason(consortium: Callable[..., Any]) -> None:
    coins = {"algorithm": "shuffled-accelerated", "epsilon": 8.0, "stages": 2, "strong_convexity": 0.1}
    coins |= {"projection": "ball:5", "rounds": 3, "sampling": "without-replacement", "batch": 4.0}
    coins |= dict.fromkeys(("snapshot_probability", "compressor"), "leave out")
    with pytest.raises(RequestError, match="leave report out"):
        consortium(report=REPORT, **coins)
