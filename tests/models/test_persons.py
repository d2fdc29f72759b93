"""Persons with several rows: one person is one record, whatever the rows are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

import tacit
from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import ClipNorm
from tacit.data.schema import Column, Predicted, Schema
from tacit.engine.plan import make_plan
from tacit.engine.private import PrivateTraining
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models.module import ModuleModel
from tacit.models.persons import PersonModel
from tacit.models.registry import build_model

COLUMNS = tuple(Column(name, "number", range=(-3, 3)) for name in "abc")
SCHEMA = Schema(Predicted("y", "binary", classes=("0", "1")), COLUMNS, client="site", person="who", rows=4)
CLASSES = Schema(
    Predicted("y", "multiclass", classes=("0", "1", "2")), COLUMNS, client="site", person="who", rows=4
)


def visits(schema: Schema, rows: int = 300, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 3)), columns=list("abc"))
    frame["who"] = rng.integers(0, 60, rows)
    frame["site"] = frame["who"] % 2
    frame["y"] = (frame["a"] > 0).astype(int) if schema is SCHEMA else rng.integers(0, 3, rows)
    return Federation.from_frame(frame, schema)


@pytest.mark.parametrize("schema", [SCHEMA, CLASSES], ids=["binary", "multiclass"])
@pytest.mark.parametrize("name", ["softmax", "network"])
def test_the_gradient_of_a_person_is_the_mean_of_its_rows(schema: Schema, name: str) -> None:
    federation = visits(schema)
    model = build_model(name, federation)
    assert isinstance(model, PersonModel)
    point = torch.randn(model.dim, generator=torch.manual_seed(0))
    batch = federation.batch()
    rows = model.gradients(point, batch).rows(0, batch.records)
    losses = model.losses(point, batch)
    for person in range(0, batch.records, 7):
        own = batch.features[person][batch.features[person, :, -1] > 0]
        alone = Batch(own[:, :-2], own[:, -2].long(), torch.tensor([len(own)]))
        torch.testing.assert_close(rows[person], model.rows.gradients(point, alone).rows(0, len(own)).mean(0))
        torch.testing.assert_close(losses[person], model.rows.losses(point, alone).mean())


def test_persons_are_counted_as_persons() -> None:
    federation = visits(SCHEMA)
    said = federation.describe()
    assert f"{federation.records} persons" in said
    assert f"{federation.inputs} features of up to {federation.feature_shape[0]} rows each" in said
    assert "record" not in said


def test_each_client_at_its_own_point() -> None:
    federation = visits(CLASSES)
    model = build_model("softmax", federation)
    points = torch.randn(2, model.dim, generator=torch.manual_seed(0))
    together = model.gradients(points, federation.batch()).weighted_sums(torch.ones(federation.records))
    for client in range(2):
        own = federation.client(client)
        alone = model.gradients(points[client], own.batch()).weighted_sums(torch.ones(own.records))
        torch.testing.assert_close(together[client], alone[0])


def test_all_rows_of_a_person_together_move_a_sum_by_no_more_than_the_bound() -> None:
    """Even if every row of a person is as bad as can be; with a bound for each row, they would move it more."""
    federation = visits(SCHEMA)
    model, bound = build_model("logistic", federation), 0.1
    assert isinstance(model, PersonModel)
    point = torch.randn(model.dim, generator=torch.manual_seed(1))
    worst = federation.features.clone()
    person = int((worst[..., -1] > 0).sum(1).argmax())
    used = worst[person, :, -1] > 0
    worst[person, used, :-2] = 1e3
    changed = replace(federation, features=worst)
    sums = [BoundedModel(model, ClipNorm(bound)).sums(point, one.batch()).sum(0) for one in (federation, changed)]
    moved = float(torch.linalg.vector_norm(sums[0] - sums[1]))
    assert 0 < moved <= 2 * bound
    by_row = model.rows.gradients(
        point, Batch(worst[person, used, :-2], worst[person, used, -2].long(), used.sum()[None])
    )
    assert float(torch.linalg.vector_norm(ClipNorm(bound).sums(by_row))) > 1.5 * bound


def test_the_promise_is_to_persons_and_its_noise_is_that_of_persons() -> None:
    federation = visits(SCHEMA)
    recipe = Recipe(algorithm="soteriafl-gd", data="custom", epsilon=4.0, delta=1e-5, rounds=5)
    made = make_plan(recipe, federation=federation)
    assert made.guarantee is not None
    sentence = made.guarantee.sentence()
    assert "if all rows of any one person at a client had been different ones" in sentence
    assert "per person" in sentence
    # Their order decides who is held back.
    assert "the names of the persons of every client" in made.guarantee.public
    z = float(made.calibration.noise_multipliers[0])
    # By a second method: five Gaussian releases in which a replaced person moves the sum by up to two bounds.
    mu = 2 * 5**0.5 / z
    spent = norm.cdf(mu / 2 - 4 / mu) - math.exp(4) * norm.cdf(-mu / 2 - 4 / mu)
    assert spent == pytest.approx(1e-5, rel=1e-2)


class Remembering(nn.Module):
    """Keeps something of one call for the next, unless it is told not to."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.keeps = keeps
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.tanh(self.inner(x))
        before, self.last = self.last, inner.detach().mean() if self.keeps else None
        said: Tensor = self.head(inner if before is None else inner - before)
        return said


def test_a_network_learns_from_persons_and_cannot_remember_them(tmp_path: Path) -> None:
    federation = visits(SCHEMA)

    def by_hand(*, keeps: bool) -> tacit.Plan:
        algorithm = tacit.soteriafl_gd(PersonModel(ModuleModel(Remembering(keeps=keeps))), step=0.1)
        return tacit.plan(algorithm, federation, rounds=2, privacy=tacit.Target(epsilon=8, delta=1e-5))

    def made(*, keeps: bool, trainable: str = "all") -> PrivateTraining:
        module = Remembering(keeps=keeps)
        return tacit.make_private(
            module, "cross-entropy", federation, epsilon=8, rounds=3, seed=0, trainable=trainable
        )

    by_hand(keeps=False)
    for plan in (by_hand, made):
        with pytest.raises(RequestError, match="after it has seen others"):
            plan(keeps=True)
    with pytest.raises(RequestError, match="persons with several rows"):
        made(keeps=False, trainable="head")

    private = made(keeps=False)
    trained, rows = private.fit(), torch.randn(5, 3, generator=torch.manual_seed(0))
    assert private.guarantee is not None
    assert "per person" in private.guarantee.sentence()
    private.run.save(tmp_path / "run")
    loaded = tacit.load_run(tmp_path / "run", model=Remembering(keeps=False))
    table = pd.DataFrame(rows.numpy(), columns=list("abc"))
    expected = trained(loaded.features(table).float()).argmax(1)
    assert loaded.predict(table).tolist() == [str(int(label)) for label in expected]
