"""Tries a network on made-up records, so that what does not fit is refused before anything is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tacit.errors import RequestError
from tacit.federation import Batch, Federation
from tacit.models.layers_chain import keeps_records_apart
from tacit.models.model import Model
from tacit.models.module import ModuleModel
from tacit.models.persons import model_of_rows


def check_fits(name: str, model: ModuleModel, federation: Federation) -> None:
    """Refuse a network or a loss that cannot be trained on these records, before anything is.

    Args:
        name: how the network is called in an error.
        model: the network and its loss.
        federation: the records.
    """
    if federation.by_person and model.public:
        raise RequestError(
            f"model {name!r} has weights or buffers that are not trained, and these records are persons with "
            'several rows. Such networks take single rows: train all of it (trainable = "all")'
        )
    check_outputs(name, model.module, federation, scores=model.loss == "cross-entropy")
    records = torch.zeros(2, *federation.row_shape, dtype=federation.features.dtype)
    records = records.to(next(model.module.parameters()).device)
    try:
        # Without frozen weights, all of its code runs in training.
        parts = model.split(records[0]) if model.public else None
        if parts is not None:
            front, model = parts
            with torch.no_grad():
                records = front(records[:1]).repeat_interleave(2, 0)
        point = torch.cat([p.detach().flatten() for p in model.module.parameters() if p.requires_grad])
        targets = torch.zeros(2, dtype=federation.targets.dtype, device=records.device)
        model.gradients(point, Batch(records, targets, torch.tensor([2]))).norms()
    except RequestError:
        raise
    except Exception as error:
        why = str(error).partition(". ")[0]
        raise RequestError(
            f"model {name!r} has no gradients per record: {why}. Its code is run for all records at once by "
            "torch.vmap: leave out .item(), `if` on a record's numbers, and writing into tensors made by "
            "torch.zeros"
        ) from error
    check_keeps_apart(model, federation, records.shape[1:])


def check_keeps_apart(model: Model, federation: Federation, shape: Sequence[int] | None = None) -> None:
    """Refuse a network or a loss for which other records matter: those before a record, or those beside it.

    `torch.vmap` keeps the records of one batch apart. Of a running mean, which is kept in an attribute from one
    batch to the next, it knows nothing: every record would change the gradients of all later ones. Nor does it
    know whether an operation that brings its own rule for `vmap` keeps records apart in it.

    Args:
        model: the network and its loss; other models are known to forget.
        federation: the records.
        shape: that of one record as the network takes it, or of one row of a person; by default, that of the
            federation's.
    """
    model = model_of_rows(model)
    if not isinstance(model, ModuleModel):
        return
    if isinstance(model.loss, str) and keeps_records_apart(model.module):
        return
    device = next(model.module.parameters()).device
    shape = tuple(federation.row_shape if shape is None else shape)
    kind = federation.features.dtype
    point = torch.cat([p.detach().flatten() for p in model.module.parameters() if p.requires_grad]).to(kind)

    def told(records: Tensor, factor: float = 1.0) -> Tensor:
        """The norms of gradients, and the losses, of made-up records at a multiple of the weights."""
        records = records.to(device, kind)
        targets = records.flatten(1)[:, 0].abs().clamp(max=1).to(federation.targets.dtype)
        batch = Batch(records, targets, torch.tensor([len(records)]))
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            said = model.gradients(factor * point, batch).norms(), model.losses(factor * point, batch)
            return torch.stack([one.double() for one in said])

    _check_forgets(told, shape, type(model.module).__name__)
    # A network that limits its own weights writes into them only beyond the limits. What else it says of such
    # weights is not compared: recurrent layers may turn their last bits into anything.
    try:
        told(made_up(2, shape)[0], 4.0)
    except RequestError:
        raise
    except Exception:
        pass
    _check_apart(told, shape, type(model.module).__name__)


Told = Callable[..., Tensor]


def made_up(records: int, shape: Sequence[int]) -> list[Tensor]:
    """Made-up records: zeros, words 0 and 1, and numbers around 0; not every network takes all of them."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(0, 2, (records, *shape), generator=generator).float()
    return [torch.zeros(records, *shape), words, torch.randn(records, *shape, generator=generator)]


