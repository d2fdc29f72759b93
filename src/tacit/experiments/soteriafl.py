"""SoteriaFL (Li et al. 2022): Figures 1 and 3 (a9a), 2 and 4 to 8 (a network on MNIST)."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

from tacit.engine.workers import Result
from tacit.experiments.cells import Runner
from tacit.experiments.charged import cost_table, real_epsilon, selected
from tacit.experiments.experiment import (
    PUBLISHED,
    SUMMED,
    Experiment,
    Findings,
    Picture,
    Scale,
    Table,
)
from tacit.experiments.figures import finished, legend_below, modes_panel, panels
from tacit.experiments.simulated import last, taken_as_public
from tacit.experiments.soteriafl_claims import Key, after_bits, claims_of, equal_bits, utilities
from tacit.experiments.soteriafl_runs import (
    A9A,
    ALGORITHMS,
    CLIENTS,
    DELTA,
    NETWORK,
    REHEARSED,
    TAKES_STEP_OF,
    TRUST,
    SoteriaTask,
    grids,
    rehearsals,
    run,
    shown,
)
from tacit.experiments.tuning import rehearsed, tuned

PAPER = "SoteriaFL (Li, Zhao, Li & Chi 2022)"


def _line(found: dict[Key, list[Result]], key: Key) -> tuple[Any, ...]:
    label, mode, name = key
    results = found[key]
    asked = results[0]["settings"]
    metric = fmean(result["history"]["test_metric"][-1] for result in results)
    at_bits = after_bits(results, equal_bits(found, label), "grad_norm_sq")
    return (
        label,
        mode,
        name,
        real_epsilon(results[0]),
        fmean(utilities(results)),
        None if at_bits is None else fmean(at_bits),
        fmean(last(result, "train_loss") for result in results),
        metric,
        results[0]["history"]["uplink_bits_per_client"][-1] / 8000,
        len(results),
        asked["rounds"],
        results[0]["batch"],
        asked["step"],
        asked["clip_norm"],
        results[0]["noise_std"],
    )


COLUMNS = (
    "label",
    "mode",
    "algorithm",
    "real epsilon",
    "utility",
    "squared gradient at equal bits",
    "loss",
    "test accuracy",
    "kB a client",
    "runs",
    "rounds",
    "batch",
    "step",
    "clip norm",
    "noise std",
)


SATURATED = (
    "On a9a every record's gradient is longer than 0.5, at the start and after 400 steps without noise (records "
    "have norms of 3.3 to 3.7). As published, a clipped gradient is therefore a direction of fixed length: SVRG "
    "and SAGA have nothing to reduce, and a bias stays that the authors' clipping of means does not have. Where "
    "the true mode's clip norm is larger, part of its lead is that."
)


NOT_SEARCHED = (
    " SoteriaFL-SVRG takes the step that was tuned for SoteriaFL-SGD in the same mode. LDP-SVRG, whose runs take "
    "longest, is not run at a true epsilon: LDP-SGD stands for it."
)


def _departures(task: SoteriaTask, scale: Scale) -> tuple[str, ...]:
    shrink = 10 if task is NETWORK else 2
    return (
        "Every record's gradient is clipped by itself. The authors clip the mean of a batch, which protects "
        "nobody (real epsilons of 2e4 and more); tacit has no such bound.",
        *(
            (SATURATED,)
            if task is A9A
            else ("SoteriaFL-GD and -SAGA, which the figure does not show, are left out.",)
        ),
        "Batches are drawn by coins (Poisson), as in the paper's proofs; its experiments draw with replacement, "
        "where the same noise is worth several times less (`tacit reproduce soteriafl-tables`).",
        "Rounds, batches and the partition (sorted by label) are those of the authors' code; the text has the "
        "steps, the clients and the share of the coordinates.",
        "As published: noise variance 8, 12 and 96 times G^2 T ln(1/delta)/(m label)^2 for LDP-/CDP-SGD, "
        "SoteriaFL-SGD and the SVRG kind; the batch of Corollary 2 (m^(2/3)/4) and its snapshot probability for "
        "SVRG, that of Corollary 3 (3 m^(2/3)) for SAGA.",
        f"True: the planner tries {', '.join(map(str, task.more_rounds))} times the paper's rounds and clip "
        f"norms {', '.join(f'{c:g}' for c in task.true_clips)} (the paper's is {task.clip_norm:g}) on synthetic "
        f"records of the same shape (of norm {task.record_norm:.3g}, a guess from what is public), dealt by "
        f"label, with {REHEARSED}, and takes what has the best utility "
        "there, for all algorithms. The sampling rate is the smallest whose noise is within 2% of the least for "
        "so many rounds, by the exact accountant. None of that looks at a private record; steps are tuned as in "
        "the other mode. More rounds are more bits: see the column of equal bits.",
        f"Summed: the true mode's rounds, clip norm and batch under secure sums. The server opens one sum in a "
        f"round, of at least {TRUST.quorum} of the {CLIENTS} clients, and at most {TRUST.colluding} clients help "
        "it. A message carries "
        f"1/{TRUST.honest} of the noise variance that it would need alone, and all clients send the same "
        "coordinates, chosen by public coins. What compression leaves out is then the same for all "
        "and does not average out over the clients, which may cost more than the smaller noise gains.",
        "The paper has test accuracies as curves in images only, so there is no printed number to reach; the "
        "column of test accuracies shows what each mode reaches.",
        "True and summed: every algorithm runs with its own estimator, SVRG and SAGA too, on batches of the same "
        "expected size (GD: all records). What one record can do to a SVRG or SAGA message is counted by the "
        "accountant, which costs them up to a fifth more noise than SGD."
        + (NOT_SEARCHED if task is NETWORK else ""),
        "The penalty stays outside the estimators of SVRG and SAGA: its gradient is known, and added as it is. "
        "In the paper it is part of every record's loss. Both are unbiased.",
        "The snapshot probability has the caps of Corollary 2 here; the default of `tacit run` has none.",
        "The utility is the mean of the squared gradient norm over the evaluated rounds, not over all.",
        "A search stops runs whose utility can no longer be the best of their series; that changes no choice.",
        "Tuning takes the first seed alone and looks at the utility"
        + (", in fewer rounds than are shown." if task is A9A else "."),
        *(
            (
                f"Quick: a {'tenth' if shrink == 10 else 'half'} of the rounds (at least 10), fewer steps, one "
                "seed; noise and real epsilons are those of that many rounds.",
            )
            if scale.quick
            else ()
        ),
    )


SHOWN = (("grad_norm_sq_mean", "utility"), ("train_loss", "training loss"), ("test_metric", "test accuracy"))
AGAINST = (("round", "communication rounds"), ("uplink_bits_per_client", "bits sent by a client"))


def _picture(found: dict[Key, list[Result]], label: float) -> Picture:
    figure, axes = panels(len(SHOWN), len(AGAINST))
    own = {(mode, name): results for (at, mode, name), results in found.items() if at == label}
    worth = {key: real_epsilon(results[0]) for key, results in own.items()}
    for row, (column, words) in zip(axes, SHOWN, strict=True):
        for ax, (x, x_words) in zip(row, AGAINST, strict=True):
            curves = {
                key: (results[0]["history"][x], [one["history"][column] for one in results])
                for key, results in own.items()
            }
            modes_panel(ax, curves, ALGORITHMS, worth)
            ax.set_xlabel(x_words)
        row[0].set_ylabel(words)
        row[1].set_xscale("log")
    for ax in axes[0]:
        ax.set_yscale("log")
    legend_below(figure, axes[0][0])
    caption = (
        f"Label {label:g}. Dashed: as published, with the epsilon that its noise really gives. Solid: true. "
        "Dotted: summed. Left against rounds, right against bits on the wire."
    )
    return Picture(f"curves-label-{label:g}", figure, caption)


def _figure(task: SoteriaTask, labels: tuple[float, ...], runner: Runner, scale: Scale) -> Findings:
    seeds = scale.trials(1, 5)
    plans = rehearsed(
        runner,
        run,
        rehearsals(task, labels, scale),
        keep=("rounds", "clip_norm"),
        score=lambda result: last(result, "grad_norm_sq_mean"),
        stops_early=True,
    )
    points = grids(task, labels, scale, plans)
    # Evaluating all records of the network costs as much as several rounds, so the quick version does it less
    # often.
    final = {} if scale.quick and task is NETWORK else shown(task)
    charged = {key: points.pop(key) for key in list(points) if scale.charge_tuning and key[1] != PUBLISHED}
    follows = {
        key: (*key[:2], TAKES_STEP_OF[key[2]])
        for key in points
        if task is NETWORK and key[1] != PUBLISHED and key[2] in TAKES_STEP_OF
    }
    search = partial(
        tuned,
        runner,
        run,
        tuning_seeds=seeds[:1],
        seeds=seeds,
        score=lambda result: last(result, "grad_norm_sq_mean"),
        final=final,
        stops_early=True,
    )
    found: dict[Any, list[Result]] = search({key: grid for key, grid in points.items() if key not in follows})
    steps = {key: found[leader][0]["settings"]["step"] for key, leader in follows.items() if leader in found}
    found |= search({key: [{**points[key][0], "step": step}] for key, step in steps.items()})
    # If charged, the choice uses public data: the test records.
    found |= selected(
        runner,
        run,
        charged,
        seeds=seeds,
        score=lambda result: -float(result["history"]["test_metric"][-1]),
        final=final,
    )
    claims = claims_of(found, labels, task.stand_ins)
    found = finished(found)
    rows = [
        {
            **result["settings"],
            **{name: result[name] for name in ("batch", "noise_multiplier", "noise_std", "seconds")},
            "epsilon": real_epsilon(result),
            **{
                name: last(result, name)
                for name in ("grad_norm_sq_mean", "grad_norm_sq", "train_loss", "test_metric")
            },
            "uplink_bits_per_client": result["history"]["uplink_bits_per_client"][-1],
        }
        for results in found.values()
        for result in results
    ]
    return Findings(
        rows,
        tuple(_picture(found, label) for label in labels),
        (Table("Means over the seeds", COLUMNS, tuple(_line(found, key) for key in found)), *cost_table(found)),
        claims,
        _departures(task, scale),
        {
            "clients": CLIENTS,
            SUMMED: f"quorum {TRUST.quorum}, colluding {TRUST.colluding}",
            "delta": DELTA,
            "compressor": "rand-k:0.05",
            "partition": "sorted by label",
            "seeds": seeds,
            "neighbours": "one record replaced",
            **taken_as_public(found.values()),
        },
        tuned=True,
        charged=scale.charge_tuning,
    )


def _network(name: str, number: int, label: float) -> Experiment:
    """A figure about the network."""
    return Experiment(
        name,
        f"SoteriaFL, network on MNIST, label {label:g}",
        f"{PAPER}, Figure {number}",
        partial(_figure, NETWORK, (label,)),
        "mnist",
        True,
    )


EXPERIMENTS = (
    Experiment(
        "soteriafl-fig1",
        "SoteriaFL on a9a, label 1",
        f"{PAPER}, Figure 1",
        partial(_figure, A9A, (1.0,)),
        "a9a",
        True,
    ),
    Experiment(
        "soteriafl-fig3",
        "SoteriaFL on a9a, labels 1, 5, 10",
        f"{PAPER}, Figure 3",
        partial(_figure, A9A, tuple(A9A.labels)),
        "a9a",
        True,
    ),
    _network("soteriafl-fig2", 2, 1.0),
    _network("soteriafl-fig4", 4, 1.0),
    _network("soteriafl-fig5", 5, 2.0),
    _network("soteriafl-fig6", 6, 4.0),
    _network("soteriafl-fig7", 7, 8.0),
    _network("soteriafl-fig8", 8, 16.0),
)
