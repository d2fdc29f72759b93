"""A silo keeps its promise whatever arrives: repeated, forged, damaged, late, too often, or on a full disk."""

from __future__ import annotations

import hashlib
import sqlite3
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.in_process import Death

from tacit.deploy import computation
from tacit.deploy import home as home_module
from tacit.deploy import ledger as ledger_module
from tacit.deploy.frames import Reply
from tacit.deploy.guard import admit
from tacit.deploy.ledger import Ledger, Page
from tacit.deploy.policy import Policy
from tacit.deploy.seam import Code
from tacit.deploy.silo import Silo
from tacit.deploy.silo_memory import MemoryFiles
from tacit.errors import DataError, RequestError
from tacit.federation import Federation
from tacit.privacy.accountant import accounting
from tacit.privacy.accountant.filter import least_epsilon
from tacit.privacy.accountant.groups import group_epsilon

MOMENTS = ("before memory", "after memory", "before ledger", "after ledger")


def _read(frame: bytes) -> Reply:
    return Reply.decode(frame, body_limit=10_000)


def _codes(silo: Silo, *requests: bytes) -> list[Code]:
    return [_read(silo.step(request)).code for request in requests]


def _account(directory: Path) -> Any:
    with Ledger(directory / "ledger.sqlite").page() as page:
        return page.account


def test_the_same_round_gets_the_same_bytes_before_and_after_a_restart(consortium: Callable[..., Any]) -> None:
    made = consortium()
    first = made.silo("site-0").step(made.request(0))
    assert _read(first).code is Code.OK
    assert made.silo("site-0").step(made.request(0)) == first
    assert _account(made.directory / "site-0").lines == 2


def test_noise_comes_from_the_operating_system(consortium: Callable[..., Any]) -> None:
    made = consortium(compressor="identity")
    messages = [_read(made.silo("site-0").step(made.request(0, run=f"{n:032x}"))).body for n in range(1, 3)]
    other = replace(made, directory=made.directory / "elsewhere")
    messages.append(_read(other.silo("site-0").step(made.request(0, run=f"{1:032x}"))).body)
    assert len(set(messages)) == 3


def test_requests_that_are_not_this_silos_business_get_a_code(consortium: Callable[..., Any]) -> None:
    made = consortium()
    silo = made.silo("site-0")
    cases = {
        b"": Code.MALFORMED,
        made.request(0)[:-1]: Code.MALFORMED,
        made.request(0, kind="certify", job="0" * 64): Code.OTHER_JOB,
        made.request(0, job="0" * 64): Code.OTHER_JOB,
        made.request(6): Code.NO_SUCH_ROUND,
        made.request(2**31 - 1): Code.NO_SUCH_ROUND,
        made.request(0, point=float("nan")): Code.BAD_POINT,
        made.request(0, point=1e30): Code.BAD_POINT,
        made.request(0, body=b"\0" * 8): Code.BAD_POINT,
        made.request(0, accepted={"site-0": 0}): Code.STATE_LOST,
    }
    assert _codes(silo, *cases) == list(cases.values())
    assert _account(made.directory / "site-0").lines == 0


def test_a_round_is_answered_once_and_for_one_point(consortium: Callable[..., Any]) -> None:
    made = consortium()
    silo = made.silo("site-0")
    codes = _codes(
        silo, made.request(2), made.request(2, point=1.0), made.request(1), made.request(0), made.request(3)
    )
    assert codes == [Code.OK, Code.CHANGED_POINT, Code.PAST_ROUND, Code.PAST_ROUND, Code.OK]


def test_a_silo_answers_only_in_rounds_that_are_its_turn(consortium: Callable[..., Any]) -> None:
    made = consortium(cohort=1)
    turns = [made.job.cohort(round)[0] for round in range(6)]
    answered = {site: _codes(made.silo(site), *map(made.request, range(6))) for site in made.job.sites}
    for site, codes in answered.items():
        assert codes == [Code.OK if turn == site else Code.NO_SUCH_ROUND for turn in turns]


def test_a_forged_server_gets_nothing_beyond_the_budget(consortium: Callable[..., Any]) -> None:
    """A thousand extra rounds, under the run's own name and under new ones, before and after restarts."""
    made = consortium(rounds=3)
    silo = made.silo("site-0")
    messages = set()
    for attempt in range(1000):
        if attempt % 300 == 299:
            silo = made.silo("site-0")
        request = made.request(attempt % 5, point=attempt / 7, run=f"{attempt // 5:032x}")
        reply = _read(silo.step(request))
        assert (reply.code is Code.OK) == bool(reply.body)
        messages.add(reply.body)
    account = _account(made.directory / "site-0")
    policy = made.policies["site-0"]
    assert len(messages - {b""}) == sum(run.releases for _, run in account.runs) == 3
    assert accounting.epsilon(account.event(policy.epsilon), policy.delta, policy.adjacency) <= policy.epsilon


