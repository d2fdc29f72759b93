"""The audit has teeth: what keeps its promise passes, what breaks it is found.

Every sabotaged part below states the same event as the part it imitates, so it is promised the same privacy.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from tests.engine.audited import ALGORITHMS, CLIP, MODEL, TARGET, Audited, plain, promises, sgd
from torch import Tensor
from typer.testing import CliRunner

from tacit.algorithms import calibrate as calibrating
from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.secure_sum import SecureSum, secured
from tacit.algorithms.soteriafl import cdp_sgd, ldp_sgd, soteriafl_saga, soteriafl_svrg
from tacit.algorithms.trust import Aggregator
from tacit.cli import audit as verb
from tacit.client.bounded_update import BoundedUpdate
from tacit.client.bounds import ClipNorm, Unbounded
from tacit.client.cohort import Cohort
from tacit.client.estimators import BoundedModel, Minibatch, Saga
from tacit.client.private_gradient import PrivateGradient
from tacit.client.sampling import Drawn, Full, OnePass, Poisson, WithoutReplacement
from tacit.compress import Identity, parse_compressor
from tacit.compress.qsgd import Qsgd
from tacit.deploy.audit import audit_report
from tacit.deploy.report import Report
from tacit.engine import bound_source
from tacit.engine.audit import audit, audit_final_model, audit_one_run, audit_recipe
from tacit.engine.audit.game import Game
from tacit.engine.audit.measured import measured
from tacit.engine.audit.recipe import ONE_RECORD_EACH
from tacit.engine.audit.stage import Tactic
from tacit.engine.plan import make_plan
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.gradients import Gradients
from tacit.models.linear import logistic_regression
from tacit.noise.additive import LatticeGaussian, SeededGaussian
from tacit.noise.binomial import Binomial
from tacit.noise.gaussian import gaussian_rows
from tacit.noise.randomness import Generators, Purpose, Randomness
from tacit.privacy import Adjacency, Adversary, Target, Unit
from tacit.privacy.audit import AuditResult, Check
from tacit.shuffle.vector_sum import VectorSum
from tacit.state import State

REPORT = Report(every=1, loss_bound=2.0, epsilon=3.0)


def _report(**settings: Any) -> AuditResult:
    run: dict[str, Any] = {"records": 3, "messages": 1, "privacy": TARGET, "noise": SeededGaussian()}
    return audit_report(REPORT, **{"trials": 500, **run, **settings})


# Half of the noise, in everything that promises something


def _halve_gaussian(patch: pytest.MonkeyPatch) -> None:
    whole = SeededGaussian.add
    patch.setattr(SeededGaussian, "add", lambda self, rows, stds, *rest: whole(self, rows, stds / 2, *rest))


def _halve_binomial(patch: pytest.MonkeyPatch) -> None:
    """A quarter of the coins."""
    whole = Binomial.on_grids

    def quarter(self: Binomial, rows: Tensor, grids: list[Any], generators: Generators) -> Tensor:
        return whole(self, rows, [replace(grid, coins=2 * (grid.coins // 8)) for grid in grids], generators)

    patch.setattr(Binomial, "on_grids", quarter)


def _halve_coins(patch: pytest.MonkeyPatch) -> None:
    """A quarter of the coins, and half a head for each of the others."""
    whole = VectorSum.randomise

    def quarter(self: VectorSum, rows: Tensor, sources: Any) -> Tensor:
        few = replace(self, coins=self.coins // 4)
        return whole(few, rows, sources) + (self.coins - few.coins) // 2

    patch.setattr(VectorSum, "randomise", quarter)


_HALVED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {"cpsgd": _halve_binomial, "coins": _halve_coins}

EACH = [name for name in ALGORITHMS if name not in ("gd, rand-k", "sgd, qsgd", "sgd, natural", "sgd, normalised")]
"""compressors and bounds add nothing new here"""
WHOLE_AUDITS = ("sgd, natural", "dp-fedavg", "shuffled", "hybrid")
"""audited with as many trials as a user's audit has"""


