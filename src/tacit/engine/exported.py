"""Trained models for other tools, with the preparation inside: plain PyTorch, scikit-learn, ONNX."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from tacit.data.encode import Vector
from tacit.data.schema import Schema, feature_names
from tacit.data.schema.encode import encode, terms
from tacit.data.schema.values import table_values
from tacit.errors import RequestError
from tacit.models.linear import LinearModel
from tacit.models.losses import CrossEntropy, Logistic, Squared
from tacit.models.named import named_parameters, plain_module
from tacit.models.trainable import RecordByRecord

if TYPE_CHECKING:
    from tacit.engine.loaded import LoadedRun


class Preparation(nn.Module):
    """A table's numbers as features: clip, scale, one-hot, indicators, in the order of the schema's terms.

    Every feature is one of two kinds: slope * clip(f(x)) + offset with f the identity or the logarithm, 0 for a
    gap; or 1 where x equals a code (for an indicator: is a gap), else 0.
    """

    places: Tensor
    constants: Tensor
    is_code: Tensor
    is_gap: Tensor
    is_log: Tensor

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        rows = [_constants(schema, term.place, term.kind, term.code) for term in terms(schema)]
        places, kinds = [term.place for term in terms(schema)], [term.kind for term in terms(schema)]
        self.register_buffer("places", torch.tensor(places))
        self.register_buffer("constants", torch.tensor(rows, dtype=torch.float64))
        self.register_buffer("is_code", torch.tensor([kind == "is" for kind in kinds]))
        self.register_buffer("is_gap", torch.tensor([kind == "missing" for kind in kinds]))
        logs = [
            kind == "number" and schema.columns[place].scale == "log"
            for place, kind in zip(places, kinds, strict=True)
        ]
        self.register_buffer("is_log", torch.tensor(logs))

    def forward(self, values: Tensor) -> Tensor:
        """(rows, columns) to (rows, features)."""
        low, high, slope, offset, code = self.constants.T
        x = values[:, self.places]
        gap = torch.isnan(x)
        clipped = torch.minimum(torch.maximum(torch.where(gap, low, x), low), high)
        positive = torch.where(self.is_log, clipped, torch.ones_like(clipped))
        number = torch.where(self.is_log, torch.log(positive), clipped) * slope + offset
        scaled = torch.where(gap, torch.zeros_like(number), number)
        coded = torch.where(self.is_code, (x == code).double(), scaled)
        return torch.where(self.is_gap, gap.double(), coded)


def _constants(schema: Schema, place: int, kind: str, code: int) -> list[float]:
    column = schema.columns[place]
    if kind == "number":
        return [*column.counted, 1 / column.half, -column.centre / column.half, -1.0]
    return [0.0, 1.0, 2.0, -1.0, float(code)]


class _Answer(nn.Module):
    """Scores as probabilities of all classes, or as numbers in the target's own unit."""

    def __init__(self, classes: int | None, unit: float, middle: float) -> None:
        super().__init__()
        self.classes, self.unit, self.middle = classes, unit, middle

    def forward(self, scores: Tensor) -> Tensor:
        if self.classes is None:
            return scores[:, 0] * self.unit + self.middle
        if scores.shape[1] == 1:
            likely = torch.sigmoid(scores)
            return torch.cat([1 - likely, likely], dim=1)
        return torch.softmax(scores, dim=1)


def as_torch(run: LoadedRun) -> nn.Module:
    """Implements `LoadedRun.to_torch`."""
    schema, half, middle = run.schema, 1.0, 0.0
    if schema is not None and not schema.target.classed:
        half, middle = schema.target.half, schema.target.centre
    first: list[nn.Module] = [] if schema is None else [Preparation(schema)]
    if run.trained.features_by is not None:
        first.append(_plain(run.trained.features_by.module))
    scores = plain_module(run.double.model, run.double.parameters)
    return nn.Sequential(*first, scores, _Answer(run.card.classes, half, middle)).eval()


def _plain(module: nn.Module) -> nn.Module:
    """A copy of a fixed map whose networks take all rows at once, as exported programs do."""
    if isinstance(module, RecordByRecord):
        return _InItsOwnPrecision(copy.deepcopy(module.module).cpu())
    if type(module) is nn.Sequential:
        return nn.Sequential(*map(_plain, module))
    return copy.deepcopy(module).cpu()


class _InItsOwnPrecision(nn.Module):
    """A frozen network computes as precisely as in training, whatever comes before and after."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.dtype = next(module.parameters(), torch.zeros(())).dtype

    def forward(self, rows: Tensor) -> Tensor:
        outputs: Tensor = self.module(rows.to(self.dtype))
        return outputs.to(rows.dtype)


def as_onnx(run: LoadedRun, path: Path) -> Path:
    """Implements `LoadedRun.to_onnx`."""
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise RequestError(f"exporting to ONNX needs {package}: pip install 'tacit[onnx]'")
    shape = (len(run.schema.columns),) if run.schema is not None else run.card.feature_shape
    example = torch.zeros(2, *shape, dtype=torch.float64)
    rows = torch.export.Dim("rows")
    with warnings.catch_warnings(), _silent("torch.onnx"):
        warnings.simplefilter("ignore")  # PyTorch's exporter warns and logs about parts of itself
        program = torch.onnx.export(
            as_torch(run),
            (example,),
            input_names=["values"],
            output_names=["answers"],
            dynamic_shapes=({0: rows},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None, "the exporter returns a program"
    program.save(path)
    return path


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Only errors of a logger are shown."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


class SchemaEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A table as features, by its schema alone; fitting learns nothing."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def fit(self, X: pd.DataFrame, y: Any = None) -> Self:
        """Nothing to learn."""
        return self

    def transform(self, X: pd.DataFrame) -> Vector:
        """(rows, features) float64; gaps and unknown categories are fine."""
        return encode(table_values(X, self.schema, strict=False), self.schema, np.float64)

    def get_feature_names_out(self, input_features: Any = None) -> Vector:
        """The names of the features."""
        return np.array(feature_names(self.schema), dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True


def as_sklearn(run: LoadedRun) -> Pipeline:
    """Implements `LoadedRun.to_sklearn`."""
    model, schema = run.double.model, run.schema
    by = run.trained.features_by
    factors = None if by is None else by.factors
    if by is not None and factors is None:
        raise RequestError(f"scikit-learn has no counterpart of {by.spec!r}; use to_torch")
    if not isinstance(model, LinearModel) or type(model.loss) not in (Logistic, CrossEntropy, Squared):
        raise RequestError(f"scikit-learn has no counterpart of model {run.card.model!r}; use to_torch")
    named = named_parameters(model, run.double.parameters)
    weights, bias = named["weight"].numpy(), named.get("bias", torch.zeros(model.outputs)).numpy()
    if factors is not None:
        weights = weights * factors.numpy()
    fitted: Any
    if run.classes is None:
        half, middle = (schema.target.half, schema.target.centre) if schema is not None else (1.0, 0.0)
        fitted = LinearRegression()
        fitted.coef_, fitted.intercept_ = weights[0] * half, float(bias[0] * half + middle)
    else:
        fitted = LogisticRegression()
        fitted.coef_, fitted.intercept_, fitted.classes_ = weights, bias, np.array(run.classes)
    fitted.n_features_in_ = model.features
    return Pipeline([("prepare", "passthrough" if schema is None else SchemaEncoder(schema)), ("model", fitted)])
