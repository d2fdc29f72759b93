"""Private evaluation: bounded contributions, the right numbers, bars that hold, and a cost that is recomputed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, rankdata
from sklearn.metrics import roc_auc_score
from torch import Tensor

from tacit.data.schema.records import bundled
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models import logistic_regression, softmax_regression
from tacit.models.linear import absolute_regression, least_squares
from tacit.models.persons import PersonModel
from tacit.privacy import Adjacency, Target
from tacit.side.estimates import Estimate, auc_estimate, difference, mean_estimate
from tacit.side.evaluation import Quality, evaluation_release, exact_evaluation, private_evaluation, read_sums
from tacit.side.scoring import Groups, Scoring, TargetUnit

GROUPS = Groups(3, (0.5,), ("young", "old"))
POINT = torch.tensor([1.2, 1.1, 0.1, -0.5, -0.2])


def consortium(seed: int, sizes: tuple[int, ...] = (400, 150, 80)) -> Federation:
    """Silos whose labels follow a logistic model; feature 3 says who is old."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(sum(sizes), 4))
    features[:, 3] = draw.random(sum(sizes)) < 0.3
    chance = 1 / (1 + np.exp(-(1.5 * features[:, 0] + features[:, 1] - 0.7 * features[:, 3] - 0.4)))
    owners = np.repeat(np.arange(len(sizes)), sizes)
    labels = (draw.random(sum(sizes)) < chance).astype(np.int64)
    return Federation.from_arrays(features.astype(np.float32), labels, owners.tolist(), classes=2)


class Anything:
    """A model that answers what hypothesis wants."""

    def __init__(self, losses: list[list[float]], predicted: list[int]) -> None:
        self._losses, self._predicted = torch.tensor(losses, dtype=torch.float64), torch.tensor(predicted)

    def losses(self, point: Tensor, batch: Batch) -> Tensor:
        return self._losses[torch.arange(batch.records), batch.targets]

    def predict(self, point: Tensor, features: Tensor) -> Tensor:
        return self._predicted


NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@given(
    losses=st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=2, max_size=2),
    labels=st.lists(st.integers(0, 1), min_size=2, max_size=2),
    predicted=st.lists(st.integers(0, 2), min_size=2, max_size=2),
    features=st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
    classes=st.sampled_from([None, 2, 3]),
    grouped=st.booleans(),
)
def test_no_record_moves_a_sum_by_more_than_its_bound(
    losses: list[list[float]],
    labels: list[int],
    predicted: list[int],
    features: list[float],
    classes: int | None,
    grouped: bool,
) -> None:
    """Whatever the model returns: left out, a record moves the sum by at most `bound`; replaced, by twice."""
    groups = Groups(0, (-1.0, 0.5), ("a", "b", "c")) if grouped else None
    scoring = Scoring(classes, 2.0, groups=groups)
    model: Any = Anything(losses, predicted)
    batch = Batch(torch.tensor(features)[:, None], torch.tensor(labels), torch.tensor([2]))
    vectors = scoring.vectors(model, torch.zeros(1), batch)
    assert vectors.shape == (2, scoring.dim)
    assert bool((vectors.norm(dim=1) <= scoring.bound + 1e-12).all())
    assert float((vectors[0] - vectors[1]).norm()) <= 2 * scoring.bound + 1e-12