@pytest.mark.parametrize("name", EACH)
def test_half_of_the_noise_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every promise that is made, by a wide margin."""
    _HALVED.get(name.split(",")[0], _halve_gaussian)(monkeypatch)
    for promise in promises(ALGORITHMS[name]):
        noise = measured(promise.stage, 0)[0]
        assert noise.violated
        assert noise.measured > 1.5 * noise.promised


@pytest.mark.parametrize("name", ["svrg", "dp-fedavg", "shuffled"])
def test_half_of_the_noise_is_a_violation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _HALVED.get(name, _halve_gaussian)(monkeypatch)
    result = ALGORITHMS[name].audit()
    assert all(one.violated for one in (result, *result.beside))


def test_half_of_the_noise_of_reports_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _report().violated
    _halve_gaussian(monkeypatch)
    assert _report().violated


@pytest.mark.parametrize("name", ["local steps", "fed-spa", "dp-fedavg, server"])
def test_guesses_alone_find_half_of_the_noise_where_the_bound_is_tight(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _halve_gaussian(monkeypatch)
    result = ALGORITHMS[name].audit(trials=1500)
    assert result.on_curve is not None
    assert result.at_claim.violated or result.on_curve.violated


# What else may go wrong


@dataclass(frozen=True)
class ClipTheMean:
    """As in the code that came with SoteriaFL: the mean of the batch is clipped, not every record."""

    clip_norm: float

    def norm(self, dim: int) -> float:
        return self.clip_norm

    def sums(self, gradients: Gradients) -> Tensor:
        sums = gradients.weighted_sums(torch.ones(int(gradients.counts.sum())))
        limits = self.clip_norm * gradients.counts[:, None]
        return sums * (limits / sums.norm(dim=1, keepdim=True).clamp(min=1e-9)).clamp(max=1.0)


@dataclass(frozen=True)
class SaysThatItBounds(Unbounded):
    def norm(self, dim: int) -> float:
        return 1.0


@dataclass(frozen=True)
class OverflowsFarOut(ClipNorm):
    """Squares of huge gradients are infinite in single precision, and what is not finite is let through."""

    def sums(self, gradients: Gradients) -> Tensor:
        rows = gradients.rows(0, int(gradients.counts.sum()))
        norms = (rows.float() ** 2).sum(1).sqrt()
        scales = torch.where(torch.isfinite(norms), self.clip_norm / norms.clamp(min=self.clip_norm), 1.0)
        return gradients.weighted_sums(scales)


@dataclass(frozen=True)
class NoiseOfTheFirstRound(PrivateGradient):
    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        estimate, state = self.estimator.estimate(BoundedModel(self.model, self.bound), point, cohort, state)
        stds = self.noise_stds(cohort.sizes, noise_multipliers)
        return estimate + gaussian_rows(stds, self.model.dim, cohort.generators_of_run(Purpose.NOISE)), state


@dataclass(frozen=True)
class UniformNoise(PrivateGradient):
    """Of the right standard deviation."""

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        rows, state = super().run(point, cohort, state, 0 * noise_multipliers)
        stds = self.noise_stds(cohort.sizes, noise_multipliers)
        draws = [generator.uniform(-1, 1, self.model.dim) for generator in cohort.generators(Purpose.NOISE)]
        return rows + (3**0.5 * stds[:, None] * torch.from_numpy(np.stack(draws))).float(), state


@dataclass(frozen=True)
class UnboundedTable(Saga):
    """The table begins with gradients that nobody clipped."""

    def init(self, model: BoundedModel, point: Tensor, federation: Federation) -> State:
        state = super().init(model, point, federation)
        gradients = model.model.gradients(point, federation.batch())
        sums = gradients.weighted_sums(torch.ones(federation.records))
        return {**state, "table_means": sums.double() / federation.sizes[:, None]}


@dataclass(frozen=True)
class TellsTheBatchSize(PrivateGradient):
    """The last coordinate is the number of records drawn."""

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        rows, state = super().run(point, cohort, state, noise_multipliers)
        counts = self.sampling.draw(cohort).batch.counts
        return torch.cat([rows[:, :-1], counts[:, None].float()], dim=1), state


@dataclass(frozen=True)
class QuantisesThenScalesNoise(PrivateGradient):
    """Compression before noise, and noise in units of the vector's own norm instead of the bound."""

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        estimate, state = self.estimator.estimate(BoundedModel(self.model, self.bound), point, cohort, state)
        quantised = Qsgd(levels=4).compress(estimate, cohort.generators(Purpose.COMPRESS)).dense()
        stds = self.noise_stds(cohort.sizes, noise_multipliers) / self.bound.norm(self.model.dim)
        noise = gaussian_rows(stds, self.model.dim, cohort.generators(Purpose.NOISE))
        return quantised + estimate.norm(dim=1, keepdim=True) * noise, state


