"""Fed-SPA (Hu et al. 2021): Table 1 and Figure 1, a convolutional network on MNIST (section 5, appendix A.1).

100 agents of 600 records, ten of them in a round, 45 rounds, 300 local steps of batches of 10, local step 0.01,
global step 0.01 (adaptive), both falling with 1/sqrt(t), delta 1e-3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.experiments import fed_spa_defaults
from tacit.experiments.cells import Cell, Runner
from tacit.experiments.experiment import (
    PUBLISHED,
    TRUE,
    Claim,
    Experiment,
    Findings,
    Picture,
    Scale,
    Table,
    against,
    at_most,
)
from tacit.experiments.fed_spa_page import departures, promise, table_of
from tacit.experiments.fed_spa_runs import (
    AGENTS,
    COHORT,
    CPSGD_BATCH,
    CPSGD_STEP,
    DELTA,
    SAME_BATCHES,
    as_planned,
    compared,
    planned,
    rows_of,
    run,
    schemes_of,
)
from tacit.experiments.figures import intervals_panel, panels

PAPER = "Fed-SPA (Hu, Gong & Guo 2021)"
PRINTED = {
    ("fed-spa", 0.05): 0.9265,
    ("fed-spa", 0.1): 0.9216,
    ("fed-spa", 0.4): 0.9484,
    ("fed-spa", 1.0): 0.9470,
    ("dp-fed", 1.0): 0.9141,
    ("fedavg", 1.0): 0.9687,
}
"""The paper's accuracies at epsilon 1."""

QUICK = (
    "Quick: 4 rounds of 30 local steps of 0.1 instead of 45 of 300 of 0.01, one seed; noise and real epsilons "
    "are those of that."
)


def _base(scale: Scale) -> dict[str, Any]:
    return {
        "data": "mnist",
        "rounds": scale.pick(4, 45),
        "local_steps": scale.pick(30, 300),
        # In total as far per round as in the paper: 300 steps of 0.01.
        "local_step": scale.pick(0.1, 0.01),
        "evaluations": scale.pick(2, 15),
    }


def _table_1(runner: Runner, scale: Scale) -> Findings:
    seeds, modes = scale.trials(1, 3), (PUBLISHED, SAME_BATCHES, TRUE)
    schemes = [*schemes_of(scale, modes), (TRUE, "cpsgd", 0.5)]
    rows = compared(runner, _base(scale), schemes, seeds, scale) + fed_spa_defaults.runs(
        runner, "mnist", seeds, scale
    )
    schemes += fed_spa_defaults.schemes_of("mnist")
    table, seen = table_of("Best accuracy on MNIST", rows, schemes, PRINTED)

    def order(which: Sequence[str]) -> list[tuple[str, list[float], list[float]]]:
        return [(mode, seen[mode, "fed-spa", 1.0], seen[mode, "dp-fed", 1.0]) for mode in which]

    return Findings(
        rows,
        (),
        (table,),
        (
            promise(rows),
            *fed_spa_defaults.printed_claims("mnist", seen, PRINTED),
            *(
                Claim(
                    f"{when}, without compression, Fed-SPA is more accurate than DP-Fed{source}.",
                    at_most([(b, a) for _, a, b in order(which)]),
                    "; ".join(f"{mode}: {against(a, b, '.4f')}" for mode, a, b in order(which)),
                )
                for when, which, source in (
                    ("As published", (PUBLISHED,), " (paper, Table 1)"),
                    ("At a true epsilon", (SAME_BATCHES, TRUE), ""),
                )
            ),
        ),
        (
            f"{SAME_BATCHES.capitalize()}: the noise that makes the label true for the paper's own batches and "
            "local steps.",
            f"cpSGD runs in the true mode alone: 16 bits a coordinate, batches of {CPSGD_BATCH}, steps of "
            f"{CPSGD_STEP:g}, every agent in every round, at the same epsilon against the server. The paper's "
            "own accounting of it holds for sums, and gives epsilons of 3.63 and 2.26 beside its accuracies of "
            "0.8732 and 0.8848.",
            *fed_spa_defaults.DEPARTURES,
            *departures("mnist", scale, QUICK),
        ),
        {"agents": AGENTS, "in a round": COHORT, "delta": DELTA, "seeds": seeds, **_base(scale)},
    )


def _figure_1(runner: Runner, scale: Scale) -> Findings:
    ratios, seeds = scale.pick((0.1, 1.0), (0.05, 0.2, 0.8, 1.0)), scale.trials(1, 3)
    labels = scale.pick((0.5, 2.0), (0.25, 0.5, 1.0, 2.0))
    plans = planned(runner, _base(scale), labels, scale)
    points = [
        {
            **_base(scale),
            **as_planned(plans[label], mode, "fed-spa"),
            "mode": mode,
            "algorithm": "fed-spa",
            "ratio": p,
            "label": label,
            "seed": seed,
        }
        for mode in (PUBLISHED, TRUE)
        for p in ratios
        for label in labels
        for seed in seeds
    ]
    rows = rows_of(runner([Cell(run, point) for point in points]))
    series: dict[tuple[str, str], dict[float, list[float]]] = {}
    for row in rows:
        by_label = series.setdefault((row["mode"], f"p = {row['ratio']:g}"), {})
        by_label.setdefault(row["label"], []).append(row["best_accuracy"])
    worth: dict[str, dict[float, float]] = {}
    for row in rows:
        if row["mode"] == PUBLISHED:
            real = worth.setdefault(f"p = {row['ratio']:g}", {})
            real[row["label"]] = max(row["epsilon"] or 0.0, real.get(row["label"], 0.0))
    figure, axes = panels(1, 1, height=3.6)
    intervals_panel(axes[0][0], series, [f"p = {p:g}" for p in ratios], worth)
    axes[0][0].set_ylabel("best test accuracy")
    axes[0][0].legend(frameon=False, fontsize=7.5)
    columns = ("mode", "p", "label", "seed", "real epsilon", "accuracy")
    lines = tuple(
        tuple(row[k] for k in ("mode", "ratio", "label", "seed", "epsilon", "best_accuracy")) for row in rows
    )
    return Findings(
        rows,
        (
            Picture(
                "trade-off",
                figure,
                "Accuracy against epsilon, the label. Dashed: as published; what this "
                "noise is really worth stands below the label. Solid: true.",
            ),
        ),
        (Table("Best accuracy", columns, lines),),
        (promise(rows),),
        (
            "The epsilons and some of the ratios of the figure stand in its image: these are ours.",
            *departures("mnist", scale, QUICK),
        ),
        {"agents": AGENTS, "in a round": COHORT, "delta": DELTA, "seeds": seeds, **_base(scale)},
    )


EXPERIMENTS = (
    Experiment("fed-spa-table1", "Fed-SPA and its rivals on MNIST", f"{PAPER}, Table 1", _table_1, "mnist"),
    Experiment("fed-spa-fig1", "Fed-SPA: accuracy against epsilon", f"{PAPER}, Figure 1", _figure_1, "mnist"),
)
