"""Estimators: unbiased, equal to the naive computation, and within the reach they claim."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.client.cohort import Cohort
from tacit.client.estimators import BoundedModel, Estimator, Minibatch, Saga, Svrg
from tacit.client.sampling import Full, OnePass, Poisson, WithoutReplacement
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models import softmax_regression
from tacit.noise.randomness import Purpose, Randomness

MODEL = softmax_regression(features=4, classes=3)
BOUNDED = BoundedModel(MODEL, ClipNorm(0.4))
SEED = 11


class Forgetful(BoundedModel):
    """A model of whose gradients only the points are remembered, as for a network."""

    def coefficients(self, point: Tensor, batch: Batch) -> None:
        """None."""


FORGETFUL = Forgetful(MODEL, ClipNorm(0.4))
either_memory = pytest.mark.parametrize("bounded", [BOUNDED, FORGETFUL], ids=["coefficients", "points"])


def _federation(changed: bool = False) -> Federation:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for size in (30, 17):
        features = torch.randn(size, 4, generator=generator)
        clients.append((features, torch.randint(3, (size,), generator=generator)))
    if changed:
        clients[0][0][5] = -50.0
    return Federation.from_clients(clients, classes=3)


def _points(rounds: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(MODEL.dim, generator=generator) * 0.3 for _ in range(rounds)]


def _cohort(federation: Federation, t: int, clients: list[int] | None = None) -> Cohort:
    who = torch.arange(federation.clients) if clients is None else torch.tensor(clients)
    return Cohort(federation, who, t, Randomness(SEED))


def _bounded_rows(point: Tensor, federation: Federation) -> Tensor:
    """Every record's clipped gradient, written out."""
    rows = MODEL.gradients(point, federation.batch()).rows(0, federation.records)
    return rows * (0.4 / rows.norm(dim=1, keepdim=True)).clamp(max=1)


def _mean_by_client(rows: Tensor, federation: Federation) -> Tensor:
    return torch.stack([part.mean(0) for part in rows.split(federation.sizes.tolist())])


def test_a_full_minibatch_is_the_full_gradient() -> None:
    federation, point = _federation(), _points(1)[0]
    estimate, _ = Minibatch(Full()).estimate(BOUNDED, point, _cohort(federation, 0), {})
    expected = _mean_by_client(_bounded_rows(point, federation), federation)
    torch.testing.assert_close(estimate, expected, atol=1e-5, rtol=1e-5)


@either_memory
def test_svrg_equals_its_formula_while_the_snapshot_moves(bounded: BoundedModel) -> None:
    federation, points = _federation(), _points(12)
    estimator = Svrg(Poisson(0.3), 0.4)
    state = estimator.init(bounded, points[0], federation)
    snapshot = points[0]
    moved = 0
    for t, point in enumerate(points):
        cohort = _cohort(federation, t)
        estimate, state = estimator.estimate(bounded, point, cohort, state)
        rows, old = _bounded_rows(point, federation), _bounded_rows(snapshot, federation)
        drawn = torch.zeros(federation.records)
        drawn[Poisson(0.3).draw(cohort).rows] = 1
        sums = torch.stack([p.sum(0) for p in ((rows - old) * drawn[:, None]).split(federation.sizes.tolist())])
        expected = sums / (0.3 * federation.sizes[:, None]) + _mean_by_client(old, federation)
        torch.testing.assert_close(estimate, expected, atol=1e-5, rtol=1e-4)
        if cohort.public_coin(Purpose.SNAPSHOT, 0.4):
            snapshot, moved = point, moved + 1
    assert 0 < moved < 12


