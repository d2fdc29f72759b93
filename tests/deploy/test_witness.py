"""A ledger that was emptied, set back, copied or replaced shows, because others have seen how long it was."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.in_process import Death
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tacit.deploy.frames import Reply, Request, heads_from_values, heads_to_values
from tacit.deploy.heads import HEAD_BYTES, Head, Heads, contradict
from tacit.deploy.ledger import Ledger
from tacit.deploy.seam import Code
from tacit.deploy.signatures import CertificateError, public_key_hex, sign
from tacit.deploy.witness import HeadsError
from tacit.errors import DataError, MessageError

RUN, OTHER_RUN, JOB = "0123456789abcdef" * 2, "f" * 32, "cd" * 32
KEY = Ed25519PrivateKey.generate()
PUBLIC = public_key_hex(KEY)


def _head(
    lines: int, hash: str = "a", *, run: str = RUN, round: int = 0, key: Any = KEY, site: str = "b"
) -> Head:
    return Head.sign(key, site, job=JOB, run=run, round=round, lines=lines, hash=(hash * 64)[:64])


def _answer(silo: Any, request: bytes) -> Reply:
    return Reply.decode(silo.step(request), body_limit=2**20)


def _own_head(made: Any, site: str, reply: Reply) -> Head:
    head = Head.from_answer(reply.head, job=made.job.digest, run=reply.run, round=reply.round)
    assert head.is_of(site, public_key_hex(made.signing[site]))
    return head


def _ledger(made: Any, site: str) -> Path:
    return Path(made.directory / site / "ledger.sqlite")


def _signed(made: Any, site: str, lines: int, hash: str = "a", *, run: str = RUN, round: int = 0) -> Head:
    """A head as this silo's key would sign it."""
    key = made.signing[site]
    return Head.sign(key, site, job=made.job.digest, run=run, round=round, lines=lines, hash=(hash * 64)[:64])


def test_every_answer_carries_the_head_of_the_ledger_and_little_more(consortium: Callable[..., Any]) -> None:
    made = consortium()
    silo = made.silo("site-0")
    for round in range(2):
        reply = _answer(silo, made.request(round))
        head = _own_head(made, "site-0", reply)
        with Ledger(_ledger(made, "site-0")).page() as page:
            assert (head.lines, head.hash) == (page.account.lines, page.account.hash)
    assert HEAD_BYTES == 104
    # A refusal is a bare code, as ever.
    assert _answer(silo, made.request(0)).head == b""


def test_the_server_passes_heads_on_and_silos_keep_them(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=3)
    made.server(quorum=3).run()
    for site in made.job.sites:
        book = made.directory / site / "witnessed.json"
        assert stat.S_IMODE(book.stat().st_mode) == 0o600
        assert {head["lines"] for head in json.loads(book.read_bytes())["newest"].values()} == {4}
        (certificate,) = (made.directory / site).glob("certificates/*/certificate.json")
        seen = json.loads(certificate.read_bytes())["witnessed"]
        assert set(seen) == set(made.job.sites) - {site}
        assert all(told["newest"]["lines"] == 4 for told in seen.values())


def test_heads_are_signed_for_one_silo_job_run_and_round() -> None:
    head = _head(7, round=3)
    assert head.is_of("b", PUBLIC)
    assert not head.is_of("c", PUBLIC)
    assert not head.is_of("b", public_key_hex(Ed25519PrivateKey.generate()))
    assert not head.is_of("b", "zz")
    for change in ({"run": OTHER_RUN}, {"job": "0" * 64}, {"round": 4}, {"lines": 8}, {"hash": "b" * 64}):
        assert not replace(head, **change).is_of("b", PUBLIC)


@given(st.integers(0, 2**53 - 1), st.integers(0, 2**31 - 1), st.binary(min_size=32, max_size=32))
def test_heads_come_back_from_answers_requests_and_files(lines: int, round: int, hash: bytes) -> None:
    head = Head.sign(KEY, "b", job=JOB, run=RUN, round=round, lines=lines, hash=hash.hex())
    assert Head.from_text(head.to_text()) == Head.from_values(head.to_values()) == head
    assert Head.from_answer(head.on_answer(), job=JOB, run=RUN, round=round) == head
    assert heads_from_values(heads_to_values({"b": head})) == {"b": head}


