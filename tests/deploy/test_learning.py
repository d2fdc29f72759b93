"""Ranges that a consortium learns before the first round: charged, written before they leave, answered once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from benchmarks.in_process import InProcessBackend
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import tacit
from tacit.data.schema import Column, Predicted, Schema
from tacit.deploy.consortium import Consortium
from tacit.deploy.flare.local import party_command, write_tables
from tacit.deploy.frames import Reply, Request, point_to_bytes
from tacit.deploy.guard import admit
from tacit.deploy.identities import Identities
from tacit.deploy.job import Job
from tacit.deploy.parts import Part
from tacit.deploy.policy import Policy
from tacit.deploy.records import open_tables, own_records
from tacit.deploy.seam import Code
from tacit.deploy.server import LostRunError, Server
from tacit.deploy.signatures import CertificateError
from tacit.deploy.silo import Silo
from tacit.deploy.silo_checks import Trusted
from tacit.deploy.verification import verify
from tacit.engine.recipe import Recipe
from tacit.errors import DataError, RequestError
from tacit.privacy import events
from tacit.privacy.accountant import accounting
from tacit.report.dossier import dossier
from tacit.report.run_page import Repeat
from tacit.side.ranges import STEPS, range_sums

SCHEMA = Schema(
    Predicted("ill", "binary", classes=("no", "yes")),
    (
        Column("dose", "number", "mg", within=(0, 10_000), missing="indicate"),
        Column("age", "number", "years", (0, 120)),
    ),
    test_share=0.0,
)
RECIPE = Recipe(algorithm="soteriafl-gd", data="t.csv", epsilon=4.0, delta=1e-5, rounds=2)
SITES = ("lyon", "porto", "turin")
RUN = "0123456789abcdef" * 2


def table(seed: int, rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({"dose": rng.normal(200, 20, rows), "age": rng.integers(20, 90, rows)})
    found["ill"] = np.where(found["dose"] > 200, "yes", "no")
    found.loc[rng.random(rows) < 0.1, "dose"] = np.nan
    return found


@dataclass
class Party:
    """A consortium whose silos hold tables."""

    job: Job
    directory: Path
    signing: dict[str, Ed25519PrivateKey]
    policies: dict[str, Policy]
    left: dict[str, list[bytes]] = field(default_factory=dict)

    def silo(self, site: str, at: Callable[[str], None] = lambda moment: None) -> Silo:
        path = self.directory / f"{site}.csv"
        if not path.exists():
            table(SITES.index(site)).to_csv(path, index=False)
        terms = admit(self.job, self.policies[site], site, own_records(str(path), self.job))
        return Silo(terms, self.directory / site, key=self.signing[site], at=at)

    def server(self, **settings: Any) -> Server:
        backend = InProcessBackend({site: lambda at, site=site: self.silo(site, at) for site in SITES})
        options = {"quorum": 3, "deadline_seconds": 0.05, "signer": self.signing["server"], **settings}
        return Server(self.job, options.pop("backend", backend), self.directory / "server", **options)

    def lines(self, site: str) -> list[dict[str, Any]]:
        exported = self.silo(site).ledger.export().decode().splitlines()
        return [json.loads(json.loads(line)["body"]) for line in exported]

    def step(self, means: bytes = b"", **others: Any) -> bytes:
        return replace(Request("range", RUN, 0, self.job.digest, {}, means), **others).encode()


@pytest.fixture
def make(disk: Path) -> Callable[..., Party]:
    def made(schema: Schema = SCHEMA, policy: dict[str, Any] | None = None, **settings: Any) -> Party:
        settings = {"noise": "gaussian", **settings}
        (disk / "schema.toml").write_text(schema.to_toml())
        (disk / "recipe.toml").write_text(RECIPE.with_settings(settings).to_toml())
        asked = {"name": "c", "recipe": "recipe.toml", "schema": "schema.toml", "silos": list(SITES)}
        (disk / "c.toml").write_text(tomli_w.dumps({**asked, "min_records": 300}))
        job = Consortium.read(disk / "c.toml").job
        job = replace(job, recipe=replace(job.recipe, noise=settings["noise"]))
        signing = {party: Ed25519PrivateKey.generate() for party in ("server", *SITES)}
        known = Identities.of(signing["server"], {site: signing[site] for site in SITES})
        job = replace(job, identities=known)
        trial = {"insecure_reproducible": job.insecure, **(policy or {})}
        policies = {site: Policy.for_job(job, site, **trial) for site in SITES}
        return Party(job, disk, signing, policies)

    return made


def test_a_run_learns_charges_and_certifies(make: Callable[..., Party]) -> None:
    """The same ranges as in a simulation with the same seed; the charge is in every promise."""
    party = make(**{"evaluation.held_back": 0.2})
    finished = party.server().run()
    kinds = [line["kind"] for line in party.lines("porto")]
    assert kinds == ["open", *["range"] * STEPS, "ranges", "release", "release", "evaluate"]
    opened = party.lines("porto")[0]
    ranges = party.job.ranges
    assert ranges is not None
    assert events.to_dict(ranges.event) in opened["event"]["events"]
    assert accounting.epsilon(ranges.event, 1e-5) == pytest.approx(0.8, rel=1e-2)
    assert accounting.epsilon(events.from_dict(opened["event"]), 1e-5) <= 4.0

    files = {name: (party.directory / "server" / name).read_bytes() for name in ("schema.toml", "model.json")}
    checked = verify(finished.certificate, files, Trusted(job=party.job.text.encode()))
    assert "the learned ranges follow from the sums that silos signed" in checked.checked
    assert "schema.toml is the schema of the job, with the learned ranges" in checked.checked
    stated = checked.body["silos"]["porto"]
    assert stated["ranges"] == {"columns": ["dose"], "noise_multiplier": ranges.noise_multiplier}
    low, high = stated["learned"]["ranges"]["dose"]
    assert 120 < low < 170
    assert 230 < high < 280
    told = {"identified": True, "keys_checked_against": "job", "not_checked": [], "held_against_others": []}
    told |= {"checked": checked.checked, "only_stated": checked.only_stated, "certificate": checked.body}
    page = dossier(told, Repeat("tacit verify", {}, {}, ""), own_job=True)
    assert "Ranges that were learned" in page
    assert "<td>dose</td>" in page
    assert f"porto {STEPS}" in page

    both = pd.concat([table(n).assign(site=site) for n, site in enumerate(SITES)])
    both.to_csv(party.directory / "all.csv", index=False)
    (party.directory / "s.toml").write_text(replace(SCHEMA, client="site").to_toml())
    data = {"schema": str(party.directory / "s.toml")}
    simulated = tacit.make_plan(replace(RECIPE, data=str(party.directory / "all.csv"), data_settings=data))
    assert simulated.federation.schema is not None
    assert simulated.federation.schema.columns[0].range == (low, high)
    loaded = tacit.load_run(party.directory / "server")
    assert loaded.predict(table(7)).shape == (400,)
    # Every silo can use the model, too, and check what it means.
    (place,) = (party.directory / "porto" / "certificates").iterdir()
    mine = tacit.load_run(place)
    assert mine.card == loaded.card
    assert mine.guarantee is None  # a trial, whose noise follows from a seed
    assert np.array_equal(mine.predict_proba(table(7)), loaded.predict_proba(table(7)))
    files = {name: (place / name).read_bytes() for name in ("schema.toml", "model.json", "ledger.jsonl")}
    content = (place / "certificate.json").read_bytes()
    checked = verify(content, files, Trusted(job=party.job.text.encode()))
    assert "schema.toml is the schema of the job, with the learned ranges" in checked.checked
    files["model.json"] = files["model.json"].replace(b'"yes"', b'"YES"')
    with pytest.raises(CertificateError, match=r"model\.json does not describe the model of its job"):
        verify(content, files, Trusted(job=party.job.text.encode()))


def test_a_regression_with_learned_ranges_is_corrected_and_evaluated(make: Callable[..., Party]) -> None:
    """All that a silo releases is in its ledger in order, and charged together before the first of it."""
    ages = Schema(
        Predicted("age", "regression", range=(0, 120), middle=60),
        (SCHEMA.columns[0], Column("ill", "category", categories=("no", "yes"))),
        test_share=0.0,
    )
    party = make(ages, **{"correction": 0.3, "evaluation.held_back": 0.2, "evaluation.loss_bound": 1.0})
    finished = party.server().run()
    lines = party.lines("porto")
    released = ["release", "release", "correct", "evaluate"]
    assert [line["kind"] for line in lines] == ["open", *["range"] * STEPS, "ranges", *released]
    job = party.job
    assert job.ranges is not None
    assert job.correction is not None
    assert job.evaluation is not None
    parts = [events.to_dict(one.event(one.noise_multiplier)) for one in job.finals]
    assert all(part in lines[0]["event"]["events"] for part in [*parts, events.to_dict(job.ranges.event)])
    assert 3.9 < accounting.epsilon(events.from_dict(lines[0]["event"]), 1e-5) <= 4.0
    model = (party.directory / "server" / "model.safetensors").read_bytes()
    trusted = Trusted(job=job.text.encode())
    checked = verify(finished.certificate, {"model.safetensors": model}, trusted)
    assert "the learned ranges follow from the sums that silos signed" in checked.checked
    assert "model.safetensors is the trained model with that correction" in checked.checked
    assert "the evaluation is about model.safetensors" in checked.checked
    # The sums are over records as the learned ranges prepare them.
    both = pd.concat([table(n).assign(site=site) for n, site in enumerate(SITES)])
    both.to_csv(party.directory / "all.csv", index=False)
    (party.directory / "s.toml").write_text(replace(ages, client="site").to_toml())
    asked = {
        "data": str(party.directory / "all.csv"),
        "data_settings": {"schema": str(party.directory / "s.toml")},
    }
    plan = tacit.make_plan(replace(job.recipe, clients=None, **asked))
    run = tacit.simulate(plan, memory_limit_bytes=1)
    assert torch.equal(run.parameters, finished.parameters)


def test_a_step_is_answered_once_and_none_after_training_began(make: Callable[..., Party]) -> None:
    party = make(noise="lattice")
    silo, ranges = party.silo("lyon"), party.job.ranges
    assert ranges is not None

    def asked(request: bytes, party_silo: Silo = silo) -> Reply:
        return Reply.decode(party_silo.step(request), body_limit=10_000)

    first = asked(party.step())
    assert first.code is Code.OK
    assert Part.from_bytes(first.body, ranges.dim, masked=False).records == 400
    # The same bytes again, after a restart, too: a second draw would cost twice.
    assert asked(party.step()).body == first.body == asked(party.step(), party.silo("lyon")).body
    row = np.full(2, 0.4).tobytes()
    second = asked(party.step(row))
    assert asked(party.step(np.full(2, 0.3).tobytes())).code is Code.CHANGED_POINT
    assert asked(party.step()).code is Code.PAST_ROUND
    assert asked(party.step(row * STEPS)).code is Code.NO_SUCH_ROUND
    assert asked(party.step(row[:-1])).code is Code.BAD_POINT
    assert asked(party.step(np.full(2, np.nan).tobytes())).code is Code.BAD_POINT
    assert asked(party.step(job="0" * 64)).code is Code.OTHER_JOB
    assert [line["kind"] for line in party.lines("lyon")] == ["open", "range", "range"]
    assert party.lines("lyon")[2]["sums"] == list(Part.from_bytes(second.body, ranges.dim, masked=False).sums)

    model = point_to_bytes(party.job.start())
    train = Request("round", RUN, 0, party.job.digest, {}, model)
    assert asked(train.encode()).code is Code.BAD_POINT, "without ranges there are no records"
    assert asked(replace(train, learned=row).encode()).code is Code.BAD_POINT
    assert asked(replace(train, learned=row * STEPS).encode()).code is Code.OK
    assert asked(party.step(row * 5)).code is Code.PAST_ROUND, "no step after a message"
    changed = replace(train, learned=np.full(2, 0.1).tobytes() * STEPS, round=1)
    assert asked(changed.encode()).code is Code.CHANGED_POINT, "a run keeps its ranges"
    assert asked(replace(train, learned=row * STEPS, round=1).encode(), party.silo("lyon")).code is Code.OK


def test_what_a_silo_sends_has_the_noise_that_is_charged(make: Callable[..., Party]) -> None:
    party = make(noise="lattice")
    ranges, own = party.job.ranges, party.silo("lyon").terms.table
    assert ranges is not None
    assert own is not None
    search, step = ranges.search(b"")
    exact = range_sums(search, own.numbers, torch.tensor([len(own.numbers)]))[0]
    drawn = torch.tensor([ranges.measure(own.numbers, search, step, 0) for _ in range(600)]) - exact
    assert len({tuple(row) for row in drawn.tolist()}) == 600, "noise of the operating system"
    # 1,200 draws: a relative deviation of 2%, of which this is five.
    bound = math.sqrt(len(ranges.limits) / 2)
    assert float(drawn.std()) == pytest.approx(ranges.noise_multiplier * bound, rel=0.1)


def test_whatever_is_searched_the_records_never_refuse(make: Callable[..., Party]) -> None:
    """A server that finds ranges where nobody lies learns nothing from it: no refusal depends on a record."""
    party = make(noise="lattice")
    train = Request("round", RUN, 0, party.job.digest, {}, point_to_bytes(party.job.start()))
    up, down = -0.6, 0.6
    nowhere = np.array([[0.5, 0.5], *[[up, up]] * 4, *[[down, up]] * (STEPS - 5)]).tobytes()
    reply = Reply.decode(party.silo("turin").step(replace(train, learned=nowhere).encode()), body_limit=10_000)
    assert reply.code is Code.OK
    low, high = party.lines("turin")[1]["ranges"]["dose"]
    assert 9000 < low < high <= 10_000


class DiedError(Exception):
    pass


@pytest.mark.parametrize("moment", ["before range", "after range"])
def test_a_silo_that_dies_sends_the_same_or_nothing(make: Callable[..., Party], moment: str) -> None:
    party = make(noise="lattice")

    def die(now: str) -> None:
        if now == moment:
            raise DiedError

    halves = party.silo("lyon", die)
    assert Reply.decode(halves.step(party.step()), body_limit=0).code is Code.FAILED
    written = party.lines("lyon")
    assert [line["kind"] for line in written] == ([] if moment == "before range" else ["open", "range"])
    ranges = party.job.ranges
    assert ranges is not None
    again = Reply.decode(party.silo("lyon").step(party.step()), body_limit=10_000)
    assert again.code is Code.OK
    sums = list(Part.from_bytes(again.body, ranges.dim, masked=False).sums)
    assert party.lines("lyon")[1]["sums"] == sums
    if written:
        assert written[1]["sums"] == sums


def test_a_server_that_dies_goes_on_where_it_was(
    make: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    party = make(noise="lattice")
    from tacit.deploy import searching

    write, written = searching.write_atomically, []

    def dies(path: Path, content: bytes, **others: Any) -> None:
        write(path, content, **others)
        written.append(path)
        if len(written) == 5:
            raise DiedError

    monkeypatch.setattr(searching, "write_atomically", dies)
    with pytest.raises(DiedError):
        party.server().run()
    monkeypatch.undo()
    saved = party.directory / "server" / "checkpoints"
    saved.rename(party.directory / "elsewhere")
    with pytest.raises(LostRunError, match="no checkpoint is left"):
        party.server().run()  # silos have been charged: nobody starts another run by accident
    (party.directory / "elsewhere").rename(saved)
    finished = party.server().run()
    assert finished.answered == dict.fromkeys(SITES, 2)
    assert [line["kind"] for line in party.lines("turin")].count("range") == STEPS


def test_a_silo_that_missed_the_search_still_trains(make: Callable[..., Party]) -> None:
    party = make(noise="lattice")

    class Late:
        def step(self, request: bytes) -> bytes:
            if Request.decode(request).kind == "range":
                return Reply(Code.BUSY, "turin").encode()
            return party.silo("turin").step(request)

    parties: dict[str, Any] = {site: lambda at, site=site: party.silo(site, at) for site in ("lyon", "porto")}
    backend = InProcessBackend({**parties, "turin": lambda at: Late()})
    finished = party.server(backend=backend, quorum=2).run()
    assert finished.answered["turin"] == 2
    checked = verify(finished.certificate, trusted=Trusted(job=party.job.text.encode()))
    assert "the learned ranges follow from the sums that silos signed" in checked.checked
    assert [line["kind"] for line in party.lines("turin")] == ["open", "ranges", "release", "release"]


def test_a_silo_that_took_no_part_gets_weights_that_it_cannot_misread(make: Callable[..., Party]) -> None:
    """It does not know the ranges, so nothing says what the model's numbers mean."""
    party = make()
    model = party.job.algorithm.work.model
    asked = Request("certify", RUN, 2, party.job.digest, {}, point_to_bytes(torch.zeros(model.dim)))
    assert Reply.decode(party.silo("porto").step(asked.encode()), body_limit=2**20).code is Code.OK
    (place,) = (party.directory / "porto" / "certificates").iterdir()
    assert (place / "model.safetensors").is_file()
    assert not (place / "model.json").exists()
    with pytest.raises(DataError, match="not the directory of a finished run"):
        tacit.load_run(place)