def test_a_larger_budget_allows_a_second_run_and_no_more_than_it_can_bear(
    consortium: Callable[..., Any],
) -> None:
    """A run is charged in full: it is let in as a whole, or not at all."""
    made = consortium(rounds=3, policy={"epsilon": 7.0})
    silo = made.silo("site-0")
    runs = [_codes(silo, *(made.request(r, run=run * 32) for r in range(3))) for run in "abc"]
    assert runs == [[Code.OK] * 3, [Code.OK] * 3, [Code.BUDGET_SPENT] * 3]
    account, policy = _account(made.directory / "site-0"), made.policies["site-0"]
    assert least_epsilon(account.events(), policy.delta, policy.adjacency) <= 7.0
    # Two runs, of which somebody chose the second: what is promised of both is the policy's epsilon.
    assert accounting.epsilon(account.event(7.0), policy.delta, policy.adjacency) == 7.0


def test_a_run_that_was_broken_off_is_charged_like_one_that_was_not(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=3)
    silo = made.silo("site-0")
    assert _codes(silo, made.request(0), made.request(0, run="b" * 32)) == [Code.OK, Code.BUDGET_SPENT]
    account = _account(made.directory / "site-0")
    assert account.events() == [silo.terms.event(3)]
    assert _codes(made.silo("site-0"), made.request(1), made.request(2)) == [Code.OK] * 2


def test_a_lowered_policy_ends_a_run_and_a_raised_one_lets_it_go_on(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=3)
    assert _codes(made.silo("site-0"), made.request(0)) == [Code.OK]
    terms = made.silo("site-0").terms
    for epsilon, code in ((3.0, Code.BUDGET_SPENT), (9.0, Code.OK)):
        policy = replace(made.policies["site-0"], epsilon=epsilon)
        silo = Silo(replace(terms, policy=policy), made.directory / "site-0", key=made.signing["site-0"])
        assert _codes(silo, made.request(1)) == [code]


def test_a_recipe_with_less_noise_or_another_bound_does_not_even_start(consortium: Callable[..., Any]) -> None:
    made = consortium()
    made.silo("site-0").step(made.request(0))
    for change in ({"epsilon": 8.0}, {"algorithm.clip_norm": 2.0}, {"delta": 1e-2}, {"noise": "gaussian"}):
        forged = replace(made, job=replace(made.job, recipe=made.job.recipe.with_settings(change)))
        with pytest.raises(RequestError):
            forged.silo("site-0")
        # And a request for it, sent to the silo as it is, is for a job that it does not know.
        assert _codes(made.silo("site-0"), forged.request(1)) == [Code.OTHER_JOB]


def test_other_records_under_an_old_run_are_refused(consortium: Callable[..., Any]) -> None:
    made = consortium()
    assert _codes(made.silo("site-0"), made.request(0)) == [Code.OK]
    fewer = Federation.from_clients([(made.federation.features[:20], made.federation.targets[:20])], classes=2)
    terms = admit(made.job, made.policies["site-0"], "site-0", fewer)
    silo = Silo(terms, made.directory / "site-0", key=made.signing["site-0"])
    assert _codes(silo, made.request(1)) == [Code.STATE_LOST]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_silo_that_dies_anywhere_never_draws_noise_twice(consortium: Callable[..., Any], moment: str) -> None:
    made = consortium()
    made.silo("site-0").step(made.request(0))

    def die(reached: str) -> None:
        if reached == moment:
            raise Death

    with pytest.raises(Death):
        made.silo("site-0", die).step(made.request(1))
    before = _account(made.directory / "site-0").run("0123456789abcdef" * 2)
    assert before.releases == (2 if moment == "after ledger" else 1)
    reply = _read(made.silo("site-0").step(made.request(1)))
    after = _account(made.directory / "site-0").run("0123456789abcdef" * 2)
    assert reply.code is Code.OK
    assert after.releases == 2
    assert after.last["message"] == hashlib.sha256(reply.body).hexdigest()
    if moment == "after ledger":
        assert after == before