@given(st.text(max_size=230) | st.integers() | st.none() | st.binary(max_size=170))
def test_bytes_from_anyone_are_no_heads(junk: Any) -> None:
    with pytest.raises(MessageError):
        Head.from_text(junk)
    with pytest.raises(MessageError):
        heads_from_values({"b": junk})
    for name in ("job", "run", "round", "lines", "hash", "signature"):
        with pytest.raises(MessageError):
            Head.from_values(
                {**_head(3).to_values(), name: "x" if junk == _head(3).to_values()[name] else [junk]}
            )
    with pytest.raises(MessageError):
        Head.from_values(junk)


@pytest.mark.parametrize(
    "wrong", [{"lines": True}, {"lines": -1}, {"lines": 2**53}, {"round": 1.0}, {"round": 2**31}]
)
def test_a_head_has_sound_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        Head.from_values({**_head(3).to_values(), **wrong})


def test_what_contradicts_what() -> None:
    """One line has one hash, and a later round of a run never fewer lines; other runs have no order."""
    assert contradict(_head(5, "a"), _head(5, "b"))
    assert contradict(_head(5, "a"), _head(5, "b", run=OTHER_RUN))
    assert not contradict(_head(5, "a"), _head(5, "a", run=OTHER_RUN))
    assert contradict(_head(7, round=5), _head(6, round=6))
    assert not contradict(_head(7, round=5), _head(6, round=4))
    assert not contradict(_head(7, round=5), _head(6, round=5))
    assert not contradict(_head(7), _head(2, run=OTHER_RUN))


# -- a silo's own state


def _restored(made: Any, site: str, *, rounds: int, run: str = RUN) -> tuple[Any, Head]:
    """A silo whose whole state is set back by one of so many rounds, and the head that it signed then."""
    silo = made.silo(site)
    for round in range(rounds - 1):
        assert _answer(silo, made.request(round, run=run)).code is Code.OK
    shutil.copytree(made.directory / site, made.directory / "backup")
    head = _own_head(made, site, _answer(silo, made.request(rounds - 1, run=run)))
    shutil.rmtree(made.directory / site)
    shutil.move(made.directory / "backup", made.directory / site)
    return made.silo(site), head


