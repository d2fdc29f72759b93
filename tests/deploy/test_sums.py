"""Deployed sums: the server learns one sum per round, whoever vanishes, restarts or lies."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.in_process import NO_FAULT, Death
from tests.deploy.lying_server import LyingServer, asked_for

from tacit.deploy import summed
from tacit.deploy.frames import Reply, Request
from tacit.deploy.guard import admit
from tacit.deploy.job import Job
from tacit.deploy.policy import Policy
from tacit.deploy.reading import QuorumError
from tacit.deploy.seam import Code
from tacit.deploy.signatures import CertificateError, sign
from tacit.deploy.summing import SiloSums, Summing
from tacit.engine.plan import Plan, make_plan, plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate
from tacit.errors import MessageError, RequestError
from tacit.federation import Federation
from tacit.privacy import Adversary
from tacit.sums.group import Rounds
from tacit.sums.requests import SumStep
from tacit.sums.server import TooFewError, prepare

Make = Callable[..., Any]
SUMS: dict[str, Any] = {"trust": "sum", "sites": 5, "quorum": 4, "colluding": 1, "compressor": "rand-k:0.5"}
ALL = {"snapshot_probability": "leave out", "sampling": "full", "batch": "leave out"}
RECORDS = {**SUMS, **ALL, "algorithm": "soteriafl-gd"}
WHOLE = {**SUMS, **ALL, "algorithm": "dp-fedavg", "epsilon": 8.0, "compressor": "leave out"}
BOTH = pytest.mark.parametrize("settings", [RECORDS, WHOLE], ids=["records", "sites"])


SVRG = {**SUMS, "algorithm": "soteriafl-svrg"}


NORM = {**WHOLE, "algorithm": "dp-normfedavg"}


@pytest.mark.parametrize("settings", [RECORDS, SVRG, WHOLE, NORM], ids=["records", "svrg", "sites", "norm"])
def test_a_run_with_sums(consortium: Make, settings: dict[str, Any]) -> None:
    made = consortium(**settings)
    finished = made.server().run()
    assert bool(torch.isfinite(finished.parameters).all())
    assert finished.problems == {}
    assert set(finished.answered.values()) == {made.job.rounds}
    certificate = made.verified(finished.certificate).body
    for silo in certificate["silos"].values():
        assert silo["adversary"] == "secure-sum"
        assert (silo["quorum"], silo["colluding"]) == (4, 1)
        assert silo["epsilon"]["run"] <= made.job.recipe.epsilon
        assert silo["run_if_others_help"]["server"]["epsilon"] > silo["epsilon"]["run"]
        assert "even if 1 of the other clients helps it" in silo["promise"]
        assert "Should all other silos help the server" in silo["promise"]


def _observed(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[int, list[Any]], dict[int, Any]]:
    """What silos encode in each round, and what the server opens."""
    sent: dict[int, list[Any]] = {}
    opened: dict[int, Any] = {}
    masked, vector = SiloSums.masked, Summing.vector

    def watch(self: SiloSums, run: str, round: int, point: str, integers: Any, last: Any) -> bytes:
        sent.setdefault(round, []).append(integers)
        return masked(self, run, round, point, integers, last)

    def note(self: Summing, total: Any, request: Request, silos: Any) -> torch.Tensor:
        opened[request.round] = total
        return vector(self, total, request, silos)

    monkeypatch.setattr(SiloSums, "masked", watch)
    monkeypatch.setattr(Summing, "vector", note)
    return sent, opened


@BOTH
def test_the_server_opens_exactly_the_sum_and_sees_no_message(
    consortium: Make, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, opened = _observed(monkeypatch)
    made = consortium(**settings)
    made.server().run()
    summing = Summing(made.job)
    mask = np.uint32(2 ** summing.encoding().ring.bits - 1)
    assert sorted(opened) == list(range(made.job.rounds))
    for round, total in opened.items():
        assert len(sent[round]) == 5
        assert np.array_equal(total & mask, np.sum(sent[round], axis=0, dtype=np.uint32) & mask)
        plain = {summing.to_bytes(message) for message in sent[round]}
        assert not any(
            message in answer for answers in made.left.values() for answer in answers for message in plain
        )


def test_messages_have_the_length_that_the_simulator_counts(consortium: Make) -> None:
    made = consortium(**RECORDS)
    dim = made.job.algorithm.work.model.dim
    assert Summing(made.job).format.message_bytes == made.job.algorithm.uplink.message_bytes(dim)


def test_sums_learn_what_the_simulator_learns(consortium: Make) -> None:
    """With hardly any noise, a deployed run is the simulated one up to the lattice."""
    made = consortium(
        **{
            **RECORDS,
            "algorithm": "noisy-mb-sgd",
            "compressor": "leave out",
            "epsilon": 300.0,
            "noise": "gaussian",
        }
    )
    run = simulate(
        plan(made.job.algorithm, made.federation, rounds=made.job.rounds, privacy=made.job.target("site-0")),
        evaluate_every=made.job.rounds,
    )
    torch.testing.assert_close(made.server().run().parameters, run.parameters, rtol=0.05, atol=0.05)


MOMENTS = (
    "before sums",
    "between sums",
    "after sums",
    "before memory",
    "after memory",
    "before ledger",
    "after ledger",
    "after mark",
)


@pytest.mark.parametrize("seed", range(3))
def test_silos_vanish_and_restart_at_any_moment(
    consortium: Make, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every opened sum is that of messages that silos made for this round, each of them once."""
    sent, opened = _observed(monkeypatch)
    coins = np.random.default_rng(seed)

    def faults(site: str) -> str:
        kind = coins.choice(["lose-request", "lose-answer", "duplicate-request", "damage-answer:40", "die"])
        if coins.random() > 0.06:
            return NO_FAULT
        return f"die:{coins.choice(MOMENTS)}" if kind == "die" else str(kind)

    made = consortium(**{**RECORDS, "rounds": 12})
    backend = made.backend(faults)
    rounds = 0
    for _ in range(60):
        try:
            finished = made.server(backend, attempts=4).run()
            break
        except QuorumError:
            rounds += 1
    made.verified(finished.certificate)
    mask = np.uint32(2 ** Summing(made.job).encoding().ring.bits - 1)
    assert sorted(opened) == list(range(12))
    for round, total in opened.items():
        sums = [
            np.sum(some, axis=0, dtype=np.uint32) & mask
            for size in (4, 5)
            for some in itertools.combinations(sent[round], size)
        ]
        assert any(np.array_equal(total & mask, one) for one in sums)
    assert all(answered >= 6 for answered in finished.answered.values())