@dataclass(frozen=True)
class SilentWhenEmpty(PrivateGradient):
    """Nothing drawn, nothing added."""

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        rows, state = super().run(point, cohort, state, noise_multipliers)
        return rows * (self.sampling.draw(cohort).batch.counts > 0)[:, None], state


@dataclass(frozen=True)
class DividesByTheBatchDrawn(PrivateGradient):
    """By the number of records that came, and noise in proportion to it."""

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        rows, state = super().run(point, cohort, state, noise_multipliers)
        counts = self.sampling.draw(cohort).batch.counts.clamp(min=1)
        return rows * (self.sampling.batch_sizes(cohort.sizes) / counts)[:, None].float(), state


@dataclass(frozen=True)
class FixedInsteadOfPoisson(Poisson):
    """Batches of fixed size where coins are promised: who is drawn tells about the others."""

    def draw(self, cohort: Cohort) -> Drawn:
        return WithoutReplacement(self.batch).draw(cohort)


@dataclass(frozen=True)
class DrawsTooOften(Poisson):
    def draw(self, cohort: Cohort) -> Drawn:
        return Poisson(min(1.0, 1.5 * self.batch)).draw(cohort)


@dataclass(frozen=True)
class SeveralPasses(OnePass):
    """A new order in every round, as after a restart that forgot the old one."""

    def draw(self, cohort: Cohort) -> Drawn:
        return WithoutReplacement(self.batch).draw(cohort)


@dataclass(frozen=True)
class WeighsByRecords(BoundedUpdate):
    """Clients count in proportion to their records, of which there is one on average."""

    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        rows, state = super().run(point, cohort, state, 0 * noise_multipliers)
        stds = self.noise_stds(cohort.sizes, noise_multipliers)
        noise = gaussian_rows(stds, self.model.dim, cohort.generators(Purpose.NOISE))
        return rows * cohort.sizes[:, None] + noise, state


class LeavesTheRestOut(Aggregator):
    def top_up(self, total: Tensor, *rest: Any) -> Tensor:
        return total


class HalvesItsShares(Aggregator):
    def share(self, noise_multipliers: Tensor, cohort: int) -> Tensor:
        return super().share(noise_multipliers, cohort) / 2


class HalvesItsShareOfTheSum(SecureSum):
    def share(self, noise_multipliers: Tensor, cohort: int) -> Tensor:
        return super().share(noise_multipliers, cohort) / 2


BY_COINS = Poisson(0.5)


def _private(
    bound: Any = CLIP,
    sampling: Any = BY_COINS,
    kind: type[PrivateGradient] = PrivateGradient,
    estimator: Any = Minibatch,
) -> Algorithm:
    return plain(kind(MODEL, estimator(sampling), bound))


def _weighted() -> Algorithm:
    whole = ALGORITHMS["dp-fedavg, server"].algorithm
    work = whole.work
    assert isinstance(work, BoundedUpdate)
    return replace(whole, work=WeighsByRecords(MODEL, work.sampling, work.bound, work.steps, work.step_size))


ONE_RECORD = {"records": 1, "rounds": 4}
CROWD = ALGORITHMS["dp-fedavg"]

