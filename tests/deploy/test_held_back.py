"""A deployed evaluation: charged from the start, made once, signed, and the same whoever asks again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import typer
from benchmarks.in_process import Death
from typer.testing import CliRunner

from tacit.cli.verify import verify as verify_verb
from tacit.deploy.finals import Final
from tacit.deploy.frames import Reply, Request, point_to_bytes
from tacit.deploy.guard import admit
from tacit.deploy.policy import Policy
from tacit.deploy.signatures import CertificateError, sign
from tacit.deploy.verification import verify
from tacit.engine.evaluation import hold_back
from tacit.errors import RequestError
from tacit.privacy import events
from tacit.privacy.accountant import accounting

ASKED = {"held_back": 0.25, "epsilon_share": 0.5}


def evaluated(consortium: Callable[..., Any], **settings: Any) -> Any:
    return consortium(**{"sites": 2, "rounds": 2, "records": 80, "evaluation_settings": ASKED, **settings})


def certify(made: Any, value: float, run: str | None = None) -> bytes:
    """The request for a certificate, with a model of which every number is this one."""
    point = torch.full((made.job.algorithm.work.model.dim,), value)
    return Request(
        "certify", run or "0123456789abcdef" * 2, 2, made.job.digest, {}, point_to_bytes(point)
    ).encode()


def lines(silo: Any, kind: str) -> list[dict[str, Any]]:
    bodies = [json.loads(json.loads(line)["body"]) for line in silo.ledger.export().splitlines()]
    return [body for body in bodies if body["kind"] == kind]


def test_certificates_hold_the_evaluation_and_verify_reads_it(consortium: Callable[..., Any]) -> None:
    made = evaluated(consortium, epsilon=60.0)  # little noise: a deviation of about 0.02
    finished = made.server().run()
    place = made.directory / "server"
    found = made.verified(
        (place / "certificate.json").read_bytes(),
        {"model.safetensors": (place / "model.safetensors").read_bytes()},
    )
    assert found.evaluation is not None
    assert "the evaluation is about model.safetensors" in found.checked
    assert found.evaluation["all"]["records"] == 40
    assert set(found.evaluation["clients"]) == {"site-0", "site-1"}
    model = made.job.algorithm.work.model
    right = []
    for position in range(2):
        held = hold_back(made.federation.client(position), 0.25, 0)[1]
        right.append(model.metric(finished.parameters, held.batch()))
    assert found.evaluation["all"]["accuracy"]["value"] == pytest.approx(sum(right) / 2, abs=0.2)
    for silo in found.body["silos"].values():
        # 60 records were trained on: the promise and the noise are about these.
        assert (silo["records"], silo["evaluation"]["records"]) == (60, 20)


def test_a_run_is_charged_for_its_evaluation_before_the_first_message(consortium: Callable[..., Any]) -> None:
    made, plain = evaluated(consortium), consortium(sites=2, rounds=2, records=60)
    terms, without = made.silo("site-0").terms, plain.silo("site-0").terms
    assert terms.noise_multiplier > without.noise_multiplier
    evaluation = made.job.evaluation
    trained = made.job.algorithm.trust.event(made.job.algorithm.work, 2, 60, terms.noise_multiplier, 2)
    alone = evaluation.event(evaluation.noise_multiplier)
    together = accounting.epsilon(events.composed([trained, alone]), 1e-4)
    assert accounting.epsilon(alone, 1e-4) == pytest.approx(2.0, rel=1e-3)
    assert together == pytest.approx(terms.epsilon, rel=1e-9)
    assert accounting.epsilon(trained, 1e-4) < together <= 4.0
    silo = made.silo("site-0")
    assert Reply.decode(silo.step(made.request(0)), body_limit=10_000).code == "ok"
    (opened,) = lines(silo, "open")
    assert accounting.epsilon(events.from_dict(opened["event"]), 1e-4) == pytest.approx(together)


def test_a_silo_adds_the_noise_that_is_charged(consortium: Callable[..., Any]) -> None:
    """Over many runs, what a silo sends deviates from its exact sum as the event says."""
    made = evaluated(consortium)
    terms, evaluation = made.silo("site-0").terms, made.job.evaluation
    model, point = made.job.algorithm.work.model, made.job.start()
    exact = evaluation.scoring.sums(model, point, terms.held.batch())[0]
    sent = [evaluation.measure(model, point, terms.held) for _ in range(100)]
    noise = torch.tensor(sent, dtype=torch.float64) - exact
    z = terms.finals[Final.EVALUATION].noise_multiplier
    assert accounting.epsilon(evaluation.event(z), 1e-4) == pytest.approx(2.0, rel=1e-3)
    # At least 2,000 draws: a relative deviation of less than 2% on average.
    assert noise.numel() > 2000
    assert float(noise.std()) == pytest.approx(z * evaluation.scoring.bound, rel=0.12)


def test_whoever_asks_again_gets_the_same_sums(consortium: Callable[..., Any]) -> None:
    """Also with another model: a second answer would be a second release."""
    made = evaluated(consortium)
    silo = made.silo("site-0")
    silo.step(made.request(0))
    first, second = (Reply.decode(silo.step(certify(made, value)), body_limit=10**6) for value in (0.0, 1.0))
    assert json.loads(first.body)["evaluated"] == json.loads(second.body)["evaluated"]
    restarted = Reply.decode(made.silo("site-0").step(certify(made, 2.0)), body_limit=10**6)
    assert json.loads(restarted.body)["evaluated"] == json.loads(first.body)["evaluated"]
    assert len(lines(silo, "evaluate")) == 1


def test_a_silo_that_took_no_part_evaluates_nothing(consortium: Callable[..., Any]) -> None:
    made = evaluated(consortium)
    silo = made.silo("site-0")
    reply = Reply.decode(silo.step(certify(made, 0.0)), body_limit=10**6)
    assert "evaluated" not in json.loads(reply.body)
    assert silo.ledger.export() == b""


@pytest.mark.parametrize("moment", ["before evaluation", "after evaluation"])
def test_killed_at_any_moment_one_evaluation_leaves(consortium: Callable[..., Any], moment: str) -> None:
    made = evaluated(consortium)

    def die(at: str) -> None:
        if at == moment:
            raise Death(at)

    silo = made.silo("site-0", at=die)
    silo.step(made.request(0))
    with pytest.raises(Death):
        silo.step(certify(made, 0.0))
    again = made.silo("site-0")
    assert len(lines(again, "evaluate")) == (moment == "after evaluation")
    reply = Reply.decode(again.step(certify(made, 0.0)), body_limit=10**6)
    (line,) = lines(again, "evaluate")
    assert json.loads(reply.body)["evaluated"]["sums"] == line["sums"]


def test_a_policy_must_allow_it(consortium: Callable[..., Any]) -> None:
    made = evaluated(consortium)
    records = made.federation.client(0)
    strict = Policy.for_job(made.job, "site-0", evaluation_epsilon=0.0)
    with pytest.raises(RequestError, match="an evaluation that costs epsilon = 2"):
        admit(made.job, strict, "site-0", records)
    assert Policy.from_toml(made.policies["site-0"].to_toml()).evaluation_epsilon == 2.0


def test_sums_that_the_ledger_does_not_have_are_refused(consortium: Callable[..., Any]) -> None:
    made = evaluated(consortium)
    made.server().run()
    (path,) = (made.directory / "site-0").glob("certificates/*/certificate.json")
    body = json.loads(path.read_bytes())
    body = {name: value for name, value in body.items() if name not in ("format", "public_key", "signature")}
    ledger = {"ledger.jsonl": (path.parent / "ledger.jsonl").read_bytes()}
    made.verified(sign(body, made.signing["site-0"]), ledger)
    flattered = {**body, "evaluated": {**body["evaluated"], "sums": [9.0] * len(body["evaluated"]["sums"])}}
    with pytest.raises(CertificateError, match="evaluation is not that of the ledger"):
        made.verified(sign(flattered, made.signing["site-0"]), ledger)
    for wrong in ({"sums": [1.0]}, {"sums": ["<b>"] * 3}, {"point": "x"}):
        told = {**body, "evaluated": {**body["evaluated"], **wrong}}
        with pytest.raises(CertificateError):
            made.verified(sign(told, made.signing["site-0"]))
    quiet = {**body, "evaluation": {**body["evaluation"], "noise_multiplier": 1e6}}
    with pytest.raises(CertificateError):
        made.verified(sign(quiet, made.signing["site-0"]))


def _resigned(made: Any, certificate: bytes, site: str, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The certificate of a run in which a silo has stated something else, signed by both again."""
    signed = ("format", "public_key", "signature")
    body = {name: value for name, value in json.loads(certificate).items() if name not in signed}
    silo = {name: value for name, value in body["silos"][site].items() if name not in signed}
    change(silo)
    body["silos"][site] = json.loads(sign(silo, made.signing[site]))
    return sign(body, made.signing["server"])


