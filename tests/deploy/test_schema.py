"""A consortium agrees on a schema: a silo whose table does not fit takes no part, and nobody learns a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

from tacit.cli.app import app
from tacit.data.schema import Column, Predicted, Schema
from tacit.data.schema.records import TableSource, federate
from tacit.deploy.consortium import Consortium
from tacit.deploy.frames import Reply, Request
from tacit.deploy.guard import admit
from tacit.deploy.home import LEDGER
from tacit.deploy.job import Job
from tacit.deploy.policy import Policy
from tacit.deploy.provision import provision
from tacit.deploy.records import own_records
from tacit.deploy.refusing import Refusing
from tacit.deploy.seam import Code
from tacit.deploy.spending import spending_in
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import DataError, RequestError

SCHEMA = Schema(
    Predicted("ill", "binary", classes=("no", "yes")),
    (
        Column("age", "number", "years", (0, 100)),
        Column("height", "number", "cm", (50, 250)),
        Column("ward", "category", categories=("a", "b", "c")),
    ),
    client="hospital",
)
RECIPE = Recipe(algorithm="soteriafl-gd", data="heart.csv", epsilon=4.0, delta=1e-5, rounds=3)


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 90, rows),
            "height": rng.normal(170, 10, rows).round(),
            "ward": rng.choice(list("abc"), rows),
            "ill": rng.choice(["no", "yes"], rows),
        }
    )


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
    (tmp_path / "recipe.toml").write_text(RECIPE.to_toml())
    settings = {"name": "heart", "recipe": "recipe.toml", "schema": "schema.toml", "silos": ["lyon", "porto"]}
    (tmp_path / "heart.toml").write_text(tomli_w.dumps({**settings, "min_records": 40}))
    return Consortium.read(tmp_path / "heart.toml").job


LEAST = {"lyon": 40, "porto": 200, "nice": 60}


@pytest.mark.parametrize("weights", [None, "records"])
def test_silos_of_stated_sizes_weigh_as_much_as_their_records(tmp_path: Path, weights: str | None) -> None:
    """As in a simulation of silos of these sizes, which is what the default noise of sums is for."""
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
    recipe = replace(RECIPE, trust="sum", quorum=3, colluding=0, weights=weights)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    settings = {"name": "heart", "recipe": "recipe.toml", "schema": "schema.toml", "silos": [*LEAST]}
    (tmp_path / "heart.toml").write_text(tomli_w.dumps({**settings, "min_records": LEAST}))
    job = Consortium.read(tmp_path / "heart.toml").job
    assert job.recipe.weights == pytest.approx([0.4, 2.0, 0.6])
    assert job.least_records("porto") == 200
    (tmp_path / "heart.toml").write_text(tomli_w.dumps({**settings, "min_records": 40.0}))
    if weights is None:
        assert Consortium.read(tmp_path / "heart.toml").job.blank().sizes.tolist() == [40] * 3
    else:
        with pytest.raises(RequestError, match="a number for each site, or min_records for each"):
            Consortium.read(tmp_path / "heart.toml")


@pytest.mark.parametrize("weights", [None, "noise-aware"])
def test_small_silos_whose_messages_are_seen_weigh_less_than_their_records(
    tmp_path: Path, weights: str | None
) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA.to_toml())
    (tmp_path / "recipe.toml").write_text(replace(RECIPE, weights=weights).to_toml())
    settings = {"name": "heart", "recipe": "recipe.toml", "schema": "schema.toml", "silos": [*LEAST]}
    (tmp_path / "heart.toml").write_text(tomli_w.dumps({**settings, "min_records": LEAST}))
    found = Consortium.read(tmp_path / "heart.toml").job.recipe.weights
    assert isinstance(found, list)
    assert sum(found) == pytest.approx(3)
    assert found[0] < found[2] < 0.5
    assert found[1] > 2.3


def test_a_rule_for_weights_becomes_numbers_without_a_schema(tmp_path: Path) -> None:
    recipe = replace(RECIPE, data="arrays", weights="noise-aware", model="logistic", rounds=3)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    settings = {"name": "heart", "recipe": "recipe.toml", "feature_shape": [5], "classes": 2, "silos": [*LEAST]}
    (tmp_path / "heart.toml").write_text(tomli_w.dumps({**settings, "min_records": LEAST}))
    found = Consortium.read(tmp_path / "heart.toml").job.recipe.weights
    assert isinstance(found, list)
    assert found[0] < found[2] < 0.5


def brought(frame: pd.DataFrame, job: Job, tmp_path: Path) -> Any:
    frame.to_csv(tmp_path / "own.csv", index=False)
    return own_records(str(tmp_path / "own.csv"), job)


def test_the_job_holds_the_schema_and_its_digest_covers_it(job: Job) -> None:
    assert job.schema == SCHEMA
    assert (job.feature_shape, job.classes) == ((5,), 2)
    assert Job.from_text(job.text) == job
    other = replace(job, schema=replace(SCHEMA, target=replace(SCHEMA.target, classes=("yes", "no"))))
    assert other.digest != job.digest
    assert "looked_at" not in job.text


def test_open_settings_follow_from_the_schema_and_the_least_number_of_records(job: Job) -> None:
    assert job.recipe.model == "logistic"
    assert 0 < job.recipe.algorithm_settings["clip_norm"] < 1


def test_a_fitting_table_in_any_order_of_columns_takes_part(job: Job, tmp_path: Path) -> None:
    records = brought(table()[["ill", "ward", "height", "age"]], job, tmp_path)
    assert torch.equal(records.features, brought(table(), job, tmp_path).features)
    terms = admit(job, Policy.for_job(job, "porto"), "porto", records)
    assert terms.epsilon <= 4.0
    assert terms.records == 48, "a fifth of the records is held back"


MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"ill": "sick"}, "target 'ill' holds 'sick'"),
    ({"ward": "d"}, "column 'ward' holds 'd'"),
    ({"age": "old"}, "column 'age' must hold numbers"),
    ({"age": None}, "column 'age' has a gap"),
    ({"height": 1.7}, "column 'height': most values lie outside its public range, 50 to 250 cm"),
]


@pytest.mark.parametrize(("columns", "message"), MISFITS, ids=[next(iter(one)) for one, _ in MISFITS])
def test_a_table_that_does_not_fit_is_refused_with_the_columns_name(
    job: Job, tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        brought(table().assign(**columns), job, tmp_path)


def test_another_columns_name_is_refused(job: Job, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no column 'height'"):
        brought(table().rename(columns={"height": "size"}), job, tmp_path)
    with pytest.raises(RequestError, match="leave it out"):
        own_records(str(tmp_path / "own.csv"), job, target="ward")


def test_the_server_learns_a_code_and_no_value() -> None:
    request = Request("round", "0" * 32, 2, "0" * 64, {}, b"\0" * 24)
    reply = Refusing("lyon", Code.OTHER_SCHEMA).step(request.encode())
    read = Reply.decode(reply, body_limit=0)
    assert (read.code, read.site, read.round, read.body, read.releases) == (Code.OTHER_SCHEMA, "lyon", 2, b"", 0)
    assert Reply.decode(Refusing("lyon", Code.OTHER_SCHEMA).step(b"?"), body_limit=0).code is Code.MALFORMED


def test_the_others_go_on_without_a_silo_that_does_not_fit(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=2)
    real = made.backend()
    refusing = Refusing("site-1", Code.OTHER_SCHEMA)
    parties = {site: lambda at, site=site: made.silo(site, at) for site in ("site-0", "site-2")}
    backend = type(real)({**parties, "site-1": lambda at: refusing})
    told: list[str] = []
    finished = made.server(backend, quorum=2, notify=told.append).run()
    assert finished.answered == {"site-0": 2, "site-2": 2}
    assert finished.problems == {"site-1 other-schema": 2}
    assert any("does not fit the job's schema" in text for text in told)
    assert not (made.directory / "site-1").exists(), "nothing was written, so nothing was spent"


def test_an_unconfirmed_schema_is_not_provisioned(tmp_path: Path, job: Job) -> None:
    (tmp_path / "schema.toml").write_text(replace(SCHEMA, looked_at=("age.range",)).to_toml())
    with pytest.raises(RequestError, match=r"age \(range\)"):
        Consortium.read(tmp_path / "heart.toml")


def test_a_plan_of_a_table_becomes_a_job_that_its_silos_admit() -> None:
    """With persons of several rows: the silo, too, promises it to persons."""
    both = pd.concat([table(200, seed).assign(hospital=name) for seed, name in enumerate(["x", "y"])])
    both["who"] = np.arange(len(both)) // 3
    federation = federate([TableSource(both, "t")], replace(SCHEMA, person="who", rows=3))
    recipe = replace(RECIPE, noise="lattice", data_settings={"schema": "schema.toml"})
    made = make_plan(recipe, federation=federation)
    job = Job.from_plan(made, ["x", "y"])
    assert "schema.toml" not in job.text
    terms = admit(job, Policy.for_job(job, "y"), "y", replace(federation.client(1), schema=None, peeks=()))
    assert terms.noise_multiplier == pytest.approx(float(made.calibration.noise_multipliers[1]))
    assert any("all rows of one person" in one for one in terms.public)


def test_a_silo_with_another_unit_is_refused_before_any_release(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heights in inches lie within the range in centimetres; only what is typical tells them apart."""
    tall = replace(SCHEMA.columns[1], typical=(150.0, 190.0))
    agreed = replace(job, schema=replace(SCHEMA, columns=(SCHEMA.columns[0], tall, SCHEMA.columns[2])))
    assert Job.from_text(agreed.text).schema == agreed.schema, "silos read it in the job"
    folder = provision(Consortium("heart", agreed), tmp_path / "parties")["porto"]
    inches = table().assign(height=lambda own: (own["height"] / 2.54).round())
    table().to_csv(tmp_path / "cm.csv", index=False)
    inches.to_csv(tmp_path / "inches.csv", index=False)
    assert brought(inches, job, tmp_path).records == 48, "without it, the range lets them pass"

    answered: list[Any] = []
    monkeypatch.setattr("tacit.deploy.flare.parties.run_silo", lambda party, records, say: answered.append("ran"))
    monkeypatch.setattr(
        "tacit.deploy.flare.parties._answer_until_stopped", lambda party, who, say: answered.append(who)
    )
    told = CliRunner().invoke(app, ["silo", str(folder), "--data", str(tmp_path / "inches.csv")])
    assert answered == [Refusing("porto", Code.OTHER_SCHEMA)]
    assert "column 'height'" in " ".join(told.output.split())
    assert "150 to 190 cm is typical" in told.output
    assert not (folder / "state" / LEDGER).exists(), "no ledger was opened, so nothing is spent"
    assert spending_in(folder).runs == ()
    request = Request("round", "0" * 32, 0, agreed.digest, {}, b"")
    sent = Reply.decode(answered[0].step(request.encode()), body_limit=0)
    assert (sent.code, sent.body, sent.releases, sent.epsilon) == (Code.OTHER_SCHEMA, b"", 0, 0.0)

    checked = CliRunner().invoke(app, ["silo", str(folder), "--data", str(tmp_path / "inches.csv"), "--check"])
    assert checked.exit_code != 0
    fits = CliRunner().invoke(app, ["silo", str(folder), "--data", str(tmp_path / "cm.csv"), "--check"])
    assert "fits the job" in " ".join(fits.output.split())
    assert not (folder / "state" / LEDGER).exists()