def other_records(records: int, shape: Sequence[int]) -> list[Tensor]:
    """Made-up records that differ from these in every way: their mean, their largest number, their spread."""
    return [torch.ones(records, *shape), 100 * made_up(records, shape)[-1].flip(0)]


def _check_forgets(told: Told, shape: tuple[int, ...], name: str) -> None:
    """Refuse what says something else of a record after it has seen others."""
    before: list[tuple[Tensor, Tensor]] = []
    for records in made_up(2, shape):
        try:
            before.append((records, told(records)))
        except RequestError:
            raise
        except Exception:
            # It does not fit, which is refused where it is used.
            continue
    for others in other_records(2, shape) if before else ():
        with contextlib.suppress(Exception):
            told(others)
    for records, first in before:
        try:
            same = torch.allclose(first, told(records), rtol=1e-4, equal_nan=True)
        except Exception:
            # What was kept may not even have the right shape.
            same = False
        if not same:
            raise RequestError(
                f"{name} gives a record another loss or gradient after it has seen others: "
                "no bound on one record can hold. Keep nothing between calls in forward or the loss, such "
                "as running means, or call module.eval() if that switches it off"
            )


def _check_apart(told: Told, shape: tuple[int, ...], name: str) -> None:
    """Refuse what says something else of a record among others than of the same record alone."""
    _, words, numbers = made_up(3, shape)
    for records in (words, numbers):
        try:
            together = told(records)
            alone = torch.cat([told(record[None]) for record in records], dim=1)
        except RequestError:
            raise
        except Exception:
            # Not every network takes every number.
            continue
        close = 1e-3 * together.nan_to_num().abs().amax(1, keepdim=True)
        if not bool((((together - alone).abs() <= close) | together.isnan()).all()):
            raise RequestError(
                f"what {name} computes for one record depends on the other records of its batch: no bound on one "
                "record can hold. An operation with its own rule for torch.vmap must keep records apart in it"
            )


def check_outputs(name: str, module: nn.Module, federation: Federation, *, scores: bool = True) -> None:
    """Refuse a network that does not take these records or, if it gives scores, has too few of them.

    Args:
        name: how the network is called in an error.
        module: the network.
        federation: the records.
        scores: whether its outputs are one score for each class, as for cross-entropy.
    """
    entered: list[str] = []
    handles = [
        layer.register_forward_pre_hook(lambda _, inputs, place=place: entered.append(place))
        for place, layer in module.named_modules()
    ]
    record = torch.zeros(1, *federation.row_shape, dtype=federation.features.dtype)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = module(record.to(next(module.parameters(), record).device))
    except Exception as error:
        raise RequestError(_failed(name, module, federation, entered, error)) from error
    finally:
        for handle in handles:
            handle.remove()
    classes = federation.classes
    if scores and classes is not None and (outputs.dim() != 2 or outputs.shape[1] < classes):
        got: object = (
            outputs.shape[1]
            if isinstance(outputs, Tensor) and outputs.dim() == 2
            else f"shape {tuple(outputs.shape)}"
        )
        whose = "the clients' records have" if federation.name == "custom" else f"{federation.name!r} has"
        raise RequestError(
            f"model {name!r} has {got} outputs, but {whose} {classes} classes: give its last layer {classes} "
            "outputs"
        )


def _failed(name: str, module: nn.Module, federation: Federation, entered: list[str], error: Exception) -> str:
    shape = " x ".join(map(str, federation.row_shape))
    where = ""
    if entered and entered[-1]:
        layer = module.get_submodule(entered[-1])
        where = f" in layer {entered[-1]!r} ({type(layer).__name__})"
        if isinstance(layer, nn.Embedding) and "Long" in str(error):
            return (
                f"model {name!r}: records are floating numbers, and{where[3:]} takes whole ones: write "
                f"self.{entered[-1]}(x.long())"
            )
    return f"model {name!r} does not take a record with {shape} features:{where} {error}"