def test_the_policy_decides_and_what_has_no_proof_is_refused(make: Callable[..., Party], disk: Path) -> None:
    with pytest.raises(RequestError, match="allows ranges_epsilon = 0"):
        make(policy={"ranges_epsilon": 0.0}).silo("lyon")
    # The policy's limits are at its own delta and adjacency, whatever the job's are.
    weaker = {"adjacency": "add-remove", "evaluation.held_back": 0.2}
    stricter = {"adjacency": "replace-one", "epsilon": 12.0, "evaluation_epsilon": 2.0, "ranges_epsilon": 2.0}
    assert make(policy=stricter, **weaker).silo("lyon").terms.epsilon > 4
    for part in ("evaluation", "ranges"):
        with pytest.raises(RequestError, match=rf"epsilon = 1\.\d+ alone; the policy allows {part}_epsilon = 1"):
            make(policy={**stricter, f"{part}_epsilon": 1.0}, **weaker).silo("lyon")
    with pytest.raises(RequestError, match="with trust = 'sum' or a shuffler it cannot be learned"):
        make(trust="sum")
    with pytest.raises(RequestError, match="accounted per record"):
        make(**{"algorithm": "dp-fedavg", "algorithm.adversary": "server"})
    with pytest.raises(RequestError, match="'dose' has an open range"):
        make(**{"evaluation.group": "dose", "evaluation.group_edges": [100.0]})
    party = make()
    np.savez(disk / "own.npz", X=np.zeros((400, 3)), y=np.zeros(400, dtype=int))
    records = own_records(str(disk / "own.npz"), party.job, prepared=True)
    with pytest.raises(RequestError, match="give the table, not prepared records"):
        admit(party.job, party.policies["lyon"], "lyon", records)


