"""A deployed regression: corrected as in the simulator, charged from the start, released once, and checked."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
import typer
from benchmarks.in_process import NO_FAULT, Death, InProcessBackend
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.deploy.conftest import Consortium
from tests.deploy.lying_server import RUN, LyingServer
from tests.deploy.test_evaluation_sum import guessed
from typer.testing import CliRunner

import tacit
from tacit.cli.verify import verify as verify_verb
from tacit.data.schema import Column, Predicted, Schema
from tacit.deploy import home
from tacit.deploy.consortium import Consortium as Agreement
from tacit.deploy.final_release import FinalRelease
from tacit.deploy.frames import LARGEST_COORDINATE, Reply, Request, point_to_bytes
from tacit.deploy.guard import admit
from tacit.deploy.identities import Identities
from tacit.deploy.job import Job
from tacit.deploy.ledger_account import FIRST_HASH, chain_hash
from tacit.deploy.policy import Policy
from tacit.deploy.reading import QuorumError
from tacit.deploy.seam import Code
from tacit.deploy.signatures import CertificateError, sign
from tacit.deploy.silo import Silo
from tacit.deploy.spending import spending_in
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.privacy import events
from tacit.privacy.accountant import accounting
from tacit.side import noisy_total
from tacit.sums import encoding as encodings

SCHEMA = Schema(
    Predicted("cost", "regression", range=(0, 100), middle=10),
    (Column("age", "number", range=(0, 100)), Column("ill", "category", categories=("no", "yes"))),
    client="site",
    ends=2.0,
    left_out={"who": "names"},
)
PERSONS = replace(SCHEMA, person="who", rows=2, left_out={})
RECIPE = Recipe(
    algorithm="noisy-mb-sgd",
    data="custom",
    epsilon=8.0,
    delta=1e-5,
    rounds=6,
    noise="gaussian",
    # With a step that is given: one that is derived suits the smallest silo of a deployment.
    algorithm_settings={"clip_norm": 0.05, "step": 3.0, "batch": 0.5},
)
SUMS: dict[str, Any] = {"trust": "sum", "quorum": 4, "colluding": 1}
EVALUATION = {"held_back": 0.2, "loss_bound": 1.0, "epsilon_share": 0.3}
MOMENTS = ("before correction", "after correction")


def _table(clients: int, rows: int = 6000) -> pd.DataFrame:
    """Costs with a long tail, whose mean lies far above their median, in silos of very different sizes."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.uniform(0, 100, rows), "ill": rng.choice(["no", "yes"], rows)})
    table["cost"] = rng.exponential(2 + table["age"] / 8 + 4 * (table["ill"] == "yes"))
    who = np.arange(rows) // 2
    table["site"], table["who"] = np.minimum(who * clients * 2 // rows, (who * 7) % clients), who
    return table


def _federation(schema: Schema = SCHEMA, clients: int = 3) -> Federation:
    return Federation.from_frame(_table(clients), schema)


def _plan(federation: Federation, **changes: Any) -> Plan:
    return make_plan(replace(RECIPE, **{"correction": 0.5, **changes}), federation=federation)


@pytest.fixture
def corrected(disk: Path) -> Callable[..., Consortium]:
    """Makes a consortium whose model is corrected; settings are the recipe's."""

    def make(
        schema: Schema = SCHEMA, clients: int = 3, policy: dict[str, Any] | None = None, **changes: Any
    ) -> Consortium:
        federation = _federation(schema, clients)
        made = _plan(federation, **changes)
        sites = tuple(f"site-{n}" for n in range(clients))
        signing = {party: Ed25519PrivateKey.generate() for party in ("server", *sites)}
        known = Identities.of(signing["server"], {site: signing[site] for site in sites})
        job = replace(Job.from_plan(made, sites), identities=known)
        trial = {"insecure_reproducible": job.insecure, **(policy or {})}
        policies = {site: Policy.for_job(job, site, **trial) for site in sites}
        return Consortium(job, federation, disk, policies, signing=signing)

    return make


def _point(made: Consortium, value: float) -> bytes:
    return point_to_bytes(torch.full((made.job.algorithm.work.model.dim,), value))


def _correct(made: Consortium, value: float = 0.0, round: int | None = None, kind: Any = "correct") -> bytes:
    asked = made.job.rounds if round is None else round
    return Request(kind, RUN, asked, made.job.digest, {}, _point(made, value)).encode()


def _reply(silo: Any, request: bytes) -> Reply:
    return Reply.decode(silo.step(request), body_limit=10**6)


def _lines(silo: Any, kind: str) -> list[dict[str, Any]]:
    bodies = [json.loads(json.loads(line)["body"]) for line in silo.ledger.export().splitlines()]
    return [body for body in bodies if body["kind"] == kind]


def _files(made: Consortium) -> dict[str, bytes]:
    return {"model.safetensors": (made.directory / "server" / "model.safetensors").read_bytes()}


def _resigned(made: Consortium, certificate: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    body = {k: v for k, v in json.loads(certificate).items() if k not in ("format", "public_key", "signature")}
    change(body)
    return sign(body, made.signing["server"])


@pytest.mark.parametrize("schema", [SCHEMA, PERSONS], ids=["records", "persons"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"epsilon": [8.0, 4.0, 6.0]}, {"cohort": 2}, {"weights": "equal"}],
    ids=["plain", "budgets", "cohorts", "equal weights"],
)
def test_the_simulator_and_a_deployment_end_with_the_same_model(
    corrected: Callable[..., Consortium], schema: Schema, changes: dict[str, Any]
) -> None:
    """Bit for bit, in silos of different sizes; and it is not the model that training ends with."""
    made = corrected(schema, **changes)
    planned = _plan(made.federation, **changes)
    run = tacit.simulate(planned, evaluate_every=6, memory_limit_bytes=1)
    finished = made.server().run()
    assert run.correction is not None
    assert run.correction.shift > 0.01
    assert torch.equal(finished.parameters, run.parameters)
    assert finished.correction is not None
    assert finished.correction["shift"] == run.summary()["correction"]["shift"]
    bare = tacit.simulate(_plan(made.federation, correction=0.0, **changes), evaluate_every=6)
    assert not torch.allclose(bare.parameters, finished.parameters, atol=1e-3)
    for position, site in enumerate(made.job.sites):
        terms = made.silo(site).terms
        assert terms.noise_multiplier == float(planned.calibration.noise_multipliers[position])
        own = json.loads(finished.certificate)["silos"][site]
        assert own["correction"]["records"] == own["records"] == int(made.federation.sizes[position])


def test_its_evaluation_is_about_the_corrected_model(corrected: Callable[..., Consortium]) -> None:
    """Both are charged, and training has the noise that a plan gives it."""
    made = corrected(evaluation_settings=EVALUATION)
    planned = _plan(made.federation, evaluation_settings=EVALUATION)
    finished = made.server().run()
    found = made.verified(finished.certificate, _files(made))
    assert "the evaluation is about model.safetensors" in found.checked
    assert "model.safetensors is the trained model with that correction" in found.checked
    assert found.correction is not None
    run = tacit.simulate(planned, evaluate_every=6, memory_limit_bytes=1)
    assert run.evaluation is not None
    assert found.evaluation is not None
    assert found.evaluation["all"] == run.evaluation.to_dict()["all"], "seeded noise is the same"
    assert "error" in found.evaluation["all"], "in the unit of the target"
    terms = made.silo("site-1").terms
    assert terms.noise_multiplier == float(planned.calibration.noise_multipliers[1])
    parts = [
        made.job.algorithm.trust.event(made.job.algorithm.work, 3, terms.records, terms.noise_multiplier, 6),
        *(one.event(one.noise_multiplier) for one in made.job.finals),
    ]
    together = accounting.epsilon(events.composed(parts), 1e-5)
    assert together == pytest.approx(terms.epsilon, rel=1e-9)
    assert 7.8 < together <= 8.0


@pytest.mark.parametrize("schema", [SCHEMA, PERSONS], ids=["records", "persons"])
def test_through_a_sum_with_a_vanished_silo(corrected: Callable[..., Consortium], schema: Schema) -> None:
    """Quorum is 4 of 5. The sum is opened once; with an evaluation, of the corrected model, in one more round."""
    made = corrected(schema, 5, noise="lattice", evaluation_settings=EVALUATION, **SUMS)
    gone = {"site-4"}
    finished = made.server(made.backend(lambda site: "lose-request" if site in gone else NO_FAULT)).run()
    found = made.verified(finished.certificate, _files(made))
    assert "the correction is the opened sum of the parts that silos signed" in found.checked
    assert "model.safetensors is the trained model with that correction" in found.checked
    assert "the evaluation is about model.safetensors" in found.checked
    assert found.correction is not None
    assert found.evaluation is not None
    told = json.loads(finished.certificate)
    assert (told["correction"]["round"], told["evaluation"]["round"]) == (6, 7)
    assert set(told["correction"]["parts"]) == {f"site-{n}" for n in range(4)}
    # The exact shift over the four silos, from their records and the trained model: noise hides little of it.
    trained = torch.frombuffer(bytearray.fromhex(told["correction"]["trained"]), dtype=torch.float32)
    asked, model = made.job.correction, made.job.algorithm.work.model
    sums, records = torch.zeros(asked.moments.dim, dtype=torch.float64), 0
    for site in made.job.sites[:4]:
        own = made.silo(site).terms.federation
        sums, records = sums + asked.moments.sums(model, trained, own.batch())[0], records + own.records
    exact = float(sums[0]) / records
    assert found.correction["records"] == records
    std = asked.encoding.noise_std * 2 / records
    # What is corrected is x - (2 s)^2 / x for a value x with noise s: seven deviations are never seen.
    assert found.correction["shift"] / made.federation.target_scale == pytest.approx(exact, abs=11 * std)


def test_the_charge_through_a_sum_is_recomputed(corrected: Callable[..., Consortium]) -> None:
    """The Gaussian mechanism with all honest shares; and if the others help the server, with one of three."""
    made = corrected(clients=5, noise="lattice", **SUMS)
    planned = _plan(made.federation, noise="lattice", **SUMS)
    asked, terms = made.job.correction, made.silo("site-0").terms
    z = asked.noise_multiplier
    assert accounting.epsilon(asked.event(z), 1e-5) == pytest.approx(4.0, rel=1e-3)
    shown = accounting.epsilon(asked.exposed(z), 1e-5)
    assert shown == pytest.approx(accounting.epsilon(events.gaussian(z / 3**0.5), 1e-5), rel=1e-3)
    (exposed,) = terms.exposures(6)
    assert accounting.epsilon(exposed.event, 1e-5) > shown
    assert asked.event(z) == planned.correction.event(made.federation)
    silos = [made.silo(site).terms.noise_multiplier for site in made.job.sites]
    assert silos == pytest.approx(planned.calibration.noise_multipliers.tolist(), rel=1e-9)


def test_a_hostile_server_gets_five_sums_once_at_any_point_it_likes(
    corrected: Callable[..., Consortium],
) -> None:
    made = corrected(noise="lattice")
    silo = made.silo("site-0")
    assert _reply(silo, made.request(0)).code is Code.OK
    for wrong in (5, 7):
        assert _reply(silo, _correct(made, round=wrong)).code is Code.NO_SUCH_ROUND
    assert _reply(silo, _correct(made, kind="evaluate")).code is Code.OTHER_JOB
    assert _reply(silo, _correct(made, float("nan"))).code is Code.BAD_POINT
    first = _reply(silo, _correct(made, 1.0))
    assert first.code is Code.OK
    assert len(first.body) == 4 + 5 * 8
    assert _reply(silo, _correct(made, 1.0)).body == first.body
    assert _reply(silo, _correct(made, 0.0)).code is Code.CHANGED_POINT
    again = made.silo("site-0")
    assert _reply(again, _correct(made, 1.0)).body == first.body
    assert _reply(again, made.request(1)).code is Code.PAST_ROUND, "nothing is trained after it"
    assert len(_lines(again, "correct")) == 1
    # A new run is a new charge, which this budget does not cover.
    other = Request("correct", "ab" * 16, 6, made.job.digest, {}, _point(made, 0.0)).encode()
    assert _reply(again, other).code is Code.BUDGET_SPENT


@pytest.mark.parametrize("value", [0.0, 1.0, -1e6, LARGEST_COORDINATE])
@pytest.mark.parametrize("schema", [SCHEMA, PERSONS], ids=["records", "persons"])
def test_no_point_makes_a_record_count_for_more(
    corrected: Callable[..., Consortium], schema: Schema, value: float
) -> None:
    made = corrected(schema)
    asked, model = made.job.correction, made.job.algorithm.work.model
    for sign_of in (torch.ones(model.dim), (-1.0) ** torch.arange(model.dim)):
        vectors = asked.moments.vectors(model, value * sign_of, made.federation.batch())
        assert float(vectors.norm(dim=1).max()) <= asked.question.bound


def test_a_silo_is_charged_for_it_before_its_first_message(corrected: Callable[..., Consortium]) -> None:
    made, plain = corrected(noise="lattice"), corrected(noise="lattice", correction=0.0)
    terms = made.silo("site-0").terms
    assert 1.0 < terms.noise_multiplier / plain.silo("site-0").terms.noise_multiplier < 1.3
    silo = made.silo("site-0")
    silo.step(made.request(0))
    (opened,) = _lines(silo, "open")
    asked = made.job.correction
    alone = asked.event(asked.noise_multiplier)
    assert accounting.epsilon(alone, 1e-5) == pytest.approx(4.0, rel=1e-3)
    trained = made.job.algorithm.trust.event(made.job.algorithm.work, 3, terms.records, terms.noise_multiplier, 6)
    together = accounting.epsilon(events.composed([trained, alone]), 1e-5)
    assert accounting.epsilon(events.from_dict(opened["event"]), 1e-5) == pytest.approx(together, rel=1e-9)
    (made.directory / "policy.toml").write_text(made.policies["site-0"].to_toml())
    assert spending_in(made.directory / "site-0").needed == pytest.approx(together, rel=1e-6)


def test_what_a_silo_sends_has_the_noise_that_is_charged(corrected: Callable[..., Consortium]) -> None:
    made = corrected(noise="lattice")
    asked, silo = made.job.correction, made.silo("site-0").terms.federation
    model, point = made.job.algorithm.work.model, torch.zeros(made.job.algorithm.work.model.dim)
    exact = asked.moments.sums(model, point, silo.batch())[0]
    drawn = torch.tensor([asked.measure(model, point, silo) for _ in range(600)]) - exact
    assert len({tuple(row) for row in drawn.tolist()}) == 600, "noise of the operating system"
    # 3,000 draws: a relative deviation of 1.3%, of which this is ten.
    assert float(drawn.std()) == pytest.approx(asked.noise_multiplier * 5**0.5, rel=0.13)


def test_the_mark_is_there_before_a_first_release_that_is_no_round_leaves(
    corrected: Callable[..., Consortium], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk was full between the ledger's line and the mark; the part leaves later, with the mark."""
    made = corrected(noise="lattice")
    silo, mark = made.silo("site-0"), made.directory / "site-0" / "released"
    with monkeypatch.context() as patch:
        patch.setattr(home, "write_atomically", _full)
        assert Reply.decode(silo.step(_correct(made)), body_limit=10**6).code is Code.FAILED
    assert not mark.exists()
    assert Reply.decode(silo.step(_correct(made)), body_limit=10**6).code is Code.OK
    assert mark.exists()


def _full(*arguments: Any, **settings: Any) -> None:
    raise OSError(28, "no space left on device")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_silo_killed_at_any_moment_releases_once(corrected: Callable[..., Consortium], moment: str) -> None:
    made = corrected(noise="lattice")

    def die(at: str) -> None:
        if at == moment:
            raise Death(at)

    silo = made.silo("site-0", at=die)
    silo.step(made.request(0))
    with pytest.raises(Death):
        silo.step(_correct(made))
    again = made.silo("site-0")
    assert len(_lines(again, "correct")) == (moment == "after correction")
    reply = _reply(again, _correct(made))
    (line,) = _lines(again, "correct")
    assert np.frombuffer(reply.body[4:], "<f8").tolist() == line["sums"]


@pytest.mark.parametrize("through", [{}, SUMS], ids=["one by one", "sums"])
def test_silos_and_server_die_at_any_moment(
    corrected: Callable[..., Consortium], through: dict[str, Any]
) -> None:
    """In the end every silo has released once, and the model is what its certificate says."""
    made = corrected(clients=5, noise="lattice", rounds=1, **through)
    died, opened = Counter[str](), set[str]()

    def mortal(site: str) -> Callable[[Callable[[str], None]], Any]:
        """A silo that dies the first time that it comes to each moment."""

        def at(moment: str) -> None:
            if moment in MOMENTS and not died[f"{site} {moment}"]:
                died[f"{site} {moment}"] += 1
                raise Death

        return lambda _: made.silo(site, at)

    backend = InProcessBackend({site: mortal(site) for site in made.job.sites})

    class Dying:
        asked = 0

        def run_round(self, request: bytes, **options: Any) -> dict[str, Any]:
            answers = backend.run_round(request, **options)
            Dying.asked += 1
            if Dying.asked % 7 == 0 and died["server"] < 12:
                died["server"] += 1
                raise Death
            return answers

    def at(moment: str) -> None:
        done = made.directory / "server" / "finals" / "correction.json"
        if done.exists():
            opened.add(done.read_text())
        if moment == "after correction" and died["server, corrected"] < 3:
            died["server, corrected"] += 1
            raise Death

    for _ in range(200):
        try:
            finished = made.server(Dying(), attempts=4, quorum=4, at=at).run()
            break
        except (Death, QuorumError):
            continue
    assert died["server, corrected"] == 3
    assert all(died[f"{site} {moment}"] for site in made.job.sites for moment in MOMENTS)
    assert len(opened) == 1, "after every restart the same"
    found = made.verified(finished.certificate, _files(made))
    assert "model.safetensors is the trained model with that correction" in found.checked
    for site in made.job.sites:
        assert len(_lines(made.silo(site), "correct")) == 1


def test_too_few_silos_at_that_point(corrected: Callable[..., Consortium]) -> None:
    """With fewer than a quorum the server stops, and goes on when it is restarted; a missing silo is left out."""
    made = corrected(noise="lattice", rounds=1)
    asked = Counter[str]()

    def faults(site: str) -> str:
        asked[site] += 1
        # Heads, one round, then the correction.
        return "lose-request" if site != "site-0" and asked[site] > 2 else NO_FAULT

    with pytest.raises(QuorumError, match="round 1"):
        made.server(made.backend(faults), quorum=2, attempts=1).run()
    assert not (made.directory / "server" / "model.safetensors").exists()
    (line,) = _lines(made.silo("site-0"), "correct")
    gone = {"site-2"}
    finished = made.server(
        made.backend(lambda site: "lose-request" if site in gone else NO_FAULT), quorum=2, attempts=1
    ).run()
    told = json.loads(finished.certificate)["correction"]
    assert told["parts"]["site-0"]["sums"] == line["sums"]
    assert set(told["parts"]) == {"site-0", "site-1"}
    found = made.verified(finished.certificate, _files(made))
    assert found.correction is not None
    assert found.correction["records"] == int(made.federation.sizes[:2].sum())


def test_a_silo_that_no_round_chose_takes_part_in_the_correction(corrected: Callable[..., Consortium]) -> None:
    """As in the simulator; it is charged for the whole run first."""
    made = corrected(noise="lattice")
    silo = made.silo("site-0")
    assert _reply(silo, _correct(made)).code is Code.OK
    (opened,) = _lines(silo, "open")
    charged = accounting.epsilon(events.from_dict(opened["event"]), 1e-5)
    assert charged == pytest.approx(silo.terms.epsilon, rel=1e-9)


@pytest.mark.parametrize("kind", ["correct", "certify"])
def test_other_records_than_those_of_training_are_refused(
    corrected: Callable[..., Consortium], kind: str
) -> None:
    """Neither corrected nor evaluated, and nothing is written; afterwards the right ones are taken."""
    made = corrected(noise="lattice", evaluation_settings=EVALUATION)
    own = made.federation.client(0)
    terms = admit(made.job, made.policies["site-0"], "site-0", replace(own, targets=own.targets.flip(0)))
    made.silo("site-0").step(made.request(0))
    other = Silo(terms, made.directory / "site-0", key=made.signing["site-0"])
    before = other.ledger.export()
    assert _reply(other, _correct(made, kind=kind)).code is Code.STATE_LOST
    assert other.ledger.export() == before
    assert _reply(made.silo("site-0"), _correct(made, kind=kind)).code is Code.OK


def test_a_policy_must_allow_it(corrected: Callable[..., Consortium]) -> None:
    made = corrected(noise="lattice")
    strict = Policy.for_job(made.job, "site-0", correction_epsilon=0.0)
    with pytest.raises(RequestError, match="a correction of the model that costs epsilon = 4 "):
        admit(made.job, strict, "site-0", made.federation.client(0))
    assert Policy.from_toml(made.policies["site-0"].to_toml()).correction_epsilon == pytest.approx(4.0)
    old = "\n".join(line for line in strict.to_toml().splitlines() if "correction" not in line)
    assert Policy.from_toml(old).correction_epsilon == 0.0, "a policy that says nothing allows nothing"


def test_what_does_not_follow_from_the_silos_is_refused(corrected: Callable[..., Consortium]) -> None:
    made = corrected(noise="lattice")
    finished = made.server().run()
    files = _files(made)
    assert made.verified(finished.certificate, files).correction == finished.correction

    def other_sum(body: dict[str, Any]) -> None:
        body["correction"]["parts"]["site-0"]["sums"][0] += 1.0

    def other_records(body: dict[str, Any]) -> None:
        body["correction"]["parts"]["site-0"]["records"] += 1

    def other_model(body: dict[str, Any]) -> None:
        body["correction"]["trained"] = _point(made, 1.0).hex()

    def nobody(body: dict[str, Any]) -> None:
        body["correction"]["parts"] = {}

    def other_round(body: dict[str, Any]) -> None:
        body["correction"]["round"] = 7

    def no_numbers(body: dict[str, Any]) -> None:
        body["correction"]["parts"]["site-0"]["sums"] = ["<b>"] * 5

    for change in (other_sum, other_records, other_model, nobody, other_round, no_numbers):
        with pytest.raises(CertificateError, match="the correction cannot be opened"):
            made.verified(_resigned(made, finished.certificate, change))

    def fewer(body: dict[str, Any]) -> None:
        del body["correction"]["parts"]["site-2"]

    # Any quorum will do, but then the model is another one.
    with pytest.raises(CertificateError, match="not the trained model with the correction"):
        made.verified(_resigned(made, finished.certificate, fewer), files)

    def none(body: dict[str, Any]) -> None:
        del body["correction"]

    assert (
        "the correction: the server states none"
        in made.verified(_resigned(made, finished.certificate, none)).not_checked
    )


def test_a_model_that_is_no_number_is_not_the_corrected_one(corrected: Callable[..., Consortium]) -> None:
    """A comparison with NaN is never true, whichever way it is made."""
    made = corrected(noise="lattice", rounds=1)
    certificate = made.server().run().certificate
    tensors = safetensors.torch.load(_files(made)["model.safetensors"])
    tensors["bias"][0] = float("nan")
    model = safetensors.torch.save(tensors)

    def other_file(body: dict[str, Any]) -> None:
        body["files"]["model.safetensors"] = hashlib.sha256(model).hexdigest()

    with pytest.raises(CertificateError, match="not the trained model with the correction"):
        made.verified(_resigned(made, certificate, other_file), {"model.safetensors": model})


def test_what_says_how_to_use_the_model_is_that_of_the_job(corrected: Callable[..., Consortium]) -> None:
    """With the same weights and another range of the target, every prediction would be another one."""
    made = corrected(noise="lattice", rounds=1)
    certificate = made.server().run().certificate
    place = made.directory / "server"
    files = {name: (place / name).read_bytes() for name in ("model.safetensors", "schema.toml", "model.json")}
    found = made.verified(certificate, files)
    assert "schema.toml is the schema of the job" in found.checked
    assert "model.json describes the model of the job" in found.checked
    schema, card = files["schema.toml"].decode(), files["model.json"].decode()
    for name, other in (
        ("schema.toml", schema.replace("100", "200")),
        ("schema.toml", "<b>"),
        ("schema.toml", "\udcff"),
        ("model.json", card.replace("least-squares", "absolute-regression")),
        ("model.json", card.replace("age", "ill")),
        ("model.json", "{}"),
        ("model.json", "[]"),
    ):
        assert other.encode(errors="surrogateescape") != files[name]
        with pytest.raises(CertificateError, match=name):
            made.verified(certificate, {**files, name: other.encode(errors="surrogateescape")})


def test_a_part_that_the_server_leaves_out_is_named(corrected: Callable[..., Consortium]) -> None:
    """Silos have signed it, but the model was corrected without it."""
    made = corrected(noise="lattice", rounds=1)
    certificate = made.server().run().certificate

    def fewer(body: dict[str, Any]) -> None:
        del body["correction"]["parts"]["site-2"]

    assert "the part of site-2 in the correction: the server has left it out" in (
        made.verified(_resigned(made, certificate, fewer)).not_checked
    )


def test_a_silo_without_a_part_is_named(corrected: Callable[..., Consortium]) -> None:
    made = corrected(noise="lattice", rounds=1)
    backend = made.backend()

    class Partly:
        def run_round(self, request: bytes, **options: Any) -> dict[str, Any]:
            if Request.decode(request).kind == "correct":
                options["sites"] = [site for site in options["sites"] if site != "site-2"]
            return backend.run_round(request, **options)

    found = made.verified(made.server(Partly(), quorum=2).run().certificate, _files(made))
    assert "the part of site-2 in the correction: it has none" in found.not_checked


def test_sums_that_were_not_charged_are_refused(corrected: Callable[..., Consortium]) -> None:
    """A silo that answered no round was charged nothing, unless it has corrected."""
    made = corrected(noise="lattice")
    silo = made.silo("site-0")
    certify = _correct(made, kind="certify")

    def stated(change: dict[str, Any]) -> bytes:
        body = json.loads(_reply(silo, certify).body)
        body = {name: value for name, value in body.items() if name not in ("format", "public_key", "signature")}
        return sign({**body, **change}, made.signing["site-0"])

    nothing = json.loads(stated({}))
    assert made.verified(stated({})).body["epsilon"]["run"] == 0
    _reply(silo, _correct(made))
    assert made.verified(stated({})).body["epsilon"]["run"] == pytest.approx(8.0, rel=1e-3)
    uncharged = {name: nothing[name] for name in ("events", "epsilon", "promise", "run_if_others_help", "ledger")}
    with pytest.raises(CertificateError):
        made.verified(stated(uncharged))


def test_another_processor_may_round_noise_differently(
    corrected: Callable[..., Consortium], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = corrected(clients=5, noise="lattice", rounds=1, **SUMS)
    certificate = made.server().run().certificate
    found = noisy_total.calibrate_noise
    for more, refused in ((1e-9, False), (1e-3, True)):
        monkeypatch.setattr(noisy_total, "calibrate_noise", lambda *a, m=more, **b: found(*a, **b) * (1 + m))
        with pytest.raises(CertificateError, match="less than the job asks") if refused else nullcontext():
            made.verified(certificate)


def test_a_server_that_shows_silos_different_models_is_found_out(corrected: Callable[..., Consortium]) -> None:
    """Both are charged the same; but their sums do not belong together."""
    made = corrected(noise="lattice")
    backend = made.backend()

    class TwoFaced:
        def run_round(self, request: bytes, **options: Any) -> dict[str, Any]:
            asked = Request.decode(request)
            sites = options["sites"]
            if asked.kind != "correct":
                return backend.run_round(request, **options)
            other = replace(asked, body=_point(made, 1.0)).encode()
            options["sites"] = [site for site in sites if site != "site-1"]
            return {
                **backend.run_round(request, **options),
                **backend.run_round(other, **{**options, "sites": ["site-1"]}),
            }

    certificate = made.server(TwoFaced()).run().certificate
    with pytest.raises(CertificateError, match="showed site-1 another model"):
        made.verified(certificate)


def test_what_only_a_ledger_knows_is_compared_with_it(corrected: Callable[..., Consortium]) -> None:
    made = corrected(noise="lattice")
    made.server().run()
    (path,) = (made.directory / "site-0").glob("certificates/*/certificate.json")
    body = json.loads(path.read_bytes())
    body = {name: value for name, value in body.items() if name not in ("format", "public_key", "signature")}
    ledger = {"ledger.jsonl": (path.parent / "ledger.jsonl").read_bytes()}
    made.verified(sign(body, made.signing["site-0"]), ledger)
    assert "corrected" in body["only_stated"]
    other = {**body, "corrected": {**body["corrected"], "sums": [9.0] * 5}}
    with pytest.raises(CertificateError, match="correction is not that of the ledger"):
        made.verified(sign(other, made.signing["site-0"]), ledger)
    wrong_sums: list[Any] = [[1.0], ["<b>"] * 5]
    for sums in wrong_sums:
        told = {**body, "corrected": {**body["corrected"], "sums": sums}}
        with pytest.raises(CertificateError):
            made.verified(sign(told, made.signing["site-0"]))
    quiet = {**body, "correction": {**body["correction"], "noise_multiplier": 1e6}}
    with pytest.raises(CertificateError):
        made.verified(sign(quiet, made.signing["site-0"]))
    fewer = {**body, "correction": {**body["correction"], "records": 7}}
    with pytest.raises(CertificateError, match="not about the records"):
        made.verified(sign(fewer, made.signing["site-0"]))
    uncharged = {name: value for name, value in body.items() if name != "correction"}
    with pytest.raises(CertificateError):
        made.verified(sign(uncharged, made.signing["site-0"]))


def test_no_term_is_left_out_of_a_ledger(corrected: Callable[..., Consortium]) -> None:
    """Even if the silo itself has written its ledger again, and signs that."""
    made = corrected(clients=5, noise="lattice", rounds=1, **SUMS)
    made.server().run()
    (path,) = (made.directory / "site-0").glob("certificates/*/certificate.json")
    body = json.loads(path.read_bytes())
    body = {name: value for name, value in body.items() if name not in ("format", "public_key", "signature")}
    lines = [json.loads(line)["body"] for line in (path.parent / "ledger.jsonl").read_text().splitlines()]
    opened = json.loads(lines[0])
    for left_out in (None, *(name for name in opened if name not in ("kind", "run", "event", "rounds_planned"))):
        first = json.dumps({name: value for name, value in opened.items() if name != left_out}, sort_keys=True)
        hash, written = FIRST_HASH, b""
        for line in (first, *lines[1:]):
            hash = chain_hash(hash, line)
            written += json.dumps({"body": line, "hash": hash}).encode() + b"\n"
        files = {"ledger.jsonl": hashlib.sha256(written).hexdigest()}
        told = {**body, "files": files, "ledger": {**body["ledger"], "hash": hash}}
        certificate = sign(told, made.signing["site-0"])
        with nullcontext() if left_out is None else pytest.raises(CertificateError):
            made.verified(certificate, {"ledger.jsonl": written})


def test_a_lying_server_of_sums_gets_one_part(corrected: Callable[..., Consortium]) -> None:
    made = corrected(clients=5, noise="lattice", evaluation_settings=EVALUATION, **SUMS)
    server = LyingServer(made, rounds=8)
    server.masked(0)
    first = _reply(server.silos[0], _correct(made))
    assert first.code is Code.OK
    assert len(first.body) == 4 + made.job.correction.moments.dim * 4
    assert _reply(server.silos[0], _correct(made)).body == first.body
    assert _reply(server.silos[0], _correct(made, 1.0)).code is Code.CHANGED_POINT
    server.silos[0] = made.silo("site-0")
    assert _reply(server.silos[0], _correct(made)).body == first.body
    assert _reply(server.silos[0], made.request(1)).code is Code.SUM_REFUSED
    assert _reply(server.silos[0], _correct(made, kind="evaluate")).code is Code.NO_SUCH_ROUND
    assert _reply(server.silos[0], _correct(made, kind="evaluate", round=7)).code is Code.OK
    # An evaluation first would leave no keys for the correction: never two parts of one round.
    assert _reply(server.silos[1], _correct(made, kind="evaluate", round=7)).code is Code.OK
    assert _reply(server.silos[1], _correct(made)).code is Code.SUM_REFUSED


@pytest.mark.parametrize("halved", [False, True])
def test_the_guessing_game_on_corrections(
    corrected: Callable[..., Consortium], halved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guesses stay within the promise of the sum, and find shares of half the noise."""
    if halved:
        drawn = encodings.lattice_steps
        monkeypatch.setattr(encodings, "lattice_steps", lambda row, std, *rest: drawn(2 * row, std, *rest) // 2)
    asked = corrected(clients=5, noise="lattice", **SUMS).job.correction
    # Target and prediction beyond one end of the range, and beyond the other.
    ends = torch.tensor([[-9.0], [9.0]], dtype=torch.float64)
    guesses, rule = guessed(asked, [asked.moments.of(end, end)[0] for end in ends], trials=20_000)
    # As for evaluations: less than once in a million runs by chance.
    assert rule.finding(guesses, confidence=1 - 1e-6).violated == halved


def test_pages_and_words_say_it(corrected: Callable[..., Consortium], tmp_path: Path) -> None:
    made = corrected(noise="lattice")
    made.server().run()
    app = typer.Typer()
    app.command()(verify_verb)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, [str(made.directory / "server" / "certificate.json"), "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert "Corrected after training: predictions raised by" in " ".join(done.output.split())
    assert "How the model was corrected after training" in page.read_text()


def test_a_consortium_decides_as_a_plan_does(tmp_path: Path) -> None:
    """From the least numbers of records that silos state; where nobody states any, the recipe must say it."""
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
    written = replace(RECIPE, model="least-squares")
    (tmp_path / "recipe.toml").write_text(written.to_toml())

    def agreed(least: str) -> Job:
        text = f'name = "x"\nrecipe = "recipe.toml"\nsilos = ["a", "b", "c"]\nschema = "schema.toml"\n{least}'
        (tmp_path / "consortium.toml").write_text(text)
        return Agreement.read(tmp_path / "consortium.toml").job

    for each, share in ((20_000, 0.4), (1_000, 0.2), (50, 0.0)):
        table = Federation.from_frame(_table(3), SCHEMA)
        sized = replace(table, sizes=torch.tensor([each] * 3), features=table.features[:1].expand(3 * each, -1),
                        targets=table.targets[:1].expand(3 * each))  # fmt: skip
        assert make_plan(replace(RECIPE, noise="lattice"), federation=sized).recipe.correction == share
        job = agreed(f"min_records = {each}\n")
        assert job.recipe.correction == share
        assert (job.correction is None) == (share == 0)
        assert Job.from_text(job.text).correction == job.correction
    with pytest.raises(RequestError, match="leaves open whether the model is corrected"):
        agreed("")


def test_a_job_whose_model_cannot_be_corrected_is_refused(corrected: Callable[..., Consortium]) -> None:
    job = corrected().job
    with pytest.raises(RequestError, match="only least squares"):
        replace(job, recipe=replace(job.recipe, model="absolute-regression"))
    assert replace(job, recipe=replace(job.recipe, model="absolute-regression", correction=None)).finals == ()
    with pytest.raises(RequestError, match="one of tacit's models"):
        # Refused before the code is run, which would be refused for another reason.
        replace(job, recipe=replace(job.recipe, model="module:os:getcwd"))


def test_too_many_records_for_the_numbers_are_refused(corrected: Callable[..., Consortium]) -> None:
    made = corrected(clients=5, noise="lattice", **SUMS)
    asked: FinalRelease = made.job.correction  # type: ignore[assignment]
    asked.__dict__["encoding"] = replace(asked.encoding, ring=replace(asked.encoding.ring, step=1e-9))
    with pytest.raises(RequestError, match="set correction = 0"):
        made.silo("site-0")
