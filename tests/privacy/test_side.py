"""Side computations: no record moves a message further than is charged, and what comes out is of use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tacit
from tacit.errors import DataError, RequestError
from tacit.federation import Federation
from tacit.models import least_squares, logistic_regression
from tacit.noise.additive import LatticeGaussian
from tacit.noise.lattice import lattice_exponent
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy import Adjacency, Target, epsilon
from tacit.privacy.events import gaussian, repeated
from tacit.side import SideRelease, clip_norm_from_quantile, private_quantile, split_target
from tacit.side.release import NoisyMeans

TARGET = Target(epsilon=1.0, delta=1e-5)
PLENTY = Target(epsilon=1e4, delta=1e-5)


def _federation(features: Any, clients: int = 1) -> Federation:
    """Records dealt in turn, without the conversions and checks that a user's data need."""
    rows = torch.as_tensor(np.asarray(features), dtype=torch.float64).reshape(len(features), -1)
    owners = torch.arange(len(rows)) % clients
    return Federation(
        features=rows[owners.argsort(stable=True)],
        targets=torch.zeros(len(rows)),
        sizes=torch.bincount(owners),
        ids=torch.arange(clients),
    )


def _skewed(records: int, clients: int = 5) -> Federation:
    return _federation(np.random.default_rng(0).lognormal(0.0, 1.0, records), clients)


def _quantile(federation: Federation, quantile: float = 0.5, **settings: Any) -> SideRelease[float]:
    usual = {"name": "x", "lower": 0.0, "upper": 64.0, "target": TARGET, "seed": 0}
    return private_quantile(federation, federation.features[:, 0], quantile, **{**usual, **settings})


def _rank(federation: Federation, value: float) -> float:
    return float((federation.features[:, 0] <= value).double().mean())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, float]]:
    """What is about to get noise, and the bound by which it does: every (sums, bound) of every release."""
    seen: list[tuple[Tensor, float]] = []
    original = NoisyMeans.messages

    def spy(self: NoisyMeans, sums: Tensor, release: int = 0) -> Tensor:
        seen.append((sums, self.bound))
        return original(self, sums, release)

    monkeypatch.setattr(NoisyMeans, "messages", spy)
    return seen


# --- no record moves a message by more than is charged


def _furthest_apart(
    release: Callable[[Federation], object], records: list[Any], asked: list[tuple[Tensor, float]]
) -> float:
    """The largest distance, in bounds, between the sums of any two records when one of them is replaced."""
    sums = {}
    for data in itertools.product(range(len(records)), repeat=2):
        asked.clear()
        release(_federation([records[i] for i in data]))
        sums[data], bound = asked[0]
    distances = [
        float(torch.linalg.vector_norm(sums[data] - sums[(*data[:k], other, *data[k + 1 :])]))
        for data in sums
        for k in range(2)
        for other in range(len(records))
    ]
    return max(distances) / bound


def test_replacing_a_record_moves_a_count_by_two_bounds_and_no_more(asked: list[tuple[Tensor, float]]) -> None:
    assert _furthest_apart(_quantile, [-math.pi, 0.0, 31.9, 32.0, 32.1, 64.0, 1e30], asked) == 2.0


@pytest.mark.parametrize("seed", [1, None])
@pytest.mark.parametrize("adjacency", Adjacency)
def test_messages_have_the_noise_that_their_event_says(adjacency: Adjacency, seed: int | None) -> None:
    target = replace(TARGET, adjacency=adjacency)
    means = NoisyMeans(_federation(np.zeros(40), 20), "noise", 0.7, 3, target, seed, 400)
    noise = torch.cat([means.messages(torch.zeros(20, 400), release) for release in range(3)])
    wanted = means.noise_multiplier * 0.7
    assert float(noise.std()) == pytest.approx(wanted, rel=6 / math.sqrt(2 * noise.numel()))
    assert abs(float(noise.mean())) < 6 * wanted / math.sqrt(noise.numel())
    correlation = torch.corrcoef(noise) - torch.eye(60)
    assert float(correlation.abs().max()) < 7 / math.sqrt(400)
    assert float(means.means(torch.zeros(20, 400)).std()) == pytest.approx(means.noise_std, rel=0.2)
    release = means.released(0.0)
    # Rounding to a lattice lets a record reach a little further.
    slack = 0.0 if seed else 1e-4
    ideal = repeated(gaussian(release.noise_multiplier / (1 + slack)), 3)
    assert release.event == (ideal if seed else LatticeGaussian().charged(ideal, 400, 3))
    assert 0.99 < epsilon(release.event, target.delta, adjacency) <= 1.0


