"""A finished run, read from its directory and ready to be used: predictions, coefficients, exports."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from tacit.data.encode import Vector
from tacit.data.schema import Schema
from tacit.data.schema.encode import encode, terms
from tacit.data.schema.values import table_values
from tacit.engine.brief_repr import BriefRepr
from tacit.engine.model_card import ModelCard
from tacit.engine.promised import promised
from tacit.engine.recipe import Recipe
from tacit.engine.trained import Trained
from tacit.errors import DataError, RequestError
from tacit.federation import Batch
from tacit.models.linear import LinearModel
from tacit.models.model import Model
from tacit.models.module import ModuleModel
from tacit.models.named import named_parameters
from tacit.models.registry import ENTRY_POINT
from tacit.privacy import Guarantee

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

NO_PROBABILITIES = frozenset(["svm"])
"""Classifiers whose loss is not the negative logarithm of a probability."""


@dataclass(frozen=True, repr=False)
class LoadedRun(BriefRepr):
    """A finished run, whether from the command line, from Python or from a deployment.

    Predictions cost no privacy: they are post-processing of the released model.
    """

    directory: Path
    """where the run was stored"""
    card: ModelCard
    """the run's model card"""
    trained: Trained
    """the trained model"""

    def brief(self) -> dict[str, str]:
        """The run in a few lines: where it is, what its model predicts, and what was promised."""
        numbers = f"{self.trained.parameters.numel():,} parameters"
        predicted = "" if self.schema is None else f", predicts {self.schema.target.column}"
        try:
            promise = "none: this run is not private" if self.guarantee is None else self.guarantee.sentence()
        except DataError as error:
            promise = f"unclear: {error}"
        return {
            "run": str(self.directory),
            "model": f"{self.card.model}, {numbers}{predicted}",
            "promise": promise,
        }

    @property
    def schema(self) -> Schema | None:
        """The schema of the table that it was trained on, if there was one."""
        return self.card.schema

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The names of the classes, or their numbers if they have none; None for numbers."""
        if self.card.classes is None:
            return None
        return self.card.class_names or tuple(range(self.card.classes))

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe that reproduces the run, if it had one."""
        path = self.directory / "recipe.toml"
        return Recipe.read(path) if path.is_file() else None

    @cached_property
    def guarantee(self) -> Guarantee | None:
        """What was promised, to whom, against whom, as `Run.guarantee` says it; None for a run without privacy.

        It is computed again from the ledger; for a deployment, from the certificate, with the silos as clients.
        `tacit verify` checks who signed that.
        """
        return promised(self.directory)

    @cached_property
    def history(self) -> pd.DataFrame:
        """The rounds of the run."""
        if (self.directory / "history.csv").is_file():
            return pd.read_csv(self.directory / "history.csv")
        lines = (self.directory / "rounds.jsonl").read_text().splitlines()
        return pd.DataFrame([json.loads(line) for line in lines])

    def values(self, table: pd.DataFrame) -> Vector:
        """A table's columns as numbers, for exported models: (rows, columns) float64; see `to_torch`.

        Gaps, and categories that the schema does not know, are NaN.
        """
        return table_values(table.rename(columns=str), self._described(), strict=False)

    def features(self, rows: pd.DataFrame | Vector | Tensor) -> Tensor:
        """Rows as the model's features, in double precision."""
        if self.schema is None:
            try:
                features = torch.as_tensor(np.asarray(rows, dtype=np.float64))
            except (TypeError, ValueError) as error:
                raise RequestError(
                    "this run has no schema, so nothing names its columns: give features alone, all numbers"
                ) from error
            if len(unknown := torch.nonzero(~features.isfinite())):
                # Scores that are no numbers would be taken for the first class.
                raise RequestError(
                    f"row {int(unknown[0, 0])} holds a gap or an infinity, and this run has no schema that says "
                    "what a gap means: fill it as it was filled for training"
                )
            return features
        if not isinstance(rows, pd.DataFrame):
            raise RequestError("this run has a schema: give a pandas frame with the columns that it describes")
        return torch.from_numpy(encode(self.values(rows), self.schema, np.float64))

    def predict(self, rows: pd.DataFrame | Vector | Tensor) -> Vector:
        """The predicted class of every row by name, or the predicted number in the target's own unit.

        Args:
            rows: a pandas frame with the columns of the schema, in any order; gaps and unknown categories are
                fine. For a run without a schema, an array of features.
        """
        features = self.features(rows)
        try:
            found: Vector = self.double.predict(features).numpy()
        except RuntimeError as error:
            width = " x ".join(map(str, features.shape[1:]))
            raise RequestError(
                f"the model of this run does not take rows with {width} features: {error}"
            ) from error
        if self.classes is not None:
            return np.array(self.classes)[found]
        if self.schema is None:
            return found
        target = self.schema.target
        number: Vector = target.centre + target.half * found
        return number

    def predict_proba(self, rows: pd.DataFrame | Vector | Tensor) -> Vector:
        """The probability of every class, in the order of `classes`: (rows, classes)."""
        if self.classes is None or self.card.model in NO_PROBABILITIES:
            raise RequestError(f"model {self.card.model!r} predicts no probabilities; use predict")
        features = self.double.mapped(self.features(rows))
        counts = torch.tensor([len(features)])
        losses = [
            self.double.model.losses(
                self.double.parameters, Batch(features, torch.full((len(features),), label), counts)
            )
            for label in range(len(self.classes))
        ]
        return np.asarray(torch.exp(-torch.stack(losses, dim=1)).numpy())

    @property
    def coefficients(self) -> pd.DataFrame:
        """The coefficients of a linear model, in the columns' own units, with a row for the intercept.

        One column for each class (two classes: the second one's log-odds; a number: its own unit). A number's
        coefficient is the change of the score per unit inside its range or limits; on a logarithmic scale, per
        factor e. Without a schema, features have the units that they were given in.
        """
        model = self.trained.model
        if not isinstance(model, LinearModel):
            raise RequestError(f"model {self.card.model!r} is not linear, so it has no coefficients")
        named = named_parameters(model, self.double.parameters)
        weights = named["weight"].numpy().T.copy()
        bias = named["bias"].numpy().copy() if model.intercept else np.zeros(model.outputs)
        names: list[str] = [f"feature {k}" for k in range(model.features)]
        units = [""] * model.features
        factors = None if self.trained.features_by is None else self.trained.features_by.factors
        if factors is not None:
            weights *= factors.numpy()[:, None]
        if self.schema is not None:
            names = [term.name for term in terms(self.schema)]
            for position, term in enumerate(terms(self.schema)):
                column = self.schema.columns[term.place]
                if term.kind == "number":
                    weights[position] /= column.half
                    bias -= weights[position] * column.centre
                    unit = "days" if column.type == "date" else column.unit
                    units[position] = f"log {unit}".strip() if column.scale == "log" else unit
                elif term.kind == "sign":
                    bias -= weights[position]
                    weights[position] *= 2
            if self.classes is None:
                target = self.schema.target
                weights, bias = weights * target.half, bias * target.half + target.centre
        labels = ["coefficient"] if model.outputs == 1 else [str(name) for name in self.classes or ()]
        table = pd.DataFrame(np.vstack([weights, bias]), index=[*names, "intercept"], columns=labels)
        table.insert(0, "unit", [*units, ""])
        return table

    @cached_property
    def double(self) -> Trained:
        """The trained model in double precision."""
        return replace(self.trained, parameters=self.trained.parameters.double())

    def to_torch(self) -> nn.Module:
        """A PyTorch module with the preparation inside, made of PyTorch's own operations.

        `torch.export.save(torch.export.export(module, ...))` makes a file that needs nothing of tacit.

        It maps (rows, columns) float64, as `values` makes them of a table, to probabilities (rows, classes), or
        to numbers (rows,) in the target's own unit: columns in the schema's order, numbers in their own units,
        categories as positions in their lists, dates as days since 1970, NaN for gaps and unknown categories.
        """
        from tacit.engine.exported import as_torch

        return as_torch(self)

    def to_sklearn(self) -> Pipeline:
        """A fitted scikit-learn pipeline of the preparation and a linear model."""
        from tacit.engine.exported import as_sklearn

        return as_sklearn(self)

    def to_onnx(self, path: Path | str) -> Path:
        """Write the module of `to_torch` as ONNX; needs `pip install 'tacit[onnx]'`."""
        from tacit.engine.exported import as_onnx

        return as_onnx(self, Path(path))

    def _described(self) -> Schema:
        if self.schema is None:
            raise RequestError("this run has no schema, so nothing names its columns: give arrays of features")
        return self.schema


