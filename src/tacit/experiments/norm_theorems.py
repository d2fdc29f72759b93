"""DP-NormFedAvg (Das et al. 2022): its Theorems 3 (noise) and 4 (convergence) beside what is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from tacit.experiments.cells import Cell, Runner
from tacit.experiments.experiment import Claim, Experiment, Findings, Picture, Scale, Table
from tacit.experiments.figures import panels
from tacit.experiments.intervals import slope
from tacit.experiments.norm_theorems_runs import CLIENTS, DELTA, DIM, LOCAL_STEPS, RANK, run
from tacit.experiments.verdicts import against, at_most
from tacit.privacy import Adjacency, calibrate_noise
from tacit.privacy.events import gaussian, poisson, repeated
from tacit.report.curves import COLOURS

PAPER = "DP-NormFedAvg (Das, Hashemi, Sanghavi & Dhillon), Theorems 3 and 4"
ROUNDS = (25, 50, 100, 200, 400)
EPSILON = 5.0
NOISES = {
    "rounds": (250, 500, 1000, 2000, 4000),
    "epsilon": (0.25, 0.5, 1.0, 2.0, 4.0),
    "rate": (0.1, 0.2, 0.4, 0.8),
}
BASE = {"rounds": 1000, "epsilon": 1.0, "rate": 0.2}
STATED = {"rounds": 1.0, "epsilon": -2.0, "rate": 0.0}
NAMES = {"clip": "DP-FedAvg (clipping)", "normalise": "DP-NormFedAvg"}
KINDS = {True: "like clients", False: "unlike clients"}


def _noise(rounds: float, epsilon: float, rate: float) -> float:
    """n^2 sigma^2 / C^2 that the exact accountant asks for: (z n/r)^2, with r/n = `rate` of the clients."""
    multiplier = calibrate_noise(
        lambda z: repeated(poisson(rate, z) if rate < 1 else gaussian(z), int(rounds)),
        epsilon=epsilon,
        delta=DELTA,
        adjacency=Adjacency.ADD_REMOVE,
    )
    return float((multiplier / rate) ** 2)


def _theorem_3() -> tuple[Table, Claim]:
    lines, told, near = [], [], []
    for axis, values in NOISES.items():
        noises = []
        for value in values:
            asked = {**BASE, axis: value}
            noise = _noise(**asked)
            # sigma^2 = q K C^2 ln(1/delta) / (n^2 epsilon^2), solved for q.
            constant = noise * asked["epsilon"] ** 2 / (asked["rounds"] * math.log(1 / DELTA))
            noises.append(noise)
            lines.append((axis, asked["rounds"], asked["epsilon"], asked["rate"], noise, constant))
        exponent = slope(values, noises)
        near.append(abs(exponent - STATED[axis]) <= 0.2)
        told.append(f"{axis}: {exponent:.2f}, stated {STATED[axis]:g}")
    constants = [line[-1] for line in lines]
    columns = ("axis", "rounds K", "epsilon", "share r/n", "n^2 sigma^2 / C^2", "q")
    return (
        Table(
            "Theorem 3: the noise that the exact accountant asks for, and the q it amounts to",
            columns,
            tuple(lines),
        ),
        Claim(
            "The noise that is needed goes with K, epsilon and r/n as Theorem 3 says, within 0.2.",
            all(near),
            "; ".join(
                [
                    *told,
                    f"the constant q, which the paper leaves open, is {min(constants):.2f} to "
                    f"{max(constants):.2f}",
                ]
            ),
        ),
    )


def _theorem_4(rows: Sequence[dict[str, Any]], every: Sequence[int]) -> tuple[Picture, Table, Claim]:
    """What the theorem bounds, measured, beside its bound."""
    figure, axes = panels(1, 2, height=3.4)
    lines, above = [], 0
    for ax, (like, words) in zip(axes[0], KINDS.items(), strict=True):
        for colour, (bound, name) in zip(COLOURS, NAMES.items(), strict=False):
            means = {
                column: [fmean(_seen(rows, column, like=like, bound=bound, rounds=rounds)) for rounds in every]
                for column in ("above", "left", "right")
            }
            ax.plot(every, means["left"], "-o", markersize=3, color=colour, label=f"{name}, measured")
            ax.plot(every, means["right"], "--", color=colour, label=f"{name}, Theorem 4")
            above += sum(a > b for a, b in zip(means["left"], means["right"], strict=True))
            lines += [
                (words, name, *line)
                for line in zip(every, means["left"], means["right"], means["above"], strict=True)
            ]
        ax.set_xscale("log")
        ax.set_xticks(every, [f"{rounds}" for rounds in every])
        ax.set_xticks([], minor=True)
        ax.set_yscale("log")
        ax.set_title(words, fontsize=10)
        ax.set_xlabel("communication rounds")
    axes[0][0].set_ylabel("left-hand side of eqs. 2 and 3")
    axes[0][0].legend(frameon=False, fontsize=7.5)
    return (
        Picture(
            "bounds",
            figure,
            "What Theorem 4 bounds, measured, and its bound for the noise that was added. Unlike clients "
            "have minima of their own; like clients share one.",
        ),
        Table(
            "Theorem 4: means over the seeds",
            ("clients", "algorithm", "rounds", "measured left-hand side", "proved bound", "f(w) - f(w*)"),
            tuple(lines),
        ),
        Claim(
            "What Theorem 4 bounds is never above its bound.",
            above == 0,
            f"{above} of {len(lines)} means are above",
        ),
    )


def _seen(rows: Sequence[dict[str, Any]], column: str, **wanted: Any) -> list[float]:
    return [row[column] for row in rows if all(row[name] == value for name, value in wanted.items())]


def _theorems(runner: Runner, scale: Scale) -> Findings:
    seeds, every = scale.trials(1, 3), scale.pick(ROUNDS[:2], ROUNDS)
    asked = [
        {"like": like, "bound": bound, "rounds": rounds, "epsilon": EPSILON, "seed": seed}
        for like in KINDS
        for bound in NAMES
        for rounds in every
        for seed in seeds
    ]
    results = runner([Cell(run, one) for one in asked])
    rows = [
        {**one, **{name: result[name] for name in ("above", "left", "right", "noise_multiplier")}}
        for one, result in zip(asked, results, strict=True)
    ]

    pairs = {
        (like, rounds): (
            _seen(rows, "above", like=like, bound="normalise", rounds=rounds),
            _seen(rows, "above", like=like, bound="clip", rounds=rounds),
        )
        for like in KINDS
        for rounds in every
    }
    noise_table, noise_claim = _theorem_3()
    picture, bound_table, bound_claim = _theorem_4(rows, every)
    return Findings(
        rows,
        (picture,),
        (noise_table, bound_table),
        (
            noise_claim,
            bound_claim,
            *(
                Claim(
                    f"With {words}, normalising is at least as good as clipping with the same C (section 4.1).",
                    at_most([pair for (at, _), pair in pairs.items() if at == like], slack=1e-3),
                    "; ".join(
                        f"{rounds} rounds: {against(*pair)}" for (at, rounds), pair in pairs.items() if at == like
                    ),
                )
                for like, words in KINDS.items()
            ),
        ),
        (
            "Not an experiment of the paper: its theorems beside measurements. The bound is that of Theorems 6 "
            "and 7, the paper's detailed versions of Theorem 4, corrected for clients who take part by coins.",
            "The step is half of the longest that the theorems allow, C the longest update at the start. The "
            "mean over the rounds is what a random round's model has in expectation.",
            "Section 4.1 argues for like clients only; unlike clients are shown beside them.",
            *((f"Quick: {every[-1]} rounds at most, one seed.",) if scale.quick else ()),
        ),
        {
            "clients": CLIENTS,
            "dim": DIM,
            "rank": RANK,
            "local steps": LOCAL_STEPS,
            "epsilon": EPSILON,
            "delta": DELTA,
            "seeds": seeds,
        },
    )


EXPERIMENTS = (Experiment("norm-theorems", "Noise and convergence beside Theorems 3 and 4", PAPER, _theorems),)