def test_silos_that_add_nothing_are_named(consortium: Callable[..., Any]) -> None:
    """A server that shows a silo another model would otherwise choose who is counted."""
    made = evaluated(consortium, sites=3)
    certificate = made.server().run().certificate

    def another(silo: dict[str, Any]) -> None:
        silo["evaluated"]["point"] = "00" * 32

    def nothing(silo: dict[str, Any]) -> None:
        del silo["evaluated"], silo["only_stated"]["evaluated"]

    for change, words in ((another, "another model, which is left out"), (nothing, "nothing")):
        found = made.verified(_resigned(made, certificate, "site-1", change))
        assert f"site-1 has evaluated {words}" in found.not_checked
        assert set(found.evaluation["clients"]) == {"site-0", "site-2"}
    assert not any("evaluated" in what for what in made.verified(certificate).not_checked)


def test_an_evaluation_of_another_model_is_not_that_of_the_run(consortium: Callable[..., Any]) -> None:
    """The page of a certificate shows it as the quality of the model beside it."""
    made = evaluated(consortium)
    certificate = made.server().run().certificate
    tensors = safetensors.torch.load((made.directory / "server" / "model.safetensors").read_bytes())
    tensors["bias"] += 1
    model = safetensors.torch.save(tensors)
    signed = ("format", "public_key", "signature")
    body = {name: value for name, value in json.loads(certificate).items() if name not in signed}
    body["files"]["model.safetensors"] = hashlib.sha256(model).hexdigest()
    with pytest.raises(CertificateError, match="other parameters than model"):
        made.verified(sign(body, made.signing["server"]), {"model.safetensors": model})


