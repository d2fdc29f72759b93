"""Noise that remembers: its memory is each client's own, and goes on from round to round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tacit
from tacit.client.bounds import ClipNorm
from tacit.client.cohort import Cohort
from tacit.client.estimators import Minibatch
from tacit.client.private_gradient import PrivateGradient
from tacit.client.sampling import Full
from tacit.compress import Direct, RandK
from tacit.engine.simulate import simulate
from tacit.federation import Federation
from tacit.models import logistic_regression
from tacit.noise.additive import SeededGaussian
from tacit.noise.gaussian import gaussian_rows
from tacit.noise.randomness import Generators, Randomness
from tacit.server.participation import FixedNumber
from tacit.server.update import Descent
from tacit.state import State


@dataclass(frozen=True)
class Differences(SeededGaussian):
    """z_t - z_{t-1}: all that was added so far adds up to the newest z."""

    def init(self, clients: int, dim: int) -> State:
        return {"last": torch.zeros(clients, dim)}

    def add(
        self, rows: Tensor, stds: Tensor, noise_multipliers: Tensor, generators: Generators, memory: State
    ) -> tuple[Tensor, State]:
        fresh = gaussian_rows(stds, rows.shape[1], generators)
        return rows + fresh - memory["last"], {"last": fresh}


@pytest.fixture
def federation() -> Federation:
    features = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    return Federation.from_arrays(features, (features[:, 0] > 0).long(), [i // 4 for i in range(12)], classes=2)


WORK = PrivateGradient(logistic_regression(features=3), Minibatch(Full()), ClipNorm(1.0), Differences())
ALGORITHM = tacit.Algorithm("differences", WORK, Direct(RandK(fraction=0.5)), Descent(0.1))


def test_every_client_has_its_own_memory(federation: Federation) -> None:
    point, noisy = torch.zeros(WORK.model.dim), torch.ones(3, dtype=torch.float64)
    state, sums = WORK.init(point, federation), torch.zeros(3, WORK.model.dim)
    for t, clients in enumerate([[0, 1, 2], [2], [0, 1], [1, 2]]):
        cohort = Cohort(federation, torch.tensor(clients), t, Randomness(0))
        rows, state = WORK.run(point, cohort, state, noisy[clients])
        clean, _ = WORK.run(point, cohort, {}, 0 * noisy[clients])
        sums[clients] += rows - clean
        torch.testing.assert_close(sums[clients], state["noise.last"][clients])


def test_a_run_goes_on_where_it_was(federation: Federation, tmp_path: Path) -> None:
    """Also with messages of some coordinates: noise that remembers is drawn for all of them."""
    algorithm = replace(ALGORITHM, participation=FixedNumber(2))
    plan = tacit.plan(algorithm, federation, rounds=6, privacy=tacit.Target(5.0, 1e-3), seed=2)
    whole = simulate(plan, out=tmp_path / "whole", checkpoint_every=1)

    def stop(round: int, row: object) -> None:
        if round == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        simulate(plan, out=tmp_path / "cut", checkpoint_every=1, progress=stop)
    assert torch.equal(simulate(plan, out=tmp_path / "cut", checkpoint_every=1).parameters, whole.parameters)
    plain = replace(algorithm, work=WORK.with_noise(SeededGaussian()))
    other = simulate(tacit.plan(plain, federation, rounds=6, privacy=tacit.Target(5.0, 1e-3), seed=2))
    assert not torch.equal(other.parameters, whole.parameters)
