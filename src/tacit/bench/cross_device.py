"""T1, cross-device: many clients with few records, where whole clients are protected.

MNIST softmax regression, 3,000 clients of 20 records, cohorts of 600, 20 full local steps; every update is
normalised and gets its share of the noise (DP-NormFedAvg (Das et al. 2022)). The others do the same arithmetic.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.fedavg import dp_normfedavg
from tacit.algorithms.trust import Aggregator
from tacit.bench import rivals
from tacit.bench.flower import flower_turns
from tacit.bench.measure import BenchReport, compared, side_by_side
from tacit.bench.records import CLASSES, mnist_or_made_up
from tacit.engine.plan import plan
from tacit.engine.simulate import MEMORY_LIMIT_BYTES
from tacit.engine.simulation import Simulation
from tacit.federation import Federation
from tacit.models.linear import softmax_regression
from tacit.privacy import Adjacency, Target
from tacit.server.participation import PoissonClients

STEPS, STEP_SIZE, LENGTH, ROUNDS = 20, 0.1, 1.0, 100


def bench(*, quick: bool = False, data_dir: Path | None = None) -> BenchReport:
    """One round of tacit, of two hand-written loops, and of every tool that is installed."""
    clients, cohort = (300, 60) if quick else (3000, 600)
    federation = mnist_or_made_up(clients, 20, made_up=quick, data_dir=data_dir)
    simulation = private_simulation(federation, cohort)
    noise_std = float(simulation.calibration.noise_stds[0])
    members = torch.randperm(clients, generator=torch.Generator().manual_seed(1))[:cohort].sort().values
    state = simulation.start()

    def tacit() -> None:
        nonlocal state
        state = simulation.advance(state, members)

    runs = {
        "tacit": tacit,
        "PyTorch, a loop over clients": lambda: by_loop(federation, members, noise_std),
        "PyTorch, batched by hand": lambda: by_batch(federation, members, noise_std),
    }
    others, notes = rivals.cross_device(federation, members, STEPS, STEP_SIZE, LENGTH, noise_std)
    timings = side_by_side({**runs, **others}, repeats=3 if quick else 9)
    if rivals.installed("flwr", "ray", "psutil"):
        turns = flower_turns(federation, cohort, one_message, noise_std, tacit, repeats=2 if quick else 5)
        timings += compared(turns, ["tacit", "Flower"])[1:]
    return BenchReport(
        "T1",
        f"softmax regression, {cohort} of {clients} clients with 20 records, {STEPS} local steps",
        timings,
        {"data": federation.name, "algorithm": "dp-normfedavg"},
        notes,
    )


def private_simulation(federation: Federation, cohort: int) -> Simulation:
    """DP-NormFedAvg at epsilon 2, ready to advance."""
    participation = PoissonClients(float(cohort))
    algorithm: Algorithm = dp_normfedavg(
        softmax_regression(features=federation.features[0].numel(), classes=CLASSES),
        clip_norm=LENGTH,
        local_steps=STEPS,
        local_step=STEP_SIZE,
        step=1.0,
        trust=Aggregator(participation.expected),
    )
    algorithm = replace(algorithm, participation=participation)
    target = Target(2.0, 1e-5, Adjacency.ADD_REMOVE)
    planned = plan(algorithm, federation, rounds=ROUNDS, privacy=target)
    return Simulation(planned, planned.randomness(), MEMORY_LIMIT_BYTES)


def by_loop(federation: Federation, members: Tensor, noise_std: float) -> Tensor:
    """The usual way to write it: one client after the other with autograd, then normalise and add noise."""
    features = federation.features[0].numel()
    total = torch.zeros(features * CLASSES + CLASSES)
    for client in members.tolist():
        start, stop = federation.offsets[client : client + 2].tolist()
        total += one_message(federation.features[start:stop], federation.targets[start:stop], noise_std)
    return total


def one_message(own: Tensor, targets: Tensor, noise_std: float) -> Tensor:
    """One client's local steps from zero; its update is normalised and gets noise."""
    weight = torch.zeros(own.shape[1], CLASSES, requires_grad=True)
    bias = torch.zeros(CLASSES, requires_grad=True)
    for _ in range(STEPS):
        loss = F.cross_entropy(own @ weight + bias, targets)
        gradients = torch.autograd.grad(loss, [weight, bias])
        with torch.no_grad():
            weight -= STEP_SIZE * gradients[0]
            bias -= STEP_SIZE * gradients[1]
    update = -torch.cat([weight.detach().flatten(), bias.detach()]) / STEP_SIZE
    message: Tensor = update * (LENGTH / update.norm()) + noise_std * torch.randn(len(update))
    return message


def by_batch(federation: Federation, members: Tensor, noise_std: float) -> Tensor:
    """The same with all clients in one tensor and a hand-written gradient."""
    batch = federation.batch(members)
    clients, features = len(members), federation.features[0].numel()
    own = batch.features.reshape(clients, -1, features)
    wanted = F.one_hot(batch.targets, CLASSES).reshape(clients, -1, CLASSES)
    weights, biases = torch.zeros(clients, features, CLASSES), torch.zeros(clients, 1, CLASSES)
    for _ in range(STEPS):
        slopes = (torch.softmax(torch.baddbmm(biases, own, weights), 2) - wanted) / own.shape[1]
        weights.baddbmm_(own.transpose(1, 2), slopes, alpha=-STEP_SIZE)
        biases -= STEP_SIZE * slopes.sum(1, keepdim=True)
    updates = -torch.cat([weights.flatten(1), biases.flatten(1)], 1) / STEP_SIZE
    bounded = updates * (LENGTH / updates.norm(dim=1, keepdim=True))
    total: Tensor = bounded.add_(torch.randn_like(bounded), alpha=noise_std).sum(0)
    return total
