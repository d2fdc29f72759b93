"""The audit has teeth: what keeps its promise passes, what breaks it is found.

Every sabotaged part below states the same event as the part it imitates, so it is promised the same privacy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import Tensor
from typer.testing import CliRunner

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.soteriafl import (
    cdp_sgd,
    ldp_sgd,
    soteriafl_gd,
    soteriafl_saga,
    soteriafl_sgd,
    soteriafl_svrg,
)
from tacit.cli import audit as verb
from tacit.client.bounded_model import BoundedModel
from tacit.client.bounds import Bound, ClipEachCoordinate, ClipNorm, Normalise
from tacit.client.cohort import Cohort
from tacit.client.estimators import Minibatch, Saga, State
from tacit.client.local_steps import NoisyLocalSteps
from tacit.client.sampling import Full, OnePass, Poisson, Sampling, WithoutReplacement, WithReplacement
from tacit.client.work import PrivateGradient, Work
from tacit.compress import Direct, Identity, parse_compressor
from tacit.compress.qsgd import Qsgd
from tacit.engine.audit import audit, audit_final_model, audit_one_run, audit_recipe
from tacit.engine.audit.game import Game, GradientGame, clients_with
from tacit.engine.recipe import Recipe
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.models.gradients import Gradients
from tacit.models.linear import logistic_regression
from tacit.noise.gaussian import gaussian_rows
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency, Target
from tacit.server.update import Descent

CLIP = ClipNorm(1.0)
MODEL = GradientGame(4)
TARGET = Target(2.0, 1e-5)


def _algorithm(work: Work) -> Algorithm:
    return Algorithm(type(work).__name__, work, Direct(Identity()), Descent(1.0))


# What may go wrong


@dataclass(frozen=True)
class HalfTheNoise(PrivateGradient):
    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        return super().run(point, cohort, state, noise_multipliers / 2)


@dataclass(frozen=True)
class ClipTheMean:
    """As in the code that came with papers/000: the mean of the batch is clipped, not every record."""

    clip_norm: float

    def norm(self, dim: int) -> float:
        return self.clip_norm

    def sums(self, gradients: Gradients) -> Tensor:
        sums = gradients.weighted_sums(torch.ones(int(gradients.counts.sum())))
        limits = self.clip_norm * gradients.counts[:, None]
        return sums * (limits / sums.norm(dim=1, keepdim=True).clamp(min=1e-9)).clamp(max=1.0)


@dataclass(frozen=True)
class NoiseOfTheFirstRound(PrivateGradient):
    def run(self, point: Tensor, cohort: Cohort, state: State, noise_multipliers: Tensor) -> tuple[Tensor, State]:
        estimate, state = self.estimator.estimate(BoundedModel(self.model, self.bound), point, cohort, state)
        stds = self.noise_stds(cohort.sizes, noise_multipliers)
        return estimate + gaussian_rows(stds, self.model.dim, cohort.generators_of_run(Purpose.NOISE)), state


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


SABOTAGED: dict[str, tuple[PrivateGradient, dict[str, Any]]] = {
    "noise halved": (
        HalfTheNoise(MODEL, Minibatch(Full()), CLIP),
        {"records": 1, "rounds": 3, "privacy": Target(4.0, 1e-5), "trials": 1000},
    ),
    "noise halved, sampled": (
        HalfTheNoise(MODEL, Minibatch(Poisson(0.5)), CLIP),
        {"records": 4, "rounds": 3, "privacy": Target(4.0, 1e-5), "trials": 3000},
    ),
    "clip on the batch mean": (
        PrivateGradient(MODEL, Minibatch(Poisson(0.3)), ClipTheMean(1.0)),
        {"records": 10, "rounds": 3, "trials": 1000},
    ),
    "noise reused across rounds": (
        NoiseOfTheFirstRound(MODEL, Minibatch(Poisson(0.3)), CLIP),
        {"records": 4, "rounds": 3, "trials": 600},
    ),
    "SAGA with a leaking table": (
        PrivateGradient(MODEL, UnboundedTable(Poisson(0.3)), CLIP),
        {"records": 4, "rounds": 3, "trials": 600},
    ),
    # A client with a single record, whose batch size says whether the record was drawn.
    "batch size transmitted": (
        TellsTheBatchSize(MODEL, Minibatch(Poisson(0.1)), CLIP),
        {"records": 1, "rounds": 4, "privacy": Target(4.0, 1e-5), "trials": 2000},
    ),
    "compression before noise with norm scaling": (
        QuantisesThenScalesNoise(MODEL, Minibatch(Full()), CLIP),
        {"records": 8, "rounds": 3, "trials": 600},
    ),
    "no noise without records": (
        SilentWhenEmpty(MODEL, Minibatch(Poisson(0.1)), CLIP),
        {"records": 1, "rounds": 4, "privacy": Target(4.0, 1e-5), "trials": 2000},
    ),
}


def _audited(name: str, seed: int) -> bool:
    work, settings = SABOTAGED[name]
    return audit(_algorithm(work), **{"privacy": TARGET, "seed": seed, **settings}).violated


@pytest.mark.parametrize("name", SABOTAGED)
def test_sabotage_is_found(name: str) -> None:
    assert _audited(name, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SABOTAGED)
def test_sabotage_is_found_in_nine_of_ten(name: str) -> None:
    assert sum(_audited(name, seed) for seed in range(1, 11)) >= 9


# What keeps its promise


def _sgd(sampling: Sampling, compressor: str = "identity", bound: Bound = CLIP) -> Algorithm:
    return soteriafl_sgd(MODEL, bound=bound, sampling=sampling, compressor=parse_compressor(compressor), step=1.0)


CORRECT: dict[str, Algorithm] = {
    "gd": soteriafl_gd(MODEL, bound=CLIP, compressor=Identity(), step=1.0),
    "gd, rand-k": soteriafl_gd(MODEL, bound=CLIP, compressor=parse_compressor("rand-k:0.5"), step=1.0),
    "sgd": _sgd(Poisson(0.3)),
    "sgd, qsgd": _sgd(Poisson(0.3), "qsgd:4"),
    "sgd, natural": _sgd(Poisson(0.3), "rand-k:0.5+natural"),
    "sgd, normalised": _sgd(Poisson(0.5), bound=Normalise(1.0)),
    "sgd, each coordinate": _sgd(Poisson(0.5), bound=ClipEachCoordinate(1.0)),
    "sgd, without replacement": _sgd(WithoutReplacement(2)),
    "sgd, with replacement": _sgd(WithReplacement(2)),
    "sgd, one pass": _sgd(OnePass(2)),
    "svrg": soteriafl_svrg(
        MODEL, bound=CLIP, sampling=Poisson(0.3), snapshot_probability=0.3, compressor=Identity(), step=1.0
    ),
    "saga": soteriafl_saga(MODEL, bound=CLIP, sampling=Poisson(0.3), compressor=Identity(), step=1.0),
    "local sgd": _algorithm(NoisyLocalSteps(MODEL, Poisson(0.3), CLIP, steps=2, step_size=0.5)),
}


@pytest.mark.slow
def test_forty_audits_of_correct_algorithms_raise_no_alarm() -> None:
    names = [*CORRECT] * 4
    alarms = []
    for seed, name in enumerate(names[:40]):
        result = audit(CORRECT[name], records=6, rounds=3, privacy=Target(4.0, 1e-5), trials=1000, seed=seed)
        if result.violated:
            alarms.append((name, seed, result))
    assert alarms == []


@pytest.mark.parametrize("name", ["sgd, natural", "sgd, without replacement", "svrg", "local sgd"])
def test_a_correct_algorithm_passes(name: str) -> None:
    result = audit(CORRECT[name], records=6, rounds=3, privacy=TARGET, trials=500)
    assert not result.violated
    assert result.lower_bound <= result.claimed <= 2.0


def test_the_audit_is_tight_where_the_accountant_is() -> None:
    """One Gaussian release and the worst canary lie exactly on the curve."""
    gd = CORRECT["gd"]
    result = audit(gd, records=1, rounds=1, privacy=Target(4.0, 1e-5), trials=10_000, dim=1)
    assert not result.violated
    assert result.equivalent_epsilon is not None
    assert 3.0 < result.equivalent_epsilon < 4.2
    assert result.lower_bound > 1.2


def test_add_remove_is_audited_between_its_own_neighbours() -> None:
    target = Target(4.0, 1e-5, Adjacency.ADD_REMOVE)
    result = audit(CORRECT["gd"], records=1, rounds=2, privacy=target, trials=1000)
    assert not result.violated
    assert result.lower_bound > 0.5
    half = _algorithm(HalfTheNoise(MODEL, Minibatch(Full()), CLIP))
    assert audit(half, records=1, rounds=2, privacy=target, trials=1000).violated


def test_trials_are_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rehearsals, practice and the guesses that count share no client, so they share no randomness."""
    used: list[list[int]] = []
    play = Game.messages

    def spy(game: Game, federation: Federation) -> Any:
        used.append(federation.ids.tolist())
        return play(game, federation)

    monkeypatch.setattr(Game, "messages", spy)
    result = audit(CORRECT["sgd"], records=2, rounds=1, privacy=TARGET, trials=600)
    everyone = [client for part in used for client in part]
    assert len(used) == 4
    assert len(everyone) == len(set(everyone)) == 600
    assert result.at_claim.trials == len(used[-1]) == 600 - 2 * 100 - 120