@either_memory
def test_a_client_that_misses_a_round_keeps_its_snapshot(bounded: BoundedModel) -> None:
    federation, points = _federation(), _points(3)
    estimator = Svrg(Poisson(0.3), 1.0)
    state = estimator.init(bounded, points[0], federation)
    _, state = estimator.estimate(bounded, points[1], _cohort(federation, 0, [0]), state)
    everything = Svrg(Full(), 1.0)
    # At its snapshot a client's differences vanish.
    for client, snapshot in ((0, points[1]), (1, points[0])):
        means = _mean_by_client(_bounded_rows(snapshot, federation), federation)[client]
        cohort = _cohort(federation, 1, [client])
        copied = {name: tensor.clone() for name, tensor in state.items()}
        estimate, _ = everything.estimate(bounded, snapshot, cohort, copied)
        torch.testing.assert_close(estimate[0], means, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("estimator", [Svrg(Poisson(0.3), 0.4), Saga(Poisson(0.3))])
@pytest.mark.parametrize("bound", [ClipNorm(0.4), Normalise(0.4)])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_remembered_coefficients_equal_gradients_computed_again(
    estimator: Estimator, bound: Bound, precision: torch.dtype
) -> None:
    federation, points = _federation(), _points(12)
    federation.features[3] = 1e30
    both = BoundedModel(MODEL, bound, precision), Forgetful(MODEL, bound, precision)
    states = [estimator.init(model, points[0], federation) for model in both]
    assert "past_points" not in states[0]
    close = {"atol": 1e-6, "rtol": 1e-5} if precision == torch.float32 else {"atol": 1e-13, "rtol": 1e-12}
    for t, point in enumerate(points):
        clients = [[0, 1], [0], [1]][t % 3]
        estimates = []
        for k, model in enumerate(both):
            estimate, states[k] = estimator.estimate(model, point, _cohort(federation, t, clients), states[k])
            assert estimate.dtype == precision
            estimates.append(estimate)
        torch.testing.assert_close(estimates[0], estimates[1], **close)


def test_a_bound_on_coordinates_leaves_no_coefficients() -> None:
    bounded = BoundedModel(MODEL, ClipEachCoordinate(0.1))
    assert bounded.coefficients(_points(1)[0], _federation().batch()) is None


@either_memory
def test_saga_equals_its_formula_with_a_written_table(bounded: BoundedModel) -> None:
    federation, points = _federation(), _points(15)
    estimator = Saga(Poisson(0.3))
    state = estimator.init(bounded, points[0], federation)
    table = _bounded_rows(points[0], federation)
    for t, point in enumerate(points):
        cohort = _cohort(federation, t)
        estimate, state = estimator.estimate(bounded, point, cohort, state)
        rows = _bounded_rows(point, federation)
        drawn = torch.zeros(federation.records)
        drawn[Poisson(0.3).draw(cohort).rows] = 1
        change = (rows - table) * drawn[:, None]
        sums = torch.stack([p.sum(0) for p in change.split(federation.sizes.tolist())])
        expected = sums / (0.3 * federation.sizes[:, None]) + _mean_by_client(table, federation)
        torch.testing.assert_close(estimate, expected, atol=1e-5, rtol=1e-4)
        table = table + change
    assert len(state.get("past_points", ())) < 32


@pytest.mark.parametrize("estimator", [Minibatch(Poisson(0.3)), Svrg(Poisson(0.3), 0.5), Saga(Poisson(0.3))])
def test_estimates_are_unbiased(estimator: Estimator) -> None:
    federation = _federation()
    start, point = _points(2)
    rows = _bounded_rows(point, federation)
    draws = []
    for t in range(400):
        state = estimator.init(BOUNDED, start, federation)
        draws.append(estimator.estimate(BOUNDED, point, _cohort(federation, t), state)[0])
    stacked = torch.stack(draws).double()
    error = stacked.mean(0) - _mean_by_client(rows, federation)
    assert bool((error.abs() <= 5 * stacked.std(0) / 400**0.5 + 1e-6).all())


@either_memory
@pytest.mark.parametrize("estimator", [Minibatch(Poisson(0.3)), Svrg(Poisson(0.3), 0.5), Saga(Poisson(0.3))])
def test_one_record_moves_the_estimate_by_at_most_its_reach(estimator: Estimator, bounded: BoundedModel) -> None:
    """Two federations that differ in record 5 of client 0, the same coins: replace-one moves by 2 reaches."""
    one, other, points = _federation(), _federation(changed=True), _points(10)
    states = [estimator.init(bounded, points[0], f) for f in (one, other)]
    inside, outside = estimator.reach(0.3)
    b = 0.3 * 30
    largest = 0.0
    for t, point in enumerate(points):
        estimates = []
        for k, federation in enumerate((one, other)):
            estimate, states[k] = estimator.estimate(bounded, point, _cohort(federation, t), states[k])
            estimates.append(estimate)
        moved = (estimates[0] - estimates[1]).norm(dim=1)
        drawn = 5 in Poisson(0.3).draw(_cohort(one, t)).rows.tolist()
        limit = 2 * (inside if drawn else outside) * 0.4 / b
        assert float(moved[0]) <= limit + 1e-6
        assert float(moved[1]) == 0
        largest = max(largest, float(moved[0]) / limit if limit else 0.0)
    assert largest > 0.2


def test_saga_refuses_sampling_without_a_proof() -> None:
    for sampling in (WithoutReplacement(5), Full(), OnePass(3)):
        with pytest.raises(RequestError, match="use sampling 'poisson'"):
            Saga(sampling)


def test_evaluations_are_counted_without_telling_what_was_drawn() -> None:
    federation = _federation()
    estimator = Saga(Poisson(0.3))
    assert estimator.evaluations(_cohort(federation, 0)) == pytest.approx(2 * 0.3 * 47 + 47)
    assert estimator.evaluations(_cohort(federation, 1)) == pytest.approx(2 * 0.3 * 47)
