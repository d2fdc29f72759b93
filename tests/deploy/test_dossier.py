"""`tacit verify` writes a page for a data protection officer, whatever the certificate says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tacit.cli.pages import write_dossier
from tacit.cli.verify import verify as verify_verb
from tacit.deploy.signatures import sign
from tacit.deploy.spending import spending_in
from tacit.privacy.promises.terms import PERSONS
from tacit.report.budget_blocks import budget_blocks
from tacit.report.page import SortableTable


def checked(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(verify_verb)
    return CliRunner().invoke(app, [*arguments])


def test_the_dossier_has_what_an_officer_asks_for(consortium: Callable[..., Any]) -> None:
    made = consortium(sites=2, rounds=2)
    made.server().run()
    certificate = made.directory / "server" / "certificate.json"
    done = checked(str(certificate))
    assert done.exit_code == 0, done.output
    page = (certificate.parent / "report.html").read_text()
    body = json.loads(certificate.read_text())
    assert '<div class="verdict good"><p class="word">Valid</p>' in page
    for site, silo in body["silos"].items():
        assert f">{site}</td>" in page
        assert silo["public_key"] in page
    for words in ("Legal basis", "unit of privacy", "trust model", "threat model", "What is not protected"):
        assert words in page
    assert "contenteditable" in page
    assert body["job"] in page
    assert page.count('<span class="word good">Passed:</span>') >= 3
    # The epsilon of the page is that of the certificate, rounded up.
    assert f"epsilon {4:g}" in page


def test_what_is_left_is_what_the_silo_itself_is_told(consortium: Callable[..., Any]) -> None:
    """Not the difference of two epsilons, which do not add up."""
    made = consortium(sites=1, rounds=2, policy={"epsilon": 9.0})
    silo = json.loads(made.server().run().certificate)["silos"]["site-0"]
    (made.directory / "policy.toml").write_text(made.policies["site-0"].to_toml())
    left = spending_in(made.directory / "site-0").left
    assert left > 9.0 - silo["epsilon"]["collaboration"] + 0.5
    table = budget_blocks({"site-0": silo})[0]
    assert isinstance(table, SortableTable)
    (row,) = table.rows
    told = dict(zip(table.columns, row, strict=True))
    assert told["left"] == pytest.approx(left, rel=1e-2)
    assert told["records"] == silo["records"]
    of_persons = budget_blocks({"site-0": {**silo, "public": [*silo["public"], PERSONS]}})[0]
    assert isinstance(of_persons, SortableTable)
    assert "persons" in of_persons.columns
    assert "records" not in of_persons.columns


def test_a_page_that_called_a_certificate_valid_does_not_survive_its_forgery(
    consortium: Callable[..., Any],
) -> None:
    made = consortium(sites=2, rounds=2)
    made.server().run()
    certificate = made.directory / "server" / "certificate.json"
    assert checked(str(certificate)).exit_code == 0
    certificate.write_bytes(certificate.read_bytes().replace(b'"rounds": 2', b'"rounds": 1'))
    certificate.write_bytes(certificate.read_bytes().replace(b'"rounds":2', b'"rounds":1'))
    assert checked(str(certificate), "--json").exit_code == 1
    page = (certificate.parent / "report.html").read_text()
    assert '<p class="word">Not valid</p>' in page
    assert "verdict good" not in page


def test_a_file_that_is_no_certificate_leaves_the_page_of_a_run_alone(tmp_path: Path) -> None:
    """`tacit verify run/summary.json`, beside report.html of the same name."""
    (tmp_path / "summary.json").write_text('{"epsilon": 4}')
    assert checked(str(tmp_path / "summary.json")).exit_code == 1
    assert not (tmp_path / "report.html").exists()
    (tmp_path / "report.html").write_text("the page of a run")
    assert checked(str(tmp_path / "summary.json"), "--json").exit_code == 1
    assert (tmp_path / "report.html").read_text() == "the page of a run"
    assert checked(str(tmp_path / "summary.json"), "--page", str(tmp_path / "asked.html")).exit_code == 1
    assert '<p class="word">Not valid</p>' in (tmp_path / "asked.html").read_text()


def test_what_silos_say_is_not_markup(consortium: Callable[..., Any]) -> None:
    """A silo signs a certificate whose strings are markup; nobody compares them with a job."""
    made = consortium(sites=2, rounds=2)
    made.server().run()
    (path,) = (made.directory / "site-0").glob("certificates/*/certificate.json")
    body = json.loads(path.read_bytes())
    body = {name: value for name, value in body.items() if name not in ("format", "public_key", "signature")}
    evil = "<img src=x onerror=alert(1)>"
    body["site"] = evil
    body["model"] = body["sampling"] = evil
    alone = made.directory / "evil"
    alone.mkdir()
    (alone / "certificate.json").write_bytes(sign(body, made.signing["site-0"]))
    done = checked(str(alone / "certificate.json"), "--unknown-keys")
    page = (alone / "report.html").read_text()
    assert "<img" not in page
    assert done.exit_code == 0, done.output
    assert page.count("&lt;img") >= 2
    assert '<p class="word">Signers unknown</p>' in page


def test_a_place_where_nothing_can_be_written_is_no_reason_to_fail(
    consortium: Callable[..., Any], tmp_path: Path
) -> None:
    made = consortium(sites=2, rounds=2)
    made.server().run()
    certificate = made.directory / "server" / "certificate.json"
    (tmp_path / "file").write_text("")
    done = checked(str(certificate), "--page", str(tmp_path / "file" / "page.html"))
    assert done.exit_code == 0
    assert "No page was written" in done.output


def test_a_trial_says_so_in_red(consortium: Callable[..., Any]) -> None:
    made = consortium(sites=2, rounds=2, noise="gaussian")
    made.server().run()
    certificate = made.directory / "server" / "certificate.json"
    assert checked(str(certificate)).exit_code == 0
    page = (certificate.parent / "report.html").read_text()
    assert '<div class="verdict bad"><p class="word">A trial</p>' in page
    assert "a moderate promise" not in page


def test_the_dossier_says_what_the_agreed_model_predicts(consortium: Callable[..., Any], tmp_path: Path) -> None:
    made = consortium(sites=2, rounds=1)
    made.server().run()
    told = json.loads(checked(str(made.directory / "server" / "certificate.json"), "--json").stdout)
    job = b'[consortium.schema.target]\ncolumn = "ill"\ntask = "binary"\nclasses = ["no", "yes"]\n'
    job += b'[consortium.schema.columns.age]\ntype = "number"\nrange = [0, 100]\nunit = "years"\n'
    page = tmp_path / "page.html"

    def written() -> str:
        write_dossier(page, told, {"job.toml": job}, "tacit verify", own_job=True)
        return page.read_text()

    assert "The model predicts" not in written(), "another job than the one that was signed says nothing here"
    told["certificate"]["job"] = hashlib.sha256(job).hexdigest()
    assert "The model predicts ill (no or yes) from 1 column." in written()
    assert "0 to 100 years" in page.read_text()
    told["certificate"]["silos"]["site-0"]["epsilon"]["collaboration"] -= 1e-9
    assert "records site-0, site-1 hold" in written(), "the last digits of an epsilon make no promise of its own"
