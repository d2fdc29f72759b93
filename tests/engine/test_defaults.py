"""Whoever names data and epsilon gets a good model; and no choice looks at a record."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tacit
from tacit.data.schema import Column, Predicted, Schema
from tacit.engine.outlook import outlook
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.records import load_federation
from tacit.errors import RequestError
from tacit.privacy import Target, calibrate_noise
from tacit.privacy.events import gaussian, repeated

EVERYWHERE = ("soteriafl-gd", "soteriafl-sgd", "soteriafl-svrg", "noisy-mb-sgd", "accelerated-mb-sgd", "fed-spa")


def test_choices_do_not_look_at_records() -> None:
    """Other records of the same number and shape get the same recipe and the same steps."""
    recipe = Recipe(algorithm="soteriafl-svrg", data="digits", clients=5, epsilon=2.0)
    federation = load_federation(recipe, None)
    other = replace(
        federation, features=torch.rand_like(federation.features) * 50, targets=federation.targets.flip(0) * 0
    )
    one, two = (make_plan(recipe, federation=records) for records in (federation, other))
    assert one.recipe == two.recipe
    assert one.algorithm.server == two.algorithm.server


@pytest.mark.parametrize("algorithm", EVERYWHERE)
def test_a_table_and_an_epsilon_are_enough(algorithm: str) -> None:
    """Breast cancer, ten clients, epsilon 4: the best of a grid of noisy gradient descent has 0.97."""
    recipe = Recipe(algorithm=algorithm, data="breast-cancer", clients=10, epsilon=4.0)
    metric = tacit.simulate(make_plan(recipe), evaluate_every=100).last.test_metric
    assert metric is not None
    assert metric > 0.88


def test_the_demonstration_is_useful() -> None:
    metric = tacit.simulate(make_plan(Recipe())).last.test_metric
    assert metric is not None
    assert metric > 0.82


def test_the_batch_is_the_cheapest_whose_noise_is_next_to_the_least() -> None:
    plan = make_plan(Recipe(algorithm="ldp-sgd", data="digits", clients=5, epsilon=4.0))
    settings = plan.recipe.algorithm_settings  # type: ignore[union-attr]
    assert 0 < settings["batch"] < 1
    least = calibrate_noise(
        lambda z: repeated(gaussian(z), plan.rounds),
        epsilon=4.0,
        delta=1e-5,
        adjacency=Target(4.0, 1e-5).adjacency,
    )
    records = int(plan.federation.sizes.min())
    std = float(plan.calibration.noise_stds[plan.federation.sizes.argmin()])
    assert std <= 1.03 * least * settings["clip_norm"] / records


def test_rounds_are_many_where_a_batch_is_cheap() -> None:
    """A round of all records would take 10^8 multiplications here, and one of a batch a fraction of it."""
    recipe = Recipe(
        algorithm="ldp-sgd",
        data="digits",
        clients=5,
        epsilon=4.0,
        model="network",
        model_settings={"hidden": 1000},
    )
    assert make_plan(recipe).rounds == 300
    assert make_plan(recipe.with_algorithm_settings(sampling="full")).rounds == 100


def test_a_compressor_is_chosen_where_noise_leaves_room() -> None:
    few, many = (
        make_plan(Recipe(algorithm="soteriafl-gd", data="digits", clients=clients, epsilon=epsilon))
        for clients, epsilon in ((10, 1.0), (2, 5000.0))
    )
    assert few.recipe.algorithm_settings["compressor"] == "identity"  # type: ignore[union-attr]
    assert many.recipe.algorithm_settings["compressor"] != "identity"  # type: ignore[union-attr]


@pytest.mark.parametrize("privacy", ["none", "record"])
def test_short_messages_are_never_compressed(privacy: str) -> None:
    """31 numbers. Of 5% of them, a run without noise made steps that its messages did not bear."""
    made = make_plan(Recipe(algorithm="soteriafl-svrg", data="breast-cancer", clients=5, privacy=privacy))
    assert made.recipe is not None
    assert made.recipe.algorithm_settings["compressor"] == "identity"


def test_a_run_without_privacy_is_not_behind_private_ones_for_its_compressor() -> None:
    """5% of the numbers of batches: .894 on digits, where epsilon 30 had .928."""
    recipe = Recipe(algorithm="soteriafl-sgd", data="digits", clients=10, privacy="none")
    usual, whole = (
        tacit.simulate(make_plan(each), evaluate_every=300).last.test_metric
        for each in (recipe, recipe.with_algorithm_settings(compressor="identity"))
    )
    assert usual > whole - 0.01  # type: ignore[operator]


def test_local_steps_are_sparse_only_where_messages_are_long() -> None:
    compressors = [
        make_plan(Recipe(algorithm="fed-spa", data=data, clients=5)).recipe.algorithm_settings["compressor"]  # type: ignore[union-attr]
        for data in ("breast-cancer", "digits")
    ]
    assert compressors == ["rand-k:1.0", "rand-k:0.3"]


def test_large_clients_count_more_where_sizes_are_public() -> None:
    recipe = Recipe(algorithm="ldp-sgd", data="digits", clients=10, partition="dirichlet:0.5", epsilon=4.0)
    assert make_plan(recipe).recipe.weights == "noise-aware"  # type: ignore[union-attr]
    assert make_plan(replace(recipe, weights="equal")).recipe.weights == "equal"  # type: ignore[union-attr]
    assert make_plan(replace(recipe, partition="iid")).recipe.weights is None  # type: ignore[union-attr]
    whole = make_plan(replace(recipe, algorithm="dp-fedavg"))
    assert whole.federation.weights is None
    coins = make_plan(replace(recipe, algorithm="cpsgd", rounds=2))
    assert coins.federation.weights is None
    tacit.simulate(coins)
    metrics = {
        weights: tacit.simulate(make_plan(replace(recipe, weights=weights)), evaluate_every=100).last.test_metric
        for weights in (None, "equal")
    }
    assert metrics[None] > metrics["equal"]  # type: ignore[operator]


def test_what_is_said_is_kept() -> None:
    said = {"step": 0.5, "clip_norm": 2.0, "sampling": "without-replacement", "batch": 7.0}
    plan = make_plan(
        Recipe(algorithm="ldp-sgd", data="breast-cancer", clients=5, rounds=3, algorithm_settings=said)
    )
    assert plan.recipe is not None
    assert plan.recipe.algorithm_settings.items() >= said.items()
    assert plan.rounds == 3


def test_theory_chooses_if_it_is_asked() -> None:
    recipe = Recipe(algorithm="soteriafl-sgd", data="breast-cancer", clients=5, feature_norm=1.0, rounds=20)
    chosen = make_plan(replace(recipe, settings_from="theory")).recipe
    assert chosen is not None
    assert "step" in chosen.algorithm_settings
    with pytest.raises(RequestError, match="settings_from"):
        replace(recipe, settings_from="luck")


def test_public_norms_of_features_shorten_steps() -> None:
    recipe = Recipe(algorithm="ldp-sgd", data="breast-cancer", clients=5)
    small, large = (make_plan(replace(recipe, feature_norm=norm)).algorithm.server for norm in (1.0, 10.0))
    assert small.prospect.distance > 5 * large.prospect.distance  # type: ignore[attr-defined]


def test_a_regression_needs_no_bound_on_its_targets() -> None:
    """Targets of about 20,000, of which the defaults know nothing: better than their mean, in any unit."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2000, 4, generator=generator) / 2
    targets = 20_000 + 8000 * features[:, 0] + 500 * torch.randn(2000, generator=generator)
    parts = [(features[i : i + 300], targets[i : i + 300]) for i in range(0, 1500, 300)]
    federation = tacit.Federation.from_clients(parts, test=(features[1500:], targets[1500:]))
    plan = make_plan(Recipe(algorithm="noisy-mb-sgd", epsilon=8.0), federation=federation)
    error = tacit.simulate(plan, evaluate_every=plan.rounds).last.test_metric
    assert error is not None
    assert error < 0.5 * float(targets[1500:].std())


