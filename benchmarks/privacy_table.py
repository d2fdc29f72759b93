"""How tight every promise is: what is printed, what an audit finds, and what can be computed.

    python -m benchmarks.privacy_table                       # about three minutes; prints a table in Markdown
    python -m benchmarks.privacy_table --write docs/privacy.md   # puts it between the markers there

Every algorithm runs in a small setting (a few records, three rounds or so) at its own noise. The computed value
is a lower bound on the epsilon of what the code releases, by means that share nothing with the accountant: two
neighbours that the code allows, the law of what the adversary sees of each, cut into cells (which is
post-processing and can only lose), and privacy losses rounded down before they are added up.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import signal, stats
from tests.engine.audited import ALGORITHMS, TARGET, promises

from tacit.deploy.audit import audit_report
from tacit.deploy.report import Report
from tacit.engine.audit.game import Game
from tacit.engine.audit.promises import Promise
from tacit.engine.audit.repeated_runs import audit_promise
from tacit.engine.audit.seats import OneClient
from tacit.noise.additive import SeededGaussian
from tacit.noise.binomial import Grid
from tacit.privacy import Adversary, Unit
from tacit.privacy.audit import AuditResult
from tacit.privacy.promises.rounding import at_least, up_to

Array = NDArray[np.float64]

TRIALS, SEED, DIM = 4000, 0, 4
CELL, LOSS_STEP, FAR = 0.02, 2e-4, 9.0
"""Widths of cells of outcomes (in standard deviations) and of losses; and how far out outcomes are looked at."""

BEGIN, END = "<!-- privacy table: begin -->", "<!-- privacy table: end -->"


# Lower bounds by computation


def losses_rounded_down(upper: Array, lower: Array) -> tuple[int, Array]:
    """The law of log P/Q under P on multiples of LOSS_STEP: the first of them, and the masses from there on."""
    kept = (upper > 0) & (lower > 0)
    steps = np.floor(np.log(upper[kept] / lower[kept]) / LOSS_STEP).astype(int)
    first = int(steps.min())
    return first, np.bincount(steps - first, upper[kept])


def repeated_delta(upper: Array, lower: Array, rounds: int) -> Callable[[float], float]:
    """delta at an epsilon of so many independent rounds of a pair of laws on cells; never above the truth."""
    first, masses = losses_rounded_down(upper, lower)
    total = masses
    for _ in range(rounds - 1):
        total = np.maximum(signal.fftconvolve(total, masses), 0.0)
    losses = LOSS_STEP * (rounds * first + np.arange(len(total)))
    return lambda epsilon: float((total * np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)).sum())


def least_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    """The largest epsilon that a delta above `delta` rules out."""
    low, high = 0.0, 1.0
    if delta_at(low) <= delta:
        return 0.0
    while delta_at(high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return low


@dataclass(frozen=True)
class Mixture:
    """Gaussians of deviation one around these means, on a line or along all rounds of a run."""

    weights: tuple[float, ...]
    means: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, law: Sequence[tuple[float, float]]) -> Mixture:
        """From pairs of a weight and a mean."""
        return cls(tuple(weight for weight, _ in law), tuple((mean,) for _, mean in law))

    @property
    def mirrored(self) -> Mixture:
        """The other way round."""
        return Mixture(self.weights, tuple(tuple(-x for x in mean) for mean in self.means))

    def masses(self, edges: Array) -> Array:
        """Of all cells, in as many dimensions as the means have."""
        total: Array = np.zeros(1)
        for weight, mean in zip(self.weights, self.means, strict=True):
            part = np.array(weight)
            for x in mean:
                part = np.multiply.outer(part, np.diff(stats.norm.cdf(edges - x)))
            total = total + part
        return total.reshape(-1)


def _between(one: Mixture, other: Mixture, rounds: int = 1, cell: float = CELL) -> float:
    """The epsilon of `rounds` independent rounds of these two laws, in the worse order, at the target's delta."""
    far = max(abs(x) for law in (one, other) for mean in law.means for x in mean) + FAR
    edges = np.arange(-far, far + cell, cell)
    p, q = one.masses(edges), other.masses(edges)
    return max(least_epsilon(repeated_delta(a, b, rounds), TARGET.delta) for a, b in ((p, q), (q, p)))