def test_the_bound_is_reached() -> None:
    """A tight bound wastes no noise: a record that is right, with p = y and no loss, has nearly this norm."""
    model: Any = Anything([[0.0, 1e9]], [0])
    batch = Batch(torch.zeros(1, 1), torch.tensor([1]), torch.tensor([1]))
    scoring = Scoring(2, 2.0)
    assert float(scoring.vectors(model, torch.zeros(1), batch).norm()) == pytest.approx(scoring.bound)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_cost_is_that_of_the_gaussian_mechanism(adjacency: Adjacency) -> None:
    """The delta of Balle and Wang (2018), theorem 8, for the largest move: 2 bounds replaced, 1 left out."""
    target = Target(1.5, 1e-5, adjacency)
    scoring = Scoring(2, 4.0, groups=GROUPS)
    made = private_evaluation(
        logistic_regression(features=4), POINT, consortium(0), scoring, name="t", target=target, seed=1
    )
    shift = (2 if adjacency is Adjacency.REPLACE_ONE else 1) / made.noise_multiplier
    epsilon = made.guarantee.epsilon
    delta = norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
    assert epsilon <= 1.5
    assert delta == pytest.approx(1e-5, rel=0.02)
    assert made.noise_std == pytest.approx(made.noise_multiplier * scoring.bound * math.sqrt(3) / 630)


def test_messages_have_the_noise_that_is_charged() -> None:
    """The same sums under many names: every number of every client varies by the stated standard deviation."""
    silos, scoring, target = consortium(0), Scoring(2, 4.0, groups=GROUPS), Target(1.0, 1e-5)
    zeros = torch.zeros(3, scoring.dim, dtype=torch.float64)
    made = [evaluation_release(scoring, silos, str(k), target, 0) for k in range(60)]
    drawn = torch.stack([release.messages(zeros) for release in made])
    std = made[0].noise_multiplier * scoring.bound
    assert float(drawn.std()) == pytest.approx(std, rel=0.03)
    assert float(drawn.std(0).min()) > 0.6 * std
    assert abs(float(torch.corrcoef(drawn.flatten(1)[:, :2].T)[0, 1])) < 0.5


def test_without_noise_the_numbers_are_those_of_scikit_learn() -> None:
    silos, model = consortium(3), logistic_regression(features=4)
    scoring = Scoring(2, 1.0, groups=GROUPS)
    told = exact_evaluation(model, POINT, silos, scoring)
    chance = torch.sigmoid(silos.features.double() @ POINT[:4].double() + POINT[4]).numpy()
    labels = silos.targets.numpy()
    right = (chance > 0.5) == labels
    old = silos.features[:, 3].numpy() > 0.5
    pooled = told.pooled.estimates
    assert pooled["accuracy"].value == pytest.approx(right.mean())
    assert pooled["calibration"].value == pytest.approx((chance - labels).mean(), abs=1e-6)
    losses = np.minimum(-np.log(np.where(labels == 1, chance, 1 - chance)), 1.0)
    assert pooled["loss"].value == pytest.approx(losses.mean(), abs=1e-6)
    area = roc_auc_score(labels, chance)
    assert area == pytest.approx(_exact(silos, None))
    assert pooled["auc"].value == pytest.approx(area, abs=0.02)
    assert told.pooled.groups["old"]["accuracy"].value == pytest.approx(right[old].mean())
    gap = told.pooled.groups["old"]["accuracy_gap"].value
    assert gap == pytest.approx(right[old].mean() - right[~old].mean())
    first = told.clients["0"].estimates["accuracy"].value
    assert first == pytest.approx(right[:400].mean())
    low, high, share = told.pooled.reliability[0]
    inside = (chance >= low) & (chance < high)
    assert share.value == pytest.approx(labels[inside].mean())