def test_without_a_seed_messages_lie_on_a_lattice() -> None:
    means = NoisyMeans(_federation(np.zeros(300), 300), "noise", 0.5, 1, TARGET, None)
    sent = means.messages(torch.full((300, 1), 1 / 3)) / (means.noise_multiplier * means.bound)
    steps = sent * 2.0 ** lattice_exponent(1, means.noise_multiplier, slack=5e-5)
    # Messages travel in single precision, which tells these steps well apart.
    assert float((steps - steps.round()).abs().max()) < 0.2
    assert len(torch.unique(steps.round())) > 290


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("bins", [2, 3, 1000, 1024])
def test_the_event_covers_every_halving(
    bins: int, adjacency: Adjacency, asked: list[tuple[Tensor, float]]
) -> None:
    target = replace(TARGET, adjacency=adjacency)
    release = _quantile(_skewed(100), bins=bins, target=target)
    assert len(asked) == math.ceil(math.log2(bins))
    assert release.event == repeated(gaussian(release.noise_multiplier), len(asked))
    assert release.events == (release.event,) * 5
    assert 0.99 < release.guarantee.epsilon <= 1.0
    assert release.guarantee.adjacency is target.adjacency


# --- whose noise it is


def test_releases_share_no_noise_with_each_other_or_with_training() -> None:
    federation = _federation(np.zeros(4), 2)
    zeros = torch.zeros(2, 3)
    usual = NoisyMeans(federation, "a", 1.0, 2, TARGET, seed=5, dim=3)
    others = [
        replace(usual, question="b").messages(zeros),
        replace(usual, seed=6).messages(zeros),
        replace(usual, target=replace(TARGET, epsilon=2.0)).messages(zeros),
        usual.messages(zeros, release=1),
    ]
    training = torch.stack(
        [torch.from_numpy(Randomness(5).generator(Purpose.NOISE, client=i).standard_normal(3)) for i in (0, 1)]
    )
    rows = [usual.messages(zeros), *others, training]
    every = torch.cat([row / row.std() for row in rows])
    assert len(torch.unique(every.round(decimals=5))) == every.numel()
    assert torch.equal(usual.messages(zeros), rows[0])


@pytest.mark.parametrize("change", [{"name": "y"}, {"upper": 65.0}, {"quantile": 0.6}, {"bins": 2048}])
def test_quantiles_that_ask_something_else_draw_other_noise(change: dict[str, Any]) -> None:
    federation, seen = _skewed(50), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            NoisyMeans, "means", lambda self, sums, release=0: seen.append(self._randomness.seed) or sums.sum(0)
        )
        _quantile(federation)
        _quantile(federation, **change)
    assert len(set(seen)) == 2


def test_a_silo_alone_sends_what_it_sends_among_others() -> None:
    federation = _federation(np.arange(12.0), 3)
    sums = torch.tensor([[1.0], [2.0], [3.0]])
    together = NoisyMeans(federation, "a", 1.0, 1, TARGET, seed=5).messages(sums)
    alone = NoisyMeans(federation.client(2), "a", 1.0, 1, TARGET, seed=5).messages(sums[2:])
    assert torch.equal(together[2:], alone)


def test_without_a_seed_noise_is_fresh() -> None:
    federation = _skewed(200)
    fresh = {_quantile(federation, seed=None).value for _ in range(4)}
    assert len(fresh) > 1
    assert not _quantile(federation, seed=None).seeded
    seeded = [_quantile(federation, seed=3) for _ in range(2)]
    assert seeded[0].value == seeded[1].value
    assert seeded[0].seeded


# --- quantiles


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_quantile_of_skewed_data_is_right(quantile: float, logarithmic: bool) -> None:
    federation = _skewed(20_000)
    settings = {"logarithmic": logarithmic, "lower": 1e-3 if logarithmic else 0.0, "bins": 2**14}
    exact = _quantile(federation, quantile, target=PLENTY, **settings).value
    assert _rank(federation, exact) == pytest.approx(quantile, abs=0.003)
    noisy = _quantile(federation, quantile, **settings)
    assert noisy.noise_std < 0.003
    assert _rank(federation, noisy.value) == pytest.approx(quantile, abs=5 * noisy.noise_std + 0.002)


def test_quantiles_are_better_with_more_epsilon_and_with_more_records() -> None:
    def error(records: int, epsilon: float) -> float:
        federation = _skewed(records)
        ranks = [
            _rank(federation, _quantile(federation, 0.7, target=Target(epsilon, 1e-5), seed=seed).value)
            for seed in range(25)
        ]
        return float(np.mean(np.abs(np.array(ranks) - 0.7)))

    little, more_epsilon, more_records = error(1000, 0.5), error(1000, 4.0), error(8000, 0.5)
    assert more_epsilon < little / 2
    assert more_records < little / 2


def test_every_record_weighs_the_same_whoever_holds_it() -> None:
    values = torch.cat([torch.zeros(900), torch.ones(100)])
    federation = Federation.from_arrays(values[:, None], values, [0] * 900 + [1] * 100)
    for quantile, expected in ((0.85, 0.0), (0.95, 1.0)):
        release = private_quantile(
            federation, values, quantile, name="x", lower=-1, upper=2, target=PLENTY, seed=0
        )
        assert release.value == pytest.approx(expected, abs=2 * 3 / 1024)