def _told(drawn: Sequence[tuple[float, float]], rounds: int) -> float:
    """The epsilon of rounds in each of which nature tells the shift, if there is any: chances and shifts."""
    p, q = [np.array([1 - sum(chance for chance, _ in drawn)])] * 2
    for chance, shift in drawn:
        edges = np.arange(-shift - FAR, shift + FAR + CELL, CELL)
        p = np.append(p, chance * np.diff(stats.norm.cdf(edges - shift)))
        q = np.append(q, chance * np.diff(stats.norm.cdf(edges + shift)))
    return least_epsilon(repeated_delta(p, q, rounds), TARGET.delta)


def _heads(coins: int, value: float) -> Array:
    """The law of heads of `coins`, plus `value` rounded at random to a whole number next to it; from 0 on."""
    whole = math.floor(value)
    law = stats.binom.pmf(np.arange(-whole, coins + 2 - whole), coins, 0.5)
    above = stats.binom.pmf(np.arange(-whole - 1, coins + 1 - whole), coins, 0.5)
    return np.asarray((1 - (value - whole)) * law + (value - whole) * above)


# What the worst neighbours look like, algorithm by algorithm


def gaussian(game: Game) -> float:
    """Everybody counts in every round."""
    return _between(Mixture.of([(1.0, game.shifts.drawn)]), Mixture.of([(1.0, -game.shifts.drawn)]), game.rounds)


def sampled(game: Game) -> float:
    """Coins of probability q, several of them for one message; others add nothing."""
    work = game.algorithm.work
    if work.unit is Unit.CLIENT:
        rate, steps, units = game.seat.chance, 1, 1
    else:
        rate, steps = work.sampling.rate(game.records), work.batches_per_round
        units = steps * (game.records if game.unit is Unit.CLIENT else 1)
    each = game.shifts.drawn / math.sqrt(steps)
    law = Mixture.of([(float(stats.binom.pmf(n, units, rate)), n * each) for n in range(units + 1)])
    return _between(law, law.mirrored, game.rounds)


def fixed_size(game: Game) -> float:
    """Batches of fixed size in which everybody else pulls the other way."""
    sampling = game.algorithm.work.sampling
    rate, shift = sampling.rate(game.records), 2 * game.shifts.drawn
    if getattr(sampling, "replacement", False):
        batch = round(rate * game.records)
        draws = [float(stats.binom.pmf(j, batch, 1 / game.records)) for j in range(batch + 1)]
    else:
        draws = [1 - rate, rate]
    return _between(
        Mixture.of([(weight, j * shift) for j, weight in enumerate(draws)]), Mixture.of([(1.0, 0.0)]), game.rounds
    )


def one_pass(game: Game) -> float:
    """Drawn in one of the rounds, or in none, each as likely; others add nothing, or pull the other way."""
    rate, rounds = game.algorithm.work.sampling.rate(game.records), game.rounds

    def law(shift: float) -> Mixture:
        paths = [tuple(shift * (t == s) for s in range(rounds)) for t in range(rounds)]
        return Mixture((*[rate] * rounds, 1 - rounds * rate), (*paths, (0.0,) * rounds))

    alone, against = law(game.shifts.drawn), law(2 * game.shifts.drawn)
    nowhere = Mixture((1.0,), ((0.0,) * rounds,))
    return max(_between(alone, alone.mirrored, cell=0.1), _between(against, nowhere, cell=0.1))


def _old_and_new(game: Game) -> tuple[float, float, float]:
    """q, the clip r of differences (2 if there is none), and how many deviations one bound is."""
    work: Any = game.algorithm.work
    rate = work.sampling.rate(game.records)
    reach = work.estimator.reach(rate)
    return rate, reach.drawn, game.shifts.drawn / reach.inside(rate)


def svrg(game: Game) -> float:
    """Old gradients against the new ones, or as far along as a clip on differences lets show, or the same."""
    rate, clip, bound = _old_and_new(game)
    best = 0.0
    for old in {max(-1.0, 1 - clip), *np.linspace(-1, 1, 9).tolist()}:
        drawn, not_drawn = rate * old + min(clip, 1 - old), rate * old
        law = Mixture.of([(1 - rate, not_drawn * bound), (rate, drawn * bound)])
        best = max(best, _between(law, law.mirrored, game.rounds))
    return best