SABOTAGED: dict[str, Audited] = {
    "clip on the batch mean": Audited(_private(ClipTheMean(1.0)), {"records": 10, "rounds": 3}),
    "no bound": Audited(_private(SaysThatItBounds())),
    "a bound that overflows": Audited(_private(OverflowsFarOut(1.0))),
    "noise reused across rounds": Audited(_private(kind=NoiseOfTheFirstRound)),
    "noise of another kind": Audited(_private(kind=UniformNoise)),
    "SAGA with a leaking table": Audited(_private(estimator=UnboundedTable)),
    # A client with a single record, whose batch size says whether the record was drawn.
    "batch size transmitted": Audited(_private(kind=TellsTheBatchSize, sampling=Poisson(0.1)), ONE_RECORD),
    "compression before noise with norm scaling": Audited(
        _private(kind=QuantisesThenScalesNoise, sampling=Full()), {"records": 8, "rounds": 3}
    ),
    "no noise without records": Audited(_private(kind=SilentWhenEmpty, sampling=Poisson(0.1)), ONE_RECORD),
    "divisor by the batch drawn": Audited(_private(kind=DividesByTheBatchDrawn)),
    "fixed batches instead of coins": Audited(_private(sampling=FixedInsteadOfPoisson(0.5))),
    "records drawn too often": Audited(_private(sampling=DrawsTooOften(0.5))),
    "several passes instead of one": Audited(_private(sampling=SeveralPasses(1)), {"records": 4, "rounds": 4}),
    "clients weighed by their records": Audited(_weighted(), {"records": 4, "rounds": 2}),
    "missing shares left out": Audited(replace(CROWD.algorithm, trust=LeavesTheRestOut(3.0)), CROWD.run),
    "half of the shares of a secure sum": Audited(
        secured(_private(), HalvesItsShareOfTheSum(5, 4, 1)), {"records": 10, "rounds": 3, "clients": 5}
    ),
    "half of the shares": Audited(replace(CROWD.algorithm, trust=HalvesItsShares(3.0)), CROWD.run),
}


@pytest.mark.parametrize("name", SABOTAGED)
def test_sabotage_is_found(name: str) -> None:
    assert SABOTAGED[name].audit().violated


SUBTLE = ["fixed batches instead of coins", "records drawn too often", "missing shares left out"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBTLE)
def test_subtle_sabotage_is_found_in_nine_of_ten(name: str) -> None:
    runs = [promises(SABOTAGED[name], seed=seed)[0].stage for seed in range(1, 11)]
    assert sum(any(check.violated for check in measured(run, 0)) for run in runs) >= 9


def test_noise_that_does_not_belong_to_its_guarantee_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The promise is the event: a calibration that hands out less noise than it accounts for is no excuse."""
    found = calibrating.calibrate_noise

    def too_little(*args: Any, **settings: Any) -> float:
        return found(*args, **settings) / 2

    def calibrated(*args: Any, **settings: Any) -> calibrating.Calibration:
        whole = calibrating.calibrate(*args, **settings)
        return replace(whole, noise_multipliers=whole.noise_multipliers / 2)

    monkeypatch.setattr("tacit.engine.plan.calibrate", calibrated)
    assert ALGORITHMS["svrg"].audit().violated
    monkeypatch.undo()
    monkeypatch.setattr(calibrating, "calibrate_noise", too_little)
    with pytest.raises(RequestError, match="refusing to run with it"):
        ALGORITHMS["svrg"].audit()


def test_losses_that_are_not_clipped_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    clamp = Tensor.clamp
    monkeypatch.setattr(
        Tensor, "clamp", lambda self, *a, **k: self if a == (0, REPORT.loss_bound) else clamp(self, *a, **k)
    )
    assert _report().violated


# What keeps its promise


@pytest.mark.slow
def test_audits_of_correct_algorithms_raise_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their guesses, each with a chance of less than one percent; the next test measures what they measure."""
    monkeypatch.setattr("tacit.engine.audit.repeated_runs.FEWEST_TRIALS", 200)
    monkeypatch.setattr("tacit.engine.audit.repeated_runs.measured", lambda stage, first: ())
    others = [name for name in EACH if name not in WHOLE_AUDITS]
    alarms = [name for name in others if ALGORITHMS[name].audit(trials=200, seed=1).violated]
    assert len(alarms) <= 1, alarms


@cache
def _checks(name: str) -> list[tuple[Check, ...]]:
    """What is measured of each promise."""
    return [measured(promise.stage, 0) for promise in promises(ALGORITHMS[name])]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_correct_algorithm_passes_all_checks(name: str) -> None:
    for checks in _checks(name):
        assert [check for check in checks if check.violated] == []
        assert {"noise", "law", "freshness"} <= {check.name for check in checks}