def test_the_bound_for_the_classes_of_a_table_grows_where_there_is_little_noise() -> None:
    """A small bound makes a model of overlapping classes far too sure; a larger one needs more noise."""
    schema = Schema(Predicted("ill", "binary", classes=("no", "yes")), (Column("x", "number", range=(0, 1)),))
    bounds = []
    for records in (10, 20_000):
        federation = tacit.Federation(
            features=torch.zeros(2 * records, 1),
            targets=torch.zeros(2 * records, dtype=torch.int64),
            sizes=torch.tensor([records, records]),
            ids=torch.arange(2),
            classes=2,
            schema=schema,
        )
        plan = make_plan(Recipe(algorithm="noisy-mb-sgd", data="ill.csv", epsilon=4.0), federation=federation)
        bounds.append(plan.recipe.algorithm_settings["clip_norm"])  # type: ignore[union-attr]
    assert bounds[1] == pytest.approx(4 * bounds[0])


def test_a_target_bound_beside_a_schema_is_refused() -> None:
    """The range of its target says it, and a bound of one's own would do nothing."""
    cost = Schema(Predicted("cost", "regression", range=(0, 600)), (Column("x", "number", range=(0, 1)),))
    zeros = torch.zeros(40)
    federation = tacit.Federation(zeros[:, None], zeros, torch.tensor([40]), torch.arange(1), schema=cost)
    with pytest.raises(RequestError, match="change the range of"):
        make_plan(Recipe(data="cost.csv", epsilon=4.0, target_bound=300.0), federation=federation)