def saga(game: Game) -> float:
    """New gradients at 1 in all rounds; the table is at `old` until the record is drawn, then at 1."""
    rate, clip, bound = _old_and_new(game)
    best = 0.0
    for old in {max(-1.0, 1 - clip), *np.linspace(-1, 1, 5).tolist()}:
        weights, paths = [], []
        for when in range(game.rounds + 1):
            weights.append((1 - rate) ** when * (rate if when < game.rounds else 1.0))
            drawn = rate * old + min(clip, 1 - old)
            path = [rate * old] * when + [drawn] + [rate] * game.rounds
            paths.append(tuple(x * bound for x in path[: game.rounds]))
        law = Mixture(tuple(weights), tuple(paths))
        best = max(best, _between(law, law.mirrored, cell=0.1))
    return best


def cpsgd(game: Game) -> float:
    """The coins and the grid that are really used, for vectors of one number."""
    work: Any = game.algorithm.work
    sizes, noise = torch.tensor([game.records]), torch.tensor([game.noise], dtype=torch.float64)
    grid: Grid = work.grids(sizes, noise)[0]
    rate = work.sampling.rate(game.records)
    reach = work.bound.norm(1) / float(work.sampling.batch_sizes(sizes)[0]) / grid.spacing
    middle = math.ceil(reach)
    laws = {side: _heads(grid.coins, middle + side * reach) for side in (-1, 0, 1)}
    size = max(map(len, laws.values())) + 2 * middle

    def padded(law: Array) -> Array:
        return np.pad(law, (0, size - len(law)))

    p, q = (padded((1 - rate) * padded(laws[0]) + rate * padded(laws[side])) for side in (1, -1))
    return least_epsilon(repeated_delta(p, q, game.rounds), TARGET.delta)


def coins(game: Game) -> float:
    """One record among the sum of everybody's coins; all others are as small as they can be."""
    work: Any = game.algorithm.work
    total, reach = game.clients * work.coins, work.levels / work.batch
    law = stats.binom.pmf(np.arange(-math.ceil(reach), total + math.ceil(reach) + 1), total, 0.5)
    p, q = law[: -math.ceil(reach)], law[math.ceil(reach) :]
    return least_epsilon(repeated_delta(p, q, game.rounds), TARGET.delta)


def shuffled(game: Game) -> float:
    """The sum of all messages, or how many of them lie above a threshold; others at zero or on the other side."""
    shift, others = game.shifts.drawn, game.clients - 1
    sampling = game.algorithm.work.sampling
    rate = sampling.rate(game.records)
    far = 1.0 if rate == 1 else 2.0
    deviations = shift / math.sqrt(game.clients)
    upper = Mixture.of([(1 - rate, 0.0), (rate, far * deviations)])
    lower = Mixture.of([(1.0, 0.0)]) if rate < 1 else upper.mirrored
    best = _between(upper, lower, game.rounds)
    for threshold in np.arange(-1.0, 4.0, 0.25):
        for place in (-shift, 0.0):
            above = {x: float(stats.norm.sf(threshold - x)) for x in (-shift, 0.0, shift)}
            crowd = stats.binom.pmf(np.arange(others + 1), others, above[place])
            hit = rate * above[shift] + (1 - rate) * above[place]
            p, q = (np.convolve(crowd, [1 - chance, chance]) for chance in (hit, above[-shift]))
            best = max(best, least_epsilon(repeated_delta(p, q, game.rounds), TARGET.delta))
    return best


LABELS = {
    "gd": "soteriafl-gd",
    "sgd": "minibatch gradients, Poisson (1)",
    "sgd, without replacement": "the same, without replacement",
    "sgd, with replacement": "the same, with replacement",
    "sgd, one pass": "the same, one pass",
    "svrg": "soteriafl-svrg, ldp-svrg",
    "saga": "soteriafl-saga",
    "local steps": "noisy-local-sgd",
    "shuffled": "shuffled-mb-sgd, all records",
    "shuffled, batches": "shuffled-mb-sgd, batches",
    "coins": "shuffled-accelerated",
    "hybrid": "records and whole clients (client_epsilon)",
}
"""What the small algorithms stand for; the others have their own names."""

