"""Noisy local steps: the papers' loops, one record's reach, a release for every step, noise where it belongs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tacit
from tacit.algorithms.isrl_dp import noisy_local_sgd
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm
from tacit.client.cohort import Cohort
from tacit.client.local_steps import Everything, NoisyLocalSteps
from tacit.client.sampling import Full, OnePass, Poisson, WithoutReplacement, WithReplacement
from tacit.compress import RandK
from tacit.compress.support import MessageSupport
from tacit.engine.plan import plan
from tacit.engine.simulate import simulate
from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models import least_squares, softmax_regression
from tacit.models.linear import LinearModel
from tacit.models.losses import Squared
from tacit.models.shares import LayeredGradients
from tacit.noise.additive import LatticeGaussian
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Target, events
from tacit.schedules import InverseSqrt

MODEL = softmax_regression(features=5, classes=3, ridge=0.01)
DIM = MODEL.dim
SHAVED = 1 - 1e-4


def _work(bound: Bound, count: int, steps: int = 1, **settings: object) -> NoisyLocalSteps:
    support = MessageSupport(RandK(count=count))
    return NoisyLocalSteps(MODEL, Full(), bound, steps, 0.3, support, **settings)  # type: ignore[arg-type]


@pytest.fixture
def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(size, 5, generator=generator), torch.randint(3, (size,), generator=generator))
        for size in (12, 20, 7)
    ]
    return Federation.from_clients(clients, classes=3)


def _cohort(federation: Federation, round: int = 0, seed: int = 4) -> Cohort:
    return Cohort(federation, torch.arange(federation.clients), round, Randomness(seed))


def _support(cohort: Cohort, count: int) -> Tensor:
    return MessageSupport(RandK(count=count)).indices(cohort.generators(Purpose.COMPRESS), DIM)


@pytest.mark.parametrize("bound", [ClipEachCoordinate(0.05), ClipNorm(0.1)])
@pytest.mark.parametrize("count", [1, 7, DIM])
def test_the_loop_of_the_paper(federation: Federation, bound: Bound, count: int) -> None:
    """Algorithm 1, lines 5 to 11, client by client and record by record, without noise."""
    work = _work(bound, count, steps=4, schedule=InverseSqrt())
    point = torch.randn(DIM, generator=torch.Generator().manual_seed(1))
    cohort = _cohort(federation, round=3)
    rows, _ = work.run(point, cohort, {}, torch.zeros(3, dtype=torch.float64))
    step, ratio = 0.3 / math.sqrt(4), DIM / count
    for i, kept in enumerate(_support(cohort, count)):
        theta, records = point.clone(), federation.client(i).batch()
        for _ in range(4):
            gradient = torch.zeros(DIM)
            for record in MODEL.gradients(theta, records).rows(0, records.records):
                part = record[kept]
                if isinstance(bound, ClipNorm):
                    part = part * min(1.0, 0.1 * SHAVED / float(part.norm()))
                else:
                    part = part.clamp(-0.05 * SHAVED, 0.05 * SHAVED)
                gradient[kept] += part / records.records
            gradient[kept] += 0.01 * theta[kept]
            theta -= step * ratio * gradient
        torch.testing.assert_close(rows[i] * ratio, point - theta, atol=1e-5, rtol=1e-4)
        outside = torch.ones(DIM, dtype=torch.bool)
        outside[kept] = False
        assert not rows[i][outside].any()


def test_all_coordinates_of_a_message_are_all_of_them(federation: Federation) -> None:
    """k = d: the same numbers, noise included, as the work that is told nothing of coordinates."""
    multipliers = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    plain = NoisyLocalSteps(MODEL, Poisson(0.4), ClipNorm(0.5), steps=3, step_size=0.3)
    expected, _ = plain.run(torch.zeros(DIM), _cohort(federation), {}, multipliers)
    for support in (Everything(), MessageSupport(RandK(fraction=1.0))):
        work = replace(plain, support=support)
        rows, _ = work.run(torch.zeros(DIM), _cohort(federation), {}, multipliers)
        assert torch.equal(rows, expected)


@pytest.mark.parametrize("count", [3, 6])
def test_targets_have_the_precision_of_the_noise(count: int) -> None:
    """Real noise is added in double precision: records, targets among them, are read in it."""
    seen: list[torch.dtype] = []

    class Watched(LinearModel):
        def gradients(self, point: Tensor, batch: Batch) -> LayeredGradients:
            seen.extend([point.dtype, batch.features.dtype, batch.targets.dtype])
            return super().gradients(point, batch)

    model = Watched(features=6, outputs=1, loss=Squared(), intercept=False)
    records = [(torch.rand(3, 6), torch.rand(3))]
    federation = Federation.from_clients(records, task="regression")
    work = NoisyLocalSteps(
        model, Full(), ClipNorm(1.0), 2, 0.3, MessageSupport(RandK(count=count)), noise=LatticeGaussian()
    )
    work.run(torch.zeros(6), _cohort(federation), {}, torch.ones(1, dtype=torch.float64))
    assert seen == [torch.float64] * 6


def test_a_cohort_on_some_coordinates_walks_as_its_clients_would_alone(federation: Federation) -> None:
    support = MessageSupport(RandK(count=6))
    work = NoisyLocalSteps(MODEL, WithoutReplacement(1), ClipNorm(0.5), 4, 0.3, support)
    point = torch.randn(DIM, generator=torch.Generator().manual_seed(1))
    multipliers = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    together, _ = work.run(point, _cohort(federation, 2), {}, multipliers)
    for i in range(3):
        alone = Cohort(federation.client(i), torch.tensor([0]), 2, Randomness(4))
        row, _ = work.run(point, alone, {}, multipliers[i : i + 1])
        torch.testing.assert_close(row[0], together[i], atol=1e-5, rtol=1e-5)


def _sum_of(record: list[float], target: float, bound: Bound, count: int, seed: int) -> Tensor:
    """What one step releases, on the scale of sums, for one client of three records of which one is given."""
    model = least_squares(features=6, intercept=False)
    features = torch.tensor([[0.5] * 6, [-1.0] * 6, record])
    federation = Federation.from_clients([(features, torch.tensor([1.0, 0.0, target]))], task="regression")
    support = MessageSupport(RandK(count=count))
    work = NoisyLocalSteps(model, Full(), bound, 1, 1.0, support)
    rows, _ = work.run(torch.zeros(6), _cohort(federation, seed=seed), {}, torch.zeros(1, dtype=torch.float64))
    return 3 * rows[0].double()


@settings(max_examples=60)
@given(
    record=st.lists(st.floats(-1e3, 1e3, width=32), min_size=6, max_size=6),
    other=st.lists(st.floats(-1e3, 1e3, width=32), min_size=6, max_size=6),
    count=st.integers(1, 6),
    seed=st.integers(0, 5),
)
def test_one_record_moves_the_sum_by_two_bounds_at_most(
    record: list[float], other: list[float], count: int, seed: int
) -> None:
    for bound in (ClipEachCoordinate(0.1), ClipNorm(0.2)):
        moved = _sum_of(record, 1e3, bound, count, seed) - _sum_of(other, -1e3, bound, count, seed)
        assert float(moved.norm()) <= 2 * bound.norm(count) * (1 + 1e-6)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_reach_is_attained_by_a_crafted_record(count: int) -> None:
    """Fed-SPA has sqrt(2) c sqrt(k) for a replaced record; a record and its opposite move 2 c sqrt(k)."""
    for bound, reach in ((ClipEachCoordinate(0.1), 0.1 * math.sqrt(count)), (ClipNorm(0.2), 0.2)):
        moved = _sum_of([1e3] * 6, 1.0, bound, count, 0) - _sum_of([1e3] * 6, -1.0, bound, count, 0)
        assert float(moved.norm()) == pytest.approx(2 * reach * SHAVED, rel=1e-5)
        assert float(moved.norm()) > math.sqrt(2) * reach
        assert bound.norm(count) == pytest.approx(reach)


def test_a_gradient_that_lies_on_the_kept_coordinates_is_bounded_there() -> None:
    """Clipping the whole gradient to G would let all of G through: only what is bounded after the mask counts."""
    kept = torch.nonzero(_sum_of([1.0] * 6, 5.0, ClipEachCoordinate(1e6), 2, 0))[:, 0].tolist()
    record = [1e3 if j in kept else 0.0 for j in range(6)]
    full, share = 0.3, math.sqrt(2 / 6)
    moved = _sum_of(record, 9.0, ClipNorm(full * share), 2, 0) - _sum_of(
        [0.0] * 6, 9.0, ClipNorm(full * share), 2, 0
    )
    assert float(moved.norm()) == pytest.approx(full * share * SHAVED, rel=1e-5)


@pytest.mark.parametrize("bound", [ClipEachCoordinate(0.05), ClipNorm(0.1)])
def test_noise_on_the_kept_coordinates_alone(bound: Bound) -> None:
    """z bound(k) / b of it for every step, independent from step to step, and exactly nothing elsewhere."""
    model, clients, count, steps = least_squares(features=30, intercept=False), 400, 9, 3
    # Records so far off that their bounded gradients stay the same wherever noise has carried the point.
    records = [(torch.ones(2, 30), torch.full((2,), 1e6))] * clients
    federation = Federation.from_clients(records, task="regression")
    work = NoisyLocalSteps(model, Full(), bound, steps, 0.3, MessageSupport(RandK(count=count)))
    silent, z = torch.zeros(clients, dtype=torch.float64), torch.full((clients,), 2.5, dtype=torch.float64)
    point, cohort = torch.zeros(30), _cohort(federation)
    noise = work.run(point, cohort, {}, z)[0] - work.run(point, cohort, {}, silent)[0]
    kept = MessageSupport(RandK(count=count)).indices(cohort.generators(Purpose.COMPRESS), 30)
    assert not noise.scatter(1, kept, 0.0).any()
    std = 2.5 * bound.norm(count) / 2
    torch.testing.assert_close(work.noise_stds(federation.sizes, z), torch.full_like(z, std))
    measured = noise.gather(1, kept).double()
    # 3600 numbers: the standard deviation is known to about one percent.
    assert float(measured.std()) == pytest.approx(0.3 * math.sqrt(steps) * std, rel=0.05)
    correlation = torch.corrcoef(torch.stack([measured[:, 0], measured[:, 1]]))[0, 1]
    assert abs(float(correlation)) < 0.25


def test_the_event_is_one_release_for_every_step() -> None:
    work = NoisyLocalSteps(MODEL, Poisson(0.2), ClipEachCoordinate(0.1), 5, 0.1, MessageSupport(RandK(count=4)))
    assert work.event(40, 1.5, 10) == events.repeated(events.poisson(0.2, 1.5), 50)
    assert work.batches_per_round == 5
    lattice = work.with_noise(LatticeGaussian())
    charged = lattice.noise.charged(events.repeated(events.poisson(0.2, 1.5 / 1.0001), 50), 4, 50)
    assert events.to_dict(lattice.event(40, 1.5, 10)) == events.to_dict(charged)


def test_lattice_noise_on_the_kept_coordinates(federation: Federation) -> None:
    work = _work(ClipNorm(0.1), 4, steps=2).with_noise(LatticeGaussian())
    rows, _ = work.run(torch.zeros(DIM), _cohort(federation), {}, torch.ones(3, dtype=torch.float64))
    assert rows.dtype == torch.float32
    kept = (rows != 0).sum(1)
    assert int(kept.max()) == 4
    # Noise from the system may cancel exactly: three of twelve hardly ever do.
    assert int(kept.sum()) > 9


def test_a_cohort_walks_as_its_clients_would_alone(federation: Federation) -> None:
    work = NoisyLocalSteps(MODEL, WithReplacement(2), tacit.ClipNorm(0.5), steps=4, step_size=0.3)
    point = torch.randn(MODEL.dim, generator=torch.Generator().manual_seed(1))
    multipliers = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    together, _ = work.run(point, Cohort(federation, torch.arange(3), 2, Randomness(4)), {}, multipliers)
    for i in range(3):
        alone = Cohort(federation.client(i), torch.tensor([0]), 2, Randomness(4))
        row, _ = work.run(point, alone, {}, multipliers[i : i + 1])
        torch.testing.assert_close(row[0], together[i], atol=1e-5, rtol=1e-5)


def test_full_batches_without_noise_are_plain_gradient_descent(federation: Federation) -> None:
    work = NoisyLocalSteps(MODEL, Full(), tacit.ClipNorm(100.0), steps=3, step_size=0.2)
    point = torch.zeros(MODEL.dim)
    rows, _ = work.run(point, Cohort(federation, torch.arange(3), 0, Randomness(0)), {}, torch.zeros(3))
    x = point.clone().requires_grad_()
    for _ in range(3):
        assert MODEL.penalty is not None
        loss = MODEL.losses(x, federation.client(1).batch()).mean() + MODEL.penalty.value(x)
        (gradient,) = torch.autograd.grad(loss, x)
        x = (x - 0.2 * gradient).detach().requires_grad_()
    torch.testing.assert_close(rows[1], point - x.detach(), atol=1e-5, rtol=1e-4)


def test_every_step_is_a_release_with_noise_of_its_own(federation: Federation) -> None:
    work = NoisyLocalSteps(MODEL, WithReplacement(2), tacit.ClipNorm(0.5), steps=4, step_size=0.3)
    assert work.event(20, 1.5, 10) == events.repeated(events.with_replacement(20, 2, 1.5), 40)
    algorithm = noisy_local_sgd(
        MODEL, bound=tacit.ClipNorm(0.5), sampling=tacit.Poisson(0.2), local_steps=4, step=0.1
    )
    run = simulate(plan(algorithm, federation, rounds=5, privacy=Target(3.0, 1e-4)))
    assert run.guarantee is not None
    assert 2.9 < run.guarantee.epsilon <= 3.0
    assert run.last.gradient_evaluations == round(5 * 4 * 0.2 * 39)


def test_bad_settings_are_refused() -> None:
    for steps, size in ((0, 0.1), (2, 0.0)):
        with pytest.raises(RequestError, match="local_step"):
            NoisyLocalSteps(MODEL, Full(), tacit.ClipNorm(1.0), steps, size)


def test_one_pass_looks_at_every_record_in_one_step_only() -> None:
    """Three steps a round, batches of two: after two rounds twelve records were seen, none twice."""
    sampling = OnePass(2)
    federation = Federation.from_clients([(torch.arange(13.0)[:, None], torch.zeros(13))], task="regression")
    seen: list[float] = []
    for t in range(2):
        for k in range(3):
            cohort = Cohort(federation, torch.tensor([0]), t, Randomness(3), step=k, steps=3)
            seen += sampling.draw(cohort).batch.features[:, 0].tolist()
    assert len(seen) == len(set(seen)) == 12
    work = NoisyLocalSteps(MODEL, sampling, tacit.ClipNorm(1.0), 3, 0.1)
    assert work.event(13, 5.0, 2) == OnePass(2).event(13, 5.0, 6)
    with pytest.raises(RequestError, match="need 9 batches but sampling 'one-pass' has only 6"):
        work.event(13, 5.0, 3)
    algorithm = noisy_local_sgd(
        least_squares(features=1), bound=tacit.ClipNorm(1.0), sampling=sampling, local_steps=3, step=0.1
    )
    with pytest.raises(RequestError, match="need 9 batches"):
        simulate(plan(algorithm, federation, rounds=3, privacy="none"))
