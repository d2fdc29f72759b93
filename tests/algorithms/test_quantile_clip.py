"""A clip norm that follows a quantile of the updates: a message of two parts and what becomes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tacit
from tacit.algorithms.algorithm import Algorithm
from tacit.client.cohort import Cohort
from tacit.client.quantile_update import BELOW, CLIP_NORM, UPDATE_WEIGHT, WEIGHT
from tacit.engine.round import client_round, client_start, server_round, server_start
from tacit.errors import RequestError
from tacit.noise.randomness import Randomness

DATA = tacit.load("digits", clients=20, unit_norm=True)
MODEL = tacit.build_model("softmax", DATA)


def _algorithm(clip_norm: float = 1.0, clip_quantile: float = 0.5) -> Algorithm:
    return tacit.dp_fedavg(MODEL, clip_norm=clip_norm, clip_quantile=clip_quantile, step=0.5, local_steps=3)


def _cohort(**told: float) -> Cohort:
    sent = {name: torch.tensor([value]) for name, value in told.items()}
    return replace(Cohort(DATA, torch.arange(20), 0, Randomness(0)), told=sent)


@pytest.mark.parametrize("clip", [1e-30, 1e-3, 1.0, 1e3, 1e30, 0.0, -1.0, float("nan"), float("inf")])
def test_whatever_clip_norm_the_server_sends_a_client_adds_at_most_the_bound(clip: float) -> None:
    work, point = _algorithm().work, torch.zeros(MODEL.dim)
    rows, _ = work.run(point, _cohort(clip_norm=clip), {}, torch.zeros(20, dtype=torch.float64))
    assert rows.shape == (20, MODEL.dim + 1) == (20, sum(work.parts.values()))
    assert bool(torch.isfinite(rows).all())
    assert float(torch.linalg.vector_norm(rows, dim=1).max()) <= work.bound.norm(MODEL.dim)


def test_both_parts_are_what_they_say() -> None:
    work, point = _algorithm().work, torch.zeros(MODEL.dim)
    plain = tacit.dp_fedavg(MODEL, step=0.5, local_steps=3).work
    assert isinstance(plain, tacit.BoundedUpdate)
    updates = plain.updates(point, _cohort())
    norms = torch.linalg.vector_norm(updates, dim=1)
    clip = float(norms.median()) * 1.001
    rows, _ = work.run(point, _cohort(clip_norm=clip), {}, torch.zeros(20, dtype=torch.float64))
    direction, below = rows.split(list(work.parts.values()), dim=1)
    shortened = updates * (clip / norms).clamp(max=1.0)[:, None]
    torch.testing.assert_close(direction * clip / UPDATE_WEIGHT, shortened, rtol=1e-3, atol=1e-6)
    assert list(work.parts) == ["direction", BELOW]
    torch.testing.assert_close(below[:, 0], torch.where(norms <= clip, WEIGHT, -WEIGHT), rtol=1e-3, atol=0)


@pytest.mark.parametrize(("start", "quantile"), [(0.2, 0.8), (20.0, 0.3)])
def test_the_clip_norm_finds_the_quantile(start: float, quantile: float) -> None:
    """On a model that hardly moves, so that the quantile stays where it is; the longest way up, and down."""
    algorithm = tacit.dp_fedavg(MODEL, clip_norm=start, clip_quantile=quantile, step=1e-6, local_steps=3)
    point, silence = torch.zeros(MODEL.dim), torch.zeros(20, dtype=torch.float64)
    clients, server = client_start(algorithm, point, DATA), server_start(algorithm, point)
    for t in range(100):
        cohort = replace(_cohort(), round=t)
        packets, clients = client_round(algorithm, {"point": point, **server.update}, cohort, clients, silence)
        server = server_round(algorithm, packets.sum(), server, round=t, cohort=20, clients=20)
    assert isinstance(algorithm.work, tacit.QuantileUpdate)
    norms = torch.linalg.vector_norm(algorithm.work.updates(point, _cohort()), dim=1)
    share = float((norms <= float(server.update[CLIP_NORM])).double().mean())
    assert abs(share - quantile) <= 0.1


def test_the_promise_and_the_noise_are_those_of_the_same_bound() -> None:
    target = tacit.Target(epsilon=8, delta=1e-3)
    fixed = tacit.plan(tacit.dp_fedavg(MODEL, step=0.5), DATA, rounds=4, privacy=target)
    moving = tacit.plan(_algorithm(clip_norm=7.0), DATA, rounds=4, privacy=target)
    assert torch.equal(fixed.calibration.noise_multipliers, moving.calibration.noise_multipliers)
    assert torch.equal(fixed.calibration.noise_stds, moving.calibration.noise_stds)
    run = tacit.simulate(moving)
    assert run.guarantee is not None
    assert run.guarantee.epsilon <= 8
    assert run.history.rows[-1].uplink_bits_per_client == 4 * 8 * (4 * (MODEL.dim + 1) + _head_bytes())


def _head_bytes() -> int:
    return tacit.Identity().message_bytes(MODEL.dim) - 4 * MODEL.dim


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"clip_quantile": 1.0, "step": 0.1}, "between 0 and 1"), ({"clip_quantile": 0.5}, "needs a step")],
)
def test_refusals(settings: dict[str, float], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        tacit.dp_fedavg(MODEL, **settings)  # type: ignore[arg-type]