def load_run(directory: Path | str, *, model: Model | nn.Module | str | None = None) -> LoadedRun:
    """A finished run from its directory, to predict with.

    Guarantee: no code runs that only the directory names, so it may come from anyone.

    Args:
        directory: what `tacit run`, `run.save`, `tacit deploy` or a deployment's server wrote.
        model: the model, if it is one of your own. If it has a name (`module:FILE:FUNCTION`), that name again;
            otherwise the network that was given to `make_private` (its weights are ignored), or for fine-tuning
            `tacit.ModuleModel(network, trainable=...)`.
    """
    place = Path(directory)
    if not place.is_dir():
        raise DataError(f"{place} is not the directory of a run: there is no such directory")
    # A deployment's server keeps the run in its folder's state; a rehearsal has a folder for every party.
    place = next((one for one in (place / "server" / "state", place / "state") if one.is_dir()), place)
    card = ModelCard.read(place)
    if isinstance(model, str) or model is None:
        _check_named(card, place, model)
        return LoadedRun(place, card, card.trained(place))
    if isinstance(model, nn.Module):
        model = ModuleModel(model, "squared" if card.classes is None else "cross-entropy")
    return LoadedRun(place, card, card.trained(place, model))


def _check_named(card: ModelCard, place: Path, model: str | None) -> None:
    """Refuse a model that is made by code, unless whoever loads it names that code."""
    own = (card.model or "").startswith(ENTRY_POINT)
    if model is None and own:
        raise RequestError(
            f"the model of {place} is made by code: {card.model!r}. It is run only if you name it yourself, "
            f"because a directory may come from anyone: load_run(..., model={card.model!r}), or "
            f"tacit predict ... --model {card.model}"
        )
    if model not in (None, card.model):
        raise RequestError(f"the model of {place} is {card.model!r}, not {model!r}")
