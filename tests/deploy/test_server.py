"""Runs of whole consortia: equal to the simulator's, and whole whatever is lost, damaged or killed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.in_process import Death, damaged
from torch import Tensor

from tacit.deploy.frames import Reply, Request
from tacit.deploy.job import Job
from tacit.deploy.reading import QuorumError
from tacit.deploy.run_state import RunState
from tacit.deploy.seam import Answer, Code, SiteError
from tacit.deploy.server import LostRunError
from tacit.deploy.silo_memory import MemoryFiles
from tacit.engine import checkpoint as checkpoints
from tacit.engine.plan import make_plan, plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy.accountant.filter import least_epsilon

PLAIN = dict.fromkeys(("snapshot_probability", "compressor"), "leave out")
ACCELERATED = {
    "algorithm": "accelerated-mb-sgd",
    "stages": 2,
    "strong_convexity": 0.1,
    "projection": "ball:5",
    **PLAIN,
}

FED_SPA = {
    "algorithm": "fed-spa",
    "local_steps": 2,
    "local_step": 0.1,
    "step": 0.1,
    "step_schedule": "inverse-sqrt",
    "beta_1": 0.9,
    "beta_2": 0.99,
    "kappa": 0.001,
    "snapshot_probability": "leave out",
}

SCAFFOLD = {"algorithm": "dp-scaffold", "local_steps": 2, "local_step": 0.2, "step": 1.0}
EF21 = {"algorithm": "ef21-sgdm", "momentum": 0.5, "compressor": "top-k:0.3"}


def _simulated(made: Any) -> Tensor:
    """The same recipe in the simulator, one client at a time: silos cannot share a matrix product."""
    target = made.job.target(made.job.sites[0])
    run = simulate(
        plan(
            made.job.algorithm,
            made.federation,
            rounds=made.job.rounds,
            privacy=target,
            seed=made.job.recipe.seed,
            stream=made.job.recipe.stream or "",
        ),
        evaluate_every=made.job.rounds,
        memory_limit_bytes=1,
    )
    return run.parameters


def _state(made: Any) -> RunState:
    server = made.server()
    saved = checkpoints.latest(server._checkpoints, server._fingerprint)
    assert saved is not None
    return RunState.from_checkpoint(saved)


def _releases(made: Any, site: str) -> list[dict[str, Any]]:
    """The lines of a ledger about what has left."""
    with made.silo(site).ledger.page() as page:
        rows = page.connection.execute("SELECT body FROM lines").fetchall()
    return [line for line in map(json.loads, (row[0] for row in rows)) if line["kind"] == "release"]


def _check_promises(made: Any) -> None:
    """No ledger over budget, no release uncharged, no round charged twice; shifts that agree."""
    state, shifts = _state(made), []
    for site in made.job.sites:
        policy = made.policies[site]
        with made.silo(site).ledger.page() as page:
            account = page.account
            rows = page.connection.execute("SELECT body FROM lines").fetchall()
        assert least_epsilon(account.events(), policy.delta, policy.adjacency) <= policy.epsilon
        releases = [line for line in map(json.loads, (row[0] for row in rows)) if line["kind"] == "release"]
        assert max(Counter((line["run"], line["round"]) for line in releases).values(), default=0) <= 1
        charged = {line["message"] for line in releases}
        replies = [Reply.decode(frame, body_limit=2**20) for frame in made.left.get(site, [])]
        messages = {hashlib.sha256(r.body).hexdigest() for r in replies if r.body and not r.body.startswith(b"{")}
        assert messages <= charged
        run = account.run(state.run)
        if run is None or run.last is None:
            assert site not in state.accepted
            continue
        memory = MemoryFiles(made.directory / site / "runs" / state.run).read(
            run.last["round"], run.last["memory"]
        )
        shifts.append(memory.next_state(accepted=state.accepted.get(site) == run.last["round"]).uplink)
    if "shift" in state.server.uplink:
        total = sum(shift["shift"][0] for shift in shifts)
        torch.testing.assert_close(
            state.server.uplink["shift"], total / len(made.job.sites), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rounds": 8, "stream": "of a comparison"},
        ACCELERATED,
        FED_SPA,
        {"algorithm": "soteriafl-saga", "snapshot_probability": "leave out", "rounds": 8},
        {**SCAFFOLD, "compressor": "identity", "rounds": 8},
        {**EF21, "rounds": 8},
        {"algorithm": "dp-fedavg", "adversary": "server", "step": 0.2, "clip_quantile": 0.5, "rounds": 8},
    ],
    ids=[
        "soteriafl-svrg",
        "stream",
        "accelerated-mb-sgd",
        "fed-spa",
        "soteriafl-saga",
        "dp-scaffold",
        "ef21-sgdm",
        "dp-fedavg, two parts",
    ],
)
def test_a_seeded_deployment_equals_the_simulator_bit_for_bit(
    consortium: Callable[..., Any], settings: dict[str, Any]
) -> None:
    made = consortium(**{"rounds": 30, "noise": "gaussian", **settings})
    assert torch.equal(made.server(quorum=3).run().parameters, _simulated(made))


@pytest.mark.parametrize("public", [{}, {"target_bound": 300.0}, {"feature_norm": 2.0}])
def test_steps_of_a_deployment_follow_from_the_same_public_bounds(public: dict[str, float]) -> None:
    draw = torch.Generator().manual_seed(0)
    records = Federation.from_arrays(
        torch.rand(60, 3, generator=draw), torch.rand(60, generator=draw), [0, 1] * 30
    )
    recipe = Recipe(algorithm="noisy-mb-sgd", epsilon=4.0, data_settings={"features": "given"}, **public)
    planned = make_plan(replace(recipe, rounds=5, noise="lattice"), federation=records)
    assert Job.from_plan(planned, ["a", "b"]).algorithm.server == planned.algorithm.server


def test_a_cohort_by_public_coins_is_that_of_the_simulator(consortium: Callable[..., Any]) -> None:
    made = consortium(cohort=2, noise="gaussian")
    finished = made.server(quorum=2).run()
    assert torch.equal(finished.parameters, _simulated(made))
    assert sum(finished.answered.values()) == 12


def test_every_kind_of_fault_by_the_hundred_and_the_promises_hold(consortium: Callable[..., Any]) -> None:
    made = consortium(sites=4, rounds=50, batch=0.25)
    generator = np.random.default_rng(11)
    moments = ("before memory", "after memory", "before ledger", "after ledger", "after mark")
    kinds = ("lose-request", "lose-answer", "duplicate-request", "delay-request", "delay-answer")
    happened: Counter[str] = Counter()
    cut_off: Counter[str] = Counter()

    def faults(site: str) -> str:
        if cut_off[site]:
            # For a while nothing comes through, in the one direction or in the other.
            cut_off[site] -= 1
            happened["partition"] += 1
            return "lose-request" if cut_off[site] % 2 else "lose-answer"
        if generator.random() < 0.03:
            cut_off[site] = 6
        if generator.random() < 0.15:
            return "none"
        choices = [
            *kinds,
            f"damage-request:{generator.integers(200)}",
            f"damage-answer:{generator.integers(200)}",
        ]
        choices.append(f"die:{moments[generator.integers(4)]}")
        choices.append(f"full-disk:{('before memory', 'before ledger')[generator.integers(2)]}")
        fault = choices[generator.integers(len(choices))]
        happened[fault.partition(":")[0]] += 1
        return fault

    def killed(moment: str) -> None:
        if generator.random() < 0.06:
            happened[f"server {moment}"] += 1
            raise Death

    backend = made.backend(faults)
    finished = None
    while finished is None:
        try:
            finished = made.server(backend, attempts=50, at=killed).run()
        except Death:
            continue
    assert sum(happened.values()) > 250, happened
    assert len(happened) == 14
    assert all(count > 1 for count in happened.values()), happened
    _check_promises(made)
    # No fault of the network or of a machine looks like a ledger that was set back.
    assert not any(code in what for what in finished.problems for code in ("ledger-conflict", "state-restored"))
    assert "12 witnessed ledger heads" in " ".join(made.verified(finished.certificate).checked)
    # Everybody took part, and again after every death.
    assert all(finished.answered[site] > 9 for site in made.job.sites)


def test_a_run_without_faults_keeps_the_same_promises(consortium: Callable[..., Any]) -> None:
    made = consortium()
    made.server(quorum=3).run()
    _check_promises(made)


@pytest.mark.parametrize("settings", [SCAFFOLD, EF21], ids=["dp-scaffold", "ef21-sgdm"])
def test_what_both_sides_remember_agrees_although_messages_are_lost(
    consortium: Callable[..., Any], settings: dict[str, Any]
) -> None:
    made, asked = consortium(rounds=8, **settings), Counter[str]()

    def faults(site: str) -> str:
        asked[site] += 1
        return "lose-answer" if site == "site-1" and asked[site] % 3 == 0 else "none"

    finished = made.server(made.backend(faults)).run()
    assert 3 <= finished.answered["site-1"] < 8
    _check_promises(made)


@pytest.mark.parametrize("moment", ["before asking", "after answers", "before checkpoint", "after checkpoint"])
@pytest.mark.parametrize("round", [0, 3])
def test_a_killed_server_goes_on_and_gets_the_same_model(
    consortium: Callable[..., Any], moment: str, round: int
) -> None:
    made = consortium(noise="gaussian")
    reached = Counter[str]()

    def die(here: str) -> None:
        reached[here] += 1
        if here == moment and reached[here] == round + 1:
            raise Death

    with pytest.raises(Death):
        made.server(at=die).run()
    finished = made.server().run()
    assert torch.equal(finished.parameters, _simulated(made))
    assert set(finished.answered.values()) == {6}


def _killed_after(made: Any, rounds: int) -> list[Path]:
    """Kill a server when so many rounds are done and the next is answered; returns its checkpoints."""
    reached = Counter[str]()

    def die(here: str) -> None:
        reached[here] += 1
        if here == "after answers" and reached[here] > rounds:
            raise Death

    with pytest.raises(Death):
        made.server(at=die).run()
    return sorted((made.directory / "server" / "checkpoints").iterdir())


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("damage", [lambda c: c[:-200], lambda c: b"", lambda c: c[:-100] + b"\xff" + c[-99:]])
def test_a_damaged_checkpoint_costs_nothing(
    consortium: Callable[..., Any], which: int, damage: Callable[[bytes], bytes]
) -> None:
    made = consortium(noise="gaussian")
    checkpoints = _killed_after(made, 3)
    assert len(checkpoints) == 2
    checkpoints[which].write_bytes(damage(checkpoints[which].read_bytes()))
    told: list[str] = []
    finished = made.server(notify=told.append).run()
    assert torch.equal(finished.parameters, _simulated(made))
    assert set(finished.answered.values()) == {6}
    _check_promises(made)
    # Names sort the copy behind, and that one is looked at only where the other is damaged.
    assert len(told) == which
    assert all("corrupted" in text for text in told)


def test_a_copy_that_was_lost_is_made_again(consortium: Callable[..., Any]) -> None:
    made = consortium(noise="gaussian")
    _killed_after(made, 2)[0].unlink()
    for path in _killed_after(made, 0)[1:]:
        path.write_bytes(b"")
    assert torch.equal(made.server().run().parameters, _simulated(made))


def test_a_server_without_a_sound_checkpoint_says_what_silos_have_paid(consortium: Callable[..., Any]) -> None:
    made = consortium()
    checkpoints = _killed_after(made, 3)
    run = _state(made).run
    epsilon = made.silo("site-0").terms.epsilon
    paid = (
        rf"run {run}: site-0 3 messages, epsilon {epsilon:.4g} for the run, site-1 3 .*; each silo's own ledger"
    )
    for path in checkpoints:
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(LostRunError, match=rf"corrupted.*{paid}.*move checkpoints and rounds.jsonl out of"):
        made.server().run()
    for path in checkpoints:
        path.unlink()
    with pytest.raises(LostRunError, match=rf"no checkpoint is left.*{paid}"):
        made.server().run()
    (made.directory / "server" / "rounds.jsonl").unlink()
    # The way out that it names: a new run, which silos that can afford it take part in.
    with pytest.raises(QuorumError, match="budget-spent"):
        made.server().run()


def test_a_changed_recipe_is_no_reason_to_remove_keys(consortium: Callable[..., Any]) -> None:
    made = consortium()
    _killed_after(made, 2)
    other = replace(made, job=replace(made.job, recipe=made.job.recipe.with_settings({"algorithm.step": 0.25})))
    with pytest.raises(RequestError, match=r"Restore the job.toml.* site-1 2 messages") as refused:
        other.server().run()
    assert "remove" not in str(refused.value)
    assert made.server().run().answered == dict.fromkeys(made.job.sites, 6)


def test_a_server_that_was_set_back_is_told_so_and_nobody_pays(consortium: Callable[..., Any]) -> None:
    made = consortium()
    backup = made.directory / "backup"
    _killed_after(made, 2)
    shutil.copytree(made.directory / "server", backup)
    _killed_after(made, 3)
    shutil.rmtree(made.directory / "server")
    shutil.copytree(backup, made.directory / "server")
    before = [len(_releases(made, site)) for site in made.job.sites]
    with pytest.raises(QuorumError, match=r"past-round \(.*state is older.*restore the newest state folder"):
        made.server().run()
    assert [len(_releases(made, site)) for site in made.job.sites] == before


@pytest.mark.parametrize(
    ("code", "way_out"),
    [
        (Code.BUDGET_SPENT, "may raise epsilon in its policy.toml"),
        (Code.OTHER_JOB, "restore the one that all parties agreed to"),
        (Code.STATE_LOST, "cannot rejoin this run"),
        (Code.FAILED, "remove state/halted"),
    ],
)
def test_the_advice_fits_what_is_wrong(consortium: Callable[..., Any], code: Code, way_out: str) -> None:
    made = consortium()
    told: list[str] = []
    lie = Liar(made.backend(), lambda request, answer: Reply(code, "site-1").encode())
    with pytest.raises(QuorumError, match=f"site-1: {code}.*{way_out}") as ended:
        made.server(lie, quorum=3, notify=told.append).run()
    # Where nothing but people can help, it ends at once.
    waited = code is Code.FAILED
    assert ("waited for 3 deadlines" in str(ended.value)) == waited
    assert len(told) == waited
    assert ("lower" in str(ended.value)) == (code is Code.BUDGET_SPENT)


def test_a_silo_that_fails_at_once_leaves_the_others_their_deadlines(consortium: Callable[..., Any]) -> None:
    """That it has answered something counts for nothing: the others may still come back."""
    made = consortium()
    asked = Counter[str]()

    def faults(site: str) -> str:
        asked[site] += 1
        if site == "site-1":
            return "full-disk:before memory"
        return "lose-request" if site == "site-2" and asked[site] < 9 else "none"

    finished = made.server(made.backend(faults), quorum=2, deadline_seconds=1.0).run()
    assert finished.answered == {"site-0": 6, "site-2": 6}


def test_who_is_missing_is_told_once_where_the_run_goes_on(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=4)
    told: list[str] = []
    made.server(
        made.backend(lambda site: "lose-answer" if site == "site-1" else "none"), notify=told.append
    ).run()
    assert len(told) == 1
    assert told[0].startswith("round 1 was completed without site-1: no-answer (")


def test_sums_are_divided_by_those_who_were_asked(consortium: Callable[..., Any]) -> None:
    """With one of three missing, a round moves the model by (1/3) of the sum of the other two messages."""
    settings = {"algorithm": "ldp-sgd", "noise": "gaussian", "rounds": 1, "step": 1.0, **PLAIN}
    made = consortium(**settings)
    finished = made.server(made.backend(lambda site: "lose-answer" if site == "site-1" else "none")).run()
    algorithm = made.job.algorithm
    messages = [
        algorithm.uplink.compressor.decode([Reply.decode(made.left[site][1], body_limit=10_000).body], 7).dense()[
            0
        ]
        for site in ("site-0", "site-2")
    ]
    torch.testing.assert_close(finished.parameters, -(messages[0] + messages[1]) / 3)
    assert finished.answered == {"site-0": 1, "site-2": 1}


def test_a_silo_whose_budget_is_spent_leaves_and_the_run_goes_on(consortium: Callable[..., Any]) -> None:
    made = consortium()
    poor = made.silo("site-2")
    poor.step(made.request(0))
    finished = made.server().run()
    assert finished.answered == {"site-0": 6, "site-1": 6}
    assert finished.problems[f"site-2 {Code.BUDGET_SPENT}"] == 6
    _check_promises(made)


class Liar:
    """A backend in which one site answers what it likes."""

    def __init__(self, honest: Any, lie: Callable[[bytes, bytes], Answer]) -> None:
        self._honest, self._lie = honest, lie

    def run_round(self, request: bytes, *, sites: Sequence[str], **settings: Any) -> dict[str, Answer]:
        answers = self._honest.run_round(request, sites=sites, **settings)
        if "site-1" in answers and Request.decode(request).kind == "round":
            answers["site-1"] = self._lie(request, answers["site-1"])
        return answers


def _changed(answer: bytes, **changes: Any) -> bytes:
    return replace(Reply.decode(answer, body_limit=10_000), **changes).encode()


def _not_finite(answer: bytes, made: Any) -> bytes:
    compressor = made.job.algorithm.uplink.compressor
    sealed = compressor.format(7).seal(np.full((1, compressor.format(7).body_bytes), 255, dtype=np.uint8))
    return _changed(answer, body=sealed[0])


LIES: dict[str, tuple[Callable[[bytes, bytes, Any], Answer], Code]] = {
    "nothing": (lambda request, answer, made: SiteError(Code.NO_ANSWER), Code.NO_ANSWER),
    "junk": (lambda request, answer, made: b"junk", Code.REJECTED),
    "damaged": (lambda request, answer, made: damaged(answer, 90), Code.REJECTED),
    "oversized": (lambda request, answer, made: _changed(answer, body=bytes(5000)), Code.REJECTED),
    "an echo": (lambda request, answer, made: request, Code.REJECTED),
    "another site": (lambda request, answer, made: _changed(answer, site="site-0"), Code.REJECTED),
    "another round": (lambda request, answer, made: _changed(answer, round=5000), Code.WRONG_ROUND),
    "another run": (lambda request, answer, made: _changed(answer, run="f" * 32), Code.WRONG_ROUND),
    "short": (lambda request, answer, made: _changed(answer, body=b"abc"), Code.BAD_MESSAGE),
    "not finite": (lambda request, answer, made: _not_finite(answer, made), Code.BAD_MESSAGE),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_wrong_answer_is_rejected_and_counted_and_the_round_goes_on(
    consortium: Callable[..., Any], lie: str
) -> None:
    made = consortium(rounds=3)
    say, code = LIES[lie]
    backend = Liar(made.backend(), lambda request, answer: say(request, answer, made))
    finished = made.server(backend, quorum=2).run()
    assert finished.answered == {"site-0": 3, "site-2": 3}
    assert finished.problems == {f"site-1 {code}": 3}
    assert bool(torch.isfinite(finished.parameters).all())
    logged = [json.loads(line) for line in (made.directory / "server" / "rounds.jsonl").read_text().splitlines()]
    assert [line["problems"] for line in logged] == [{"site-1": str(code)}] * 3


def test_a_replayed_message_under_a_new_round_is_rejected(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=3)
    first: list[bytes] = []

    def replay(request: bytes, answer: Answer) -> Answer:
        assert isinstance(answer, bytes)
        first.append(Reply.decode(answer, body_limit=10_000).body)
        return _changed(answer, body=first[0])

    finished = made.server(Liar(made.backend(), replay), quorum=2).run()
    assert finished.answered["site-1"] == 1
    assert finished.problems == {f"site-1 {Code.REPLAYED}": 2}


def test_without_a_quorum_the_run_stops_and_can_be_taken_up_again(consortium: Callable[..., Any]) -> None:
    made = consortium(noise="gaussian")
    seen = Counter[str]()

    def partitioned(site: str) -> str:
        seen[site] += 1
        # It is asked for ledger heads first.
        return "lose-request" if site != "site-0" and seen[site] > 1 + 2 else "none"

    with pytest.raises(QuorumError, match="1 usable answers, but the quorum is 3"):
        made.server(made.backend(partitioned), quorum=3).run()
    assert _state(made).round == 2
    assert torch.equal(made.server(quorum=3).run().parameters, _simulated(made))


def test_reports_and_certificates_say_what_happened(consortium: Callable[..., Any]) -> None:
    made = consortium()
    reports: list[Any] = []
    finished = made.server(quorum=3, progress=reports.append).run()
    assert [report.round for report in reports] == [1, 2, 3, 4, 5, 6]
    last = reports[-1].replies["site-1"]
    assert (last.releases, last.planned) == (6, 6)
    assert 0 < last.epsilon <= 4.0
    message_bytes = made.job.algorithm.uplink.compressor.message_bytes(7)
    assert reports[0].uplink_bytes == 3 * message_bytes
    body = made.verified(finished.certificate).body
    assert all(silo["rounds_answered"] == 6 for silo in body["silos"].values())
    assert body["messages_used"] == {"site-0": 6, "site-1": 6, "site-2": 6}


def test_a_silo_that_is_gone_in_the_end_has_no_certificate(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=2)
    seen = Counter[str]()

    def gone(site: str) -> str:
        seen[site] += 1
        return "lose-request" if site == "site-1" and seen[site] > 1 + 2 else "none"

    body = made.verified(made.server(made.backend(gone)).run().certificate).body
    assert body["silos"]["site-1"] is None
    assert body["silos"]["site-0"] is not None


@pytest.mark.parametrize("settings", [{"quorum": 4}, {"quorum": 0}, {"deadline_seconds": 0.0}, {"attempts": 0}])
def test_wrong_settings_are_refused(consortium: Callable[..., Any], settings: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        consortium().server(**settings)
