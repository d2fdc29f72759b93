"""The same rounds in other tools, if they are installed (`pip install tacit[bench]`).

Every function returns runs by name, and notes about what was left out.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.federation import Federation

Runs = dict[str, Callable[[], object]]


def installed(*names: str) -> bool:
    """Whether all of these packages are installed."""
    return all(find_spec(name) is not None for name in names)


def _missing(*names: str) -> tuple[str, ...]:
    return tuple(f"{name} is not installed: left out" for name in names if not installed(name))


def cross_device(
    federation: Federation, members: Tensor, steps: int, step_size: float, length: float, noise_std: float
) -> tuple[Runs, tuple[str, ...]]:
    """T1 in pfl-research, with its Gaussian mechanism for every user. Flower has a file of its own."""
    runs: Runs = {}
    if installed("pfl"):
        runs["pfl-research"] = _pfl(federation, members, steps, step_size, length, noise_std)
    return runs, _missing("pfl", "flwr")


def _pfl(
    federation: Federation, members: Tensor, steps: int, step_size: float, length: float, noise_std: float
) -> Callable[[], object]:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism

    class Softmax(nn.Linear):
        def loss(self, features: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
            return F.cross_entropy(self(features), targets)

        def metrics(self, features: Tensor, targets: Tensor, eval: bool = False) -> dict[str, Any]:
            return {}

    module = Softmax(federation.features[0].numel(), federation.classes or 2)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    places = {client: federation.offsets[client : client + 2].tolist() for client in members.tolist()}

    def own(client: int) -> Any:
        start, stop = places[client]
        return PyTorchTensorDataset((federation.features[start:stop], federation.targets[start:stop]))

    users = itertools.cycle(places)
    data = FederatedDataset(own, lambda: next(users))
    mechanism = GaussianMechanism(length, noise_std / length)
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[mechanism])
    training = NNTrainHyperParams(local_batch_size=None, local_num_epochs=steps, local_learning_rate=step_size)
    algorithm, rounds = FederatedAveraging(), 0

    def one_round() -> None:
        nonlocal rounds
        rounds += 1
        # It evaluates only the first round, which is the warm-up.
        settings = NNAlgorithmParams(rounds, 10**9, len(places), 0)
        algorithm.run(settings, backend, model, training, None, [])

    return one_round


def cross_silo(
    federation: Federation, module: nn.Module, batch: int, clip_norm: float, noise_multiplier: float
) -> tuple[Runs, tuple[str, ...]]:
    """T2 in Opacus, without messages: with materialised per-record gradients, or with its ghost clipping."""
    missing = _missing("opacus")
    if missing:
        return {}, missing
    each = int(federation.sizes[0])
    generator = torch.Generator().manual_seed(0)
    noise = {
        "noise_multiplier": noise_multiplier, "max_grad_norm": clip_norm, "expected_batch_size": batch,
    }  # fmt: skip

    def batches() -> list[tuple[Tensor, Tensor]]:
        rows = torch.randint(0, each, (federation.clients, batch), generator=generator)
        rows += each * torch.arange(federation.clients)[:, None]
        return [(federation.features.index_select(0, own), federation.targets[own]) for own in rows]

    def written() -> None:
        for features, targets in batches():
            optimizer.zero_grad()
            F.cross_entropy(private(features), targets).backward()
            optimizer.pre_step()

    def ghost() -> None:
        for features, targets in batches():
            ghost_optimizer.zero_grad()
            criterion(ghostly(features), targets).backward()
            ghost_optimizer.pre_step()

    private, optimizer = _opacus(module, noise)
    ghostly, ghost_optimizer, criterion = _opacus_ghost(module, noise)
    return {"Opacus": written, "Opacus, ghost clipping": ghost}, ()


def local_steps(
    federation: Federation,
    make: Callable[[], nn.Module],
    steps: int,
    batch: int,
    step_size: float,
    clip_norm: float,
    noise_multiplier: float,
) -> tuple[Runs, tuple[str, ...]]:
    """T3 in Opacus, one client after the other."""
    missing = _missing("opacus")
    if missing:
        return {}, missing
    each = int(federation.sizes[0])
    generator = torch.Generator().manual_seed(0)
    noise = {
        "noise_multiplier": noise_multiplier, "max_grad_norm": clip_norm, "expected_batch_size": batch,
    }  # fmt: skip
    module = make()
    start = [parameter.detach().clone() for parameter in module.parameters()]
    private, optimizer = _opacus(module, noise, step_size)

    def one_round() -> None:
        for client in range(federation.clients):
            with torch.no_grad():
                for parameter, value in zip(private.parameters(), start, strict=True):
                    parameter.copy_(value)
            for _ in range(steps):
                rows = torch.randint(0, each, (batch,), generator=generator) + each * client
                optimizer.zero_grad()
                F.cross_entropy(private(federation.features[rows]), federation.targets[rows]).backward()
                optimizer.step()

    return {"Opacus": one_round}, ()


def _opacus(module: nn.Module, noise: dict[str, Any], step_size: float = 0.0) -> tuple[Any, Any]:
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    warnings.filterwarnings("ignore", module="torch.nn.modules.module")
    private = GradSampleModule(_copy(module))
    return private, DPOptimizer(torch.optim.SGD(private.parameters(), lr=step_size), **noise)


def _opacus_ghost(module: nn.Module, noise: dict[str, Any]) -> tuple[Any, Any, Any]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    private = GradSampleModuleFastGradientClipping(_copy(module), max_grad_norm=noise["max_grad_norm"])
    optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(private.parameters(), lr=0.0), **noise)
    return private, optimizer, DPLossFastGradientClipping(private, optimizer, nn.CrossEntropyLoss())


def _copy(module: nn.Module) -> nn.Module:
    """A copy without the hooks of other wrappers."""
    return copy.deepcopy(module)
