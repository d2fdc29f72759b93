"""Noise on the coordinates that are sent, and on no others: the law of the message stays."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.soteriafl import soteriafl_saga, soteriafl_sgd, soteriafl_svrg
from tacit.client.bounds import ClipNorm
from tacit.client.cohort import Cohort
from tacit.client.estimators import Minibatch
from tacit.client.private_gradient import PrivateGradient
from tacit.client.sampling import Full, Poisson, WithoutReplacement
from tacit.compress import Direct, Shifted, parse_compressor
from tacit.engine.round import client_round, client_start
from tacit.federation import Federation
from tacit.models import nonconvex_logistic_regression
from tacit.models.gradients import row_norms
from tacit.noise.additive import LatticeGaussian, Noise, SeededGaussian
from tacit.noise.randomness import Purpose, Randomness
from tacit.server.update import Descent

DIM, CLIENTS = 20, 4
MODEL = nonconvex_logistic_regression(features=DIM, strength=0.7)
RAND_K = parse_compressor("rand-k:0.25")


@pytest.fixture(scope="module")
def federation() -> Federation:
    draw = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, DIM, generator=draw), torch.randint(0, 2, (n,), generator=draw)) for n in (6, 9, 5, 7)
    ]
    return Federation.from_clients(clients)


def _cohort(federation: Federation, round: int) -> Cohort:
    return Cohort(federation, torch.arange(CLIENTS), round, Randomness(8))


@pytest.mark.parametrize("make", ["sgd", "svrg", "saga"])
def test_without_noise_the_chosen_coordinates_are_those_of_the_vector(make: str, federation: Federation) -> None:
    shared = {"bound": ClipNorm(1.0), "sampling": Poisson(0.5), "compressor": RAND_K, "step": 0.1}
    algorithm = {
        "sgd": lambda: soteriafl_sgd(MODEL, **shared),  # type: ignore[arg-type]
        "svrg": lambda: soteriafl_svrg(MODEL, snapshot_probability=0.5, **shared),  # type: ignore[arg-type]
        "saga": lambda: soteriafl_saga(MODEL, **shared),  # type: ignore[arg-type]
    }[make]()
    work, point = algorithm.work, torch.linspace(-1, 1, DIM)
    assert isinstance(work, PrivateGradient)
    at = torch.stack([torch.randperm(DIM)[:5].sort().values for _ in range(CLIENTS)])
    silence = torch.zeros(CLIENTS, dtype=torch.float64)
    whole, _ = work.run(point, _cohort(federation, 1), work.init(point, federation), silence)
    part, _ = work.run(point, replace(_cohort(federation, 1), at=at), work.init(point, federation), silence)
    assert torch.equal(part, whole.gather(1, at))


@pytest.mark.parametrize("noise", [SeededGaussian(), LatticeGaussian()])
def test_every_sent_coordinate_carries_the_calibrated_noise(noise: Noise, federation: Federation) -> None:
    """Same mean as the whole vector, the promised deviation, independent from coordinate to coordinate."""
    work = PrivateGradient(MODEL, Minibatch(Full()), ClipNorm(1.0), noise)
    point, multipliers = torch.zeros(DIM), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    at = torch.tensor([[1, 7, 19], [0, 1, 2], [4, 5, 6], [16, 17, 18]])
    clean, _ = work.run(point, _cohort(federation, 0), {}, torch.zeros(CLIENTS, dtype=torch.float64))
    draws = 400
    rounds = [work.run(point, replace(_cohort(federation, t), at=at), {}, multipliers)[0] for t in range(draws)]
    scaled = torch.stack(rounds).double() - clean.gather(1, at).double()
    scaled = (scaled / work.noise_stds(federation.sizes, multipliers)[:, None]).flatten(1)
    # Of 90 numbers, each is within 6.5 of its own deviations: on a lattice they are drawn from the system.
    assert float(scaled.mean(0).abs().max()) < 6.5 / math.sqrt(draws)
    assert float((scaled.std(0) - 1).abs().max()) < 6.5 / math.sqrt(2 * draws)
    assert float((torch.corrcoef(scaled.T) - torch.eye(scaled.shape[1])).abs().max()) < 6.5 / math.sqrt(draws)


@pytest.mark.parametrize("uplink", [Direct(RAND_K), Shifted(RAND_K)])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0, 4.0]])
def test_a_round_equals_the_plain_one_where_there_is_no_noise(
    uplink: Direct | Shifted, weights: list[float] | None, federation: Federation
) -> None:
    """`client_round` on chosen coordinates against `run` and `send` on whole vectors."""
    if weights is not None:
        federation = federation.weighted(weights)
    algorithm = Algorithm(
        "plain",
        PrivateGradient(MODEL, Minibatch(WithoutReplacement(3)), ClipNorm(1.0)),
        uplink,
        Descent(0.1),
    )
    point, silence = torch.linspace(-1, 1, DIM), torch.zeros(CLIENTS, dtype=torch.float64)
    state = client_start(algorithm, point, federation)
    plain = client_start(algorithm, point, federation).uplink
    for t in range(3):
        cohort = _cohort(federation, t)
        packets, state = client_round(algorithm, {"point": point}, cohort, state, silence)
        rows, _ = algorithm.work.run(point, cohort, {}, silence)
        if cohort.weights is not None:
            rows = rows * cohort.weights.float()[:, None]
        generators = cohort.generators(Purpose.COMPRESS)
        expected, plain = uplink.send(rows, plain, cohort.clients, generators)
        assert packets.encode() == expected.encode()


def _rows() -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    wide = torch.randn(4, 3000, generator=draw)
    odd = torch.tensor([[0.0, 0.0], [1e-30, 1e-30], [3e25, 4e25], [torch.inf, 1.0], [torch.nan, 1.0], [3.0, 4.0]])
    return [wide, wide * 1e-20, wide * 1e22, torch.full((2, 5000), 0.1), odd, wide.double(), wide[:, :1]]


@pytest.mark.parametrize("rows", _rows())
def test_norms_are_those_of_double_precision(rows: Tensor) -> None:
    exact = rows.double().norm(dim=1)
    found = row_norms(rows)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=0.0, equal_nan=True)