COMPUTED: dict[str, Callable[[Game], float]] = {
    "gd": gaussian,
    "sgd": sampled,
    "sgd, without replacement": fixed_size,
    "sgd, with replacement": fixed_size,
    "sgd, one pass": one_pass,
    "svrg": svrg,
    "saga": saga,
    "local steps": sampled,
    "fed-spa": sampled,
    "dp-fed": sampled,
    "dp-scaffold": sampled,
    "ef21-sgdm": sampled,
    "cpsgd": cpsgd,
    "dp-fedavg": sampled,
    "dp-normfedavg": sampled,
    "dp-fedavg, server": gaussian,
    "shuffled": shuffled,
    "shuffled, batches": shuffled,
    "coins": coins,
    "hybrid": sampled,
}


def known_cohort(game: Game) -> float:
    """Sums of rounds of which it is known whether the client takes part."""
    return _told([(game.seat.chance, game.shifts.drawn)], game.rounds)


def own_share(game: Game) -> float:
    """The client's own messages, if it takes part, with the share of the noise that the cohort leaves to it."""
    assert isinstance(game.seat, OneClient)
    crowd, rate = game.seat.crowd, game.seat.rate
    one = torch.ones(1, dtype=torch.float64)
    shifts = [game.shifts.drawn / float(game.algorithm.trust.share(one, others + 1)) for others in range(crowd)]
    chances = rate * stats.binom.pmf(np.arange(crowd), crowd - 1, rate)
    return _told(list(zip(chances.tolist(), shifts, strict=True)), game.rounds)


def computed_for(name: str, promise: Promise, beside: bool) -> float:
    """The lower bound that belongs to one promise of an algorithm."""
    game = promise.stage
    assert isinstance(game, Game)
    compute = COMPUTED[name]
    if beside and name in ("dp-fedavg", "dp-normfedavg"):
        compute = known_cohort if game.adversary is Adversary.COHORT else own_share
    if beside and name.startswith("shuffled"):
        compute = gaussian if game.records == 1 else fixed_size
    return compute(game)


# The table


@dataclass(frozen=True)
class Row:
    """One promise."""

    name: str
    result: AuditResult
    computed: float

    def markdown(self) -> str:
        """As a row of a table."""
        found = self.result
        as_if = "" if found.equivalent_epsilon is None else at_least(found.equivalent_epsilon)
        ratio = f"{found.claimed / found.lower_bound:.1f}" if found.lower_bound > 0.01 else ""
        noise = next(check for check in found.checks if check.name == "noise")
        return (
            f"| {LABELS.get(self.name, self.name)} | {found.adversary}, {found.unit} | {up_to(found.claimed)} | "
            f"{at_least(self.computed)} | {found.claimed / self.computed:.2f} | {at_least(found.lower_bound)} | "
            f"{as_if} | "
            f"{ratio} | "
            f"{noise.measured / noise.promised:.2f} | {'yes' if found.guesses_notice_half else 'no'} |"
        )


def rows(trials: int = TRIALS, seed: int = SEED) -> list[Row]:
    """All promises of all algorithms."""
    made = []
    for name in COMPUTED:
        dim = {"dim": 1} if name in ("cpsgd", "coins") else {"dim": DIM}
        for index, promise in enumerate(promises(ALGORITHMS[name], seed=seed, **dim)):
            result = audit_promise(promise, trials=trials, confidence=0.95)
            made.append(Row(name, result, computed_for(name, promise, index > 0)))
    report = Report(every=1, loss_bound=2.0, epsilon=3.0)
    found = audit_report(
        report, records=3, messages=3, privacy=TARGET, noise=SeededGaussian(), trials=trials // 2, seed=seed
    )
    shift = 1 / found.noise_multiplier
    made.append(Row("loss report", found, _between(Mixture.of([(1.0, shift)]), Mixture.of([(1.0, -shift)]), 3)))
    return made


def table(made: Sequence[Row]) -> str:
    """In Markdown."""
    head = (
        "| algorithm | against, per | printed | computed, at least | printed / computed | audited, at least "
        "| as if | printed / audited | movement / allowed | guesses find half |"
    )
    line = "| --- | --- |" + " ---: |" * 7 + " --- |"
    return "\n".join([head, line, *(row.markdown() for row in made)])


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=TRIALS, help="of every audit")
    parser.add_argument("--seed", type=int, default=SEED, help="of all randomness")
    parser.add_argument("--write", type=Path, help="a page with the two markers")
    given = parser.parse_args()
    text = table(rows(given.trials, given.seed))
    if given.write is None:
        print(text)
        return
    page = given.write.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    given.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
