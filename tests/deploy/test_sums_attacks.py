"""Attacks of a lying server on deployed silos with sums: restarts, replays, other runs and damaged files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.deploy.lying_server import RUN, LyingServer, asked_for
from tests.deploy.test_sums import RECORDS, _observed

from tacit.deploy.frames import Reply
from tacit.deploy.job import Job
from tacit.deploy.policy import Policy
from tacit.deploy.reading import QuorumError
from tacit.deploy.seam import Code
from tacit.deploy.summing import Summing
from tacit.sums.group import Rounds
from tacit.sums.requests import Closing, SumStep, signatures_to_bytes
from tacit.sums.secrets import commitment_to, public_half
from tacit.sums.shamir import SHARE_BYTES, restored

Make = Callable[..., Any]


def _restarted(server: LyingServer) -> None:
    server.silos = [server.made.silo(site) for site in server.made.job.sites]


def _closing(server: LyingServer, silos: list[int], round: int = 0) -> bytes:
    return Closing(round, server.context, frozenset(silos)).to_bytes(server.group)


def test_two_lists_across_a_restart_of_every_silo(consortium: Make) -> None:
    server = LyingServer(consortium(**RECORDS))
    server.masked()
    assert server.opens(range(5))
    for others in (range(4), [0, 1, 2, 4], [1, 2, 3, 4]):
        _restarted(server)
        assert not server.opens(others)
    _restarted(server)
    assert server.opens(range(5)), "the same list again"


def test_both_secrets_of_one_silo_are_never_revealed(consortium: Make) -> None:
    """Some silos are shown a list with silo 4 and some one without: neither secret can be restored twice."""
    made = consortium(**RECORDS)
    server = LyingServer(made)
    server.masked()
    whole, without = _closing(server, [0, 1, 2, 3, 4]), _closing(server, [0, 1, 2, 3])
    place, bundle = 0, server.prepared.batch.bundles[4]
    # Silos 0 and 1 reveal for everybody; 2 and 3 are asked to sign and open the list without silo 4.
    own = server.ask(bytes([SumStep.REVEAL]) + whole, [0, 1])
    _restarted(server)
    signed = server.ask(bytes([SumStep.SIGN]) + without, range(5))
    assert signed.keys() == {2, 3, 4}, "who revealed for one list signs no other"
    pair = server.ask(bytes([SumStep.REVEAL]) + without + signatures_to_bytes(signed), range(5))
    assert (own.keys(), pair) == ({0, 1}, {}), "three of four signatures open nothing"
    shares = {n: answer[4 * SHARE_BYTES :] for n, answer in own.items()}
    assert commitment_to(restored(shares)) != bundle.rounds[place][1], "two of four shares say nothing"
    assert public_half(restored(shares)) != bundle.rounds[place][0]


def test_lists_and_signatures_of_an_earlier_round_or_another_run(consortium: Make) -> None:
    made = consortium(**RECORDS)
    server, other_run = LyingServer(made), "f" * 32
    server.masked()
    first = _closing(server, [0, 1, 2, 3])
    signed = server.ask(bytes([SumStep.SIGN]) + first, range(5))
    assert len(signed) == 5
    server.masked(1)
    replayed = bytes([SumStep.REVEAL]) + first + signatures_to_bytes(signed)
    assert server.ask(replayed, range(5)) == {}, "a list of the past"
    again = _closing(server, [0, 1, 2, 3], round=1)
    assert server.ask(bytes([SumStep.REVEAL]) + again + signatures_to_bytes(signed), range(5)) == {}
    twice = signatures_to_bytes({0: signed[0]}) * 4
    assert server.ask(bytes([SumStep.REVEAL]) + again + twice, range(5)) == {}, "one signature four times"
    for silo in server.silos:
        reply = asked_for(silo, bytes([SumStep.DELIVER]) + server.prepared.delivery, run=other_run)
        assert reply.code is Code.SUM_REFUSED, "shares of another run"
        reply = asked_for(silo, bytes([SumStep.SHARE]) + server.prepared.batch.to_bytes(), run=other_run)
        assert reply.code is Code.SUM_REFUSED, "keys of another run"


@pytest.mark.parametrize("changes", [{"quorum": 5}, {"colluding": 0}, {"weights": [1.0, 1.0, 1.0, 1.0, 2.0]}])
def test_a_run_is_not_continued_with_other_numbers(consortium: Make, changes: dict[str, Any]) -> None:
    """The same run identifier in a job with another quorum, colluding or weight: no silo goes on with it."""
    made = consortium(**RECORDS)
    server = LyingServer(made)
    server.masked()
    job = Job(replace(made.job.recipe, **changes), made.job.sites, (6,), 2, 24, None, made.job.identities)
    policies = {site: Policy.for_job(job, site) for site in job.sites}
    changed = replace(made, job=job, policies=policies)
    silos = [changed.silo(site) for site in job.sites]
    assert Summing(job).group(RUN).session != server.group.session
    for n, silo in enumerate(silos):
        assert asked_for(server.silos[n], b"\x01", job=job.digest).code is Code.OTHER_JOB
        closing = bytes([SumStep.SIGN]) + _closing(server, [0, 1, 2, 3])
        assert asked_for(silo, closing).code is Code.SUM_REFUSED
    request = changed.request(1)
    codes = {Reply.decode(silo.step(request), body_limit=10**6).code for silo in silos}
    assert codes == {Code.STATE_LOST}


@pytest.mark.parametrize("damage", [b"", b"x" * 200])
def test_a_damaged_file_of_lists_opens_nothing(consortium: Make, damage: bytes) -> None:
    """A silo whose memory of lists cannot be read could agree to another one."""
    server = LyingServer(consortium(**RECORDS))
    server.masked()
    assert server.opens(range(5))
    for site in server.made.job.sites:
        (lists,) = (server.made.directory / site / "sums").glob("*.closed")
        lists.write_bytes(damage)
    _restarted(server)
    assert not server.opens(range(4))
    assert "missing or damaged" in (server.made.directory / "site-0" / "errors.log").read_text()


def test_a_hostile_batch_is_refused(consortium: Make) -> None:
    made = consortium(**RECORDS)
    silo = made.silo("site-0")
    for rounds in ((1, 0, 1024), (1, 2**30, 1)):
        head = Rounds(*rounds).to_bytes()
        assert asked_for(silo, bytes([SumStep.ADVERTISE]) + head).code in (Code.OK, Code.SUM_REFUSED)
    for head in ((1, 0, 0), (1, 0, 1025), (2**32 - 1, 0, 1), (1, 2**31, 1)):
        body = b"".join(number.to_bytes(4, "little") for number in head)
        assert asked_for(silo, bytes([SumStep.ADVERTISE]) + body).code is Code.SUM_REFUSED


def test_a_server_from_an_old_copy_opens_nothing_again(consortium: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is set back by two rounds: silos have answered later ones, and it stops."""
    made = consortium(**{**RECORDS, "rounds": 6})
    _, opened = _observed(monkeypatch)
    folder, copy = made.directory / "server", made.directory / "copy"

    def progress(report: Any) -> None:
        if report.round == 2:
            shutil.copytree(folder, copy)
        if report.round == 4:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        made.server(progress=progress).run()
    assert sorted(opened) == [0, 1, 2, 3]
    opened.clear()
    shutil.rmtree(folder)
    copy.rename(folder)
    with pytest.raises(QuorumError, match="past-round"):
        made.server(attempts=1).run()
    assert opened == {}