@given(st.floats(0.01, 0.99), st.floats(1e-3, 10.0), st.integers(0, 5), st.booleans())
@settings(max_examples=25)
def test_a_quantile_stays_in_the_public_range(
    quantile: float, epsilon: float, seed: int, logarithmic: bool
) -> None:
    federation = _federation([-1e300, 1e300, 0.0])
    release = _quantile(
        federation,
        quantile,
        lower=0.5,
        upper=2.0,
        target=Target(epsilon, 1e-5),
        seed=seed,
        logarithmic=logarithmic,
    )
    assert 0.5 < release.value < 2.0


def test_infinite_values_lie_beyond_the_range_and_nan_is_refused() -> None:
    federation = _federation([1.0, 1.0, 1.0, 1.0], 2)
    ask = partial(
        private_quantile, federation, quantile=0.5, name="income", lower=0, upper=1, target=PLENTY, seed=0
    )
    assert ask(values=torch.tensor([-math.inf, -math.inf, math.inf, -math.inf])).value < 0.01
    assert ask(values=lambda batch: torch.full((batch.records,), math.inf)).value > 0.99
    with pytest.raises(DataError, match=r"client 1, record 1: income must be a number, not NaN"):
        ask(values=torch.tensor([0.0, 0.0, 0.0, math.nan]))
    with pytest.raises(DataError, match=r"income must be one number for each of the 4 records, not \(3,\)"):
        ask(values=torch.zeros(3))


# --- clip norms


def test_a_clip_norm_is_a_quantile_of_the_gradient_norms_where_the_run_starts() -> None:
    values = np.random.default_rng(1).lognormal(0.0, 1.0, 20_000).astype(np.float32)
    federation = Federation.from_arrays(values[:, None], (values > 1).astype(int), [0, 1] * 10_000)
    norms = np.sqrt(values**2 + 1) / 2
    release = clip_norm_from_quantile(
        logistic_regression(features=1), federation, quantile=0.8, lower=0.01, upper=1e3, target=TARGET, seed=0
    )
    assert float((norms <= release.value).mean()) == pytest.approx(0.8, abs=0.02)
    assert release.public[-1] == "the bounds of gradient norms, 0.01 to 1000"
    tacit.ClipNorm(release.value)


def test_gradient_norms_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=(30, 2)).astype(np.float32)
    federation = Federation.from_arrays(x, x[:, 0], [0, 1, 2] * 10)
    ask = partial(clip_norm_from_quantile, least_squares(features=2), lower=0.1, upper=10, target=PLENTY, seed=0)
    whole = ask(federation)
    monkeypatch.setattr("tacit.side.clip_norm.ROWS_AT_A_TIME", 10)
    assert ask(federation).value == whole.value


def test_gradients_that_vanish_or_are_not_finite_still_give_a_clip_norm() -> None:
    ones = torch.ones(10)
    ask = partial(
        clip_norm_from_quantile, least_squares(features=1), lower=0.1, upper=10.0, target=PLENTY, seed=0
    )
    for feature, target, expected in ((1.0, 0.0, 0.1), (3e38, 3e38, 10.0), (3e38, 0.0, 0.1)):
        federation = Federation.from_arrays(feature * ones[:, None], target * ones, [0] * 10)
        assert ask(federation).value == pytest.approx(expected, rel=0.02)


# --- one budget


def test_a_share_is_of_epsilon_alone() -> None:
    total = Target(3.0, 1e-6, Adjacency.ADD_REMOVE)
    assert split_target(total, 0.25) == Target(0.75, 1e-6, Adjacency.ADD_REMOVE)


# --- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantile": 0.0}, "quantile must be above 0 and below 1, not 0.0"),
        ({"quantile": math.nan}, "quantile must be above 0"),
        ({"lower": 64.0}, "lower and upper must be finite numbers with lower < upper, not 64.0 and 64.0"),
        ({"upper": math.inf}, "public bounds of x"),
        ({"lower": math.nan}, "lower < upper, not nan"),
        ({"bins": 1}, "bins must be a whole number of at least 2"),
        ({"logarithmic": True}, "lower must be a finite number above 0, not 0.0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1"),
        ({"target": 1.0}, r"target must be a Target\(epsilon, delta\), not 1.0"),
    ],
)
def test_a_quantile_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        _quantile(_skewed(10), **settings)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, math.nan])
def test_split_refuses(fraction: float) -> None:
    with pytest.raises(RequestError, match="fraction must be above 0 and below 1"):
        split_target(TARGET, fraction)


def test_a_clip_norm_refuses_bounds_and_seeds() -> None:
    federation = Federation.from_clients([([[1.0]], [1.0])])
    ask = partial(clip_norm_from_quantile, least_squares(features=1), federation, target=TARGET)
    with pytest.raises(RequestError, match="lower must be a finite number above 0"):
        ask(lower=0.0, upper=1.0)
    with pytest.raises(RequestError, match="lower < upper"):
        ask(lower=2.0, upper=1.0)
    with pytest.raises(RequestError, match="seed must be a whole number"):
        ask(lower=0.1, upper=1.0, seed=-3)
