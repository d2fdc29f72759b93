"""A round of private local steps of a convolutional network, beside the same steps without privacy.

MNIST, the network of papers/002, 10 clients, 50 local steps of batch 10. `tacit` clips every record and adds
noise at every step, all clients together; the plain loop trains one client after the other with no privacy at
all; `vmap` is tacit with every record's gradient written down by `torch.func`. One thread, in turns, CPU time.

Run: TACIT_DATA=... OMP_NUM_THREADS=1 python benchmarks/cnn.py
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from tacit.client.bounds import ClipNorm
from tacit.client.cohort import Cohort
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.sampling import WithoutReplacement
from tacit.data import load
from tacit.federation import Batch, Federation
from tacit.models import ModuleModel, build_model
from tacit.models.cnn import mnist_cnn
from tacit.models.gradients import WrittenGradients
from tacit.noise.randomness import Purpose, Randomness

CLIENTS, STEPS, BATCH, STEP_SIZE = 10, 50, 10, 0.05
REPEATS = 7


@dataclass(frozen=True, eq=False)
class ByVmap(ModuleModel):
    """The same model with every gradient written down."""

    def gradients(self, point: Tensor, batch: Batch) -> WrittenGradients:
        """One gradient for each record, by `vmap(grad)`."""

        def one(point: Tensor, features: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(self.module, self._state(point), (features[None],))
            return F.cross_entropy(outputs, target[None])

        rows = vmap(grad(one))(point[batch.owners()], batch.features, batch.targets)
        return WrittenGradients(rows, batch.counts)


def private_round(model: ModuleModel, federation: Federation, start: Tensor) -> Tensor:
    """What every client would send, with noise on every step."""
    work = NoisyLocalSteps(model, WithoutReplacement(BATCH), ClipNorm(1.0), STEPS, STEP_SIZE)
    cohort = Cohort(federation, torch.arange(CLIENTS), 0, Randomness(1))
    return work.run(start, cohort, {}, torch.ones(CLIENTS, dtype=torch.float64))[0]


def plain_loop(federation: Federation, start: Tensor) -> None:
    """Stochastic gradient descent in plain PyTorch, one client after the other."""
    module = mnist_cnn()
    parameters = list(module.parameters())
    generator = Randomness(1).generator(Purpose.SAMPLE)
    for client in range(CLIENTS):
        with torch.no_grad():
            for parameter, part in zip(parameters, start.split([p.numel() for p in parameters]), strict=True):
                parameter.copy_(part.view_as(parameter))
        own = federation.client(client)
        for _ in range(STEPS):
            drawn = torch.from_numpy(generator.integers(0, own.records, BATCH))
            loss = F.cross_entropy(module(own.features[drawn]), own.targets[drawn])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=STEP_SIZE)


def seconds(run: Callable[[], object]) -> float:
    """CPU time of one run."""
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    """Print medians and ratios."""
    torch.set_num_threads(1)
    federation = load("mnist", clients=CLIENTS, seed=0)
    model = build_model("mnist-cnn", federation)
    assert isinstance(model, ModuleModel)
    written = ByVmap(model.module)
    start = model.init(Randomness(0).generator(Purpose.INIT))
    runs: dict[str, Callable[[], object]] = {
        "plain loop, no privacy": lambda: plain_loop(federation, start),
        "tacit": lambda: private_round(model, federation, start),
        "vmap": lambda: private_round(written, federation, start),
    }
    for run in runs.values():
        run()
    times = [{name: seconds(run) for name, run in runs.items()} for _ in range(REPEATS)]
    for name in runs:
        ratios = sorted(row[name] / row["tacit"] for row in times)
        middle = statistics.median(row[name] for row in times)
        print(
            f"{name:24} {middle:6.2f} s, {statistics.median(ratios):5.2f} times tacit "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    if hasattr(os, "getloadavg"):
        print(f"load over the last minute {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