@pytest.mark.parametrize("table", [False, True], ids=["arrays", "table"])
@pytest.mark.parametrize("algorithm", ["noisy-mb-sgd", "noisy-local-sgd"])
def test_the_bound_of_a_regression_follows_the_noise_and_its_steps_the_targets(
    algorithm: str, table: bool
) -> None:
    """A short clip norm needs less noise, and must not make the steps too short to reach the targets."""
    cost = Schema(Predicted("cost", "regression", range=(0, 600)), (Column("x", "number", range=(0, 1)),))
    known = {"data": "cost.csv"} if table else {"target_bound": 300.0}
    recipe = Recipe(algorithm=algorithm, epsilon=4.0, **known)  # type: ignore[arg-type]
    clip_norms, distances, ratios = [], [], []
    for records in (20, 150, 20_000):
        zeros = torch.zeros(2 * records)
        federation = tacit.Federation(
            zeros[:, None],
            zeros,
            torch.tensor([records, records]),
            torch.arange(2),
            schema=cost if table else None,
        )
        plan = make_plan(recipe, federation=federation)
        clip_norms.append(plan.recipe.algorithm_settings["clip_norm"])  # type: ignore[union-attr]
        distances.append(plan.algorithm.server.prospect.distance)  # type: ignore[attr-defined]
        ratios.append(outlook(plan).signal_to_noise)  # type: ignore[union-attr]
    assert ratios[0] < 10 < ratios[1] < 110 < ratios[2]
    assert clip_norms[0] == pytest.approx(clip_norms[2] / 12.5)
    assert clip_norms[1] == pytest.approx(10 * clip_norms[0] * ratios[1] / 100, rel=0.05)
    assert distances == pytest.approx([distances[0]] * 3)


@pytest.mark.parametrize("model", ["least-squares", "absolute-regression"])
def test_a_loose_bound_on_targets_costs_little(model: str) -> None:
    """With a clip norm that only the bound decides, errors are about 1 deviation, and far more if absolute."""
    draw = torch.Generator().manual_seed(0)
    features = torch.rand(1200, 40, generator=draw)
    targets = 20 * (features @ torch.randn(40, generator=draw)) + 10 * torch.randn(1200, generator=draw)
    parts = [(features[i : i + 200], targets[i : i + 200]) for i in range(0, 1000, 200)]
    federation = tacit.Federation.from_clients(parts, test=(features[1000:], targets[1000:]))
    recipe = Recipe(
        algorithm="noisy-mb-sgd",
        model=model,
        epsilon=8.0,
        target_bound=1000.0,
        data_settings={"features": "given"},
    )
    plan = make_plan(recipe, federation=federation)
    error = tacit.simulate(plan, evaluate_every=plan.rounds).last.test_metric
    assert error is not None
    assert error < 0.8 * float(targets[1000:].std())