class _Killed(Death):
    pass


def test_a_server_is_killed_at_any_moment(consortium: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at every moment of its own and after every exchange: the run ends, and no sum is opened twice."""
    sent, opened = _observed(monkeypatch)
    made = consortium(**{**RECORDS, "rounds": 4})
    coins = np.random.default_rng(0)
    backend, calls = made.backend(), Counter[str]()

    class Dying:
        def run_round(self, request: bytes, **options: Any) -> dict[str, Any]:
            answers = backend.run_round(request, **options)
            calls["asked"] += 1
            if coins.random() < 0.3:
                calls["killed"] += 1
                raise _Killed
            return answers

    for _ in range(100):
        try:
            finished = made.server(Dying()).run()
            break
        except _Killed:
            continue
    made.verified(finished.certificate)
    assert calls["killed"] > 5
    mask = np.uint32(2 ** Summing(made.job).encoding().ring.bits - 1)
    for round in range(4):
        assert len(sent[round]) == 5, "no silo masked two messages of a round"
        assert np.array_equal(opened[round] & mask, np.sum(sent[round], axis=0, dtype=np.uint32) & mask)


def test_a_silo_that_vanished_comes_back_in_the_next_batch(consortium: Make) -> None:
    made = consortium(**{**RECORDS, "rounds": 8})
    gone = {"site-2"}
    reports: list[Any] = []

    def progress(report: Any) -> None:
        reports.append(report)
        if report.round == 3:
            gone.clear()

    backend = made.backend(lambda site: "lose-request" if site in gone else NO_FAULT)
    made.server(backend, progress=progress).run()
    assert [("site-2" in report.used) for report in reports] == [False] * 4 + [True] * 4
    assert reports[3].problems == {"site-2": Code.SUM_REFUSED}


def test_a_message_under_the_keys_of_an_earlier_batch_is_not_counted(
    consortium: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would make a quorum of which too few can be opened, for ever."""
    made, gone, last = consortium(**{**RECORDS, "rounds": 5}), {"site-4"}, set[str]()

    def fault(site: str) -> str:
        if site in last:
            # One message is late.
            last.clear()
            return "lose-request"
        return "lose-request" if site in gone else NO_FAULT

    def progress(report: Any) -> None:
        # Site 4 comes back, so there is a new batch; site 2 misses it, and has keys of the one before.
        gone.clear()
        if report.round == 2:
            gone.add("site-2")

    deliver = summed.Summed._deliver

    def delivered(self: summed.Summed, *asked: Any) -> None:
        deliver(self, *asked)
        if "site-2" in gone:
            gone.clear()
            last.add("site-3")

    monkeypatch.setattr(summed.Summed, "_deliver", delivered)
    reports: list[Any] = []

    def noted(report: Any) -> None:
        reports.append(report)
        progress(report)

    made.server(made.backend(fault), progress=noted, quorum=4).run()
    assert [report.problems for report in reports] == [
        {"site-4": Code.NO_ANSWER}, {"site-4": Code.SUM_REFUSED}, {"site-2": Code.SUM_REFUSED}, {}, {},
    ]  # fmt: skip


def test_too_few_silos_stop_the_run_and_nothing_opens(consortium: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    _, opened = _observed(monkeypatch)
    made = consortium(**RECORDS)
    gone = {"site-2", "site-3"}
    with pytest.raises(QuorumError, match="3 silos sent keys, and 4 are needed"):
        made.server(made.backend(lambda site: "lose-request" if site in gone else NO_FAULT)).run()
    assert opened == {}
    calls = Counter[str]()

    def after_the_messages(site: str) -> str:
        calls[site] += 1
        return "lose-request" if site in gone and calls[site] > 5 else NO_FAULT

    with pytest.raises(QuorumError, match="helped to open"):
        made.server(made.backend(after_the_messages)).run()
    assert opened == {}
    gone = set()
    made.server().run()
    assert sorted(opened) == list(range(made.job.rounds))


def test_a_lying_server_opens_one_list_per_round(consortium: Make) -> None:
    made = consortium(**RECORDS)
    server = LyingServer(made)
    assert all(reply.code is Code.OK for reply in server.masked().values())
    assert not server.opens(range(3)), "below the quorum"
    assert server.opens(range(4))
    assert not server.opens(range(5))
    assert not server.opens([0, 1, 2, 4])
    assert server.opens(range(4)), "the same list may be asked for again"
    again = server.masked(point=1.0)
    assert {reply.code for reply in again.values()} == {Code.CHANGED_POINT}
    assert prepare_refused(server, Rounds(2, 0, 6)), "new keys for a round that was answered"
    assert all(reply.code is Code.OK for reply in server.masked(1).values())
    assert not server.opens(range(4)), "a past round"


def prepare_refused(server: LyingServer, rounds: Rounds) -> bool:
    try:
        prepare(server.group, server.ask, rounds, range(5))
    except TooFewError:
        return True
    return False


def test_messages_and_requests_without_keys_are_refused(consortium: Make) -> None:
    made = consortium(**RECORDS)
    reply = Reply.decode(made.silo("site-0").step(made.request(0)), body_limit=10**6)
    assert (reply.code, reply.body) == (Code.SUM_REFUSED, b"")
    with made.silo("site-0").ledger.page() as page:
        assert page.account.runs == (), "nothing was charged"
    for body in (b"", b"\x09", bytes([SumStep.SIGN]), bytes([SumStep.REVEAL]) * 200):
        assert asked_for(made.silo("site-0"), body).code is Code.SUM_REFUSED
    assert asked_for(made.silo("site-0"), b"\x01", job="0" * 64).code is Code.OTHER_JOB
    other = consortium()
    assert (
        asked_for(other.silo("site-0"), bytes([SumStep.ADVERTISE]) + Rounds(0, 0, 1).to_bytes()).code
        is Code.OTHER_JOB
    )


def test_the_secrets_of_unknown_runs_do_not_pile_up(consortium: Make) -> None:
    made = consortium(**RECORDS)
    request = bytes([SumStep.ADVERTISE]) + Rounds(0, 0, 1).to_bytes()
    for number in range(4):
        assert asked_for(made.silo("site-0"), request, run=f"{number:032x}").code is Code.OK
    kept = made.directory / "site-0" / "sums"
    assert {path.stem for path in kept.iterdir()} == {f"{3:032x}"}
    made.server().run()
    assert not list(kept.iterdir()), "nor those of a finished run"


def test_a_silo_without_its_file_of_lists_opens_nothing(consortium: Make) -> None:
    """A silo that kept its shares but forgot which list it agreed to could agree to another one."""
    made = consortium(**RECORDS)
    request = bytes([SumStep.ADVERTISE]) + Rounds(0, 0, 1).to_bytes()
    assert asked_for(made.silo("site-0"), request).code is Code.OK
    (lists,) = (made.directory / "site-0" / "sums").glob("*.closed")
    lists.unlink()
    assert asked_for(made.silo("site-0"), request).code is Code.FAILED
    assert "no longer knows what it has agreed to open" in (made.directory / "site-0" / "errors.log").read_text()


def test_a_policy_names_the_least_quorum_and_the_colluders_it_fears(consortium: Make) -> None:
    made = consortium(**RECORDS)
    records, job = made.federation.client(0), made.job
    policy = made.policies["site-0"]
    assert (policy.adversary, policy.quorum, policy.colluding) == (Adversary.SECURE_SUM, 4, 1)
    assert Policy.from_toml(policy.to_toml()) == policy
    assert replace(policy, adversary="sum") == policy
    for changes, reason in (
        ({"quorum": 5}, "quorum = 4, and the policy requires at least 5"),
        ({"colluding": 2}, "colluding = 1, and the policy requires at least 2"),
        ({"adversary": "server"}, "requires more"),
        ({"adversary": "shuffler"}, "requires more"),
        ({"epsilon": 3.9}, "less noise than the policy"),
    ):
        with pytest.raises(RequestError, match=reason):
            admit(job, replace(policy, **changes), "site-0", records)
    made.server().run()
    with made.silo("site-0").ledger.page() as page:
        account = page.account
    for changes, reason in (
        ({"adversary": "server"}, "relied on sums"),
        ({"adversary": "shuffler"}, "relied on sums"),
        ({"colluding": 2}, "withstand 1 colluding silos"),
    ):
        with pytest.raises(RequestError, match=reason):
            replace(policy, **changes).check_past(account)


def test_sites_of_different_sizes_add_the_same_noise(consortium: Make) -> None:
    made = consortium(**RECORDS)
    small, policy = made.federation.client(0), made.policies["site-0"]
    large = Federation.from_arrays(
        small.features.repeat(3, 1), small.targets.repeat(3), [0] * (3 * small.records), classes=2
    )
    terms = [admit(made.job, policy, "site-0", records) for records in (small, large)]
    assert terms[0].noise_std == pytest.approx(terms[1].noise_std) == pytest.approx(made.job.noise.share_std)
    assert terms[1].noise_multiplier == pytest.approx(3 * terms[0].noise_multiplier)
    assert terms[1].epsilon < terms[0].epsilon <= 4.0


def test_a_certificate_with_less_than_a_share_is_refused(
    consortium: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consortium(**RECORDS)
    certificate = made.server().run().certificate
    body = json.loads(certificate)
    body["silos"]["site-0"]["noise_multiplier"] /= 2
    inner = {k: v for k, v in body["silos"]["site-0"].items() if k not in ("format", "public_key", "signature")}
    body["silos"]["site-0"] = json.loads(sign(inner, made.signing["site-0"]))
    forged = sign(
        {k: v for k, v in body.items() if k not in ("format", "public_key", "signature")}, made.signing["server"]
    )
    with pytest.raises(CertificateError, match="less than a silo's share"):
        made.verified(forged)


def test_a_cohort_smaller_than_the_consortium_is_refused(consortium: Make) -> None:
    with pytest.raises(RequestError, match="all sites take part"):
        consortium(**{**RECORDS, "cohort": 4, "quorum": 4}).silo("site-0")


def test_a_silo_that_keeps_refusing_costs_one_new_batch(
    consortium: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consortium(**{**RECORDS, "rounds": 6})
    check, batches = SiloSums.check_ready, []

    def refuse(self: SiloSums, *asked: Any) -> None:
        if self._me == 2:
            raise MessageError("no")
        check(self, *asked)

    monkeypatch.setattr(SiloSums, "check_ready", refuse)
    monkeypatch.setattr(summed, "prepare", lambda *asked: batches.append(1) or prepare(*asked))
    finished = made.server().run()
    assert len(batches) == 2
    assert finished.problems == {"site-2 sum-refused": 6}


def test_silos_with_budgets_of_their_own_add_the_noise_of_the_strictest(consortium: Make) -> None:
    """Each is charged what is true for it, in the deployment as in the simulation."""
    budgets = [1.0, 2.0, 4.0, 4.0, 4.0]
    made = consortium(**{**RECORDS, "epsilon": budgets, "compressor": "identity"})
    terms = [made.silo(site).terms for site in made.job.sites]
    assert len({round(one.noise_std, 12) for one in terms}) == 1
    assert terms[0].epsilon == pytest.approx(1.0, rel=1e-3)
    assert [one.policy.epsilon for one in terms] == budgets
    made.verified(made.server().run().certificate)
    targets = [made.job.target(site) for site in made.job.sites]
    planned = plan(made.job.algorithm, made.federation, rounds=made.job.rounds, privacy=targets)
    assert planned.guarantee is not None
    assert planned.guarantee.epsilons == pytest.approx([one.epsilon for one in terms], rel=1e-6)


SIZES = {"small": 40, "middle": 90, "large": 400}


def _unlike_sites(**changed: Any) -> tuple[Plan, Job]:
    """A plan for three clients of different sizes, all records weighted alike, and its job."""
    features = torch.randn(sum(SIZES.values()), 4, generator=torch.Generator().manual_seed(0))
    owners = [site for site, records in SIZES.items() for _ in range(records)]
    records = Federation.from_arrays(features, (features[:, 0] > 0).long(), owners, classes=2)
    recipe = Recipe(
        **{"algorithm": "soteriafl-gd", "weights": "records", "epsilon": 2.0, **changed},
        trust="sum", quorum=3, colluding=0, rounds=5, delta=1e-5, noise="lattice",
    )  # fmt: skip
    made = make_plan(recipe, federation=records)
    assert made.federation.names is not None
    return made, Job.from_plan(made, made.federation.names)


def test_silos_of_different_sizes_add_no_more_noise_than_the_simulation() -> None:
    made, job = _unlike_sites()
    assert job.min_records == SIZES
    assert Job.from_text(job.text) == job
    assert made.federation.weights is not None
    simulated = (made.calibration.noise_stds * made.federation.weights.double()).max()
    assert job.noise.share_std == pytest.approx(float(simulated), rel=0.01)
    for position, site in enumerate(job.sites):
        terms = admit(job, Policy.for_job(job, site), site, made.federation.client(position))
        assert 1.98 < terms.epsilon <= 2.0, "the silo spends what it was asked for"


def test_a_policy_is_compared_with_what_the_noise_of_a_sum_costs() -> None:
    """The noise suits the silo that needs the most: another may allow less than the job asks for."""
    made, job = _unlike_sites(weights="equal")
    position, least = job.sites.index("large"), Policy.for_job(job, "large")
    cost = admit(job, least, "large", made.federation.client(position)).epsilon
    assert cost < 0.5
    for allowed in (2 * cost, 1.001 * cost):
        strict = replace(least, epsilon=allowed)
        assert admit(job, strict, "large", made.federation.client(position)).epsilon == pytest.approx(cost)
    with pytest.raises(RequestError, match="less noise than the policy"):
        admit(job, replace(least, epsilon=0.999 * cost), "large", made.federation.client(position))


@pytest.mark.parametrize("algorithm", ["dp-fedavg", "dp-normfedavg"])
def test_a_job_that_protects_whole_sites_names_no_numbers_of_records(algorithm: str) -> None:
    made, job = _unlike_sites(algorithm=algorithm, weights=None, epsilon=8.0)
    assert not made.calibration.shows_sizes
    assert job.min_records is None
    assert "min_records" not in job.text


def test_a_silo_with_fewer_records_than_the_job_counts_on_is_refused() -> None:
    made, job = _unlike_sites()
    with pytest.raises(RequestError, match="the job counts on 400 records at large, not 90"):
        admit(job, Policy.for_job(job, "large"), "large", made.federation.client(1))


@pytest.mark.parametrize(
    ("least", "match"),
    [
        ({"small": 40, "middle": 90}, "give one number for each of large, middle, small"),
        ({**SIZES, "large": 0}, "min_records.large"),
        ({**SIZES, "large": 2**40}, "more than can be checked"),
    ],
)
def test_least_numbers_of_records_are_checked(least: dict[str, int], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        replace(_unlike_sites()[1], min_records=least)
