"""T2, cross-silo: a few clients with many records, every record protected, messages compressed.

MNIST, a 784-64-10 sigmoid network, 10 clients of 6,000 records: one gradient of batch 256 each, clipped record by
record, with noise, shifted, rand-k 5%, as bytes on the wire (SoteriaFL (Li et al. 2022)). It is compared with the
same round without any of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.soteriafl import soteriafl_sgd
from tacit.bench import rivals
from tacit.bench.measure import BenchReport, side_by_side
from tacit.bench.records import CLASSES, FEATURES, mnist_or_made_up
from tacit.client.bounds import ClipNorm
from tacit.client.cohort import Cohort
from tacit.client.sampling import WithoutReplacement
from tacit.compress import parse_compressor
from tacit.engine.round import POINT, broadcast, client_round, client_start, server_round, server_start
from tacit.federation import Federation
from tacit.models.network import SigmoidNetwork
from tacit.noise.randomness import Purpose, Randomness

CLIENTS, HIDDEN, STEP_SIZE, CLIP_NORM, NOISE_MULTIPLIER = 10, 64, 0.1, 1.0, 1.0


def bench(*, quick: bool = False, data_dir: Path | None = None) -> BenchReport:
    """One round of all clients."""
    records, batch = (600, 64) if quick else (6000, 256)
    federation = mnist_or_made_up(CLIENTS, records, made_up=quick, data_dir=data_dir)
    runs: dict[str, Callable[[], object]] = {
        "tacit": private_rounds(federation, batch),
        "tacit, messages read back too": private_rounds(federation, batch, read=True),
        "PyTorch without privacy, one batch": floor(federation, batch),
        "PyTorch without privacy, a loop over clients": floor_by_loop(federation, batch),
        "PyTorch, clipped by vmap": by_vmap(federation, batch),
    }
    others, notes = rivals.cross_silo(federation, network(), batch, CLIP_NORM, NOISE_MULTIPLIER)
    return BenchReport(
        "T2",
        f"a 784-64-10 network, {CLIENTS} clients with {records:,} records, batches of {batch}, rand-k 5%",
        side_by_side({**runs, **others}, repeats=3 if quick else 15),
        {"data": federation.name, "algorithm": "soteriafl-sgd"},
        notes,
    )


def private_rounds(
    federation: Federation, batch: int, *, hidden: int = HIDDEN, read: bool = False
) -> Callable[[], Tensor]:
    """Rounds as silos and server run them: client_round, bytes, server_round. Each call is the next round."""
    model = SigmoidNetwork(FEATURES, hidden, CLASSES)
    compressor = parse_compressor("rand-k:0.05")
    algorithm: Algorithm = soteriafl_sgd(
        model,
        bound=ClipNorm(CLIP_NORM),
        sampling=WithoutReplacement(batch),
        compressor=compressor,
        step=STEP_SIZE,
    )
    randomness = Randomness(0)
    point = model.init(randomness.generator(Purpose.INIT))
    clients, server = client_start(algorithm, point, federation), server_start(algorithm, point)
    multipliers = torch.full((federation.clients,), NOISE_MULTIPLIER, dtype=torch.float64)
    everyone, t = torch.arange(federation.clients), 0

    def one_round() -> Tensor:
        nonlocal clients, server, t
        now = broadcast(algorithm, server, t)
        packets, clients = client_round(
            algorithm, now, Cohort(federation, everyone, t, randomness), clients, multipliers
        )
        messages = packets.encode()
        total = torch.zeros_like(now[POINT])
        (compressor.decode(messages, model.dim) if read else packets).add_sum_to(total)
        size = federation.clients
        server = server_round(algorithm, total, server, round=t, cohort=size, clients=size)
        t += 1
        return algorithm.server.output(server.update)

    return one_round


def network(hidden: int = HIDDEN) -> nn.Sequential:
    """The same network as a PyTorch module."""
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.Sigmoid(), nn.Linear(hidden, CLASSES))


def drawn_rows(federation: Federation, batch: int, generator: torch.Generator) -> Tensor:
    """A batch of every client, drawn as cheaply as possible."""
    each = int(federation.sizes[0])
    rows = torch.randint(0, each, (federation.clients, batch), generator=generator)
    return (rows + each * torch.arange(federation.clients)[:, None]).flatten()


def floor(federation: Federation, batch: int, *, hidden: int = HIDDEN) -> Callable[[], None]:
    """No privacy, no messages: one forward and one backward pass over all clients' batches, one step."""
    module, generator = network(hidden), torch.Generator().manual_seed(0)
    parameters = list(module.parameters())

    def one_round() -> None:
        rows = drawn_rows(federation, batch, generator)
        scores = module(federation.features.index_select(0, rows))
        _descend(parameters, torch.autograd.grad(F.cross_entropy(scores, federation.targets[rows]), parameters))

    return one_round


def floor_by_loop(federation: Federation, batch: int) -> Callable[[], None]:
    """No privacy, no messages: a forward and a backward pass for every client, one step with the mean."""
    module, generator = network(), torch.Generator().manual_seed(0)
    parameters = list(module.parameters())

    def one_round() -> None:
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for rows in drawn_rows(federation, batch, generator).split(batch):
            scores = module(federation.features.index_select(0, rows))
            gradients = torch.autograd.grad(F.cross_entropy(scores, federation.targets[rows]), parameters)
            for one, gradient in zip(total, gradients, strict=True):
                one.add_(gradient, alpha=1 / federation.clients)
        _descend(parameters, total)

    return one_round


def by_vmap(federation: Federation, batch: int) -> Callable[[], None]:
    """Every record's gradient by torch.func, clipped, with noise; no messages."""
    module, generator = network(), torch.Generator().manual_seed(0)
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], features: Tensor, target: Tensor) -> Tensor:
        scores = torch.func.functional_call(module, parameters, (features[None],))
        return F.cross_entropy(scores, target[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def one_round() -> None:
        total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        for rows in drawn_rows(federation, batch, generator).split(batch):
            gradients = each(parameters, federation.features.index_select(0, rows), federation.targets[rows])
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
            scales = (CLIP_NORM / norms).clamp(max=1.0)
            for name, gradient in gradients.items():
                clipped = torch.tensordot(scales, gradient, dims=1)
                total[name] += (clipped + NOISE_MULTIPLIER * CLIP_NORM * torch.randn_like(clipped)) / batch
        _descend(list(parameters.values()), list(total.values()), STEP_SIZE / federation.clients)

    return one_round


def _descend(parameters: Sequence[Tensor], gradients: Sequence[Tensor], step: float = STEP_SIZE) -> None:
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=step)
