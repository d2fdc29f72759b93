"""The models by name, sized for the data they are fitted to."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from tacit.errors import RequestError, unknown_name
from tacit.federation import Federation
from tacit.models.cnn import cifar_cnn_model, mnist_cnn_model
from tacit.models.linear import (
    LinearModel,
    absolute_regression,
    least_squares,
    logistic_regression,
    nonconvex_logistic_regression,
    quantile_regression,
    softmax_regression,
    support_vector_machine,
)
from tacit.models.model import Model
from tacit.models.module import ModuleModel
from tacit.models.network import SigmoidNetwork
from tacit.models.penalty import Ridge
from tacit.models.persons import PersonModel
from tacit.models.quadratic import Quadratic
from tacit.models.trainable import fine_tuned
from tacit.models.trial import check_fits


@dataclass(frozen=True)
class ModelEntry:
    """A function that builds a model from the federation's sizes and the user's settings."""

    make: Callable[..., Model]
    summary: str
    task: str

    @property
    def settings(self) -> list[str]:
        """The settings that a user may give: all parameters but those that follow from the data."""
        return [name for name in inspect.signature(self.make).parameters if name not in GIVEN_BY_THE_DATA]


def _quadratic(federation: Federation) -> Model:
    dim, columns = federation.feature_shape
    return Quadratic(dim, columns - 1)


MODELS: dict[str, ModelEntry] = {
    "softmax": ModelEntry(softmax_regression, "softmax regression", "classification"),
    "logistic": ModelEntry(logistic_regression, "logistic regression", "two classes"),
    "logistic-nonconvex": ModelEntry(
        nonconvex_logistic_regression,
        "logistic regression, nonconvex penalty (SoteriaFL, A.1)",
        "two classes",
    ),
    "least-squares": ModelEntry(least_squares, "linear regression by squared error", "regression"),
    "svm": ModelEntry(support_vector_machine, "linear support vector machine, hinge loss", "two classes"),
    "absolute-regression": ModelEntry(absolute_regression, "linear regression by absolute error", "regression"),
    "quantile-regression": ModelEntry(quantile_regression, "linear regression of a quantile", "regression"),
    "network": ModelEntry(SigmoidNetwork, "one hidden sigmoid layer (SoteriaFL, A.2)", "classification"),
    "mnist-cnn": ModelEntry(mnist_cnn_model, "two convolutions (Fed-SPA, 5.1)", "classification"),
    "cifar-cnn": ModelEntry(cifar_cnn_model, "three convolutions (Fed-SPA, 5.1)", "classification"),
    "quadratic": ModelEntry(_quadratic, "synthetic quadratics (DP-NormFedAvg, F)", "synthetic"),
}

GIVEN_BY_THE_DATA = ("features", "classes", "loss", "penalty", "federation")
"""Parameters of functions that make models which are no settings of the model."""

ENTRY_POINT = "module:"


def default_model(federation: Federation) -> str:
    """The plain linear model for the federation's task."""
    if federation.name == "quadratic":
        return "quadratic"
    if federation.classes is None:
        return "least-squares"
    return "logistic" if federation.classes == 2 else "softmax"


def build_model(name: str, federation: Federation, settings: dict[str, Any] | None = None) -> Model:
    """Build a model from its name, sized for the federation.

    Args:
        name: see `MODELS`; or `module:package.module:factory`, your own function that returns a
            `torch.nn.Module`.
        federation: determines the numbers of features and classes.
        settings: settings of the model, such as `hidden` or `ridge`. Those of your own function are its
            arguments; `trainable` says what of the network is trained (`tacit.models.trainable.fine_tuned`).
    """
    model = _of_rows(name, federation, dict(settings or {}))
    middle = federation.middle
    if middle is not None and federation.classes is None and isinstance(model, LinearModel) and model.intercept:
        penalty = model.penalty
        if isinstance(penalty, Ridge):
            penalty = replace(penalty, last_at=middle.centre)
        model = replace(model, start=middle.centre, penalty=penalty)
    return PersonModel(model) if federation.by_person else model