def test_compression_hides_but_shifts_do_not() -> None:
    """An adversary reads the private vector itself from rand-k messages: signal and noise, where it gets any."""
    game = Game.of(_sgd(Full(), "rand-k:0.5"), records=1, rounds=4, privacy=TARGET, dim=4, seed=1)
    federation = clients_with(torch.ones(400, 4), clients=400, first=0)
    some = game.messages(federation)
    seen = np.isfinite(some)
    assert seen.sum(2).tolist() == [[2] * 4] * 400
    noise = (some - game.signals(federation))[seen] / float(game.calibration.noise_stds[0])
    assert abs(noise.mean()) < 4.5 / len(noise) ** 0.5
    assert abs(noise.std() - 1) < 4.5 / (2 * len(noise)) ** 0.5


def test_the_server_turns_gradients_against_what_clients_remember() -> None:
    svrg = soteriafl_svrg(
        MODEL,
        bound=CLIP,
        sampling=Poisson(0.5),
        snapshot_probability=0.3,
        compressor=Identity(),
        step=1.0,
        difference_bound=2.0,
    )
    game = Game.of(svrg, records=4, rounds=10, privacy=TARGET, dim=4, seed=2)
    signals = game.signals(clients_with(torch.ones(8, 4), clients=2, first=0))
    reach = np.linalg.norm(signals, axis=2)[:, 1:].max()
    # u - (1 - q) y over b with y = -u, for all of four records: far above the full gradient's norm, 1.
    assert reach > 1.5