def test_a_restored_silo_that_is_shown_its_own_head_answers_nothing_any_more(
    consortium: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = consortium(policy={"epsilon": 50.0})
    silo, head = _restored(made, "site-0", rounds=3)
    with caplog.at_level(logging.ERROR, "tacit.deploy"):
        reply = _answer(silo, made.request(3, heads={"site-0": head}))
    assert (reply.code, reply.body, reply.head) == (Code.STATE_RESTORED, b"", b"")
    assert "set back to an older copy" in caplog.text
    assert "signed a ledger of 4 lines" in caplog.text
    # Also when the server no longer mentions it, for other runs, for certificates, and after a restart.
    for request in (
        made.request(2),
        made.request(0, run="e" * 32),
        made.request(3, kind="certify"),
        made.request(3, kind="heads", body=b""),
    ):
        assert _answer(silo, request).code is Code.STATE_RESTORED
    with pytest.raises(HeadsError, match="Restore the newest copy of state/"):
        made.silo("site-0")
    with Ledger(_ledger(made, "site-0")).page() as page:
        assert page.account.lines == 3


def test_a_copy_that_has_grown_again_is_noticed_by_its_hash(consortium: Callable[..., Any]) -> None:
    """As many lines as were signed, or more, but not the same."""
    made = consortium(policy={"epsilon": 50.0})
    silo, head = _restored(made, "site-0", rounds=3)
    for round in range(2, 5):
        assert _answer(silo, made.request(round, point=9.0)).code is Code.OK
    newer = _own_head(made, "site-0", _answer(silo, made.request(4, point=9.0)))
    assert newer.lines > head.lines
    assert _answer(silo, made.request(5, heads={"site-0": newer})).code is Code.OK
    assert _answer(silo, made.request(5, heads={"site-0": head})).code is Code.STATE_RESTORED
    # A newer head of the copy does not make up for it.
    assert _answer(silo, made.request(5, heads={"site-0": newer})).code is Code.STATE_RESTORED


def test_an_emptied_ledger_is_noticed_when_the_silo_starts(consortium: Callable[..., Any]) -> None:
    """Without any help, once the server has passed on the silo's own head: it lies beside the ledger."""
    made = consortium(rounds=3)
    made.server(quorum=3).run()
    _ledger(made, "site-0").unlink()
    with pytest.raises((HeadsError, DataError)):
        made.silo("site-0")


def test_own_heads_that_are_in_the_ledger_are_no_problem(consortium: Callable[..., Any]) -> None:
    made = consortium()
    silo = made.silo("site-0")
    heads = [_own_head(made, "site-0", _answer(silo, made.request(round))) for round in range(3)]
    for round, head in enumerate((heads[2], heads[0], heads[1]), 3):
        assert _answer(silo, made.request(round, heads={"site-0": head})).code is Code.OK


# -- another silo's ledger


def test_a_forked_head_is_refused_once_kept_and_shown_in_certificates(
    consortium: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = consortium()
    silo = made.silo("site-0")
    one, other = _signed(made, "site-1", 5, "a"), _signed(made, "site-1", 5, "b")
    assert _answer(silo, made.request(0, heads={"site-1": one})).code is Code.OK
    with caplog.at_level(logging.ERROR, "tacit.deploy"):
        assert _answer(silo, made.request(1, heads={"site-1": other})).code is Code.LEDGER_CONFLICT
    assert "site-1 signed a ledger of 5 lines" in caplog.text
    silo = made.silo("site-0")
    assert _answer(silo, made.request(1, heads={"site-1": other})).code is Code.OK
    certificate = _answer(silo, made.request(6, kind="certify")).body
    found = made.verified(certificate)
    assert "site-1 signed ledgers of 5 and 5 lines that contradict each other" in " ".join(
        found.held_against_others
    )


@pytest.mark.parametrize(
    "shorter", [{"round": 6}, {"run": OTHER_RUN, "round": 0}], ids=["later round", "other run"]
)
def test_a_head_that_went_backwards_is_refused(consortium: Callable[..., Any], shorter: dict[str, Any]) -> None:
    made = consortium()
    silo = made.silo("site-0")
    assert _answer(silo, made.request(0, heads={"site-1": _signed(made, "site-1", 7, round=5)})).code is Code.OK
    back = _signed(made, "site-1", 4, "b", **shorter)
    assert _answer(silo, made.request(1, heads={"site-1": back})).code is Code.LEDGER_CONFLICT
    with Ledger(_ledger(made, "site-0")).page() as page:
        assert page.account.lines == 2


def test_a_replay_of_an_old_head_of_the_run_changes_nothing(consortium: Callable[..., Any]) -> None:
    """As from a server that goes on from an older checkpoint."""
    made = consortium()
    silo = made.silo("site-0")
    assert _answer(silo, made.request(0, heads={"site-1": _signed(made, "site-1", 7, round=5)})).code is Code.OK
    kept = (made.directory / "site-0" / "witnessed.json").read_bytes()
    assert _answer(silo, made.request(1, heads={"site-1": _signed(made, "site-1", 4, round=2)})).code is Code.OK
    assert (made.directory / "site-0" / "witnessed.json").read_bytes() == kept


def test_heads_that_nobody_signed_are_refused(consortium: Callable[..., Any]) -> None:
    made = consortium()
    silo = made.silo("site-0")
    foreign = _signed(made, "site-2", 5)
    changed = replace(_signed(made, "site-1", 5), lines=9)
    for heads in ({"site-1": foreign}, {"site-1": changed}, {"stranger": foreign}, {"site-0": foreign}):
        assert _answer(silo, made.request(0, heads=heads)).code is Code.MALFORMED
    assert _answer(silo, made.request(0)).code is Code.OK
    assert json.loads((made.directory / "site-0" / "witnessed.json").read_bytes())["newest"] == {}


def test_a_server_cannot_make_a_silo_contradict_itself(consortium: Callable[..., Any]) -> None:
    """By asking for heads of rounds that are still to come, or for runs that never were."""
    made = consortium()
    silo = made.silo("site-0")
    heads = []
    for asked in (
        made.request(5, kind="heads", body=b""),
        made.request(0),
        made.request(2**31 - 1, kind="heads", body=b""),
        made.request(1),
        made.request(6, kind="certify"),
        made.request(0, run=OTHER_RUN, kind="heads", body=b""),
        made.request(2),
        made.request(2),
    ):
        reply = _answer(silo, asked)
        assert reply.code is Code.OK
        if reply.head:
            heads.append(_own_head(made, "site-0", reply))
        elif Request.decode(asked).kind == "heads":
            heads.append(heads_from_values(json.loads(reply.body)["heads"])["site-0"])
    assert len(heads) == 7
    assert not any(contradict(one, other) for one in heads for other in heads)


def test_runs_that_are_made_up_leave_no_trace(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=2)
    silo = made.silo("site-0")
    _answer(silo, made.request(0, heads={"site-1": _signed(made, "site-1", 5)}))
    for number in range(30):
        _answer(silo, made.request(0, run=f"{number:032x}", kind="heads", body=b""))
    book = json.loads((made.directory / "site-0" / "witnessed.json").read_bytes())
    assert set(book["before"]) == {RUN, f"{29:032x}"}


def test_a_damaged_file_of_heads_is_named(consortium: Callable[..., Any]) -> None:
    made = consortium()
    _answer(made.silo("site-0"), made.request(0, heads={"site-1": _signed(made, "site-1", 5)}))
    path = made.directory / "site-0" / "witnessed.json"
    for content in (
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 10**5,
        path.read_bytes()[:-9],
        path.read_bytes().replace(b"5", b"x"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"witnessed\.json is damaged"):
            made.silo("site-0")
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"witnessed\.json is damaged"):
        made.silo("site-0")


# -- whole runs


def _second_run(made: Any, **settings: Any) -> Any:
    """A fresh server, for the same silos."""
    shutil.rmtree(made.directory / "server")
    return made.server(**{"quorum": 1, **settings}).run()


def test_after_all_ledgers_were_emptied_no_second_run_begins(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=3)
    made.server(quorum=3).run()
    for site in made.job.sites:
        _ledger(made, site).write_bytes(b"")
        with pytest.raises((HeadsError, DataError)):
            made.silo(site)


def test_a_silo_that_lost_its_whole_state_is_told_by_the_others_before_it_releases_anything(
    consortium: Callable[..., Any],
) -> None:
    made = consortium(rounds=3, policy={"epsilon": 50.0})
    made.server(quorum=3).run()
    shutil.rmtree(made.directory / "site-1")
    finished = _second_run(made)
    assert finished.answered == {"site-0": 3, "site-2": 3}
    assert finished.problems == {f"site-1 {Code.STATE_RESTORED}": 3}
    with Ledger(_ledger(made, "site-1")).page() as page:
        assert page.account.lines == 0


def test_a_witness_that_comes_late_still_stops_a_restored_silo(consortium: Callable[..., Any]) -> None:
    """The one who knows was away when the run began: it objects, and shows the server its evidence."""
    made = consortium(sites=2, rounds=6, policy={"epsilon": 50.0})
    made.server(quorum=2).run()
    shutil.rmtree(made.directory / "site-1")
    asked = {"site-0": 0}

    def late(site: str) -> str:
        asked[site] = asked.get(site, 0) + 1
        return "lose-request" if site == "site-0" and asked[site] <= 3 else "none"

    finished = _second_run(made, backend=made.backend(late))
    # Asked for heads in vain, then two rounds without a witness, then one that the witness refuses.
    assert finished.problems[f"site-0 {Code.LEDGER_CONFLICT}"] == 1
    assert finished.problems[f"site-1 {Code.STATE_RESTORED}"] == 3
    assert finished.answered == {"site-0": 3, "site-1": 3}


class _Silent:
    """A backend of a server that passes no heads on, and hides what is witnessed."""

    def __init__(self, honest: Any) -> None:
        self._honest = honest

    def run_round(self, request: bytes, *, sites: Any, **settings: Any) -> dict[str, Any]:
        asked = Request.decode(request)
        if asked.kind == "heads":
            return {}
        dropped = replace(asked, heads={}).encode()
        return dict(self._honest.run_round(dropped, sites=sites, **settings))


def test_a_server_that_drops_heads_shows_in_the_certificates(consortium: Callable[..., Any]) -> None:
    made = consortium(sites=2, rounds=2)
    finished = made.server(_Silent(made.backend()), quorum=2).run()
    found = made.verified(finished.certificate)
    assert "site-0 was shown no ledger head of site-1 in this run" in found.not_checked
    assert "site-1 was shown no ledger head of site-0 in this run" in found.not_checked


@pytest.mark.parametrize("rounds", [2, 4], ids=["shorter", "as long"])
def test_an_emptied_ledger_contradicts_what_others_certify_even_if_the_server_helps(
    consortium: Callable[..., Any], rounds: int
) -> None:
    """All that site-1 knew is gone, and the server keeps quiet about it: the others' certificates do not.

    Also where the ledger has grown again and is longer than what the others remember.
    """
    made = consortium(sites=2, rounds=4, policy={"epsilon": 50.0})
    asked = []

    def die(moment: str) -> None:
        asked.append(moment)
        if asked.count("before asking") > rounds:
            raise Death

    with contextlib.suppress(Death):
        made.server(quorum=2, at=die).run()
    newest = json.loads((made.directory / "site-0" / "witnessed.json").read_bytes())["newest"]
    assert newest[public_key_hex(made.signing["site-1"])]["lines"] == {2: 2, 4: 5}[rounds]
    shutil.rmtree(made.directory / "site-1")
    finished = _second_run(made, backend=_Silent(made.backend()), quorum=2)
    assert finished.answered == {"site-0": 4, "site-1": 4}
    with pytest.raises(CertificateError, match="site-0 holds a ledger head signed by site-1"):
        made.verified(finished.certificate)


def test_a_certificate_with_a_made_up_witness_fails(consortium: Callable[..., Any]) -> None:
    made = consortium(sites=2, rounds=2)
    made.server(quorum=2).run()
    (path,) = (made.directory / "site-0").glob("certificates/*/certificate.json")
    body = {
        n: v for n, v in json.loads(path.read_bytes()).items() if n not in ("format", "public_key", "signature")
    }
    seen = body["witnessed"]["site-1"]
    own = Head.sign(made.signing["site-0"], "site-1", job=JOB, run=RUN, round=0, lines=99, hash="0" * 64)
    true = Head.from_values(seen["newest"])
    for lie in (
        {"site-1": {"newest": own.to_values()}},
        {"site-1": {"newest": {**seen["newest"], "lines": 99}}},
        {"site-1": {"contradiction": [seen["newest"], seen["newest"]]}},
        {"site-1": {"contradiction": [seen["newest"]]}},
        {"site-1": {}},
        {"site-1": {"rumour": seen["newest"]}},
        {"site-0": seen},
        {"site-7": seen},
    ):
        with pytest.raises(CertificateError):
            made.verified(sign({**body, "witnessed": lie}, made.signing["site-0"]))
    # What site-1 really signed is evidence, whoever shows it.
    fork = _signed(made, "site-1", true.lines, "9", run=true.run, round=true.round)
    found = made.verified(
        sign(
            {**body, "witnessed": {"site-1": {"contradiction": [true.to_values(), fork.to_values()]}}},
            made.signing["site-0"],
        )
    )
    assert found.held_against_others


def test_the_newest_head_wins_and_evidence_against_a_silo_wins_over_its_own_word() -> None:
    key = Ed25519PrivateKey.generate()
    keys = {"a": public_key_hex(key), "b": PUBLIC}
    heads = Heads(JOB, keys)
    assert heads.answered("b", _head(5).on_answer(), run=RUN, round=0)
    assert not heads.answered("b", _head(6).on_answer(), run=RUN, round=1)
    assert not heads.answered("b", b"", run=RUN, round=0)
    assert not heads.answered("a", _head(6).on_answer(), run=RUN, round=0)
    heads.told("a", {"b": _head(3, run=OTHER_RUN), "c": _head(9)})
    assert heads.newest() == {"b": _head(5)}
    heads.told("a", {"b": _head(5, "c")})
    assert heads.newest() == {"b": _head(5, "c")}
    heads.told("b", {"b": _head(8)})
    assert heads.newest() == {"b": _head(8)}


def test_an_answer_without_a_signed_head_does_not_count(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=2)

    class Headless:
        def __init__(self, honest: Any) -> None:
            self._honest = honest

        def run_round(self, request: bytes, **settings: Any) -> dict[str, Any]:
            answers = dict(self._honest.run_round(request, **settings))
            if Request.decode(request).kind == "round":
                stolen = Reply.decode(answers["site-0"], body_limit=10_000).head
                for site, head in (("site-1", b""), ("site-2", stolen)):
                    reply = Reply.decode(answers[site], body_limit=10_000)
                    answers[site] = replace(reply, head=head).encode()
            return answers

    finished = made.server(Headless(made.backend())).run()
    assert finished.answered == {"site-0": 2}
    assert set(finished.problems) == {f"site-1 {Code.BAD_MESSAGE}", f"site-2 {Code.BAD_MESSAGE}"}
