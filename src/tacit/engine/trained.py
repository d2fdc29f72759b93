"""A model together with its trained parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from tacit.engine.files import write_atomically
from tacit.errors import DataError, RequestError
from tacit.federation import Batch
from tacit.models.model import Model


@dataclass(frozen=True)
class Trained:
    """A trained model: a function from features to predictions."""

    model: Model
    parameters: Tensor

    def predict(self, features: Tensor | np.ndarray) -> Tensor:
        """The predicted target of every record."""
        if isinstance(features, np.ndarray):
            # PyTorch warns about read-only arrays, such as mapped ones.
            features = np.require(features, requirements="W")
        rows = torch.as_tensor(features, dtype=self.parameters.dtype, device=self.parameters.device)
        return self.model.predict(self.parameters, rows)

    def metric(self, batch: Batch) -> float:
        """How well it does on a batch (see `model.metric_name`)."""
        return self.model.metric(self.parameters, batch)

    def save(self, path: Path) -> None:
        """Write the parameters as safetensors."""
        tensors = {"parameters": self.parameters.detach().cpu().contiguous()}
        write_atomically(path, safetensors.torch.save(tensors, {"format": "tacit-model-1"}))

    @classmethod
    def load(cls, model: Model, path: Path) -> Trained:
        """Read parameters back and check that they fit the model."""
        try:
            parameters = safetensors.torch.load_file(path)["parameters"]
        except (safetensors.SafetensorError, KeyError, OSError) as error:
            raise DataError(f"{path} holds no parameters: {error}") from error
        if parameters.shape != (model.dim,):
            raise RequestError(f"{path} has {parameters.numel()} parameters, but the model has {model.dim}")
        return cls(model, parameters)
