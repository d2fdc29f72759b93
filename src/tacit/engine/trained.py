"""A model together with its trained parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from tacit.data.features import FeatureMap
from tacit.engine.files import write_atomically
from tacit.errors import DataError
from tacit.federation import Batch
from tacit.models.model import Model
from tacit.models.named import flat_parameters, named_parameters


@dataclass(frozen=True)
class Trained:
    """A trained model: a function from features to predictions."""

    model: Model
    """the function that was trained"""
    parameters: Tensor
    """its parameters, (dim,)"""
    features_by: FeatureMap | None = None
    """the fixed function of records that comes before the model"""

    def predict(self, features: Tensor | np.ndarray) -> Tensor:
        """The predicted target of every record."""
        if isinstance(features, np.ndarray):
            # PyTorch warns about read-only arrays, such as mapped ones.
            features = np.require(features, requirements="W")
        rows = torch.as_tensor(features, dtype=self.parameters.dtype, device=self.parameters.device)
        return self.model.predict(self.parameters, self.mapped(rows))

    def mapped(self, records: Tensor) -> Tensor:
        """Records as they were given, as the model takes them."""
        return records if self.features_by is None else self.features_by(records)

    def metric(self, batch: Batch) -> float:
        """How well it does on a batch of the federation (see `model.metric_name`)."""
        return self.model.metric(self.parameters, batch)

    def save(self, path: Path) -> None:
        """Write the parameters to a file of safetensors."""
        write_atomically(path, self.to_bytes())

    def to_bytes(self) -> bytes:
        """The parameters as safetensors, under the names of a plain PyTorch module (`models.named`)."""
        named = named_parameters(self.model, self.parameters.detach().cpu())
        tensors = {name: tensor.contiguous() for name, tensor in named.items()}
        return safetensors.torch.save(tensors, {"format": "tacit-model-2"})

    @classmethod
    def load(cls, model: Model, path: Path, features_by: FeatureMap | None = None) -> Trained:
        """Read parameters back and check that they fit the model."""
        try:
            named = safetensors.torch.load_file(path)
        except (safetensors.SafetensorError, OSError) as error:
            raise DataError(f"{path} holds no parameters: {error}") from error
        try:
            return cls(model, flat_parameters(model, named), features_by)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
