"""SoteriaFL (Li et al. 2022): Tables 1 and 2 evaluated, and the real epsilons of its labels."""

from __future__ import annotations

from tacit.experiments.cells import Runner
from tacit.experiments.experiment import Claim, Experiment, Findings, Scale, Table
from tacit.experiments.soteriafl_runs import A9A, DELTA, NETWORK
from tacit.theory import published
from tacit.theory.published import schemes
from tacit.theory.soteriafl import Problem, table_1, table_2


def _tables(runner: Runner, scale: Scale) -> Findings:
    dims = {"a9a": 123, "mnist": 50_890}
    lines, computed = [], []
    for task in (A9A, NETWORK):
        for label in task.labels:
            # rand-k keeps a twentieth: omega = 19.
            problem = Problem(
                clients=10, records=task.records, dim=dims[task.data], omega=19.0, epsilon=label, delta=DELTA
            )
            lines += [
                (task.data, label, r.algorithm, r.privacy, r.remark, r.utility, r.rounds, r.communication)
                for r in table_1(problem)
            ]
            computed += [(task.data, label, r.algorithm, r.gradient_complexity) for r in table_2(problem)]
    labels = published.paper("soteriafl").table()
    readings = tuple(labels[0].true)
    worth = tuple(
        (
            row.setting,
            row.remark or "soteriafl-sgd",
            row.label,
            row.batch,
            row.rounds,
            *map(row.true.get, readings),
        )
        for row in labels
    )
    read = [row for row in labels if schemes.WITH_REPLACEMENT in row.true]
    false = [row for row in read if row.true[schemes.WITH_REPLACEMENT] > row.label]
    columns = ("data", "label", "algorithm", "privacy", "kind", "utility", "rounds", "coordinates sent")
    return Findings(
        [dict(zip(columns, line, strict=True)) for line in lines],
        (),
        (
            Table(
                "What the published noise really gives, by how the paper is read",
                ("data", "algorithm", "label", "batch", "rounds", *readings),
                worth,
            ),
            Table(
                "Table 1 at the settings of the experiments: orders, with every constant 1", columns, tuple(lines)
            ),
            Table(
                "Table 2 at the settings of the experiments: gradients that a client computes",
                ("data", "label", "algorithm", "gradients"),
                tuple(computed),
            ),
        ),
        (
            Claim(
                "The published noise keeps its labels, in the paper's own reading (with replacement).",
                not false,
                f"{len(false)} of {len(read)} labels of SoteriaFL-SGD are exceeded, by upper bounds on epsilon",
            ),
        ),
        ("Orders of the theorems with all constants 1: they compare algorithms and promise nothing.",),
        {"clients": 10, "delta": DELTA, "omega": 19.0},
    )


EXPERIMENTS = (
    Experiment(
        "soteriafl-tables",
        "Tables 1 and 2 evaluated, and what the labels are worth",
        "SoteriaFL (Li, Zhao, Li & Chi 2022), Tables 1, 2",
        _tables,
    ),
)