def test_the_same_seed_gives_the_same_result() -> None:
    first, second, other = (
        audit(CORRECT["gd, rand-k"], records=2, rounds=2, privacy=TARGET, trials=500, seed=seed)
        for seed in (3, 3, 4)
    )
    assert first == second != other


def test_requests_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RequestError, match="nothing to audit"):
        audit(CORRECT["gd"], records=2, rounds=2, privacy="none")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="trials must be"):
        audit(CORRECT["gd"], records=2, rounds=2, privacy=TARGET, trials=50)
    with pytest.raises(RequestError, match="records must be"):
        audit(CORRECT["gd"], records=0, rounds=2, privacy=TARGET)
    with pytest.raises(RequestError, match="confidence must be"):
        audit(CORRECT["gd"], records=2, rounds=2, privacy=TARGET, trials=500, confidence=1.0)


# One run, and the final model


@pytest.mark.parametrize("compressor", ["identity", "rand-k:0.5"])
def test_one_run_gives_a_bound_below_the_promise(compressor: str) -> None:
    sgd = cdp_sgd(MODEL, bound=CLIP, sampling=Poisson(0.5), compressor=parse_compressor(compressor), step=1.0)
    result = audit_one_run(sgd, rounds=3, privacy=Target(4.0, 1e-5), canaries=600)
    assert 0.2 < result.lower_bound < 4.0
    assert not result.violated


def test_one_run_finds_clipping_of_the_mean() -> None:
    work = PrivateGradient(MODEL, Minibatch(Full()), ClipTheMean(1.0))
    assert audit_one_run(_algorithm(work), rounds=2, privacy=TARGET, canaries=300).violated


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


def test_recipes_without_a_promise_and_unknown_methods_are_refused() -> None:
    with pytest.raises(RequestError, match="one epsilon and one delta"):
        audit_recipe(replace(SMALL, privacy="none", epsilon=None, delta=None))
    with pytest.raises(RequestError, match="did you mean 'one-run'"):
        audit_recipe(SMALL, method="one-runs")


def test_the_verb_prints_a_verdict(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(verb.audit)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(SMALL.to_toml())
    shown = CliRunner().invoke(app, [str(recipe), "--trials=500", "--epsilon=2"])
    assert shown.exit_code == 0, shown.output
    assert "no violation found" in shown.output
    told = CliRunner().invoke(app, [str(recipe), "--trials=500", "--epsilon=2", "--json"])
    assert json.loads(told.stdout)["verdict"] == "no violation found"


def test_the_verb_exits_with_one_when_the_promise_is_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = audit(
        _algorithm(QuantisesThenScalesNoise(MODEL, Minibatch(Full()), CLIP)),
        records=8,
        rounds=3,
        privacy=TARGET,
        trials=500,
    )
    monkeypatch.setattr("tacit.engine.audit.audit_recipe", lambda *_, **__: broken)
    app = typer.Typer()
    app.command()(verb.audit)
    seen = CliRunner().invoke(app, ["--algorithm=ldp-sgd"])
    assert seen.exit_code == 1
    assert "violation" in seen.output