def three_classes(seed: int, records: int = 900) -> tuple[Federation, Tensor, float]:
    """Silos with labels of a softmax model, the model's point, and the exact macro AUC, one against the rest."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(records, 2)).astype(np.float32)
    weights = np.array([[1.5, -1.0, 0.0], [0.0, 1.2, -1.0]])
    scores = features @ weights
    labels = (scores + draw.gumbel(size=scores.shape)).argmax(1)
    silos = Federation.from_arrays(features, labels, [0, 1, 2] * (records // 3), classes=3)
    point = torch.from_numpy(np.concatenate([weights.ravel(), np.zeros(3)])).float()
    model = softmax_regression(features=2, classes=3)
    every = Batch(silos.features, silos.targets, torch.tensor([records]))
    chances = torch.softmax(model.scores(point, every), 1).double().numpy()
    chances /= chances.sum(1, keepdims=True)
    return silos, point, float(roc_auc_score(silos.targets.numpy(), chances, multi_class="ovr"))


def test_several_classes_have_the_mean_auc_of_one_against_the_rest() -> None:
    model, scoring = softmax_regression(features=2, classes=3), Scoring(3, 4.0)
    silos, point, exact = three_classes(0)
    found = exact_evaluation(model, point, silos, scoring).pooled.estimates
    assert set(found) == {"accuracy", "calibration", "loss", "auc"}
    assert found["auc"].value == pytest.approx(exact, abs=0.01)
    assert Scoring(21, 4.0).ranked == 0


def test_several_classes_have_the_calibration_of_confidence() -> None:
    silos = Federation.from_arrays(np.eye(3, dtype=np.float32), [0, 1, 2], [0, 0, 0], classes=3)
    model = softmax_regression(features=3, classes=3, intercept=False)
    told = exact_evaluation(model, torch.eye(3).flatten() * 5, silos, Scoring(3, 4.0)).pooled.estimates
    assert told["accuracy"].value == 1.0
    confidence = math.exp(5) / (math.exp(5) + 2)
    assert told["calibration"].value == pytest.approx(confidence - 1, abs=1e-6)


@pytest.mark.slow
def test_bars_of_the_mean_auc_cover_it_in_95_of_100_consortia() -> None:
    model, scoring, target = softmax_regression(features=2, classes=3), Scoring(3, 4.0), Target(2.0, 1e-5)
    hits, widths = [], []
    for seed in range(200):
        silos, point, exact = three_classes(seed, 1200)
        found = private_evaluation(model, point, silos, scoring, name="t", target=target, seed=seed).value
        bar = found.pooled.estimates["auc"]
        hits.append(bar.low <= exact <= bar.high)
        widths.append(bar.high - bar.low)
    assert np.mean(hits) >= 0.95
    assert np.mean(widths) < 0.35


def test_a_person_counts_once_whatever_the_number_of_rows() -> None:
    """The vector of a person is the mean of those of the rows, and no longer than that of one row may be."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(6, 4)) * 100
    labels, persons = np.array([0, 1, 1, 0, 1, 1]), np.array(["a", "b", "b", "b", "c", "b"])
    features = torch.from_numpy(bundled(rows, labels, persons, most=4))
    batch = Batch(features, torch.tensor([0, 1, 1]), torch.tensor([3]))
    model, scoring = logistic_regression(features=4), Scoring(2, 4.0, groups=GROUPS)
    found = scoring.vectors(PersonModel(model), POINT, batch)
    single = Batch(torch.from_numpy(rows).float(), torch.from_numpy(labels), torch.tensor([6]))
    alone = scoring.vectors(model, POINT, single)
    assert torch.allclose(found[1], alone[persons == "b"].mean(0))
    assert torch.allclose(found[0], alone[0])
    assert bool((found.norm(dim=1) <= scoring.bound + 1e-12).all())


def test_a_regression_has_a_loss_alone() -> None:
    silos = Federation.from_arrays(np.ones((4, 1), dtype=np.float32), [0.0, 1.0, 2.0, 9.0], [0, 0, 1, 1])
    told = exact_evaluation(least_squares(features=1), torch.zeros(2), silos, Scoring(None, 2.0)).pooled.estimates
    assert set(told) == {"loss"}
    assert told["loss"].value == pytest.approx((0 + 0.5 + 2 + 2) / 4)


