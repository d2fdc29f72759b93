"""DP-SCAFFOLD is the paper's algorithm with half of its messages, is charged once, and does not drift."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import pld
from torch import Tensor

import tacit
from tacit.algorithms.fed_spa import dp_fed
from tacit.algorithms.scaffold import dp_scaffold
from tacit.client.bounds import ClipNorm
from tacit.client.cohort import Cohort
from tacit.client.sampling import Full, Poisson
from tacit.compress import RandK
from tacit.compress.compressor import Compressor
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.round import broadcast, client_round, client_start, server_round, server_start
from tacit.federation import Federation
from tacit.models import logistic_regression
from tacit.models.model import Model, penalty_gradient
from tacit.noise.randomness import Randomness
from tacit.schedules import Constant
from tacit.server.participation import FixedNumber

CLIENTS, RECORDS, FEATURES, STEPS, LOCAL = 4, 12, 3, 5, 0.3
MODEL = logistic_regression(features=FEATURES, ridge=0.01)


@pytest.fixture
def federation() -> Federation:
    """Clients whose records differ: each has features of its own centre, and labels of its own plane."""
    generator = torch.Generator().manual_seed(5)
    centres = 1.5 * torch.randn(CLIENTS, FEATURES, generator=generator)
    planes = torch.randn(CLIENTS, FEATURES, generator=generator)
    features = torch.randn(CLIENTS * RECORDS, FEATURES, generator=generator)
    features += centres.repeat_interleave(RECORDS, 0)
    targets = ((features * planes.repeat_interleave(RECORDS, 0)).sum(1) > 0).long()
    owners = [i // RECORDS for i in range(CLIENTS * RECORDS)]
    return Federation.from_arrays(features, targets, owners, classes=2)


def _gradient(federation: Federation, client: int, point: Tensor) -> Tensor:
    batch = federation.batch(torch.tensor([client]))
    found = MODEL.gradients(point[None], batch)
    return ClipNorm(1.0).sums(found)[0] / RECORDS + penalty_gradient(MODEL, point)


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0, 2.0]])
@pytest.mark.parametrize("number", [CLIENTS, 2])
def test_it_is_the_algorithm_of_the_paper(
    federation: Federation, number: int, weights: list[float] | None
) -> None:
    """Algorithm 1 of Noble et al., with both of its messages, written out client by client."""
    if weights is not None:
        federation = federation.weighted(weights)
    weight = torch.ones(CLIENTS) if federation.weights is None else federation.weights
    algorithm = replace(
        dp_scaffold(MODEL, sampling=Full(), local_steps=STEPS, local_step=LOCAL, step=0.7),
        participation=FixedNumber(number),
    )
    start = torch.zeros(MODEL.dim)
    clients, server = client_start(algorithm, start, federation), server_start(algorithm, start)
    x, c, own = start, torch.zeros(MODEL.dim), torch.zeros(CLIENTS, MODEL.dim)
    for t in range(6):
        cohort = algorithm.participation.cohort(CLIENTS, t, Randomness(1))
        sent = broadcast(algorithm, server, t)
        part = Cohort(federation, cohort, t, Randomness(1))
        packets, clients = client_round(algorithm, sent, part, clients, torch.zeros(number, dtype=torch.float64))
        server = server_round(algorithm, packets.sum(), server, round=t, cohort=number, clients=CLIENTS)
        moves, changes = torch.zeros(MODEL.dim), torch.zeros(MODEL.dim)
        for i in cohort.tolist():
            y = x
            for _ in range(STEPS):
                y = y - LOCAL * (_gradient(federation, i, y) - own[i] + c)
            after = own[i] - c + (x - y) / (STEPS * LOCAL)
            # Of a weighted mean, a client's gradient counts by its weight; so does what steers the others.
            moves += weight[i] * (y - x) + (weight[i] - 1) * STEPS * LOCAL * c
            changes += weight[i] * (after - own[i])
            own[i] = after
        x, c = x + 0.7 * moves / number, c + changes / CLIENTS
        torch.testing.assert_close(algorithm.server.output(server.update), x, atol=2e-6, rtol=1e-4)


def _drift(model: Model, algorithm: tacit.Algorithm, federation: Federation) -> float:
    """How large the gradient of the whole objective stays in the end, without noise."""
    run = tacit.simulate(tacit.plan(algorithm, federation, rounds=150, privacy="none"), evaluate_every=150)
    return run.history[-1].grad_norm_sq


def test_it_does_not_drift_where_plain_local_steps_do(federation: Federation) -> None:
    settings: dict[str, Any] = {
        "sampling": Full(), "bound": ClipNorm(100.0), "local_steps": 10, "local_step": 0.3, "step": 1.0,
        "schedule": Constant(),
    }  # fmt: skip
    plain = _drift(MODEL, dp_fed(MODEL, **settings), federation)
    assert _drift(MODEL, dp_scaffold(MODEL, **settings), federation) < 0.01 * plain
    compressed = dp_scaffold(MODEL, compressor=RandK(fraction=0.5), **settings)
    assert _drift(MODEL, compressed, federation) < 0.1 * plain


@pytest.mark.parametrize("compressor", ["identity", "rand-k:0.5"])
def test_its_promise_is_that_of_every_local_step_and_of_nothing_else(compressor: str) -> None:
    """Recomputed by another library: R K Poisson-sampled Gaussian releases, whatever the control variates are."""
    own = {"sampling": "poisson", "batch": 0.2, "local_steps": 3, "compressor": compressor}
    recipe = Recipe(
        data="breast-cancer", algorithm="dp-scaffold", clients=3, rounds=5, epsilon=2.0, delta=1e-5,
        adjacency="add-remove", algorithm_settings=own,
    )  # fmt: skip
    plan = make_plan(recipe)
    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
    noise = dp_accounting.GaussianDpEvent(float(plan.calibration.noise_multipliers[0]))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.2, noise), 5 * 3)
    assert plan.guarantee is not None
    assert plan.guarantee.epsilon <= 2.0
    assert accountant.get_epsilon(1e-5) == pytest.approx(plan.guarantee.epsilon, rel=2e-3)


def test_half_of_the_papers_bytes_are_sent(federation: Federation) -> None:
    algorithm = dp_scaffold(MODEL, sampling=Poisson(0.5), local_steps=2)
    run = tacit.simulate(tacit.plan(algorithm, federation, rounds=3, privacy=tacit.Target(5.0, 1e-3)))
    compressor: Compressor = algorithm.uplink.compressor
    assert run.history[-1].uplink_bits_total == 3 * CLIENTS * 8 * compressor.message_bytes(MODEL.dim)
    assert compressor.message_bytes(MODEL.dim) == 6 + 4 * MODEL.dim
