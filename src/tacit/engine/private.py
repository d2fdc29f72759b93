"""Private federated training of a PyTorch network in two lines, for users of PyTorch and Opacus."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from tacit.engine.brief_repr import BriefRepr
from tacit.engine.execute import run_plan
from tacit.engine.plan import Plan, make_plan
from tacit.engine.recipe import Recipe
from tacit.engine.run import Run
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.module import ModuleModel
from tacit.models.named import plain_module
from tacit.models.persons import PersonModel
from tacit.models.record_loss import RecordLoss, described, per_record_loss
from tacit.models.trainable import Trainable
from tacit.models.trial import check_fits
from tacit.privacy import Guarantee


@dataclass(frozen=True, eq=False, repr=False)
class PrivateTraining(BriefRepr):
    """A network, its clients and the promise, ready to be trained; made by `make_private`."""

    model: ModuleModel
    """the network with per-record gradients"""
    plan: Plan
    """the run that is ready to start"""

    def brief(self) -> dict[str, str]:
        """The training in a few lines."""
        numbers = f"{type(self.model.module).__name__}, {self.model.dim:,} trained numbers"
        state = "finished, see .run" if "run" in self.__dict__ else "not started: .fit() trains"
        return {"network": numbers, **self.plan.brief(), "training": state}

    @property
    def guarantee(self) -> Guarantee | None:
        """What is promised, to whom, against whom: known before training."""
        return self.plan.guarantee

    @cached_property
    def run(self) -> Run:
        """The finished run; the first use of it trains."""
        return run_plan(self.plan)

    def fit(self) -> nn.Module:
        """Train, and return a copy of the network with the trained weights."""
        return plain_module(self.model, self.run.parameters)


def make_private(
    module: nn.Module,
    loss: str | nn.Module | RecordLoss,
    clients: Federation | Sequence[Any],
    *,
    epsilon: float,
    delta: float = 1e-5,
    test: Any = None,
    trainable: Trainable = "all",
    algorithm: str = "soteriafl-sgd",
    rounds: int | None = None,
    clip_norm: float | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> PrivateTraining:
    """Plans the private federated training of a network. Nothing is released before `fit`.

    Guarantee: every record of every client has (epsilon, delta)-privacy towards everyone, the server included.

    Args:
        module: the network. Layers that mix records are refused by name; `tacit.fix` replaces them.
        loss: "cross-entropy", "squared", one of PyTorch's losses (`nn.BCEWithLogitsLoss()`), or any function of
            outputs and targets. It is applied to one record at a time.
        clients: one `DataLoader`, data set, `datasets.Dataset` or (features, targets) pair for each client; or a
            `Federation`.
        epsilon: the promise. Noise is derived from it.
        delta: the promise's delta.
        test: test records, in the same form as a client's.
        trainable: what is trained: "all", "head", "bias", "lora:8", or names.
        algorithm: an algorithm's name (`tacit list algorithms`).
        rounds: communication rounds; chosen from public numbers by default, like all other settings.
        clip_norm: the bound on each record's gradient, which Opacus calls `max_grad_norm`.
        seed: makes a run repeatable, for research. By default noise comes from the operating system.
        settings: other settings of a recipe, such as {"algorithm.batch": 64}.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> rows, labels = torch.randn(60, 4), torch.arange(60) % 2
    >>> hospitals = [DataLoader(TensorDataset(rows[k::3], labels[k::3]), batch_size=8) for k in range(3)]
    >>> private = make_private(nn.Linear(4, 2), nn.CrossEntropyLoss(), hospitals, epsilon=3, rounds=2, seed=0)
    >>> private.fit()(rows).shape, private.guarantee.epsilon <= 3
    (torch.Size([60, 2]), True)
    """
    federation = clients if isinstance(clients, Federation) else Federation.from_datasets(clients, test=test)
    if not isinstance(module, nn.Module):
        raise RequestError(f"the network must be a torch.nn.Module, not {described(module)}")
    model = ModuleModel(module, per_record_loss(loss), trainable=trainable)
    check_fits(type(module).__name__, model, federation)
    recipe = Recipe(
        algorithm=algorithm,
        data="custom",
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        seed=secrets.randbits(63) if seed is None else seed,
        noise="lattice" if seed is None else "gaussian",
    )
    given = {} if clip_norm is None else {"algorithm.clip_norm": clip_norm}
    recipe = recipe.with_settings({**given, **(settings or {})})
    records = PersonModel(model) if federation.by_person else model
    return PrivateTraining(model, make_plan(recipe, federation=federation, model=records))
