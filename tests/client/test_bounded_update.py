"""FedAvg's updates: the walk, its bound as one vector, the fast path through the span of the records."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tacit.client.bounded_update import BoundedUpdate
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise, Unbounded
from tacit.client.cohort import Cohort
from tacit.client.grams import Grams
from tacit.client.sampling import Full, Poisson, WithoutReplacement
from tacit.client.span import RecordBlocks, SpanUpdates, span_updates
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models import least_squares, logistic_regression, nonconvex_logistic_regression, softmax_regression
from tacit.models.losses import CrossEntropy, Logistic, ScoreLoss, Squared
from tacit.models.model import Model, penalty_gradient
from tacit.models.nonsmooth import Absolute, Hinge, Pinball
from tacit.noise.randomness import Randomness
from tacit.privacy.promises.terms import Unit
from tacit.schedules import Exponential

SILENT = torch.zeros(3, dtype=torch.float64)


def _federation(sizes: tuple[int, ...] = (6, 1, 4), features: int = 30, seed: int = 0) -> Federation:
    generator = torch.Generator().manual_seed(seed)
    clients = [
        (torch.randn(size, features, generator=generator), torch.randint(3, (size,), generator=generator))
        for size in sizes
    ]
    return Federation.from_clients(clients, classes=3)


def _one_by_one(model: Model, point: Tensor, federation: Federation, steps: int, step: float) -> Tensor:
    """Every client alone, by autograd."""
    rows = []
    for position in range(federation.clients):
        batch, x = federation.client(position).batch(), point.clone()
        for _ in range(steps):
            x.requires_grad_()
            (gradient,) = torch.autograd.grad(model.losses(x, batch).mean(), x)
            x = x.detach() - step * (gradient + penalty_gradient(model, x.detach()))
        rows.append((point - x) / step)
    return torch.stack(rows)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_span_of_the_records_gives_the_same_walk(
    intercept: bool, ridge: float, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = _federation()
    if outputs == 1:
        model = least_squares(features=30, intercept=intercept, ridge=ridge)
        targets = federation.targets.float()
        federation = Federation(federation.features, targets, federation.sizes, federation.ids)
    else:
        model = softmax_regression(features=30, classes=3, intercept=intercept, ridge=ridge)
    point = 0.1 * torch.randn(model.dim, generator=torch.Generator().manual_seed(3))
    made = span_updates(model, point, RecordBlocks(federation, torch.arange(3)), 7, 0.05)
    assert made is not None
    fast = made.rows(0, 3)
    torch.testing.assert_close(fast, _one_by_one(model, point, federation, 7, 0.05), atol=2e-5, rtol=2e-5)
    work = BoundedUpdate(model, Full(), Unbounded(), 7, 0.05)
    cohort = Cohort(federation, torch.arange(3), 0, Randomness(0))
    torch.testing.assert_close(work.updates(point, cohort), fast)
    kept = replace(cohort, grams=Grams(federation))
    for _ in range(2):
        torch.testing.assert_close(work.updates(point, kept), fast)
    torch.testing.assert_close(work._walk(point, cohort, 0.05), fast, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(made.norms(), fast.double().norm(dim=1), atol=1e-6, rtol=1e-5)
    for bound in (Normalise(2.0), ClipNorm(0.5), ClipEachCoordinate(0.01)):
        one = replace(work, bound=bound)
        rows, _ = one.run(point, cohort, one.init(point, federation), torch.zeros(3, dtype=torch.float64))
        summed = one.summed(point, kept)
        assert summed is not None
        torch.testing.assert_close(summed, rows.sum(0), atol=1e-5, rtol=1e-5)
        with monkeypatch.context() as patch:
            # One client at a time, in another order.
            patch.setattr("tacit.client.span._BLOCK_BYTES", 1)
            turned = one.summed(point, replace(kept, clients=torch.tensor([2, 0, 1])))
        assert turned is not None
        torch.testing.assert_close(turned, rows.sum(0), atol=1e-5, rtol=1e-5)


def test_norms_of_updates_that_cancel_are_those_of_what_is_written_out() -> None:
    """Two records that are nearly the same, with opposite coefficients: a Gram matrix has too few digits."""
    model = least_squares(features=30, intercept=False)
    first = torch.randn(1, 1, 30, generator=torch.Generator().manual_seed(0))
    features = torch.cat([torch.cat([first, first + 1e-4], 1), torch.zeros(1, 2, 30), first.expand(1, 2, 30)])
    features[2] *= 1e30
    gram = features @ features.transpose(1, 2)
    silos = Federation.from_arrays(features.flatten(0, 1), torch.zeros(6), [0, 0, 1, 1, 2, 2])
    records = RecordBlocks(silos, torch.arange(3))
    updates = SpanUpdates(model, torch.tensor([[[1.0, -1.0]]]).repeat(3, 1, 1), records, gram, torch.zeros(30))
    written = updates.rows(0, 3)
    torch.testing.assert_close(updates.norms()[0], written[0].double().norm(), rtol=1e-6, atol=0)
    assert not float(updates.norms()[1])
    total = updates.weighted_sums(torch.tensor([2.0, 1.0, 0.0]))
    torch.testing.assert_close(total[0], 2 * written[0])


def test_kept_products_are_those_of_the_records_whoever_asked_first() -> None:
    federation = _federation((3, 1, 4, 2) * 10, features=7)
    early, late = Grams(federation), Grams(federation)
    late.of(torch.tensor([39, 2]))
    for clients in (torch.tensor([5]), torch.tensor([38, 0, 17]), torch.arange(40)):
        assert torch.equal(early.of(clients), late.of(clients))
    for position, gram in enumerate(early.of(torch.arange(40))):
        own = federation.client(position).features
        expected = torch.zeros(4, 4)
        expected[: len(own), : len(own)] = own @ own.T
        torch.testing.assert_close(gram, expected)
    assert Grams.bytes_for(federation) == 40 * 4 * 4 * 4


@pytest.mark.parametrize("loss", [CrossEntropy(), Logistic(), Squared(), Hinge(), Absolute(), Pinball(0.3)])
def test_slopes_of_whole_clients_are_those_of_their_records(loss: ScoreLoss) -> None:
    outputs = 3 if isinstance(loss, CrossEntropy) else 1
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(5, outputs, 4, generator=generator)
    targets = torch.randint(3 if outputs == 3 else 2, (5, 4), generator=generator)
    targets = targets if isinstance(loss, CrossEntropy | Logistic | Hinge) else targets.float()
    by_record = loss.slopes(scores.transpose(1, 2).reshape(20, outputs), targets.flatten())
    together = loss.slopes(scores, targets).transpose(1, 2).reshape(20, outputs)
    torch.testing.assert_close(together, by_record)


def test_the_span_is_left_to_those_whom_it_helps() -> None:
    federation = _federation((40, 40), features=3)
    point = torch.zeros(4)
    few, curved = logistic_regression(features=3), nonconvex_logistic_regression(features=3)
    records = RecordBlocks(federation, torch.arange(2))
    assert span_updates(few, point, records, 5, 0.1) is None
    assert span_updates(curved, torch.zeros(3), records, 5, 0.1) is None


@settings(max_examples=60, deadline=None)
@given(
    scale=st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 1e8, 1e30]),
    bound=st.sampled_from([ClipNorm(2.0), Normalise(2.0)]),
    steps=st.integers(1, 4),
)
def test_no_client_moves_the_sum_by_more_than_the_bound(scale: float, bound: Bound, steps: int) -> None:
    generator = torch.Generator().manual_seed(7)
    clients = [(scale * torch.randn(4, 5, generator=generator), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
    federation = Federation.from_clients(clients, classes=2)
    work = BoundedUpdate(logistic_regression(features=5, intercept=False), Full(), bound, steps, 0.5)
    cohort = Cohort(federation, torch.arange(3), 0, Randomness(0))
    rows, _ = work.run(torch.zeros(5), cohort, {}, SILENT)
    assert bool((rows.double().norm(dim=1) <= 2.0).all())
    if scale == 0.0:
        assert bool((rows == 0).all())


def test_normalising_gives_every_client_the_same_length_and_clipping_leaves_short_ones() -> None:
    federation = _federation()
    model = softmax_regression(features=30, classes=3)
    cohort = Cohort(federation, torch.arange(3), 0, Randomness(0))
    point = torch.zeros(model.dim)
    plain, _ = BoundedUpdate(model, Full(), Unbounded(), 3, 0.1).run(point, cohort, {}, SILENT)
    norms = plain.norm(dim=1)
    between = float(norms.sort().values[1])
    clipped, _ = BoundedUpdate(model, Full(), ClipNorm(between), 3, 0.1).run(point, cohort, {}, SILENT)
    normal, _ = BoundedUpdate(model, Full(), Normalise(between), 3, 0.1).run(point, cohort, {}, SILENT)
    torch.testing.assert_close(normal.norm(dim=1), torch.full((3,), between), rtol=2e-4, atol=0.0)
    torch.testing.assert_close(clipped.norm(dim=1), norms.clamp(max=between), rtol=2e-4, atol=0.0)


def test_an_update_of_zero_is_still_protected() -> None:
    federation = Federation.from_clients([([[0.0, 0.0]], [0])] * 3, classes=2)
    work = BoundedUpdate(logistic_regression(features=2, intercept=False), Full(), Normalise(5.0), 2, 0.1)
    cohort = Cohort(federation, torch.arange(3), 0, Randomness(0))
    rows, _ = work.run(torch.zeros(2), cohort, {}, torch.full((3,), 0.5, dtype=torch.float64))
    assert bool((rows != 0).all())
    torch.testing.assert_close(work.noise_stds(federation.sizes, SILENT + 0.5), torch.full((3,), 2.5).double())


def test_minibatches_and_schedules() -> None:
    federation = _federation()
    model = softmax_regression(features=30, classes=3)
    point = torch.zeros(model.dim)
    for sampling in (Poisson(0.5), WithoutReplacement(2)):
        work = BoundedUpdate(model, sampling, Unbounded(), 3, 0.1)
        cohort = Cohort(federation, torch.arange(3), 0, Randomness(0))
        again = work.updates(point, cohort)
        assert torch.equal(again, work.updates(point, cohort))
        assert work.evaluations(cohort) == 3 * float(sampling.batch_sizes(federation.sizes).sum())
    work = BoundedUpdate(model, Full(), Unbounded(), 2, 0.1, Exponential(0.5))
    late = Cohort(federation, torch.arange(3), 3, Randomness(0))
    expected = _one_by_one(model, point, federation, 2, 0.1 * 0.5**3)
    torch.testing.assert_close(work.updates(point, late), expected, atol=2e-5, rtol=2e-5)
    assert work.unit is Unit.CLIENT


def test_bad_settings_are_refused() -> None:
    for steps, size in ((0, 0.1), (2, 0.0)):
        with pytest.raises(RequestError, match="local_step"):
            BoundedUpdate(logistic_regression(features=2), Full(), ClipNorm(1.0), steps, size)


def _hostile_clients() -> dict[str, tuple[Tensor, Tensor]]:
    """Records and targets of clients whose updates are hard to bound in single precision."""
    generator, large = torch.Generator().manual_seed(0), 1e10
    alike = torch.randn(1, 256, generator=generator).repeat(40, 1)
    noise = torch.randn(40, generator=generator)
    return {
        "records too short to be squared": (torch.eye(256)[:1] * 1e-23, torch.tensor([1e33])),
        "one such record among others": (
            torch.eye(256)[:2] * torch.tensor([[1.0], [1e-23]]),
            torch.tensor([1.0, 1e33]),
        ),
        "records that cancel": (torch.eye(256)[[0, 0, 0]], torch.tensor([large, 500.0, -large])),
        "records that nearly cancel": (
            alike + 1e-6 * torch.randn(40, 256, generator=generator),
            1e4 * (noise - noise.mean()),
        ),
    }


@pytest.mark.parametrize("bound", [ClipNorm(1.0), Normalise(1.0)], ids=["clip", "normalise"])
@pytest.mark.parametrize("case", _hostile_clients())
def test_a_sum_of_updates_that_are_not_written_out_keeps_the_bound(case: str, bound: Bound) -> None:
    features, targets = _hostile_clients()[case]
    federation = Federation(features, targets, torch.tensor([len(targets)]), torch.tensor([0]))
    work = BoundedUpdate(least_squares(features=256, intercept=False), Full(), bound, 30, 1e-12)
    point, cohort = torch.zeros(256), Cohort(federation, torch.tensor([0]), 0, Randomness(0))
    fast = work.summed(point, cohort)
    assert fast is not None
    assert float(fast.double().norm()) <= 1 - 0.5e-4
    slow, _ = work.run(point, cohort, {}, torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(fast, slow[0])


def test_norms_from_gram_matrices_are_rounded_up() -> None:
    """Wide records whose products all round in the same direction: the sum of the squares is too small."""
    generator = torch.Generator().manual_seed(1)
    for size in (1_000, 30_000):
        common, own = torch.full((1, size), 1.0), torch.rand(2, size, generator=generator) * 0.5
        records = RecordBlocks(_federation_of(common + own), torch.tensor([0]))
        made = span_updates(least_squares(features=size, intercept=False), torch.zeros(size), records, 30, 1e-9)
        assert made is not None
        exact = (made.coefficients[0].double() @ (common + own).double()).norm()
        assert exact <= made.norms()[0] <= exact * (1 + 2 * size * 2.0**-24 / 0.02)


def _federation_of(features: Tensor) -> Federation:
    targets = torch.tensor([1.0, -0.5])
    return Federation(features, targets, torch.tensor([len(features)]), torch.tensor([0]))
