"""Models: losses over one flat parameter vector, with a gradient for each record."""

from tacit.models.linear import (
    LinearModel,
    least_squares,
    logistic_regression,
    nonconvex_logistic_regression,
    softmax_regression,
)
from tacit.models.model import Model
from tacit.models.module import ModuleModel
from tacit.models.network import SigmoidNetwork
from tacit.models.penalty import NonconvexPenalty, Ridge
from tacit.models.quadratic import Quadratic, quadratic_federation, quadratic_minimiser
from tacit.models.registry import MODELS, build_model

__all__ = [
    "MODELS",
    "LinearModel",
    "Model",
    "ModuleModel",
    "NonconvexPenalty",
    "Quadratic",
    "Ridge",
    "SigmoidNetwork",
    "build_model",
    "least_squares",
    "logistic_regression",
    "nonconvex_logistic_regression",
    "quadratic_federation",
    "quadratic_minimiser",
    "softmax_regression",
]
