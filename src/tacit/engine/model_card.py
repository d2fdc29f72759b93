"""What is saved beside a model's weights, so that it can be built and used again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tacit.data.schema import Schema, feature_names
from tacit.engine.files import write_atomically
from tacit.engine.fronts import as_given, model_and_records, with_features
from tacit.engine.recipe import Recipe
from tacit.engine.trained import Trained
from tacit.errors import DataError, reason
from tacit.federation import Federation
from tacit.models.linear import LinearModel
from tacit.models.losses import CrossEntropy, Logistic, Squared
from tacit.models.model import Model
from tacit.models.nonsmooth import Absolute, Hinge
from tacit.models.persons import model_of_rows

MODEL, CARD, SCHEMA = "model.safetensors", "model.json", "schema.toml"

_LINEAR = {
    Logistic: "logistic",
    CrossEntropy: "softmax",
    Squared: "least-squares",
    Hinge: "svm",
    Absolute: "absolute-regression",
}


@dataclass(frozen=True)
class ModelCard:
    """How to build a model and what its inputs and outputs are called. All of it is public."""

    model: str | None
    """the name in the registry; None for one of the user's own, which `load_run` must be given"""
    settings: dict[str, Any]
    feature_shape: tuple[int, ...]
    """of one row, as it was given"""
    classes: int | None
    class_names: tuple[str, ...] | None = None
    features: tuple[str, ...] | None = None
    """the names of the features, in the order of the weights; None if they have none"""
    schema: Schema | None = field(default=None, repr=False)
    prepared_by: str | None = None
    """the setting `data.features`, if there was one"""
    public: tuple[str, ...] = ()
    """what is frozen in the model, with a digest"""

    @classmethod
    def of(cls, federation: Federation, model: Model, recipe: Recipe | None) -> ModelCard:
        """The card of a model that was trained on these records."""
        model = model_of_rows(model)
        name, settings = None, {}
        if recipe is not None:
            name, settings = recipe.model, dict(recipe.model_settings)
        elif isinstance(model, LinearModel) and type(model.loss) in _LINEAR:
            name, settings = _LINEAR[type(model.loss)], {"intercept": model.intercept}
        schema = federation.schema
        shape, prepared_by = as_given(federation)
        frozen = (
            *(federation.features_by.public if federation.features_by else ()),
            *getattr(model, "public", ()),
        )
        return cls(
            name,
            settings,
            (federation.inputs,) if federation.by_person else shape,
            federation.classes,
            federation.class_names,
            None if schema is None else feature_names(schema),
            schema,
            prepared_by,
            frozen,
        )

    def save(self, directory: Path, trained: Trained) -> None:
        """Write the model, this card and the schema."""
        if self.schema is not None:
            write_atomically(directory / SCHEMA, self.schema.to_toml().encode())
        values = {name: value for name, value in asdict(self).items() if name != "schema"}
        write_atomically(directory / CARD, (json.dumps(values, indent=2) + "\n").encode())
        trained.save(directory / MODEL)

    @classmethod
    def read(cls, directory: Path) -> ModelCard:
        """The inverse of `save`."""
        try:
            schema = Schema.read(directory / SCHEMA) if (directory / SCHEMA).is_file() else None
            return cls.from_json((directory / CARD).read_text(), schema)
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{directory} is not the directory of a finished run: {reason(error)}") from error

    @classmethod
    def from_json(cls, text: str, schema: Schema | None) -> ModelCard:
        """The card that is written as JSON, beside its schema."""
        values = json.loads(text)
        for name in ("feature_shape", "class_names", "features", "public"):
            values[name] = None if values.get(name) is None else tuple(values[name])
        return cls(**{**values, "public": values["public"] or ()}, schema=schema)

    def trained(self, directory: Path, model: Model | None = None) -> Trained:
        """The trained model of a directory; `model` is needed only for one that has no name."""
        if model is None and self.model is None:
            raise DataError(f"the model of {directory} is one of your own: give the network as model=...")
        blank = with_features(self._blank(), self.prepared_by)
        model, blank = model_and_records(self.model or "", self.settings, blank, model)
        by = blank.features_by
        frozen = (*(by.public if by else ()), *getattr(model, "public", ()))
        if frozen != self.public:
            raise DataError(
                f"the model's frozen weights are not those of {directory}: {frozen}, not {self.public}"
            )
        return Trained.load(model, directory / MODEL, by)

    def _blank(self) -> Federation:
        """A federation of one empty record, which says how large a model is."""
        return Federation(
            torch.zeros(1, *self.feature_shape),
            torch.zeros(1, dtype=torch.float32 if self.classes is None else torch.int64),
            torch.ones(1, dtype=torch.int64),
            torch.zeros(1, dtype=torch.int64),
            classes=self.classes,
        )