@pytest.mark.parametrize("size", [1e17, 1e155, -1.7e308])
def test_sums_that_would_overflow_are_refused(consortium: Callable[..., Any], size: float) -> None:
    made = evaluated(consortium)
    certificate = made.server().run().certificate

    def huge(silo: dict[str, Any]) -> None:
        silo["evaluated"]["sums"] = [size] * len(silo["evaluated"]["sums"])

    with pytest.raises(CertificateError, match="not sums over records"):
        made.verified(_resigned(made, certificate, "site-1", huge))


def test_the_officers_page_shows_it(consortium: Callable[..., Any], tmp_path: Path) -> None:
    made = evaluated(consortium)
    made.server().run()
    app = typer.Typer()
    app.command()(verify_verb)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, [str(made.directory / "server" / "certificate.json"), "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert "Evaluated on 40 records, with 95% bars: accuracy" in " ".join(done.output.split())
    assert "How good the model is for new records" in page.read_text()
    assert "client site-1" in page.read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client_epsilon": 50.0}, "per record, not per site"),
        ({"algorithm": "dp-normfedavg", "sampling": "full", "batch": "leave out"}, "per record, not per site"),
        ({"evaluation_settings": {"held_bck": 0.1}}, "unknown setting of evaluation"),
        (
            {"evaluation_settings": {"group_feature": 6, "group_edges": [0.5], "group_names": ["a", "b"]}},
            "records have features 0 to 5",
        ),
    ],
)
def test_a_job_whose_evaluation_cannot_be_charged_is_refused(
    consortium: Callable[..., Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        evaluated(consortium, **settings)


def test_certificates_without_an_evaluation_are_as_before(consortium: Callable[..., Any]) -> None:
    made = consortium(sites=2, rounds=2)
    made.server().run()
    content = (made.directory / "server" / "certificate.json").read_bytes()
    assert b"evaluat" not in content
    assert verify(content, {"job.toml": made.job.text.encode()}).evaluation is None
