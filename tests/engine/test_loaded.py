"""A run that can be used: loaded, asked for predictions, exported; the same answers everywhere."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import tacit
from tacit.cli.app import app
from tacit.data.schema import Column, Predicted, Schema
from tacit.engine.account import account_run
from tacit.engine.loaded import LoadedRun, load_run
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulate import simulate
from tacit.errors import DataError, RequestError
from tacit.federation import Federation

COLUMNS = (
    Column("age", "number", "years", (0, 100), (-20, 150), middle=60, missing="indicate"),
    Column("dose", "number", "mg", (0.1, 100), scale="log"),
    Column("ward", "category", categories=("1", "2", "3"), missing="indicate"),
    Column("sex", "category", categories=("f", "m")),
    Column("seen", "date", range=(18262.0, 18993.0)),
)
TARGETS = {
    "binary": Predicted("y", "binary", classes=("no", "yes")),
    "multiclass": Predicted("y", "multiclass", classes=("a", "b", "c")),
    "regression": Predicted("y", "regression", range=(100, 900), unit="EUR"),
}


def table(task: str, rows: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, rows).astype(float),
            "dose": np.exp(rng.normal(0, 1, rows)),
            "ward": rng.integers(1, 4, rows),
            "sex": rng.choice(["f", "m"], rows),
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), "D"),
            "site": rng.choice(["x", "y", "z"], rows),
        }
    )
    score = (frame["age"] - 55) / 35 + frame["sex"].eq("m") - 0.5
    frame["y"] = {
        "binary": np.where(score > 0, "yes", "no"),
        "multiclass": np.array(["a", "b", "c"])[np.digitize(score, [-0.5, 0.5])],
        "regression": (500 + 150 * score).round(),
    }[task]
    return frame


def strange() -> pd.DataFrame:
    """Rows with gaps, categories that nobody declared, and numbers far outside of their ranges."""
    rows = table("binary", 8).drop(columns=["y", "site"])
    rows.loc[0, "age"] = np.nan
    rows.loc[1, "age"] = 1e6
    rows["ward"] = rows["ward"].astype(object)
    rows.loc[2, "ward"] = "nowhere"
    rows.loc[3, "ward"] = None
    rows["sex"] = rows["sex"].astype(object)
    rows.loc[4, "sex"] = "?"
    rows.loc[5, "dose"] = -1.0
    rows.loc[7, "age"] = 140.0  # outside of its range, inside its limits
    rows.loc[6, "seen"] = pd.NaT
    return rows[["seen", "sex", "ward", "dose", "age"]]


@pytest.fixture(scope="module", params=["binary", "multiclass", "regression", "network"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    task = "multiclass" if request.param == "network" else request.param
    schema = Schema(TARGETS[task], COLUMNS, client="site", ends=2.0)
    federation = Federation.from_frame(table(task), schema)
    model = "network" if request.param == "network" else None
    recipe = Recipe(algorithm="soteriafl-gd", data="custom", epsilon=20.0, rounds=8, model=model)
    made = make_plan(recipe, federation=federation)
    return load_run(simulate(made).save(tmp_path_factory.mktemp("runs") / "run"))


def answers(run: LoadedRun, rows: pd.DataFrame) -> Any:
    return run.predict(rows) if run.classes is None else run.predict_proba(rows)


def test_predictions_have_the_targets_own_names_and_units(loaded: LoadedRun) -> None:
    found = loaded.predict(strange())
    assert len(found) == 8
    if loaded.classes is None:
        assert np.all((found > -500) & (found < 1500))
    else:
        assert set(found) <= set(loaded.classes)
        np.testing.assert_allclose(loaded.predict_proba(strange()).sum(1), 1)


def test_a_deployment_is_loaded_from_its_servers_folder(loaded: LoadedRun, tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "state").symlink_to(loaded.directory.absolute())
    assert load_run(tmp_path).card == loaded.card
    assert load_run(tmp_path / "server").card == loaded.card


def test_a_module_of_plain_torch_answers_the_same(loaded: LoadedRun) -> None:
    module = loaded.to_torch()
    rows = pd.concat([strange(), table("binary", 40)])
    values = torch.from_numpy(loaded.values(rows))
    expected = answers(loaded, rows)
    np.testing.assert_allclose(module(values).numpy(), expected, rtol=1e-6, atol=1e-9)
    # The first half of an export to ONNX: the graph of the module, with any number of rows.
    rows_of_any_number = ({0: torch.export.Dim("rows")},)
    program = torch.export.export(module, (values[:3],), dynamic_shapes=rows_of_any_number)
    np.testing.assert_allclose(program.module()(values).numpy(), expected, rtol=1e-6, atol=1e-9)


def test_a_pipeline_of_scikit_learn_answers_the_same(loaded: LoadedRun, tmp_path: Path) -> None:
    if loaded.card.model == "network":
        with pytest.raises(RequestError, match="use to_torch"):
            loaded.to_sklearn()
        return
    joblib.dump(loaded.to_sklearn(), tmp_path / "model.joblib")
    pipeline = joblib.load(tmp_path / "model.joblib")
    assert np.array_equal(pipeline.predict(strange()), loaded.predict(strange())) or loaded.classes is None
    found = pipeline.predict(strange()) if loaded.classes is None else pipeline.predict_proba(strange())
    np.testing.assert_allclose(found, answers(loaded, strange()), rtol=1e-6, atol=1e-9)


def test_onnx_answers_the_same(loaded: LoadedRun, tmp_path: Path) -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        with pytest.raises(RequestError, match=r"tacit\[onnx\]"):
            loaded.to_onnx(tmp_path / "model.onnx")
        pytest.skip(f"{missing[0]} is not installed")
    import onnxruntime

    session = onnxruntime.InferenceSession(loaded.to_onnx(tmp_path / "model.onnx"))
    found = session.run(None, {"values": loaded.values(strange())})[0]
    np.testing.assert_allclose(found, answers(loaded, strange()), rtol=1e-6, atol=1e-9)


def test_coefficients_in_own_units_give_the_same_scores(loaded: LoadedRun) -> None:
    if loaded.card.model == "network":
        with pytest.raises(RequestError, match="not linear"):
            _ = loaded.coefficients
        return
    found = loaded.coefficients
    assert (found.loc["age", "unit"], found.loc["seen", "unit"]) == ("years", "days")
    rows = table("binary", 20).drop(columns=["y", "site"])
    rows["dose"] = rows["dose"].clip(0.1, 100)
    days = (rows["seen"] - pd.Timestamp("1970-01-01")).dt.days
    own = {"age": rows["age"], "dose": np.log(rows["dose"]), "sex = m": rows["sex"].eq("m"), "seen": days}
    own |= {f"ward = {ward}": rows["ward"].eq(ward) for ward in (1, 2, 3)}
    numbers = found.drop(columns="unit")
    scores = sum(np.outer(x, numbers.loc[name]) for name, x in own.items()) + numbers.loc["intercept"].to_numpy()
    if loaded.classes is None:
        np.testing.assert_allclose(scores[:, 0], loaded.predict(rows), rtol=1e-6)
    elif scores.shape[1] == 1:
        np.testing.assert_allclose(1 / (1 + np.exp(-scores[:, 0])), loaded.predict_proba(rows)[:, 1], rtol=1e-6)
    else:
        np.testing.assert_allclose(
            np.exp(scores) / np.exp(scores).sum(1, keepdims=True), loaded.predict_proba(rows), rtol=1e-6
        )


@pytest.mark.parametrize(
    "settings",
    [
        {"trust": "sum"},
        {"algorithm": "dp-fedavg", "clients": 40, "epsilon": 20.0},
        {"epsilon": [1.0] * 5 + [4.0] * 5},
        {"privacy": "none", "epsilon": None, "delta": None},
    ],
)
def test_a_loaded_run_promises_what_the_run_did(settings: dict[str, Any], tmp_path: Path) -> None:
    """From the ledger. If the summary says something else, or there is a second source, nothing is promised."""
    recipe = Recipe(**{"data": "breast-cancer", "clients": 10, "rounds": 2, "epsilon": 4.0, **settings})
    run = simulate(make_plan(recipe))
    run.save(tmp_path / "run")
    assert load_run(tmp_path / "run").guarantee == run.guarantee
    forged = {"kind": "silo", "insecure_reproducible": True}
    for name, text in (
        ("summary.json", '{"epsilon": 0.1, "promise": "All is well."}'),
        ("certificate.json", forged),
    ):
        (tmp_path / "run" / name).write_text(text if isinstance(text, str) else json.dumps(text))
        loaded = load_run(tmp_path / "run")
        with pytest.raises(DataError, match=r"disagree|not clear"):
            assert loaded.guarantee
        assert "unclear" in repr(loaded)
        assert "All is well" not in repr(loaded)


def test_what_python_saves_can_be_audited_and_reproduced(loaded: LoadedRun) -> None:
    found = account_run(loaded.directory)
    assert found.finished
    assert found.differences == ()
    assert found.guarantee is not None
    assert loaded.guarantee == found.guarantee
    assert loaded.recipe is not None
    assert loaded.history["round"].iloc[-1] == 8
    assert (loaded.directory / "schema.toml").is_file()
    said = json.loads((loaded.directory / "summary.json").read_text())
    if loaded.classes is None:
        # In euros, and not in halves of the public range.
        assert 5 < said["test_metric"] < 400


def test_the_command_predicts(loaded: LoadedRun, tmp_path: Path) -> None:
    strange().to_csv(tmp_path / "new.csv", index=False)
    done = CliRunner().invoke(app, ["predict", str(loaded.directory), str(tmp_path / "new.csv")])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("predicted y")
    assert [line.split(",")[0] for line in lines[1:]] == [str(one) for one in loaded.predict(strange())]
    before = (tmp_path / "new.csv").read_bytes()
    itself = [str(tmp_path / "new.csv"), "--out", str(tmp_path / "." / "new.csv")]
    refused = CliRunner().invoke(app, ["predict", str(loaded.directory), *itself])
    assert "would replace the table itself" in str(refused.exception)
    assert (tmp_path / "new.csv").read_bytes() == before


def test_runs_without_a_schema(tmp_path: Path) -> None:
    federation = tacit.load("breast-cancer", clients=3, unit_norm=True)
    model = tacit.build_model("logistic", federation)
    made = tacit.plan(
        tacit.soteriafl_gd(model, bound=tacit.ClipNorm(0.5)),
        federation,
        rounds=2,
        privacy=tacit.Target(4.0, 1e-5),
    )
    run = load_run(simulate(made).save(tmp_path / "run"))
    assert federation.test_features is not None
    assert set(run.predict(federation.test_features)) <= {"malignant", "benign"}
    for value in (float("nan"), float("inf")):
        rows = federation.test_features[:3].clone()
        rows[1, 2] = value
        for answer in (run.predict, run.predict_proba):
            with pytest.raises(RequestError, match="row 1 holds a gap or an infinity"):
                answer(rows)
    assert run.recipe is None
    assert account_run(tmp_path / "run").differences == ()
    assert len(run.coefficients) == 31
    with pytest.raises(RequestError, match="has no schema"):
        run.values(strange())
    with pytest.raises(DataError, match="not the directory of a"):
        load_run(tmp_path)


def test_a_directory_from_anyone_runs_no_code(loaded: LoadedRun, tmp_path: Path) -> None:
    """Its model may be called anything, such as a command of the operating system, with settings to match."""
    place = tmp_path / "run"
    shutil.copytree(loaded.directory, place)
    card = json.loads((place / "model.json").read_text())
    command = {"command": f"touch {tmp_path / 'ran'}"}
    (place / "model.json").write_text(json.dumps({**card, "model": "module:os:system", "settings": command}))
    for given in (None, "module:my_network:make"):
        with pytest.raises(RequestError, match="module:os:system"):
            load_run(place, model=given)
    said = CliRunner().invoke(app, ["predict", str(place), str(tmp_path / "new.csv")])
    assert "only if you name it yourself" in str(said.exception)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(RequestError, match=f"'{loaded.card.model}', not 'svm'"):
        load_run(loaded.directory, model="svm")


def test_a_persons_rows_are_predicted_one_by_one(tmp_path: Path) -> None:
    rows = table("binary").assign(who=lambda frame: np.arange(len(frame)) // 3)
    schema = Schema(TARGETS["binary"], COLUMNS, client="site", person="who", rows=3)
    recipe = Recipe(algorithm="noisy-mb-sgd", data="custom", epsilon=20.0, rounds=3)
    run = simulate(make_plan(recipe, federation=Federation.from_frame(rows, replace(schema, test_share=0.5))))
    found = load_run(run.save(tmp_path / "run"))
    assert len(found.predict(strange())) == 8
    assert found.card.feature_shape == (9,)
