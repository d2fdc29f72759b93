"""ISRL-DP (Lowy & Razaviyayn 2023): the table of Figure 3 evaluated at the settings of the experiments."""

from __future__ import annotations

from tacit.experiments.cells import Runner
from tacit.experiments.experiment import Claim, Experiment, Findings, Scale, Table
from tacit.experiments.isrl_runs import INSURANCE, MNIST, OBESITY
from tacit.theory.isrl_dp import ConvexProblem, figure_3, unmet_conditions


def _figure_3(runner: Runner, scale: Scale) -> Findings:
    """Figure 3's table for the experiments' own numbers of silos, records and dimensions."""
    settings = {
        "mnist": (25, 1238, 50, MNIST),
        "insurance": (10, 107, 7, INSURANCE),
        "obesity": (7, 202, 119, OBESITY),
    }
    lines = []
    for name, (silos, records, dim, task) in settings.items():
        for label in task.full.labels:
            problem = ConvexProblem(
                clients=silos,
                records=records,
                dim=dim,
                epsilon=label,
                delta=records**-2.0,
                smoothness=1.0,
                strong_convexity=0.1,
            )
            missing = "; ".join(unmet_conditions(problem)) or "none"
            lines += [
                (name, label, r.privacy, r.setting, r.loss, r.upper, r.lower, r.upper / r.lower, missing)
                for r in figure_3(problem)
            ]
    columns = (
        "data",
        "label",
        "privacy",
        "setting",
        "loss",
        "upper",
        "lower",
        "upper / lower",
        "unmet conditions",
    )
    gap = max(line[7] for line in lines if line[2:5] == ("isrl", "iid", "convex"))
    return Findings(
        [dict(zip(columns, line, strict=True)) for line in lines],
        (),
        (
            Table(
                "Excess risks: what the paper's algorithms reach, and what nobody can beat", columns, tuple(lines)
            ),
        ),
        (
            Claim(
                "For like silos the upper bound meets the lower one up to a logarithm (paper, Theorems 2.1, "
                "2.2).",
                gap < 10,
                f"convex, all settings: at most {gap:.2f} apart",
            ),
        ),
        (
            "Orders with constant 1, L = D = 1, smoothness 1, strong convexity 0.1: they compare, and "
            "promise nothing.",
        ),
        {"delta": "1/n^2"},
    )


EXPERIMENTS = (
    Experiment(
        "isrl-fig3-table",
        "Figure 3 evaluated at the experiments' settings",
        "ISRL-DP (Lowy & Razaviyayn 2023), Figure 3",
        _figure_3,
    ),
)