def _of_rows(name: str, federation: Federation, settings: dict[str, Any]) -> Model:
    if name.startswith(ENTRY_POINT):
        return _from_entry_point(name.removeprefix(ENTRY_POINT), federation, settings)
    if name not in MODELS:
        if name.endswith(".py"):
            meant = name.removesuffix(".py").replace("/", ".")
            raise RequestError(
                f"model {name!r} is a file: write 'module:{meant}:FUNCTION', a function that makes it"
            )
        raise unknown_name("model", name, [*MODELS, ENTRY_POINT + "package:factory"])
    entry = MODELS[name]
    _check_task(name, entry, federation)
    accepted = inspect.signature(entry.make).parameters
    for setting in settings:
        if setting not in entry.settings:
            raise unknown_name(f"setting of model {name!r}", setting, entry.settings)
    known = {
        "features": federation.inputs,
        "classes": federation.classes,
        "federation": federation,
    }
    return entry.make(**{k: v for k, v in known.items() if k in accepted}, **settings)


def _check_task(name: str, entry: ModelEntry, federation: Federation) -> None:
    fits = {
        "classification": federation.classes is not None,
        "two classes": federation.classes == 2,
        "regression": federation.classes is None,
        "synthetic": len(federation.feature_shape) == 2,
    }[entry.task]
    if not fits:
        has = "real targets" if federation.classes is None else f"{federation.classes} classes"
        raise RequestError(
            f"model {name!r} is for {entry.task}, but {federation.name!r} has {has}; "
            f"use {default_model(federation)!r}, for example"
        )


@contextlib.contextmanager
def _current_directory_importable() -> Iterator[None]:
    """Modules in the current directory can be imported, after all others: installed commands do not add it."""
    here = str(Path.cwd())
    if here in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _told(error: Exception) -> str:
    plain = isinstance(error, ImportError | AttributeError | SyntaxError | ValueError | TypeError)
    return str(error) if plain else repr(error)


def _from_entry_point(path: str, federation: Federation, settings: dict[str, Any]) -> Model:
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise RequestError(f"model 'module:{path}' names no function: write 'module:FILE:FUNCTION', without .py")
    try:
        with _current_directory_importable():
            factory = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # importing runs the user's file, which may raise anything
        plain = module_name.removesuffix(".py").replace("/", ".")
        meant = "" if plain == module_name else f". Write 'module:{plain}:{attribute}', without the file's ending"
        if not meant and isinstance(error, ModuleNotFoundError) and error.name == module_name:
            meant = f"; {module_name}.py is not in the current directory, and no installed package has this name"
        raise RequestError(f"model 'module:{path}' cannot be loaded: {_told(error)}{meant}") from error
    settings = dict(settings)
    trainable = settings.pop("trainable", "all")

    def make(seed: int) -> nn.Module:
        # The factory draws from PyTorch's generator. A fixed seed gives every process the same frozen weights.
        with torch.random.fork_rng(devices=[]), _current_directory_importable():
            torch.manual_seed(seed)
            made = factory(**settings)
        if not isinstance(made, nn.Module):
            raise RequestError(f"model 'module:{path}' must return a torch.nn.Module, not {type(made).__name__}")
        return made

    def start(generator: np.random.Generator) -> Tensor:
        # Where training starts depends on the run's generator, so that runs can be repeated.
        drawn = fine_tuned(make(int(generator.integers(2**63))), trainable)
        return parameters_to_vector(p.detach() for p in drawn.parameters() if p.requires_grad)

    try:
        made = make(0)
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(f"model 'module:{path}' cannot be built: {error!r}") from error
    loss = "squared" if federation.classes is None else "cross-entropy"
    model = ModuleModel(made, loss, start=start, trainable=trainable)
    check_fits(f"module:{path}", model, federation)
    return model
