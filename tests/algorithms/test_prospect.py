"""What is known of directions before the first round: the noise is the one that is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tacit
from tacit.algorithms.prospect import feature_scale, has_open_steps, prospect
from tacit.algorithms.registry import ALGORITHMS
from tacit.data.schema import Column, Predicted, Schema
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.simulation import Simulation
from tacit.federation import Federation
from tacit.models import logistic_regression, softmax_regression
from tacit.server.self_tuned import Prospect
from tacit.server.update import Descent

BLANK = Federation.from_clients(
    [(torch.zeros(records, 40), [0, 1] * (records // 2)) for records in (20, 20, 30, 40)], classes=2
)
"""Records without features: gradients are zero but for the intercept's, and directions are noise."""


def _directions(recipe: Recipe, federation: Federation) -> tuple[torch.Tensor, Any]:
    """The directions of all rounds, as the server of a run sees them; and what was known of them."""
    plan = make_plan(recipe, federation=federation)
    calibration = plan.calibration
    known = prospect(
        plan.algorithm,
        plan.federation,
        calibration.noise_stds,
        float(calibration.noise_multipliers[0]),
        plan.rounds,
    )
    seen: list[torch.Tensor] = []

    class Watching(Descent):
        def step(self, state: Any, direction: torch.Tensor, round: int) -> Any:
            seen.append(direction)
            return state

    plan = plan.with_server(Watching(1.0))
    simulation = Simulation(plan, plan.randomness(), 2**20)
    state = simulation.start()
    for t in range(plan.rounds):
        state = simulation.advance(state, simulation.cohort(t))
    return torch.stack(seen), known


@pytest.mark.parametrize(
    ("algorithm", "settings", "tolerance"),
    [
        ("ldp-sgd", {}, 0.05),
        ("noisy-mb-sgd", {"sampling": "full"}, 0.05),
        ("cdp-sgd", {"compressor": "rand-k:0.25"}, 0.08),
        ("soteriafl-gd", {"compressor": "identity"}, 0.05),
        ("soteriafl-gd", {"compressor": "rand-k:0.25"}, 0.25),
        ("noisy-local-sgd", {"local_steps": 3}, 0.05),
        ("fed-spa", {"compressor": "rand-k:0.25", "local_steps": 3}, 0.08),
        ("dp-scaffold", {"local_steps": 3}, 0.05),
        ("dp-fedavg", {}, 0.05),
    ],
)
def test_the_noise_of_directions_is_what_was_said(
    algorithm: str, settings: dict[str, Any], tolerance: float
) -> None:
    recipe = Recipe(algorithm=algorithm, model="logistic", rounds=60, epsilon=3.0, algorithm_settings=settings,
                    model_settings={"intercept": False})  # fmt: skip
    directions, known = _directions(recipe, BLANK)
    # Shifts take a while to fill.
    measured = float(directions[20:].double().square().mean().sqrt())
    assert measured == pytest.approx(known.noise_std, rel=tolerance)
    assert known.dim == 40
    assert known.rounds == 60


def test_weights_of_clients_count() -> None:
    weighted = BLANK.weighted([4.0, 1.0, 1.0, 1.0])
    recipe = Recipe(
        algorithm="ldp-sgd", model="logistic", rounds=60, epsilon=3.0, model_settings={"intercept": False}
    )
    directions, known = _directions(recipe, weighted)
    assert float(directions.double().square().mean().sqrt()) == pytest.approx(known.noise_std, rel=0.05)


def test_every_algorithm_runs_without_a_step() -> None:
    """And says beforehand that it has none; a plan has all of them."""
    for name, entry in ALGORITHMS.items():
        if "step" not in entry.settings or name == "shuffled-accelerated":
            continue
        plan = make_plan(
            Recipe(
                algorithm=name,
                data="breast-cancer",
                clients=4,
                rounds=2,
                privacy=None if entry.private else "none",
                epsilon=8.0 if entry.private else None,
                delta=1e-5 if entry.private else None,
            )
        )
        assert not has_open_steps(plan.algorithm), name
        assert torch.isfinite(tacit.simulate(plan).parameters).all(), name


def test_the_scale_of_features_is_public() -> None:
    model = softmax_regression(features=64, classes=10)
    assert feature_scale(model) == pytest.approx((64 / 4 + 1) ** 0.5)
    assert feature_scale(model, feature_norm=1.0) == pytest.approx(2**0.5)
    assert feature_scale(replace(logistic_regression(features=9), intercept=False)) == pytest.approx(1.5)


def _table(records: int, target: Predicted, width: int = 1) -> Federation:
    """Two clients with a table of a few columns, and classes as targets."""
    return Federation(
        features=torch.zeros(2 * records, width),
        targets=torch.zeros(2 * records, dtype=torch.int64),
        sizes=torch.tensor([records, records]),
        ids=torch.arange(2),
        classes=len(target.classes),
        schema=Schema(target, tuple(Column(f"x{place}", "number", range=(0, 1)) for place in range(width))),
    )


def _known(records: int, target: Predicted, width: int = 1) -> Prospect:
    recipe = Recipe(algorithm="noisy-mb-sgd", data="t.csv", epsilon=4.0)
    known = make_plan(recipe, federation=_table(records, target, width)).algorithm.server.prospect  # type: ignore[attr-defined]
    assert isinstance(known, Prospect)
    return known


def test_many_classes_are_farther_away_where_noise_permits() -> None:
    """Every class has scores of its own. With much noise, the same steps as for two classes."""
    two, many = (Predicted("kind", "multiclass", classes=tuple("abcdefgh"[:k])) for k in (2, 8))
    little = _known(20_000, many)
    assert little.signal_to_noise > 300
    assert little.distance == pytest.approx(2 * _known(20_000, two).distance)
    much = _known(40, many)
    assert much.signal_to_noise < 150
    assert much.distance == pytest.approx(_known(40, two).distance)


def test_noise_hits_all_columns_of_a_wide_table() -> None:
    """With much noise, steps lead no farther than for other data; with little, as far as for a narrow table."""
    two, width = Predicted("kind", "binary", classes=("a", "b")), 63
    free = _known(20_000, two, width)
    assert free.signal_to_noise > 100
    assert free.distance == pytest.approx(30 / 2**0.5)
    much = _known(40, two, width)
    assert much.signal_to_noise < 30
    assert much.distance == pytest.approx(30 / (width / 4 + 1) ** 0.5)
    some = _known(1_000, two, width)
    assert much.signal_to_noise < some.signal_to_noise < 100
    assert some.distance == pytest.approx(free.distance * (some.signal_to_noise / 100) ** 2)


def test_only_long_steps_get_momentum() -> None:
    """Much noise leaves short steps, which momentum would only delay."""
    little, much = (Prospect(100, 100, 1.0, noise, 5.0, 30.0) for noise in (0.001, 0.2))
    assert little.momentum == 0.8
    assert much.momentum == 0.0


def test_shared_noise_shortens_local_steps() -> None:
    """A client's own noise moves scores by at most half a residual during its local steps."""
    plan = make_plan(Recipe(algorithm="dp-fed", data="breast-cancer", clients=20, epsilon=1.0, rounds=20))
    work = plan.algorithm.work
    walk = float(plan.calibration.noise_stds.mean()) * work.step_size * work.steps**0.5  # type: ignore[attr-defined]
    assert walk <= 0.51 / feature_scale(work.model)