@pytest.mark.parametrize(("squared", "inside", "outside"), [(True, 5 * 2**0.5, 30.0), (False, 5.0, 30.0)])
def test_the_error_of_a_regression_is_told_in_the_unit_of_its_target(
    squared: bool, inside: float, outside: float
) -> None:
    """Four records of two groups with errors of 0, 10, 30 and 90, where 30 is the most that counts."""
    features = np.array([[0], [0], [1], [1]], dtype=np.float32)
    silos = Federation.from_arrays(features, [0.0, 1.0, 3.0, 9.0], [0, 0, 1, 1])
    model = least_squares(features=1) if squared else absolute_regression(features=1)
    unit = TargetUnit(10.0, squared, "days")
    scoring = Scoring(None, 4.5 if squared else 3.0, groups=Groups(0, (0.5,), ("young", "old")), unit=unit)
    told = exact_evaluation(model, torch.zeros(2), silos, scoring).pooled
    mean = ((0 + 100 + 900 + 900) / 4) ** 0.5 if squared else (0 + 10 + 30 + 30) / 4
    assert told.estimates["error"].value == pytest.approx(mean)
    assert told.groups["young"]["error"].value == pytest.approx(inside)
    assert told.groups["young"]["error_gap"].value == pytest.approx(inside - outside)
    assert told.estimates["error"].low < mean < told.estimates["error"].high
    assert "days; errors above 30 count as 30" in scoring.told["error_is"]


def test_the_unit_of_a_target_changes_no_release() -> None:
    """It only says how a release is read: noise is drawn by the name of what is asked."""
    plain, target = Scoring(None, 0.125), Target(1.0, 1e-5)
    scaled = replace(plain, unit=TargetUnit(20.0, True))
    silos = Federation.from_arrays(np.ones((4, 1), dtype=np.float32), [0.0, 0.5, 0.2, 0.9], [0, 0, 1, 1])
    model = least_squares(features=1)
    found = [
        private_evaluation(
            model, torch.zeros(2), silos, s, name="t", target=target, seed=0
        ).value.pooled.estimates
        for s in (plain, scaled)
    ]
    assert found[0]["loss"] == found[1]["loss"]
    assert set(found[1]) - set(found[0]) == {"error"}


def test_bars_of_a_regressions_error_cover_it_in_95_of_100_consortia() -> None:
    """Five clients of 60 to 140 records, with the noise of epsilon 1, 200 times."""
    unit = TargetUnit(20.0, True)
    scoring, draw = Scoring(None, 0.125, unit=unit), np.random.default_rng(3)
    sizes, hits, known = np.array([60, 80, 100, 120, 140]), 0, 0.25
    expected = np.minimum(np.random.default_rng(4).normal(0, known, 10**6) ** 2 / 2, 0.125).mean()
    for _ in range(200):
        losses = np.minimum(draw.normal(0, known, sizes.sum()) ** 2 / 2, 0.125)
        noise_std = 4.0 * scoring.bound * len(sizes) ** 0.5
        total = (losses / 0.125 - 0.5).sum() + draw.normal(0, noise_std)
        bar = read_sums(scoring, np.array([total]), int(sizes.sum()), noise_std).estimates["error"]
        hits += bar.low <= 20 * (2 * expected) ** 0.5 <= bar.high
    assert hits >= 190


def _exact(silos: Federation, owner: int | None) -> float:
    scores = (silos.features.double() @ POINT[:4].double()).numpy()
    rows = slice(None) if owner is None else slice(*silos.offsets[owner : owner + 2].tolist())
    ranks, ones = rankdata(scores[rows]), silos.targets.numpy()[rows] == 1
    wins = ranks[ones].sum() - ones.sum() * (ones.sum() + 1) / 2
    return float(wins / ones.sum() / (~ones).sum())


