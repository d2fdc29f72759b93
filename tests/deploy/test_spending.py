"""What a silo's people can see of what is spent and left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from tests.deploy.test_sums import RECORDS
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.deploy.frames import Reply
from tacit.deploy.guard import admit
from tacit.deploy.heads import Head
from tacit.deploy.identities import SIGNING_KEY
from tacit.deploy.seam import Code
from tacit.deploy.spending import Spending, exposure, spending_in, standing
from tacit.deploy.witness import HeadsError
from tacit.errors import DataError, RequestError
from tacit.privacy.promises.rounding import up_to

_PEM = (
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
)


def _answered(made: Any, releases: int, run: str = "a") -> list[Code]:
    silo = made.silo("site-0")
    frames = [silo.step(made.request(round, run=run * 32)) for round in range(releases)]
    return [Reply.decode(frame, body_limit=10_000).code for frame in frames]


@pytest.fixture
def folder(consortium: Callable[..., Any]) -> tuple[Any, Path]:
    """A consortium in which a silo's state lies in a folder with its policy, as a provisioned one has it."""
    made = consortium(rounds=3, policy={"epsilon": 7.0})
    folder = made.directory / "berlin"
    folder.mkdir(mode=0o700)
    (folder / "policy.toml").write_text(made.policies["site-0"].to_toml())
    (folder / "job.toml").write_text(made.job.text)
    (folder / "party.toml").write_text(
        'party = "site-0"\nquorum = 0\ndeadline_seconds = 1.0\nhost = "h"\nlisten = ""\n'
    )
    (folder / "state").mkdir()
    (made.directory / "site-0").symlink_to(folder / "state")
    return made, folder


def test_spent_and_left_by_run(folder: tuple[Any, Path]) -> None:
    made, place = folder
    nothing = Spending(made.policies["site-0"], (), 0.0, 7.0, 0.0)
    assert spending_in(place) == nothing
    (place / "state").rmdir()
    assert spending_in(place) == nothing, "a silo that was never started has no state"
    (place / "state").mkdir()
    _answered(made, 3)
    first = spending_in(place / "state")
    (run,) = first.runs
    assert (run.run, run.algorithm, run.releases, run.planned) == ("a" * 32, "soteriafl-svrg", 3, 3)
    assert 3.9 < run.epsilon == first.needed <= 4.0
    assert 4.0 < first.left < 7.0
    # The second run counts in full though it was broken off, and after it nothing is left for a third.
    _answered(made, 1, "b")
    second = spending_in(place)
    assert [one.releases for one in second.runs] == [3, 1]
    assert second.runs[1].epsilon == run.epsilon
    assert first.needed < second.needed <= 7.0
    assert second.left < 4.0
    assert _answered(made, 1, "c") == [Code.BUDGET_SPENT]


def test_the_status_of_a_silo_and_the_account_of_its_state_say_the_same(folder: tuple[Any, Path]) -> None:
    made, place = folder
    runner = CliRunner()
    unspent = runner.invoke(app, ["silo", str(place), "--status"])
    assert unspent.exit_code == 0
    assert "no run was ever started" in unspent.output
    _answered(made, 2)
    for arguments in (
        ["silo", str(place), "--status"],
        ["account", str(place / "state")],
        ["account", str(place)],
    ):
        shown = runner.invoke(app, arguments)
        assert shown.exit_code == 0
        assert "2 of 3" in shown.output
        assert "a" * 32 in shown.output
        assert "spent: epsilon 4" in shown.output
        assert "enough for another run of epsilon" in shown.output
    found = json.loads(runner.invoke(app, ["account", str(place / "state"), "--json"]).output)
    assert found == {"source": "silo", **json.loads(json.dumps(spending_in(place).to_dict()))}


