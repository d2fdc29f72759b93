"""Noisy local steps: the same walk as one client after the other, and a release for every step."""

from __future__ import annotations

import pytest
import torch

import tacit
from tacit.algorithms.isrl_dp import noisy_local_sgd
from tacit.client.cohort import Cohort
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.sampling import Full, OnePass, WithReplacement
from tacit.engine.plan import plan
from tacit.engine.simulate import simulate
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models import least_squares, softmax_regression
from tacit.noise.randomness import Randomness
from tacit.privacy import Target, events

MODEL = softmax_regression(features=5, classes=3, ridge=0.01)


@pytest.fixture
def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(size, 5, generator=generator), torch.randint(3, (size,), generator=generator))
        for size in (12, 20, 7)
    ]
    return Federation.from_clients(clients, classes=3)


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