@cache
def _audited(name: str) -> AuditResult:
    return ALGORITHMS[name].audit()


@pytest.mark.parametrize("name", WHOLE_AUDITS)
def test_a_correct_algorithm_is_not_refuted(name: str) -> None:
    result = _audited(name)
    assert not result.violated
    for one in (result, *result.beside):
        assert one.lower_bound <= one.claimed


def test_reports_pass_on_a_lattice_too() -> None:
    # Drawn from the system: an alarm once in a hundred times, and four in a row once in a hundred million.
    assert not all(_report(noise=LatticeGaussian()).violated for _ in range(4))


@pytest.mark.parametrize("name", ["svrg", "saga", "local steps", "fed-spa", "dp-fed", "dp-fedavg", "shuffled"])
def test_records_reach_as_far_as_the_event_says(name: str) -> None:
    """The noise check is worth something: the worst case that it finds is the one that is paid for."""
    noise = _checks(name)[0][0]
    assert 0.95 * noise.promised < noise.measured < 1.05 * noise.promised


def test_every_promise_is_attacked_by_its_own_adversary() -> None:
    by_sums = _audited("dp-fedavg")
    played = [(one.adversary, one.unit) for one in (by_sums, *by_sums.beside)]
    assert played == [(who, Unit.CLIENT) for who in (Adversary.SUM, Adversary.COHORT, Adversary.SERVER)]
    assert by_sums.claimed < by_sums.beside[0].claimed < by_sums.beside[1].claimed
    # Knowing more, they find more.
    assert by_sums.lower_bound < by_sums.beside[0].lower_bound < by_sums.beside[1].lower_bound
    mixed = _audited("shuffled")
    assert [one.adversary for one in (mixed, *mixed.beside)] == [Adversary.SHUFFLER, Adversary.SERVER]
    assert (mixed.clients, mixed.beside[0].clients) == (10, 1)
    both = _audited("hybrid")
    assert [one.unit for one in (both, *both.beside)] == [Unit.RECORD, Unit.CLIENT]
    assert both.beside[0].lower_bound > both.lower_bound


def test_the_audit_is_tight_where_the_accountant_is() -> None:
    """One Gaussian release and the worst canary lie exactly on the curve."""
    gd = ALGORITHMS["gd"].algorithm
    result = audit(gd, records=1, rounds=1, privacy=TARGET, trials=10_000, dim=1)
    assert not result.violated
    assert result.equivalent_epsilon is not None
    assert 3.0 < result.equivalent_epsilon < 4.2
    assert result.lower_bound > 1.2
    assert result.guesses_notice_half


def test_add_remove_is_audited_between_its_own_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(4.0, 1e-5, Adjacency.ADD_REMOVE)
    gd = Audited(ALGORITHMS["gd"].algorithm, {"records": 1, "rounds": 2, "privacy": target, "trials": 1000})
    result = gd.audit()
    assert not result.violated
    assert result.lower_bound > 0.5
    _halve_gaussian(monkeypatch)
    assert gd.audit().violated


