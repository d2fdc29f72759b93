"""Checks that the records can be used for training; errors name the client whose data are bad.

A value that is not finite would silently spoil every later iterate, a client without records would cause a
division by zero, and two clients with the same id would draw the same noise. All of these are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tacit.errors import DataError

if TYPE_CHECKING:
    from tacit.federation import Federation

NUMBERS_AT_A_TIME = 2**20


def check_index(setting: str, values: Tensor) -> None:
    """Refuse anything but an int64 vector on the CPU, the format of sizes, counts and ids."""
    if values.ndim != 1 or values.dtype != torch.int64 or values.device.type != "cpu":
        raise DataError(
            f"{setting} must be an int64 vector on the CPU, not {values.dtype} of shape "
            f"{tuple(values.shape)} on {values.device}"
        )


def check_federation(federation: Federation) -> None:
    """Refuse a federation with data that cannot be trained on, and name the client and record at fault."""
    _check_clients(federation)
    features, targets = federation.features, federation.targets
    _check_shapes(federation, "training", features, targets)
    if int(federation.sizes.sum()) != federation.records:
        total = int(federation.sizes.sum())
        raise DataError(f"sizes add up to {total}, but there are {federation.records} records")
    bad = _first_bad(features, targets, federation.classes)
    if bad is not None:
        row, problem = bad
        owner = int(torch.searchsorted(federation.offsets, row, right=True)) - 1
        record = row - int(federation.offsets[owner])
        raise DataError(f"{describe_client(federation, owner)}, record {record}: {problem}")
    if (federation.test_features is None) != (federation.test_targets is None):
        raise DataError("test_features and test_targets go together: give both or neither")
    if federation.test_features is not None and federation.test_targets is not None:
        _check_shapes(federation, "test", federation.test_features, federation.test_targets)
        bad = _first_bad(federation.test_features, federation.test_targets, federation.classes)
        if bad is not None:
            raise DataError(f"test record {bad[0]}: {bad[1]}")


def describe_client(federation: Federation, position: int) -> str:
    """The client as error messages name it: its id, and its name if it has one."""
    called = "" if federation.names is None else f" ({federation.names[position]!r})"
    return f"client {int(federation.ids[position])}{called}"


def _check_clients(federation: Federation) -> None:
    check_index("sizes", federation.sizes)
    check_index("ids", federation.ids)
    if federation.clients == 0:
        raise DataError("a federation needs at least one client, and this one has none")
    for setting, entries, expected in (
        ("ids", federation.ids, federation.clients),
        ("names", federation.names, federation.clients),
        ("class_names", federation.class_names, federation.classes),
    ):
        if entries is not None and len(entries) != expected:
            raise DataError(f"{setting} must have {expected} entries, not {len(entries)}")
    if int(federation.ids.min()) < 0 or torch.unique(federation.ids).shape[0] != federation.clients:
        raise DataError("ids must be distinct and not negative: clients with one id draw the same noise")
    if int(federation.sizes.min()) < 1:
        empty = describe_client(federation, int(federation.sizes.argmin()))
        raise DataError(f"{empty} has no records; every client needs at least one: leave it out")


def _check_shapes(federation: Federation, kind: str, features: Tensor, targets: Tensor) -> None:
    dtype, classes = federation.features.dtype, federation.classes
    if features.dtype not in (torch.float32, torch.float64) or features.dtype != dtype:
        raise DataError(f"{kind} features must be float32 or float64, as in training, not {features.dtype}")
    if features.ndim < 2 or features.shape[1:] != federation.features.shape[1:] or 0 in features.shape:
        raise DataError(
            f"{kind} features must have shape (records, *feature_shape), none of them 0 and with the same "
            f"feature_shape for training and test, not {tuple(features.shape)}"
        )
    if targets.shape != features.shape[:1]:
        raise DataError(f"{features.shape[0]} {kind} records but targets of shape {tuple(targets.shape)}")
    if classes is None and not targets.is_floating_point():
        raise DataError(f"{kind} targets are {targets.dtype}: give `classes`, or floating ones for regression")
    if classes is not None and targets.dtype != torch.int64:
        raise DataError(f"{kind} targets must be int64 labels when `classes` is given, not {targets.dtype}")


def _first_bad(features: Tensor, targets: Tensor, classes: int | None) -> tuple[int, str] | None:
    """The index of the first record that cannot be trained on and the reason, or None."""
    if features.stride(0) == 0 and targets.stride(0) == 0:
        # One record repeated by broadcasting, such as a placeholder for records that must not be seen.
        features, targets = features[:1], targets[:1]
    good = torch.isfinite(targets)
    # Checked in chunks: checking all numbers at once would take more memory than the data.
    rows = max(1, NUMBERS_AT_A_TIME // features[0].numel())
    for part, good_part in zip(features.split(rows), good.split(rows), strict=True):
        finite = torch.isfinite(part)
        if not bool(finite.all()):
            good_part &= finite.flatten(1).all(1)
    if not bool(good.all()):
        kind, row = str(features.dtype).removeprefix("torch."), int((~good).nonzero()[0])
        wrong = (~torch.isfinite(features[row].flatten())).nonzero()
        where = f"feature {int(wrong[0])}" if len(wrong) else "the target"
        problem = f"{where} is missing or not a finite {kind} number (NaN, infinity)"
        return row, f"{problem}; fill in or remove such records"
    if classes is not None:
        outside = (targets < 0) | (targets >= classes)
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            return (
                row,
                f"the label is {int(targets[row])}; with {classes} classes it must be 0 to {classes - 1}",
            )
    return None
