"""Estimators: unbiased, equal to the naive computation, and within the reach they claim."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.client.cohort import Cohort
from tacit.client.estimators import Estimator, Minibatch, Saga, Svrg
from tacit.client.sampling import Drawn, Full, OnePass, Poisson, WithoutReplacement
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models import softmax_regression
from tacit.models.module import ModuleModel
from tacit.models.shares import LayeredGradients
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
difference_bounds = pytest.mark.parametrize("difference_bound", [2.0, 0.5])
"""as they are, and so that about a third of them is cut"""


class Drawing(Poisson):
    """Poisson sampling that draws all records, whatever its rate."""

    def draw(self, cohort: Cohort) -> Drawn:
        """All of them."""
        return Full().draw(cohort)


class DrawingNone(Poisson):
    """Poisson sampling that draws no record, whatever its rate."""

    def draw(self, cohort: Cohort) -> Drawn:
        """None of them."""
        nobody = torch.zeros(len(cohort.clients), dtype=torch.int64)
        return Drawn(cohort.federation.take(torch.empty(0, dtype=torch.int64), nobody), nobody[:0])


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


def _cut(rows: Tensor, limit: float) -> Tensor:
    """Rows that are longer than the limit, shortened to it."""
    return rows * (limit / rows.norm(dim=1, keepdim=True)).clamp(max=1)


def _mean_by_client(rows: Tensor, federation: Federation) -> Tensor:
    return torch.stack([part.mean(0) for part in rows.split(federation.sizes.tolist())])


def test_a_full_minibatch_is_the_full_gradient() -> None:
    federation, point = _federation(), _points(1)[0]
    estimate, _ = Minibatch(Full()).estimate(BOUNDED, point, _cohort(federation, 0), {})
    expected = _mean_by_client(_bounded_rows(point, federation), federation)
    torch.testing.assert_close(estimate, expected, atol=1e-5, rtol=1e-5)


@either_memory
@difference_bounds
def test_svrg_equals_its_formula_while_the_snapshot_moves(bounded: BoundedModel, difference_bound: float) -> None:
    federation, points = _federation(), _points(12)
    estimator = Svrg(Poisson(0.3), 0.4, difference_bound)
    state = estimator.init(bounded, points[0], federation)
    snapshot = points[0]
    moved = 0
    for t, point in enumerate(points):
        cohort = _cohort(federation, t)
        estimate, state = estimator.estimate(bounded, point, cohort, state)
        rows, old = _bounded_rows(point, federation), _bounded_rows(snapshot, federation)
        drawn = torch.zeros(federation.records)
        drawn[Poisson(0.3).draw(cohort).rows] = 1
        change = _cut(rows - old, 0.4 * difference_bound) * drawn[:, None]
        sums = torch.stack([p.nansum(0) for p in change.split(federation.sizes.tolist())])
        expected = sums / (0.3 * federation.sizes[:, None]) + _mean_by_client(old, federation)
        torch.testing.assert_close(estimate, expected, atol=5e-5, rtol=5e-4)
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


@pytest.mark.parametrize("estimator", [Svrg(Poisson(0.3), 0.4), Saga(Poisson(0.3)), Saga(Poisson(0.3), 0.2)])
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
@difference_bounds
def test_saga_equals_its_formula_with_a_written_table(bounded: BoundedModel, difference_bound: float) -> None:
    """What enters the table is the whole difference; what is sent of it may be cut."""
    federation, points = _federation(), _points(15)
    estimator, shortened = Saga(Poisson(0.3), difference_bound), 0
    state = estimator.init(bounded, points[0], federation)
    table = _bounded_rows(points[0], federation)
    for t, point in enumerate(points):
        cohort = _cohort(federation, t)
        estimate, state = estimator.estimate(bounded, point, cohort, state)
        rows = _bounded_rows(point, federation)
        drawn = torch.zeros(federation.records)
        drawn[Poisson(0.3).draw(cohort).rows] = 1
        change = (rows - table) * drawn[:, None]
        kept = _cut(change, 0.4 * difference_bound)
        shortened += int((kept.norm(dim=1) < change.norm(dim=1) * 0.999).sum())
        sums = torch.stack([p.nansum(0) for p in kept.split(federation.sizes.tolist())])
        expected = sums / (0.3 * federation.sizes[:, None]) + _mean_by_client(table, federation)
        torch.testing.assert_close(estimate, expected, atol=5e-5, rtol=5e-4)
        table = table + change
        means = _mean_by_client(table, federation)
        torch.testing.assert_close(state["table_means"].float(), means, atol=1e-5, rtol=1e-4)
    assert len(state.get("past_points", ())) < 32
    assert (shortened > 20) == (difference_bound < 2)


@pytest.mark.parametrize(
    "estimator", [Minibatch(Poisson(0.3)), Svrg(Poisson(0.3), 0.5, 2.0), Saga(Poisson(0.3), 2.0)]
)
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


ESTIMATORS = [
    Minibatch(Poisson(0.3)),
    *(Svrg(Poisson(0.3), 0.5, r) for r in (2.0, 1.0, 0.1)),
    *(Saga(Poisson(0.3), r) for r in (2.0, 1.0, 0.1)),
]


@either_memory
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_one_record_moves_the_estimate_by_at_most_its_reach(estimator: Estimator, bounded: BoundedModel) -> None:
    """Two federations that differ in record 5 of client 0, the same coins: replace-one moves by 2 reaches."""
    one, other, points = _federation(), _federation(changed=True), _points(10)
    states = [estimator.init(bounded, points[0], f) for f in (one, other)]
    reach = estimator.reach(0.3)
    b = 0.3 * 30
    largest = 0.0
    for t, point in enumerate(points):
        estimates = []
        for k, federation in enumerate((one, other)):
            estimate, states[k] = estimator.estimate(bounded, point, _cohort(federation, t), states[k])
            estimates.append(estimate)
        moved = (estimates[0] - estimates[1]).norm(dim=1)
        drawn = 5 in Poisson(0.3).draw(_cohort(one, t)).rows.tolist()
        limit = 2 * (reach.inside(0.3) if drawn else reach.always) * 0.4 / b
        assert float(moved[0]) <= limit + 1e-6
        assert float(moved[1]) == 0
        largest = max(largest, float(moved[0]) / limit if limit else 0.0)
    assert largest > 0.2


class Turned:
    """A model whose gradients the server chooses."""

    penalty = None
    metric_name = "loss"
    dim = 3

    def gradients(self, point: Tensor, batch: Batch) -> LayeredGradients:
        """Every record times the point, coordinate by coordinate."""
        return LayeredGradients.written(batch.features * point, batch.counts)


def _network_model() -> ModuleModel:
    torch.manual_seed(3)
    return ModuleModel(nn.Sequential(nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Tanh(), nn.Linear(6, 3)))


BOUNDED_MODELS = {
    "coefficients": lambda precision: BoundedModel(MODEL, ClipNorm(0.4), precision),
    "points": lambda precision: Forgetful(MODEL, ClipNorm(0.4), precision),
    "normalised": lambda precision: Forgetful(MODEL, Normalise(0.4), precision),
    "coordinates": lambda precision: BoundedModel(MODEL, ClipEachCoordinate(0.1), precision),
    "chosen by the server": lambda precision: BoundedModel(Turned(), ClipNorm(0.4), precision),
    "convolution": lambda precision: BoundedModel(_network_model(), ClipNorm(0.4), precision),
}
numbers = st.floats(-1e6, 1e6, width=32) | st.floats(-3, 3, width=32)


@pytest.mark.parametrize("kind", BOUNDED_MODELS)
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@settings(max_examples=12, deadline=None)
@given(data=st.data(), rate=st.floats(0.05, 0.95), r=st.sampled_from([2.0, 1.0, 0.3, 0.02]), table=st.booleans())
def test_what_a_record_adds_stays_within_every_part_of_the_reach(
    data: st.DataObject, kind: str, precision: torch.dtype, rate: float, r: float, table: bool
) -> None:
    """A client of a single record: what it adds drawn, not drawn, and on average over its coin."""
    bounded = BOUNDED_MODELS[kind](precision)
    width, images = (3, False) if kind == "chosen by the server" else (4, kind == "convolution")
    features = torch.tensor([data.draw(st.lists(numbers, min_size=width, max_size=width))])
    features = features.reshape(1, 1, 4) if images else features
    federation = Federation.from_clients([(features, torch.tensor([1]))], classes=3)
    points = torch.tensor(
        data.draw(st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=3, max_size=3)), dtype=precision
    )
    points = points.repeat(1, -(-bounded.model.dim // 4))[:, : bounded.model.dim]
    added = []
    for sampling in (Drawing(rate), DrawingNone(rate)):
        estimator: Estimator = Saga(sampling, r) if table else Svrg(sampling, 1.0, r)
        state = estimator.init(bounded, points[0], federation)
        if table:
            _, state = Saga(Drawing(rate), r).estimate(bounded, points[1], _cohort(federation, 0), state)
        estimate, _ = estimator.estimate(bounded, points[2], _cohort(federation, 1), state)
        added.append(estimate[0].double() * rate / bounded.bound.norm(bounded.model.dim))
    drawn, undrawn = added
    reach, rounding = estimator.reach(rate), 1 + 1e-5
    assert drawn.norm() <= reach.inside(rate) * rounding
    assert undrawn.norm() <= reach.always * rounding
    assert (rate * drawn + (1 - rate) * undrawn).norm() <= reach.average * rounding
    assert (drawn - undrawn).norm() <= reach.drawn * rounding


def test_the_server_can_make_a_record_add_all_that_its_reach_allows() -> None:
    """The worst case that audits play: gradients that turn around between two points, or that vanish at one."""
    bounded = BoundedModel(Turned(), ClipNorm(1.0))
    federation = Federation.from_clients([(torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([1]))], classes=3)
    rate = 0.3
    for r, start in ((2.0, -1.0), (1.0, 0.0), (0.5, 1 / 18)):
        estimator = Svrg(Drawing(rate), 1.0, r)
        state = estimator.init(bounded, torch.full((3,), start), federation)
        estimate, _ = estimator.estimate(bounded, torch.ones(3), _cohort(federation, 0), state)
        assert float(estimate[0, 0]) * rate == pytest.approx(estimator.reach(rate).inside(rate), rel=1e-3)


@pytest.mark.parametrize("value", [0.0, -1.0, 0.009, 2.1, float("nan")])
def test_difference_bounds_that_cannot_be_kept_are_refused(value: float) -> None:
    for make in (lambda: Svrg(Poisson(0.3), 0.5, value), lambda: Saga(Poisson(0.3), value)):
        with pytest.raises(RequestError, match="difference_bound must be"):
            make()


def test_saga_refuses_sampling_without_a_proof() -> None:
    for sampling in (WithoutReplacement(5), Full(), OnePass(3)):
        with pytest.raises(RequestError, match="use sampling 'poisson'"):
            Saga(sampling)


def test_evaluations_are_counted_without_telling_what_was_drawn() -> None:
    federation = _federation()
    estimator = Saga(Poisson(0.3))
    assert estimator.evaluations(_cohort(federation, 0)) == pytest.approx(2 * 0.3 * 47 + 47)
    assert estimator.evaluations(_cohort(federation, 1)) == pytest.approx(2 * 0.3 * 47)
