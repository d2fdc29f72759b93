"""The experiments by name."""

from __future__ import annotations

from tacit.errors import unknown_name
from tacit.experiments import (
    fed_spa,
    fed_spa_cifar,
    isrl_figures,
    isrl_rates,
    isrl_table,
    norm_features,
    norm_quadratic,
    norm_table,
    norm_theorems,
    soteriafl,
    soteriafl_tables,
)
from tacit.experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for paper in (
        norm_quadratic,
        norm_table,
        norm_theorems,
        norm_features,
        soteriafl,
        soteriafl_tables,
        isrl_figures,
        isrl_table,
        isrl_rates,
        fed_spa,
        fed_spa_cifar,
    )
    for experiment in paper.EXPERIMENTS
}


def experiment_named(name: str) -> Experiment:
    """The experiment of that name. If there is none, the error suggests similar names."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