def test_a_record_is_a_person_only_if_every_run_says_so(folder: tuple[Any, Path]) -> None:
    made, place = folder
    assert spending_in(place).whose == "record"
    of_persons = made.job.text + '\n[consortium.schema.person]\ncolumn = "patient"\n'
    (place / "job.toml").write_text(of_persons)
    assert spending_in(place).whose == "person"
    shown = CliRunner().invoke(app, ["account", str(place)])
    assert "per person)" in " ".join(shown.output.split())
    # Runs of another job treated single rows as records.
    _answered(made, 1)
    assert spending_in(place).whose == "record"


def test_a_lost_ledger_shows_in_the_status_and_is_not_made_anew_by_looking(folder: tuple[Any, Path]) -> None:
    made, place = folder
    _answered(made, 3)
    (place / "state" / "ledger.sqlite").unlink()
    with pytest.raises(DataError, match="messages have left this silo"):
        spending_in(place)
    shown = CliRunner().invoke(app, ["silo", str(place), "--status"])
    assert shown.exit_code != 0
    assert not (place / "state" / "ledger.sqlite").exists()


def test_without_a_policy_there_is_no_delta_to_account_at(folder: tuple[Any, Path]) -> None:
    made, place = folder
    _answered(made, 1)
    (place / "policy.toml").unlink()
    with pytest.raises(RequestError, match="delta of the silo's policy"):
        spending_in(place / "state")


def test_a_silo_says_at_its_start_what_is_left_for_its_job(consortium: Callable[..., Any]) -> None:
    def said(made: Any) -> str:
        silo = made.silo("site-0")
        with silo.ledger.page() as page:
            return standing(silo.terms, page.account)

    made = consortium(rounds=3, policy={"epsilon": 7.0})
    assert said(made) == "nothing is spent of the policy's epsilon 7; a run costs 4"
    _answered(made, 3)
    assert said(made) == "1 run spent 4 of the policy's epsilon 7; enough is left for another run of this job"
    _answered(made, 1, "b")
    assert said(made).startswith("2 runs spent 6.")
    assert said(made).endswith(
        f"nothing is left for another run of this job; started but not finished: {'b' * 32}"
    )


def test_with_sums_the_account_of_a_silo_has_both_epsilons(consortium: Callable[..., Any]) -> None:
    made = consortium(**RECORDS)
    certificate = json.loads(made.server().run().certificate)["silos"]["site-0"]
    policy = made.directory / "policy.toml"
    policy.write_text(made.policies["site-0"].to_toml())
    shown = CliRunner().invoke(app, ["account", str(made.directory / "site-0")]).output
    assert "even if 1 of the other clients helps it" in " ".join(shown.split())
    left = certificate["run_if_others_help"]["server"]["epsilon"]
    assert f"epsilon if all other parties help the server: {up_to(left)}" in shown
    assert spending_in(made.directory / "site-0").without_trust == pytest.approx(left)
    assert exposure(made.silo("site-0").terms).endswith(f"help the server: {up_to(left)}")
    alone = consortium()
    terms = admit(alone.job, alone.policies["site-0"], "site-0", alone.federation.client(0))
    assert exposure(terms) == ""


def test_a_ledger_that_was_set_back_says_nothing_of_what_is_left(folder: tuple[Any, Path]) -> None:
    """The silo itself would not start; its people must not read the smaller number either."""
    made, place = folder
    (place / SIGNING_KEY).write_bytes(made.signing["site-0"].private_bytes(*_PEM))
    silo, ledger = made.silo("site-0"), place / "state" / "ledger.sqlite"
    silo.step(made.request(0))
    older = ledger.read_bytes()
    frame = Reply.decode(silo.step(made.request(0, run="b" * 32)), body_limit=10_000)
    head = Head.from_answer(frame.head, job=made.job.digest, run=frame.run, round=frame.round)
    silo.step(made.request(1, heads={"site-0": head}))
    assert len(spending_in(place).runs) == 2
    ledger.write_bytes(older)
    for arguments in (["silo", str(place), "--status"], ["account", str(place / "state")]):
        shown = CliRunner().invoke(app, arguments)
        assert isinstance(shown.exception, HeadsError)
        assert "set back to an older copy" in str(shown.exception)
