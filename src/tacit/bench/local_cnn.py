"""T3, cross-silo with local steps: a convolutional network that takes many small noisy steps on each client.

MNIST, the network of Fed-SPA (Hu et al. 2021), 10 clients, 50 local steps of batch 10; every record is clipped
and every step gets noise. The plain loop trains one client after the other, without privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.bench import rivals
from tacit.bench.measure import BenchReport, side_by_side
from tacit.bench.records import mnist_or_made_up
from tacit.client.bounds import ClipNorm
from tacit.client.cohort import Cohort
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.sampling import WithoutReplacement
from tacit.federation import Batch, Federation
from tacit.models import ModuleModel, build_model
from tacit.models.cnn import mnist_cnn
from tacit.models.shares import LayeredGradients
from tacit.noise.randomness import Purpose, Randomness

CLIENTS, BATCH, STEP_SIZE, CLIP_NORM, NOISE_MULTIPLIER = 10, 10, 0.05, 1.0, 1.0


@dataclass(frozen=True, eq=False)
class ByVmap(ModuleModel):
    """The same model with every record's gradient materialised."""

    def gradients(self, point: Tensor, batch: Batch) -> LayeredGradients:

        def one(point: Tensor, features: Tensor, target: Tensor) -> Tensor:
            outputs = torch.func.functional_call(self.module, self._state(point), (features[None],))
            return F.cross_entropy(outputs, target[None])

        rows = torch.func.vmap(torch.func.grad(one))(point[batch.owners()], batch.features, batch.targets)
        return LayeredGradients.written(rows, batch.counts)


def bench(*, quick: bool = False, data_dir: Path | None = None) -> BenchReport:
    """One round of all clients."""
    steps, records = (5, 60) if quick else (50, 6000)
    federation = mnist_or_made_up(CLIENTS, records, made_up=quick, data_dir=data_dir)
    model = build_model("mnist-cnn", federation)
    assert isinstance(model, ModuleModel), "the registry's network is a module"
    start = model.init(Randomness(0).generator(Purpose.INIT))
    written = ByVmap(model.module)
    runs: dict[str, Callable[[], object]] = {
        "tacit": lambda: private_round(model, federation, start, steps),
        "PyTorch without privacy, a loop over clients": lambda: plain_loop(federation, start, steps),
        "PyTorch, clipped by vmap, a loop over clients": lambda: vmap_loop(federation, start, steps),
        "tacit with gradients by vmap": lambda: private_round(written, federation, start, steps),
    }
    others, notes = rivals.local_steps(
        federation, mnist_cnn, steps, BATCH, STEP_SIZE, CLIP_NORM, NOISE_MULTIPLIER
    )
    return BenchReport(
        "T3",
        f"the network of Fed-SPA, {CLIENTS} clients, {steps} local steps of batch {BATCH}",
        side_by_side({**runs, **others}, repeats=2 if quick else 7),
        {"data": federation.name, "parameters": model.dim},
        notes,
    )


def private_round(model: ModuleModel, federation: Federation, start: Tensor, steps: int) -> Tensor:
    """What every client would send, with noise on every step."""
    work = NoisyLocalSteps(model, WithoutReplacement(BATCH), ClipNorm(CLIP_NORM), steps, STEP_SIZE)
    cohort = Cohort(federation, torch.arange(CLIENTS), 0, Randomness(1))
    multipliers = torch.full((CLIENTS,), NOISE_MULTIPLIER, dtype=torch.float64)
    return work.run(start, cohort, {}, multipliers)[0]


def vmap_loop(federation: Federation, start: Tensor, steps: int) -> None:
    """Every record's gradient by torch.func, clipped, with noise, one client after the other."""
    model = ByVmap(mnist_cnn())
    generator = Randomness(1).generator(Purpose.SAMPLE)
    for client in range(CLIENTS):
        point, own = start[None], federation.client(client)
        for _ in range(steps):
            drawn = torch.from_numpy(generator.integers(0, own.records, BATCH))
            rows = model.gradients(point, own.take(drawn, torch.tensor([BATCH]))).shares[0].like
            total = torch.mv(rows.T, (CLIP_NORM / rows.norm(dim=1)).clamp(max=1.0))
            noise = NOISE_MULTIPLIER * CLIP_NORM * torch.randn_like(total)
            point = point - STEP_SIZE / BATCH * (total + noise)


def plain_loop(federation: Federation, start: Tensor, steps: int) -> None:
    """Stochastic gradient descent in plain PyTorch, one client after the other."""
    module = mnist_cnn()
    parameters = list(module.parameters())
    generator = Randomness(1).generator(Purpose.SAMPLE)
    for client in range(CLIENTS):
        with torch.no_grad():
            for parameter, part in zip(parameters, start.split([p.numel() for p in parameters]), strict=True):
                parameter.copy_(part.view_as(parameter))
        own = federation.client(client)
        for _ in range(steps):
            drawn = torch.from_numpy(generator.integers(0, own.records, BATCH))
            loss = F.cross_entropy(module(own.features[drawn]), own.targets[drawn])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=STEP_SIZE)