def test_a_full_disk_releases_nothing(consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    made = consortium()
    silo = made.silo("site-0")

    def full(page: Page, *_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    for where in ("append", "commit"):
        with monkeypatch.context() as patch:
            patch.setattr(Page, where, full)
            answers = [silo.step(made.request(round)) for round in range(3)]
        assert [_read(answer).code for answer in answers] == [Code.FAILED] * 3
        assert not any(_read(answer).body for answer in answers)
    with monkeypatch.context() as patch:
        patch.setattr(
            "tacit.deploy.silo_memory.write_atomically", lambda *a, **k: (_ for _ in ()).throw(OSError(28))
        )
        assert _codes(silo, made.request(0)) == [Code.FAILED]
    assert _account(made.directory / "site-0").lines == 0
    assert _codes(silo, made.request(0)) == [Code.OK]


def test_operators_hear_what_the_machine_lacks_and_nothing_of_a_record(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk there is no room for errors.log, so the console is all that they have."""
    made = consortium()
    silo, place = made.silo("site-0"), made.directory / "site-0"
    lacks = {
        "database or disk is full": sqlite3.OperationalError("database or disk is full"),
        "No space left on device": OSError(28, "a record", "a record"),
        "not enough memory": MemoryError("a record"),
    }
    for said, error in lacks.items():
        with monkeypatch.context() as patch:
            patch.setattr(home_module.Home, "note", lambda *_: None)
            if isinstance(error, sqlite3.Error):
                patch.setattr(ledger_module.sqlite3, "connect", _raising(error))
            else:
                patch.setattr(computation, "client_round", _raising(error))
            assert _codes(silo, made.request(0), made.request(0)) == [Code.FAILED] * 2
        assert caplog.text.count(said) == 1
        assert "a record" not in caplog.text
    assert _codes(silo, made.request(0)) == [Code.OK]

    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(computation, "client_round", _raising(ValueError("a record")))
        assert _codes(silo, made.request(1)) == [Code.FAILED]
    assert not caplog.text
    # Started again, it says what it waits for.
    assert _codes(made.silo("site-0"), made.request(1), made.request(1)) == [Code.FAILED] * 2
    assert caplog.text.count("remove state/halted") == 1
    (place / "halted").unlink()
    assert _codes(made.silo("site-0"), made.request(1)) == [Code.OK]


def _raising(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: Any, **settings: Any) -> Any:
        raise error

    return fail


def test_a_lost_or_damaged_memory_ends_the_silos_part_in_the_run(consortium: Callable[..., Any]) -> None:
    made = consortium()
    made.silo("site-0").step(made.request(0))
    (memory,) = (made.directory / "site-0").glob("runs/*/*.safetensors")
    content = memory.read_bytes()
    memory.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert _codes(made.silo("site-0"), made.request(0), made.request(1)) == [Code.STATE_LOST] * 2
    memory.unlink()
    assert _codes(made.silo("site-0"), made.request(0), made.request(1)) == [Code.STATE_LOST] * 2
    assert _account(made.directory / "site-0").lines == 2


def test_a_tampered_ledger_stops_the_silo(consortium: Callable[..., Any]) -> None:
    made = consortium()
    made.silo("site-0").step(made.request(0))
    connection = sqlite3.connect(made.directory / "site-0" / "ledger.sqlite")
    connection.execute("DELETE FROM lines WHERE number = 2")
    connection.commit()
    connection.close()
    with pytest.raises(DataError):
        made.silo("site-0")


def test_what_is_not_protected_by_noise_is_for_the_owner_alone(consortium: Callable[..., Any]) -> None:
    made = consortium()
    made.silo("site-0").step(made.request(0))
    home = made.directory / "site-0"
    private = [home / "ledger.sqlite", *home.glob("runs/*/*")]
    assert len(private) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in private)


SECRET = 31337.0625


def test_a_secret_in_a_record_and_in_an_exception_reaches_nobody(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consortium(compressor="identity", rounds=4)
    features = made.federation.features.clone()
    features[:, 1] = SECRET
    made = replace(made, federation=replace(made.federation, features=features))
    silo = made.silo("site-0")
    requests = [made.request(0), made.request(0, point=1.0), b"junk", made.request(1), made.request(9)]
    left = [silo.step(request) for request in requests]
    real = computation.client_round

    def broken(*arguments: Any) -> Any:
        raise ValueError(f"cannot train on the record {features[0].tolist()}")

    monkeypatch.setattr(computation, "client_round", broken)
    left += [silo.step(made.request(2)), silo.step(made.request(2, point=3.0))]
    monkeypatch.setattr(computation, "client_round", real)
    left.append(silo.step(made.request(0, kind="certify")))
    everything = b"".join(left)
    number = torch.tensor([SECRET])
    planted = [str(SECRET).encode(), number.numpy().tobytes(), number.double().numpy().tobytes()]
    assert _read(left[-2]).code is Code.FAILED
    assert not any(secret in everything for secret in planted)
    assert b"cannot train" not in everything
    assert b"Traceback" not in everything
    # The owner, and nobody else, can read what it was.
    log = made.directory / "site-0" / "errors.log"
    assert str(SECRET) in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_failed_computation_cannot_be_provoked_again_until_somebody_has_looked(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consortium()
    with monkeypatch.context() as patch:
        patch.setattr(computation, "client_round", lambda *a: 1 / 0)
        assert _codes(made.silo("site-0"), made.request(0)) == [Code.FAILED]
    others = [made.request(0), made.request(1, point=2.0), made.request(0, run="f" * 32)]
    assert _codes(made.silo("site-0"), *others) == [Code.FAILED] * 3
    (made.directory / "site-0" / "halted").unlink()
    assert _codes(made.silo("site-0"), made.request(0)) == [Code.OK]


def test_a_failed_computation_stops_the_silo_also_without_room_for_a_note(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = consortium()
    silo, asked = made.silo("site-0"), []

    def fail(*arguments: Any) -> Any:
        asked.append(arguments)
        raise ValueError("a record")

    def full(*arguments: Any, **settings: Any) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(computation, "client_round", fail)
    monkeypatch.setattr(home_module, "write_atomically", full)
    assert _codes(silo, made.request(0), made.request(0), made.request(1)) == [Code.FAILED] * 3
    assert len(asked) == 1


def test_runs_that_are_made_up_do_not_fill_the_disk(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_module, "_MOST_LOG_BYTES", 2000)
    made = consortium()
    silo, place = made.silo("site-0"), made.directory / "site-0"
    assert _read(silo.step(made.request(0))).code is Code.OK
    before = {path.relative_to(place) for path in place.rglob("*")}
    for number in range(100):
        assert _read(silo.step(made.request(0, run=f"{number:032x}"))).code is Code.BUDGET_SPENT
    new = {path.relative_to(place).name for path in place.rglob("*")} - {path.name for path in before}
    assert new == {"errors.log", "errors.old.log"}
    assert sum((place / name).stat().st_size for name in new) < 6000
    assert "the policy allows 4" in (place / "errors.log").read_text()


def test_two_processes_of_one_silo_give_one_answer(consortium: Callable[..., Any]) -> None:
    made = consortium()
    silos = [made.silo("site-0") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(lambda silo: silo.step(made.request(0)), silos))
    assert len(answers) == 1
    assert _account(made.directory / "site-0").lines == 2


def test_a_message_that_did_not_count_leaves_no_trace_in_the_shift(consortium: Callable[..., Any]) -> None:
    made = consortium(compressor="identity", noise="gaussian", rounds=8)
    used, lost = (replace(made, directory=made.directory / name) for name in ("used", "lost"))
    shifts = []
    for place, accepted in ((used, {"site-0": 0}), (lost, {})):
        silo = place.silo("site-0")
        silo.step(made.request(0))
        assert _codes(silo, made.request(1, accepted=accepted)) == [Code.OK]
        account = _account(place.directory / "site-0").run("0123456789abcdef" * 2)
        memory = MemoryFiles(place.directory / "site-0" / "runs" / ("0123456789abcdef" * 2)).read(
            1, account.last["memory"]
        )
        shifts.append(memory.uplink["shift"])
    assert bool((shifts[0] != 0).any())
    assert bool((shifts[1] == 0).all())


def test_trials_are_marked(consortium: Callable[..., Any]) -> None:
    trial, real = consortium(noise="gaussian"), consortium()
    assert _read(trial.silo("site-0").step(trial.request(0))).insecure
    assert not _read(
        replace(real, directory=real.directory / "real").silo("site-0").step(real.request(0))
    ).insecure
    opened = _account(trial.directory / "site-0").run("0123456789abcdef" * 2).opened
    assert opened["insecure_reproducible"] is True


def test_a_silo_opens_from_the_texts_that_its_people_read(consortium: Callable[..., Any]) -> None:
    made = consortium()
    policy = made.policies["site-1"].to_toml()
    records = made.federation.client(1)
    key = made.signing["site-1"]
    silo = Silo.open(made.job.text, policy, records, made.directory / "silo", site="site-1", key=key)
    assert silo.terms.policy == Policy.from_toml(policy)
    assert _codes(silo, made.request(0)) == [Code.OK]


def test_secret_coins_are_drawn_once_a_run_and_survive_a_restart(consortium: Callable[..., Any]) -> None:
    """One-pass batches are disjoint only if all rounds of a run follow one secret order."""
    settings = dict.fromkeys(("compressor", "snapshot_probability"), "leave out")
    made = consortium(algorithm="noisy-mb-sgd", sampling="one-pass", batch=4, projection="none", **settings)
    secrets: dict[str, set[int | None]] = {"a" * 32: set(), "b" * 32: set()}
    made = replace(made, policies={site: replace(p, epsilon=9.0) for site, p in made.policies.items()})
    for run, seen in secrets.items():
        for round in range(3):
            assert _codes(made.silo("site-0"), made.request(round, run=run)) == [Code.OK]
            line = _account(made.directory / "site-0").run(run).last
            memories = MemoryFiles(made.directory / "site-0" / "runs" / run)
            seen.add(memories.read(round, line["memory"]).secret)
    (first,), (second,) = secrets.values()
    assert None not in (first, second)
    assert first != second


def test_the_promise_to_the_whole_site_is_not_had_anew_with_every_run(consortium: Callable[..., Any]) -> None:
    """Its records could bear many such runs, the site as a whole only one."""
    full = {"algorithm": "soteriafl-gd", "sampling": "full", "compressor": "identity"}
    full |= dict.fromkeys(("snapshot_probability", "batch"), "leave out")
    made = consortium(records=8, rounds=2, client_epsilon=4.0, policy={"epsilon": 8.0}, **full)
    silo = made.silo("site-0")
    assert silo.terms.epsilon < 1.0
    runs = [_codes(silo, *(made.request(r, run=run * 32) for r in range(2))) for run in "ab"]
    assert runs == [[Code.OK] * 2, [Code.BUDGET_SPENT] * 2]
    policy, account = made.policies["site-0"], _account(made.directory / "site-0")
    assert group_epsilon(account.events()[0], 8, policy.delta, policy.adjacency) <= 4.0
    # Another job is another promise, to which the silo's people have agreed.
    other = replace(made, job=replace(made.job, recipe=made.job.recipe.with_algorithm_settings(step=0.25)))
    assert _codes(other.silo("site-0"), other.request(0, run="c" * 32)) == [Code.OK]


def test_runs_that_protected_records_are_not_taken_for_protection_of_sites(
    consortium: Callable[..., Any],
) -> None:
    made = consortium(policy={"epsilon": 50.0})
    assert _codes(made.silo("site-0"), made.request(0)) == [Code.OK]
    whole = {
        "algorithm": "dp-fedavg",
        "adversary": "server",
        "local_steps": 2,
        "local_step": 0.1,
        "momentum": 0.0,
    }
    whole |= dict.fromkeys(("snapshot_probability", "batch", "compressor"), "leave out") | {"sampling": "full"}
    later = consortium(policy={"epsilon": 50.0}, **whole)
    assert later.policies["site-0"].unit == "client"
    with pytest.raises(RequestError, match="protected single records"):
        later.silo("site-0")
    later.silo("site-1")


def test_a_run_on_other_terms_is_not_vouched_for(consortium: Callable[..., Any]) -> None:
    """Neither its noise nor its records are those of today."""
    made = consortium()
    assert _codes(made.silo("site-0"), made.request(0)) == [Code.OK]
    fewer = Federation.from_clients([(made.federation.features[:20], made.federation.targets[:20])], classes=2)
    terms = admit(made.job, made.policies["site-0"], "site-0", fewer)
    silo = Silo(terms, made.directory / "site-0", key=made.signing["site-0"])
    assert _codes(silo, made.request(0, kind="certify")) == [Code.STATE_LOST]
    assert _codes(made.silo("site-0"), made.request(0, kind="certify")) == [Code.OK]


def test_a_silo_wants_all_that_its_algorithm_is_sent(consortium: Callable[..., Any]) -> None:
    """DP-SCAFFOLD is sent a point and a control variate, and neither may be missing or huge."""
    made = consortium(algorithm="dp-scaffold", local_steps=2, local_step=0.1, compressor="identity")
    silo, dim = made.silo("site-0"), made.job.algorithm.work.model.dim
    assert {name: tuple(shape) for name, shape in made.job.broadcast_shapes.items()} == {
        "point": (dim,),
        "control": (dim,),
    }
    for body in (b"\0" * 4 * dim, b"\0" * 4 * dim + b"\xff" * 4 * dim):
        assert Reply.decode(silo.step(made.request(0, body=body)), body_limit=10_000).code is Code.BAD_POINT
    with silo.ledger.page() as page:
        assert page.account.lines == 0
    answer = Reply.decode(silo.step(made.request(0, body=b"\0" * 8 * dim)), body_limit=10_000)
    assert answer.code is Code.OK
    assert len(answer.body) == made.job.algorithm.uplink.compressor.message_bytes(dim)
