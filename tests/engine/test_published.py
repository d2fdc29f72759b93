"""What is published about a run follows from what clients released and from public settings alone.

The tests run the command line on two federations that differ in one record or, where whole clients are protected,
in everything about one client: its size is part of it. The releases of the first run are replayed in the second:
whatever is then different, and not named as outside of the promise, has been computed from the records, or from
their number.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tacit
from tacit.cli.app import main
from tacit.cli.show import show_summaries
from tacit.data.schema import Column, Predicted, Schema
from tacit.engine import round as rounds
from tacit.engine.history import MEASURED
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe, parse_setting
from tacit.engine.round import client_round
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import Target
from tacit.server.participation import PoissonClients
from tacit.side.noisy_total import NoisyTotal
from tacit.side.release import NoisyMeans

CLIENTS = 5
Files = dict[str, str]


def write_clients(directory: Path, *, neighbour: bool, replaced: bool = False) -> None:
    """Five files of records; the neighbour's third client has 3 instead of 10, and they are others.

    With `replaced`, that client has one other record.
    """
    directory.mkdir()
    for client in range(CLIENTS):
        other = neighbour and client == 2
        generator, records = np.random.default_rng(client + 100 * other), 3 if other else 8 + client
        rows = generator.standard_normal((records, 3))
        lines = [f"{a:.4f},{b:.4f},{c:.4f},{k % 2}" for k, (a, b, c) in enumerate(rows)]
        if replaced and client == 2:
            lines[4] = "7.5000,-1.9000,0.0000,1"
        (directory / f"{client}.csv").write_text("\n".join(["u,v,w,y", *lines]) + "\n")
    columns = tuple(Column(name, "number", range=(-2, 2)) for name in "uvw")
    for name, share in (("schema.toml", 0.0), ("tested.toml", 0.3)):
        schema = Schema(Predicted("y", "binary", classes=("0", "1")), columns, test_share=share)
        (directory / name).write_text(schema.to_toml())
    open_ranges = tuple(replace(column, range=None, within=(-50, 50)) for column in columns)
    (directory / "open.toml").write_text(replace(schema, columns=open_ranges, test_share=0.0).to_toml())


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The command line in one of the two federations; what it prints."""
    for name in ("here", "there", "near"):
        write_clients(tmp_path / name, neighbour=name == "there", replaced=name == "near")

    def call(where: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path / where)
        monkeypatch.setattr(sys, "argv", ["tacit", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        seen = capsys.readouterr()
        assert ended.value.code in (None, 0), seen.err
        return seen.out

    return call


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Keeps all releases; from the call on, they are made again in place of new ones."""
    kept: list[Any] = []
    waiting: list[Any] = []

    def again(released: Any) -> Any:
        if waiting:
            return waiting.pop(0)
        kept.append(released)
        return released

    def noted(*arguments: Any) -> Any:
        packets, after = client_round(*arguments)
        return again(packets), after

    monkeypatch.setattr(rounds, "client_round", noted)
    # What is released besides messages: learned ranges and evaluations, of each client or of all together.
    for release, name in ((NoisyMeans, "messages"), (NoisyTotal, "total")):
        make = getattr(release, name)
        monkeypatch.setattr(release, name, lambda *arguments, make=make: again(make(*arguments)))
    return lambda: waiting.extend(kept)


def published(directory: Path, printed: str) -> Files:
    """All that a run leaves, but for its checkpoints and what it names as outside of the promise."""
    summary = json.loads((directory / "summary.json").read_text())
    assert set(MEASURED) <= set(summary["not_covered"])
    for name in summary["not_covered"]:
        summary[name] = 1.0
    with (directory / "history.csv").open(newline="") as file:
        rows = [{k: v for k, v in row.items() if k not in summary["not_covered"]} for row in csv.DictReader(file)]
    return {
        "recipe.toml": (directory / "recipe.toml").read_text(),
        "ledger.jsonl": (directory / "ledger.jsonl").read_text(),
        "history.csv": json.dumps(rows),
        "summary.json": json.dumps(summary),
        "schema.toml": (directory / "schema.toml").read_text(),
        "model.json": (directory / "model.json").read_text(),
        "model.safetensors": (directory / "model.safetensors").read_bytes().hex(),
        "report.html": re.sub(
            r'(?s)<section class="not-covered">.*?</section>', "", (directory / "report.html").read_text()
        ),
        "printed": re.sub(r"(?m)^(Result|Limits|Took) [^\n]*(\n {10}[^\n]*)*$", "", printed),
    }


def settings(**changes: Any) -> list[str]:
    """A recipe on the command line."""
    recipe: dict[str, Any] = {
        "data": ",".join(f"{client}.csv" for client in range(CLIENTS)),
        "algorithm": "dp-fedavg",
        "model": "logistic",
        "rounds": 3,
        "epsilon": 4.0,
        "algorithm.step": 0.5,
        "algorithm.local_steps": 2,
        "cohort": 3,
        "data.schema": "schema.toml",
        **changes,
    }
    return [f"--set={name}={value}" for name, value in recipe.items() if value != "leave out"]


CASES: list[dict[str, Any]] = [
    {},
    {"algorithm.adversary": "server"},
    {"algorithm": "dp-normfedavg", "algorithm.sampling": "poisson", "algorithm.batch": 4},
    {"algorithm.sampling": "poisson", "algorithm.batch": 0.3},
    {
        "algorithm.sampling": "without-replacement",
        "algorithm.batch": 0.3,
        "algorithm.adversary": "server",
        "weights": "[1.0, 2.0, 1.0, 3.0, 1.0]",
    },
    {"algorithm.adversary": "server", "noise": "gaussian", "epsilon": "[1.0, 2.0, 2.0, 4.0, 4.0]"},
    # Clip norms that follow from noisy sums.
    {"algorithm.clip_quantile": 0.5},
    {"algorithm.clip_quantile": 0.5, "trust": "sum", "cohort": 5},
    # Test records that are held back from the clients: even their number says how many records a client has.
    {"algorithm.adversary": "server", "data.schema": "tested.toml"},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_a_run_tells_of_a_client_only_what_its_messages_tell(
    tmp_path: Path, call: Callable[..., str], replayed: Callable[[], None], changes: dict[str, Any]
) -> None:
    arguments = settings(**changes)
    here = published(tmp_path / "here" / "run", call("here", "run", *arguments, "--out=run"))
    accounts = [call("here", "account", "run", *form) for form in ([], ["--json"])]
    replayed()
    there = published(tmp_path / "there" / "run", call("there", "run", *arguments, "--out=run"))
    for name in here:
        assert here[name] == there[name], name
    assert accounts == [call("there", "account", "run", *form) for form in ([], ["--json"])]
    for path in tmp_path.glob("*/run/*.*"):
        assert path.name in here, f"{path.name} is published as well"


RECORDS: dict[str, Any] = {
    "algorithm": "soteriafl-svrg",
    "algorithm.sampling": "poisson",
    "algorithm.batch": 4,
    "algorithm.snapshot_probability": 0.5,
    "algorithm.step": "leave out",
    "algorithm.local_steps": "leave out",
    "cohort": "leave out",
    "data.schema": "open.toml",
    "evaluation.held_back": 0.3,
}


@pytest.mark.parametrize("changes", [{}, {"trust": "sum"}], ids=str)
def test_a_run_tells_of_a_record_only_what_its_releases_tell(
    tmp_path: Path, call: Callable[..., str], replayed: Callable[[], None], changes: dict[str, Any]
) -> None:
    arguments = settings(**RECORDS, **changes)
    here = published(tmp_path / "here" / "run", call("here", "run", *arguments, "--out=run"))
    replayed()
    near = published(tmp_path / "near" / "run", call("near", "run", *arguments, "--out=run"))
    for name in here:
        assert here[name] == near[name], name


@pytest.mark.parametrize("adversary", ["sum", "server"])
def test_plans_and_accounts_of_a_recipe_tell_nothing_of_a_client(
    tmp_path: Path, call: Callable[..., str], adversary: str
) -> None:
    own = {"algorithm.adversary": adversary, "algorithm.sampling": "poisson", "algorithm.batch": 4}
    arguments = settings(**own)
    for where in ("here", "there"):
        recipe = Recipe().with_settings(dict(parse_setting(text.removeprefix("--set=")) for text in arguments))
        (tmp_path / where / "recipe.toml").write_text(recipe.to_toml())
    algorithms = "--algorithm=dp-fedavg,dp-normfedavg"
    for command in (["account", "recipe.toml"], ["plan", "recipe.toml", algorithms]):
        for form in ([], ["--json"]):
            assert call("here", *command, *form) == call("there", *command, *form)


def test_sizes_that_are_public_are_told_and_named(tmp_path: Path, call: Callable[..., str]) -> None:
    """The comparison above has teeth: with sizes that are public, files and tables do tell the client's."""
    own = {"algorithm.public_sizes": "true", "algorithm.sampling": "poisson", "algorithm.batch": 4}
    arguments = settings(**own)
    told = {}
    for where in ("here", "there"):
        told[where] = published(tmp_path / where / "run", call(where, "run", *arguments, "--out=run"))
        assert "the number of records of every client" in " ".join(told[where]["printed"].split())
    for name in ("ledger.jsonl", "summary.json", "printed"):
        assert told["here"][name] != told["there"][name]


def test_a_run_does_not_tell_how_its_secret_coins_fell(
    tmp_path: Path, call: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs that differ in their coins alone differ in the model, and in what follows from it."""
    real, seen = PoissonClients.cohort, []
    for seed in (1, 2):

        def cohort(self: Any, clients: int, round: int, randomness: Randomness, seed: int = seed) -> Tensor:
            return real(self, clients, round, Randomness(seed))

        monkeypatch.setattr(PoissonClients, "cohort", cohort)
        printed = call("here", "run", *settings(rounds=8, cohort=2), "--out=run")
        files = published(tmp_path / "here" / "run", printed)
        accounts = [call("here", "account", "run", *form) for form in ([], ["--json"])]
        models = files.pop("model.safetensors")
        # The page has the digest of the model.
        digest = hashlib.sha256(bytes.fromhex(models)).hexdigest()
        assert digest in files["report.html"]
        files["report.html"] = files["report.html"].replace(digest, "")
        seen.append((files, accounts, models))
        shutil.rmtree(tmp_path / "here" / "run")
    (first, first_accounts, model), (second, second_accounts, other_model) = seen
    assert first == second
    assert first_accounts == second_accounts
    assert model != other_model


@pytest.fixture
def neighbours() -> tuple[Federation, Federation]:
    """Three clients; the last has 8 records, or 90."""

    def clients(sizes: list[int]) -> Federation:
        records = [(np.full((size, 40), 0.1 * k), np.arange(size) % 2) for k, size in enumerate(sizes)]
        return Federation.from_clients(records, classes=2)

    return clients([6, 7, 8]), clients([6, 7, 90])


def messages(federation: Federation, weights: Any, **own: Any) -> Tensor:
    """The first message of every client, noise and all, to a server that sees it."""
    recipe = Recipe(
        algorithm="dp-fedavg",
        model="logistic",
        rounds=1,
        epsilon=4.0,
        weights=weights,
        algorithm_settings={"adversary": "server", "step": 0.1, **own},
    )
    plan = make_plan(recipe, federation=federation)
    seen: list[Tensor] = []

    def noted(*arguments: Any) -> Any:
        packets, state = client_round(*arguments)
        seen.append(packets.dense())
        return packets, state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "client_round", noted)
        tacit.simulate(plan)
    return torch.cat(seen)


@pytest.mark.parametrize("weights", [None, "equal", [1.0, 2.0, 3.0]])
def test_the_messages_of_the_others_do_not_tell_a_clients_size(
    neighbours: tuple[Federation, Federation], weights: Any
) -> None:
    here, there = (messages(one, weights=weights) for one in neighbours)
    torch.testing.assert_close(here[:2], there[:2])


def test_weights_by_records_are_refused_unless_sizes_are_public(
    neighbours: tuple[Federation, Federation],
) -> None:
    """They scale every message, noise included, by the mean number of records: 40 coordinates tell it."""
    with pytest.raises(RequestError, match="public_sizes = true"):
        messages(neighbours[0], weights="records")
    here, there = (messages(one, weights="records", public_sizes=True) for one in neighbours)
    ratio = here[:2].norm() / there[:2].norm()
    assert float(ratio) == pytest.approx((6 + 7 + 90) / (6 + 7 + 8), rel=1e-4)


def test_weights_by_records_are_refused_however_they_got_there(neighbours: tuple[Federation, Federation]) -> None:
    recipe = Recipe(
        algorithm="dp-fedavg", model="logistic", rounds=1, algorithm_settings={"adversary": "server", "step": 0.1}
    )
    for federation in neighbours:
        plan = make_plan(recipe, federation=federation)
        with pytest.raises(RequestError, match="public_sizes"):
            tacit.simulate(
                tacit.plan(plan.algorithm, federation.weighted("records"), rounds=1, privacy=Target(4.0, 1e-5))
            )
        again = federation.weighted("records").weighted("equal")
        tacit.simulate(tacit.plan(plan.algorithm, again, rounds=1, privacy=Target(4.0, 1e-5)))


def test_one_pass_is_refused_whatever_the_sizes_are(neighbours: tuple[Federation, Federation]) -> None:
    own = {"adversary": "server", "step": 0.1, "local_steps": 1, "sampling": "one-pass", "batch": 2.0}
    recipe = Recipe(algorithm="dp-fedavg", model="logistic", rounds=2, algorithm_settings=own)
    for federation in neighbours:
        with pytest.raises(RequestError, match="protects whether a client has them"):
            make_plan(recipe, federation=federation)
        make_plan(recipe.with_algorithm_settings(public_sizes=True), federation=federation)


def test_record_level_algorithms_have_public_sizes_anyway() -> None:
    with pytest.raises(RequestError, match="takes no public_sizes"):
        make_plan(
            Recipe(
                algorithm="noisy-mb-sgd",
                data="breast-cancer",
                rounds=1,
                algorithm_settings={"step": 0.1, "public_sizes": True},
            )
        )


def test_tables_show_what_a_summary_says(capsys: pytest.CaptureFixture[str], neighbours: Any) -> None:
    plan = make_plan(
        Recipe(algorithm="dp-fedavg", model="logistic", rounds=1, algorithm_settings={"step": 0.1}),
        federation=neighbours[0],
    )
    run = tacit.simulate(plan)
    summary = run.summary()
    assert summary["records"] is summary["records_per_client"] is summary["sampling_rate"] is None
    assert summary["gradient_evaluations"] is None
    assert plan.recipe is not None
    show_summaries([summary], plan.recipe, "here")
    printed = capsys.readouterr().out
    assert "3 clients\n" in printed
    assert "(41 parameters)" in printed