def _hits(noisy: Quality, exact: Quality, area: float) -> dict[str, bool]:
    pairs = {name: (one, exact.estimates[name].value) for name, one in noisy.estimates.items()}
    pairs["auc"] = noisy.estimates["auc"], area
    for group, own in noisy.groups.items():
        pairs |= {f"{group} {name}": (one, exact.groups[group][name].value) for name, one in own.items()}
    return {name: v is not None and one.low - 1e-9 <= v <= one.high + 1e-9 for name, (one, v) in pairs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_bars_cover_the_exact_value_in_95_of_100_consortia(epsilon: float) -> None:
    """Of 200 consortia at least 190: for every quantity, over all and at every silo, AUC without bins."""
    model, scoring = logistic_regression(features=4), Scoring(2, 4.0, groups=GROUPS)
    covered: dict[str, list[bool]] = {}
    target = Target(epsilon, 1e-5)
    for seed in range(200):
        silos = consortium(seed)
        noisy = private_evaluation(model, POINT, silos, scoring, name="t", target=target, seed=seed).value
        exact = exact_evaluation(model, POINT, silos, scoring)
        for name, hit in _hits(noisy.pooled, exact.pooled, _exact(silos, None)).items():
            covered.setdefault(name, []).append(hit)
        for owner, client in enumerate(noisy.clients):
            hits = _hits(noisy.clients[client], exact.clients[client], _exact(silos, owner))
            for name, hit in hits.items():
                covered.setdefault(f"silo {client} {name}", []).append(hit)
    rates = {name: np.mean(hits) for name, hits in covered.items()}
    assert min(rates.values()) >= 0.95, sorted(rates.items(), key=lambda item: item[1])[:5]
    assert len(rates) == 4 * (4 + 2 * 6)


def test_bars_are_worth_having() -> None:
    """Honest is not enough: at epsilon 3, the accuracy of 630 records is known to a few points."""
    target = Target(3.0, 1e-5)
    made = private_evaluation(
        logistic_regression(features=4), POINT, consortium(0), Scoring(2, 4.0), name="t", target=target, seed=0
    )
    bar = made.value.pooled.estimates["accuracy"]
    assert bar.high - bar.low < 0.12
    area = made.value.pooled.estimates["auc"]
    assert area.high - area.low < 0.3


def test_what_noise_hides_is_said_to_be_unknown() -> None:
    hidden = mean_estimate(3.0, 5.0, (100.0, 100.0), 10.0)
    assert (hidden.value, hidden.low, hidden.high) == (None, -0.5, 0.5)
    # A bar that spans everything leaves nothing to say, however many records there are.
    assert mean_estimate(40.0, 90, (10_000.0, 0.0)) == Estimate(None, -0.5, 0.5)
    assert difference(hidden, Estimate(0.1, 0.0, 0.2)) == Estimate(None, -0.7, 0.5)
    assert auc_estimate(np.full((10, 2), 3.0), 60, 20.0) == Estimate(None, 0.0, 1.0)
    rounded = np.stack([np.full(10, 3.0), np.full(10, 1e-16)], axis=1)
    assert auc_estimate(rounded, 30, 0.0) == Estimate(None, 0.0, 1.0), "one class alone, without noise"


@pytest.mark.parametrize("sign", [-1, 1])
def test_noise_far_beyond_what_is_possible_leaves_a_bar(sign: int) -> None:
    """20 records, noise of 5, and a sum of 45: every record was probably right, but nobody knows that."""
    bar = mean_estimate(sign * 45.0, 20, (25.0, 0.0))
    assert bar.value == sign * 0.5
    assert bar.high - bar.low > 0.5


def test_without_noise_a_share_has_wilsons_interval() -> None:
    bar = mean_estimate(0.4 * 100, 100, (0.0, 0.0)).scaled(1.0, 0.5)
    z2 = 2.3263478740408408**2
    half = math.sqrt(z2 * (0.09 / 100 + z2 / 40_000)) / (1 + z2 / 100)
    assert bar.value == pytest.approx(0.9)
    assert bar.high - bar.low == pytest.approx(2 * half)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scoring(2, 0.0), "loss_bound"),
        (lambda: Scoring(2, 1.0, edges=(0.5, 0.2)), "increasing"),
        (lambda: Scoring(2, 1.0, edges=(0.0, 0.5)), "between 0 and 1"),
        (lambda: Groups(0, (1.0,), ("a",)), "2 different names"),
        (lambda: Groups(9, (1.0,), ("a", "b")).of(torch.zeros(1, 2)), "features 0 to 1"),
    ],
)
def test_wrong_questions_are_refused(make: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make()