def test_trials_are_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearsals, practice, the guesses that count and the checks share no trial, so they share no randomness."""
    used: list[list[int]] = []
    play = Game.views

    def spy(game: Game, pulls: Any, first: int, tactic: Tactic) -> Any:
        used.append(list(range(first, first + len(pulls))))
        return play(game, pulls, first, tactic)

    monkeypatch.setattr(Game, "views", spy)
    result = audit(sgd(Poisson(0.3)), records=2, rounds=1, privacy=TARGET, trials=600)
    everyone = [trial for part in used for trial in part]
    assert len(everyone) == len(set(everyone))
    assert [len(part) for part in used] == [100, 100, 180, 420]
    assert result.at_claim.trials == 420


def test_compression_hides_but_shifts_do_not() -> None:
    """An adversary reads the private vector itself from rand-k messages: signal and noise, where it gets any."""
    game = promises(Audited(sgd(Full(), "rand-k:0.5"), {"records": 1, "rounds": 4}), dim=4)[0].stage
    pulls = np.ones(400)
    some = game.views(pulls, 0, Tactic())
    seen = np.isfinite(some)
    assert seen.sum(2).tolist() == [[2] * 4] * 400
    # One record: the noise multiplier is the standard deviation, in bounds.
    noise = (some - game.signals(pulls, 0, Tactic()))[seen] / game.noise
    assert abs(noise.mean()) < 4.5 / len(noise) ** 0.5
    assert abs(noise.std() - 1) < 4.5 / (2 * len(noise)) ** 0.5


_PLAIN: dict[str, Any] = {"bound": CLIP, "compressor": Identity(), "step": 1.0}


def test_the_server_turns_gradients_against_what_clients_remember() -> None:
    svrg = soteriafl_svrg(MODEL, sampling=Poisson(0.5), snapshot_probability=0.3, difference_bound=2.0, **_PLAIN)
    game = promises(Audited(svrg, {"records": 4, "rounds": 10}), seed=2)[0].stage

    def lengths(memory: float) -> set[float]:
        """In units of the bound over b."""
        signals = game.signals(np.ones(50), 0, Tactic(memory=memory))
        return set(np.round(2 * np.linalg.norm(signals, axis=2), 2).reshape(-1).tolist())

    # u - (1 - q) y when drawn and q y when not, with y = -u, y = u, and (but for rounds that move y) y = 0.
    assert lengths(-1.0) == {1.5, 0.5}
    assert lengths(1.0) == {0.5}
    assert lengths(0.0) == {1.0, 0.0}


@pytest.mark.parametrize("difference_bound", [2.0, 1.0, 0.25])
@pytest.mark.parametrize("estimator", ["svrg", "saga"])
def test_memories_are_kept_where_records_reach_farthest(estimator: str, difference_bound: float) -> None:
    """However short differences to old gradients are cut, the worst case that is paid for is found."""
    how = {"sampling": Poisson(0.5), "difference_bound": difference_bound, **_PLAIN}
    if estimator == "svrg":
        algorithm = soteriafl_svrg(MODEL, snapshot_probability=0.3, **how)
    else:
        algorithm = soteriafl_saga(MODEL, **how)
    noise = measured(promises(Audited(algorithm))[0].stage, 0)[0]
    assert 0.95 * noise.promised < noise.measured < 1.05 * noise.promised


def test_mixed_messages_come_without_order() -> None:
    game = promises(ALGORITHMS["shuffled"])[0].stage
    pulls = np.ones(50)
    ordered = game.views(pulls, 0, Tactic())
    mixed = game.hidden(ordered, 0)
    assert ordered.shape == mixed.shape == (50, 2, 10, 16)
    assert np.array_equal(np.sort(ordered[..., 0], axis=2), np.sort(mixed[..., 0], axis=2))
    assert (ordered[:, :, 0, 0] == mixed[:, :, 0, 0]).mean() < 0.3


def test_the_same_seed_gives_the_same_result() -> None:
    first, second, other = (ALGORITHMS["gd, rand-k"].audit(rounds=2, seed=seed) for seed in (3, 3, 4))
    assert first == second != other


def test_long_runs_of_a_crowd_are_cut_short_and_say_so() -> None:
    found = promises(ALGORITHMS["shuffled"], rounds=50)[0]
    assert found.stage.rounds == 30
    assert found.notes == ("the first 30 of 50 rounds were played",)


def test_requests_that_make_no_sense_are_refused() -> None:
    gd = ALGORITHMS["gd"].algorithm
    with pytest.raises(RequestError, match="nothing to audit"):
        audit(gd, records=2, rounds=2, privacy="none")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="trials must be"):
        audit(gd, records=2, rounds=2, privacy=TARGET, trials=50)
    with pytest.raises(RequestError, match="records must be"):
        audit(gd, records=0, rounds=2, privacy=TARGET)
    with pytest.raises(RequestError, match="confidence must be"):
        audit(gd, records=2, rounds=2, privacy=TARGET, trials=500, confidence=1.0)


# One run, and the final model


@pytest.mark.parametrize("compressor", ["identity", "rand-k:0.5"])
def test_one_run_gives_a_bound_below_the_promise(compressor: str) -> None:
    algorithm = cdp_sgd(
        MODEL, bound=CLIP, sampling=Poisson(0.5), compressor=parse_compressor(compressor), step=1.0
    )
    result = audit_one_run(algorithm, rounds=3, privacy=TARGET, canaries=600)
    assert 0.2 < result.lower_bound < 4.0
    assert not result.violated


def test_one_run_finds_clipping_of_the_mean() -> None:
    assert audit_one_run(_private(ClipTheMean(1.0), Full()), rounds=2, privacy=TARGET, canaries=300).violated


def test_one_run_is_about_the_records_of_one_client() -> None:
    for name in ("dp-fedavg", "shuffled", "dp-fedavg, server"):
        with pytest.raises(RequestError, match="use repeated-runs"):
            audit_one_run(ALGORITHMS[name].algorithm, rounds=2, privacy=TARGET, canaries=20)


def _noise_to_learn_by_heart(clients: int, records: int, dim: int) -> Federation:
    generator = Randomness(5).generator(Purpose.DATA)
    features = generator.standard_normal((clients * records, dim)).astype(np.float32) / dim**0.5
    return Federation(
        features=torch.from_numpy(features),
        targets=torch.from_numpy(generator.integers(0, 2, clients * records)),
        sizes=torch.full((clients,), records),
        ids=torch.arange(clients),
        classes=2,
    )


def test_a_model_that_has_learnt_by_heart_gives_its_records_away() -> None:
    """So much privacy is none: labels are noise, and what the model knows of them it knows from the records."""
    federation = _noise_to_learn_by_heart(2, 201, 400)
    algorithm = ldp_sgd(logistic_regression(features=400), bound=CLIP, sampling=Full(), step=20.0)
    loose = audit_final_model(algorithm, federation, rounds=60, privacy=Target(1e5, 1e-5))
    assert loose.lower_bound > 1.0
    assert not loose.violated
    tight = audit_final_model(algorithm, federation, rounds=60, privacy=Target(0.5, 1e-5))
    assert tight.lower_bound <= tight.claimed <= 0.5
    assert tight.records == 101


def test_a_membership_attack_on_pairs_needs_replace_one() -> None:
    federation = _noise_to_learn_by_heart(1, 4, 2)
    algorithm = ldp_sgd(logistic_regression(features=2), bound=CLIP, sampling=Full(), step=1.0)
    with pytest.raises(RequestError, match="replace-one"):
        audit_final_model(algorithm, federation, rounds=1, privacy=Target(1.0, 1e-5, Adjacency.ADD_REMOVE))
    lonely = _noise_to_learn_by_heart(3, 1, 2)
    with pytest.raises(RequestError, match="two records"):
        audit_final_model(algorithm, lonely, rounds=1, privacy=TARGET)


# Recipes and the command line

SMALL = Recipe(
    algorithm="cdp-sgd",
    data="breast-cancer",
    clients=20,
    rounds=3,
    algorithm_settings={"batch": 0.5, "step": 0.1, "compressor": "rand-k:0.5"},
)


@pytest.mark.parametrize("method", ["repeated-runs", "one-run", "final-model"])
def test_a_recipe_is_audited(method: str) -> None:
    trials = 500 if method != "final-model" else None
    result = audit_recipe(SMALL, method=method, trials=trials)
    assert not result.violated
    assert result.method == method.replace("-", " ")
    assert result.rounds == 3
    assert json.loads(json.dumps(result.to_dict()))["epsilon_claimed"] == result.claimed <= 8


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "dp-fedavg", "algorithm_settings": {}, "clients": 8, "cohort": 4, "rounds": 1},
        {"algorithm": "shuffled-mb-sgd", "algorithm_settings": {}, "clients": 8, "epsilon": 2.0},
        {"client_epsilon": 60.0, "clients": 80, "rounds": 1},
        {"epsilon": [2.0 + client / 20 for client in range(20)]},
    ],
    ids=["sums", "shuffled", "hybrid", "own budgets"],
)
def test_recipes_about_crowds_and_whole_clients_are_audited(settings: dict[str, Any]) -> None:
    result = audit_recipe(replace(SMALL, **settings), trials=500)
    assert not result.violated
    assert result.claimed <= 8


def test_an_audit_does_not_tell_protected_numbers_of_records() -> None:
    recipe = replace(SMALL, algorithm="dp-fedavg", algorithm_settings={}, clients=8, rounds=1)
    found = [audit_recipe(replace(recipe, partition=one), trials=500) for one in ("iid", "dirichlet:0.1")]
    assert int(make_plan(replace(recipe, partition="dirichlet:0.1")).federation.sizes.min()) < 8
    assert json.dumps(found[0].to_dict()) == json.dumps(found[1].to_dict())


def test_what_is_measured_on_records_is_said_to_be() -> None:
    found = audit_recipe(SMALL, method="final-model")
    assert any("no promise covers it" in note for note in found.notes)
    assert not any("no promise" in note for note in audit_recipe(SMALL, trials=500).notes)


def test_an_audit_makes_no_release_on_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    # With numbers that follow from it, a reader could test guesses about a private clip norm.
    monkeypatch.setattr(bound_source, "clip_norm_from_quantile", None)
    recipe = replace(SMALL, algorithm="fed-spa", algorithm_settings={"bound_from": "quantile:0.2"})
    assert not audit_recipe(recipe, trials=500).violated


def test_an_audit_says_that_rows_of_persons_are_not_played(tmp_path: Path) -> None:
    rows = "".join(f"A,p{k % 8},{k},{'no' if k % 3 else 'yes'}\n" for k in range(24))
    (tmp_path / "visits.csv").write_text("site,who,age,ill\n" + rows)
    (tmp_path / "schema.toml").write_text(
        '[target]\ncolumn = "ill"\ntask = "binary"\nclasses = ["no", "yes"]\n[client]\ncolumn = "site"\n'
        '[person]\ncolumn = "who"\nrows = 4\n[columns.age]\ntype = "number"\nrange = [0, 100]\n'
    )
    recipe = Recipe(
        algorithm="soteriafl-gd",
        data=str(tmp_path / "visits.csv"),
        data_settings={"schema": str(tmp_path / "schema.toml")},
        rounds=1,
        epsilon=4.0,
    )
    assert audit_recipe(recipe, trials=500).notes == (ONE_RECORD_EACH,)


def test_recipes_without_a_promise_and_unknown_methods_are_refused() -> None:
    with pytest.raises(RequestError, match="promises nothing"):
        audit_recipe(replace(SMALL, privacy="none", epsilon=None, delta=None))
    with pytest.raises(RequestError, match="did you mean 'one-run'"):
        audit_recipe(SMALL, method="one-runs")


def _verb() -> typer.Typer:
    app = typer.Typer()
    app.command()(verb.audit)
    return app


def test_the_verb_tells_all_promises_in_json(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(SMALL.to_toml())
    told = CliRunner().invoke(_verb(), [str(recipe), "--trials=500", "--report=2,4.0,0.5", "--json"])
    assert told.exit_code == 0, told.output
    result = json.loads(told.stdout)
    assert (result["verdict"], result["adversary"], result["unit"]) == ("no violation found", "server", "record")
    assert [check["name"] for check in result["checks"]] == ["noise", "law", "freshness", "draws", "others"]
    assert [other["algorithm"] for other in result["beside"]] == ["loss report"]


def test_the_verb_prints_a_verdict_and_whom_it_played(monkeypatch: pytest.MonkeyPatch) -> None:
    both = replace(_audited("sgd, natural"), beside=(_report(),))
    monkeypatch.setattr("tacit.engine.audit.audit_recipe", lambda *_, **__: both)
    shown = CliRunner().invoke(_verb(), ["--algorithm=ldp-sgd"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("no violation found") == 3
    assert "the server and all other parties" in shown.output
    assert "loss report" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80


def test_the_verb_exits_with_one_when_the_promise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = SABOTAGED["compression before noise with norm scaling"].audit()
    monkeypatch.setattr("tacit.engine.audit.audit_recipe", lambda *_, **__: broken)
    seen = CliRunner().invoke(_verb(), ["--algorithm=ldp-sgd"])
    assert seen.exit_code == 1
    assert "violation" in seen.output