@pytest.mark.parametrize("trust", [None, "sum"])
def test_a_table_whose_batches_are_all_records_has_a_bound(trust: str | None) -> None:
    """With add-remove the least noise may take all records, and the bound follows from the noise."""
    schema = Schema(Predicted("cost", "count", range=(0, 9), middle=0), (Column("x", "number", range=(0, 1)),))
    sizes = torch.tensor([1600] * 3)
    records = tacit.Federation(torch.zeros(4800, 1), torch.zeros(4800), sizes, torch.arange(3), schema=schema)
    recipe = Recipe(data="cost.csv", epsilon=4.0, adjacency="add-remove", trust=trust, rounds=30)
    plan = make_plan(recipe, federation=records)
    assert plan.recipe is not None
    assert plan.recipe.algorithm_settings["sampling"] == "full"
    assert plan.guarantee is not None
    assert 3.9 < plan.guarantee.epsilon <= 4.0


def test_old_snapshots_do_not_lead_astray() -> None:
    """Where steps are long, gradients differ too much from an old snapshot's for the bound on differences."""
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(24_000, 18, generator=draw) + 2 * torch.randn(24_000, 1, generator=draw)
    targets = features @ torch.linspace(-1, 1, 18)
    parts = [(features[i : i + 6400], targets[i : i + 6400]) for i in range(0, 19_200, 6400)]
    federation = tacit.Federation.from_clients(parts, test=(features[19_200:], targets[19_200:]))
    plan = make_plan(Recipe(epsilon=8.0, target_bound=3.0), federation=federation)
    error = tacit.simulate(plan, evaluate_every=plan.rounds).last.test_metric
    assert error is not None
    assert error < 0.2 * float(targets[19_200:].std())  # with a snapshot every tenth round: 19 times it


def test_bound_and_steps_for_a_long_tail_grow_as_noise_shrinks() -> None:
    """Clipping a long tail pulls predictions to its other end; a larger bound needs more noise."""
    schema = Schema(Predicted("visits", "count", range=(0, 10), middle=0), (Column("x", "number", range=(0, 1)),))
    recipe = Recipe(algorithm="noisy-mb-sgd", data="visits.csv", epsilon=4.0)
    bounds, distances, ratios = [], [], []
    for records in (30, 600, 20_000):
        for target in (schema.target, Predicted("v", "count", range=(0, 10))):
            federation = tacit.Federation(
                features=torch.zeros(2 * records, 1),
                targets=torch.zeros(2 * records),
                sizes=torch.tensor([records, records]),
                ids=torch.arange(2),
                schema=replace(schema, target=target),
            )
            plan = make_plan(recipe, federation=federation)
            bounds.append(plan.recipe.algorithm_settings["clip_norm"])  # type: ignore[union-attr]
            distances.append(plan.algorithm.server.prospect.distance)  # type: ignore[attr-defined]
        ratios.append(outlook(plan).signal_to_noise)  # type: ignore[union-attr]
    assert ratios[0] < 40 < 150 < ratios[1] < 500 < 2000 < ratios[2]
    farther = [1 + 3 * ratios[0] / 150, 4, 13]
    assert [far / near for far, near in zip(distances[::2], distances[1::2], strict=True)] == pytest.approx(
        farther
    )
    # A bound for no tail is up to 1.25 times as wide as its gradients; that of a long tail has room already.
    wider = [farther[0], 4 / 1.25, 13 / 1.25]
    assert [wide / one for wide, one in zip(bounds[::2], bounds[1::2], strict=True)] == pytest.approx(
        wider, rel=0.05
    )