def test_certificates_that_hide_or_invent_ranges_are_found(make: Callable[..., Party]) -> None:
    party = make(noise="lattice")
    finished = party.server().run()
    whole = json.loads(finished.certificate)
    from tacit.deploy.signatures import sign

    def forged(change: Callable[[dict[str, Any]], None]) -> bytes:
        body = json.loads(json.dumps(whole["silos"]["lyon"]))
        for name in ("format", "public_key", "signature"):
            body.pop(name)
        change(body)
        return sign(body, party.signing["lyon"])

    trusted = Trusted(job=party.job.text.encode())
    verify(forged(lambda body: None), trusted=trusted)
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "does not state the ranges": lambda body: body.pop("learned"),
        "within their limits": lambda body: body["learned"]["ranges"].update(dose=[-5.0, 4.0]),
        "not those that the job leaves open": lambda body: body["learned"]["ranges"].update(age=[1.0, 4.0]),
        "ranges does not follow": lambda body: body["ranges"].update(noise_multiplier=1.0),
        "events.run is not": lambda body: body["events"]["run"]["events"].pop(),
    }
    for message, change in changes.items():
        with pytest.raises(CertificateError, match=message):
            verify(forged(change), trusted=trusted)


def test_a_trial_on_one_machine_gives_every_silo_its_table(disk: Path) -> None:
    both = pd.concat([table(n, 60).assign(site=site) for n, site in enumerate(SITES)])
    both.sample(frac=1.0, random_state=0).to_csv(disk / "all.csv", index=False)
    (disk / "s.toml").write_text(replace(SCHEMA, client="site").to_toml())
    asked = replace(RECIPE, data=str(disk / "all.csv"), data_settings={"schema": str(disk / "s.toml")})
    whole = (disk / "all.csv").read_text()
    (disk / "all.csv").write_text("\n".join(f"{line},note,note" for line in whole.splitlines()) + "\n")
    with pytest.raises(DataError, match="first line seems to be a record"):
        open_tables(asked)
    (disk / "all.csv").write_text(whole.replace("\n", ",a,b\n").replace(",a,b\n", ",note,note\n", 1))
    tables = open_tables(asked)
    assert tables is not None, "columns of one name are no matter where the schema uses neither"
    for site in SITES:
        (disk / site).mkdir()
    shards = write_tables(tables, {site: disk / site for site in SITES})
    assert pd.read_csv(shards["porto"])["site"].unique().tolist() == ["porto"]
    assert shards["porto"].stat().st_mode & 0o077 == 0
    assert tables.wide.sizes.tolist() == [60] * 3
    assert "--prepared" not in party_command(disk / "porto", shards["porto"])
    (disk / "s.toml").write_text(SCHEMA.to_toml())
    with pytest.raises(RequestError, match="every silo needs a table of its own"):
        open_tables(asked)
    assert open_tables(RECIPE) is None


def test_a_server_that_invents_ranges_is_not_vouched_for(
    make: Callable[..., Party], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks no promise, and whoever verifies sees that the ranges are not those of the search."""
    party = make(noise="lattice")
    means = np.full(2, 0.4).tobytes() * STEPS
    monkeypatch.setattr("tacit.deploy.server.learn_ranges", lambda *_: means)
    checked = verify(party.server().run().certificate, trusted=Trusted(job=party.job.text.encode()))
    assert not any("follow from the sums" in one for one in checked.checked)
    assert any("follow from the sums" in one for one in checked.not_checked)
