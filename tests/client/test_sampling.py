"""What sampling schemes draw, divide by, and say to the accountant."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tacit.client.cohort import Cohort
from tacit.client.local_batches import local_batches
from tacit.client.sampling import (
    Full,
    OnePass,
    Poisson,
    Reach,
    Sampling,
    WithoutReplacement,
    WithReplacement,
    build_sampling,
)
from tacit.errors import RequestError
from tacit.federation import Federation
from tacit.noise.randomness import Randomness
from tacit.privacy import events


@pytest.fixture
def federation() -> Federation:
    sizes = [50, 1, 200]
    features = torch.arange(251.0)[:, None]
    clients = [(features[a:b], torch.zeros(b - a)) for a, b in ((0, 50), (50, 51), (51, 251))]
    made = Federation.from_clients(clients)
    assert made.sizes.tolist() == sizes
    return made


def _cohort(federation: Federation, round: int = 0, clients: list[int] | None = None) -> Cohort:
    who = torch.arange(federation.clients) if clients is None else torch.tensor(clients)
    return Cohort(federation, who, round, Randomness(3))


ALL: list[Sampling] = [Full(), Poisson(0.2), Poisson(20), WithoutReplacement(20), WithReplacement(20), OnePass(5)]


@pytest.mark.parametrize("sampling", ALL)
def test_drawn_records_belong_to_their_clients(sampling: Sampling, federation: Federation) -> None:
    drawn = sampling.draw(_cohort(federation))
    owners = torch.searchsorted(federation.offsets, drawn.rows, right=True) - 1
    assert torch.equal(owners, drawn.batch.owners())
    assert torch.equal(federation.features[drawn.rows], drawn.batch.features)


@pytest.mark.parametrize("sampling", ALL)
def test_a_client_draws_the_same_alone_as_in_company(sampling: Sampling, federation: Federation) -> None:
    together = sampling.draw(_cohort(federation, round=2))
    alone = sampling.draw(_cohort(federation.client(2), round=2))
    assert torch.equal(alone.batch.features, together.batch.features[together.batch.owners() == 2])


@pytest.mark.parametrize("sampling", [*ALL, WithReplacement(1), WithReplacement(7)])
def test_local_batches_are_those_drawn_step_by_step(sampling: Sampling, federation: Federation) -> None:
    cohort = _cohort(federation, round=2, clients=[0, 2] if sampling.once else [2, 0, 1])
    batches = list(local_batches(sampling, cohort, 4))
    assert len(batches) == 4
    for step, batch in enumerate(batches):
        drawn = sampling.draw(replace(cohort, step=step, steps=4)).batch
        assert torch.equal(batch.features, drawn.features)
        assert torch.equal(batch.targets, drawn.targets)
        assert torch.equal(batch.counts, drawn.counts)


def test_poisson_batches_vary_and_may_be_empty(federation: Federation) -> None:
    counts = torch.stack([Poisson(0.1).draw(_cohort(federation, t)).batch.counts for t in range(400)])
    assert bool((counts[:, 1] == 0).any())
    assert bool((counts[:, 1] == 1).any())
    expected = torch.tensor([5.0, 0.1, 20.0])
    spread = (torch.tensor([50.0, 1.0, 200.0]) * 0.1 * 0.9 / 400).sqrt()
    assert bool(((counts.double().mean(0) - expected).abs() < 4.5 * spread).all())


def test_the_divisor_is_a_constant_not_what_was_drawn() -> None:
    sizes = torch.tensor([50, 1, 200])
    assert Poisson(0.1).batch_sizes(sizes).tolist() == pytest.approx([5.0, 0.1, 20.0])
    assert Poisson(20).batch_sizes(sizes).tolist() == [20.0, 1.0, 20.0]
    assert WithoutReplacement(0.1).batch_sizes(sizes).tolist() == [5.0, 1.0, 20.0]
    assert Full().batch_sizes(sizes).tolist() == [50.0, 1.0, 200.0]


def test_fixed_sizes_are_exact_and_without_replacement_has_no_twins(federation: Federation) -> None:
    drawn = WithoutReplacement(20).draw(_cohort(federation))
    assert drawn.batch.counts.tolist() == [20, 1, 20]
    assert len(drawn.rows.unique()) == len(drawn.rows)
    twice = WithReplacement(40).draw(_cohort(federation))
    assert twice.batch.counts.tolist() == [40, 1, 40]
    assert len(twice.rows.unique()) < len(twice.rows)


def test_one_pass_batches_are_disjoint(federation: Federation) -> None:
    sampling = OnePass(10)
    rows = torch.cat([sampling.draw(_cohort(federation, t, [0, 2])).rows for t in range(5)])
    assert len(rows.unique()) == len(rows) == 100
    sampling.check_rounds(torch.tensor([50, 200]), 5)
    with pytest.raises(RequestError, match="only 5 disjoint batches"):
        sampling.check_rounds(torch.tensor([50, 200]), 6)


def test_every_scheme_names_its_own_event() -> None:
    assert Full().event(100, 2.0, 7) == events.repeated(events.gaussian(2.0), 7)
    assert Poisson(10).event(100, 2.0, 7) == events.repeated(events.poisson(0.1, 2.0), 7)
    assert WithoutReplacement(10).event(100, 2.0, 7) == events.repeated(
        events.without_replacement(100, 10, 2.0), 7
    )
    assert WithReplacement(10).event(100, 2.0, 7) == events.repeated(events.with_replacement(100, 10, 2.0), 7)
    assert OnePass(10).event(100, 2.0, 7) == events.one_pass(2.0, 7)
    for bound in (2.0, 1.0, 0.5):
        reach = Reach(bound, always=0.1, average=0.1)
        svrg = Poisson(10).event(100, 2.0, 7, reach)
        assert svrg == events.repeated(events.two_level(0.1, 2.0, 0.1 + 0.9 * bound, 0.1, 0.1), 7)
        for fixed in (WithoutReplacement(10), WithReplacement(10)):
            expected = events.fixed_size_two_level(100, 10, fixed.replacement, 2.0, bound, 0.1, 0.1)
            assert fixed.event(100, 2.0, 7, reach) == events.repeated(expected, 7)
    with pytest.raises(RequestError, match="one-pass"):
        OnePass(10).event(100, 2.0, 7, reach)


@pytest.mark.parametrize("whole", [Full(), Poisson(100), Poisson(500), WithoutReplacement(100)])
def test_a_batch_of_all_records_is_one_of_full_batches(whole: Sampling) -> None:
    gaussian = events.repeated(events.gaussian(2.0), 7)
    assert whole.event(100, 2.0, 7) == gaussian
    assert whole.event(100, 2.0, 7, Reach(0.5, always=1.0, average=1.0)) == gaussian
    on_a_lattice = Reach(2.0, always=1.0, average=1.0).with_slack(1e-4)
    assert whole.event(100, 2.0002, 7, on_a_lattice) == gaussian


def test_clients_of_all_sizes_share_a_rate_exactly_when_the_batch_is_a_fraction() -> None:
    assert len({Poisson(0.1).rate(size) for size in range(1, 2000)}) == 1


@pytest.mark.parametrize("batch", [0, -1, 1.5, float("nan")])
def test_bad_batches_are_refused(batch: float) -> None:
    with pytest.raises(RequestError, match="batch must be"):
        Poisson(batch)


def test_sampling_by_name() -> None:
    assert build_sampling("poisson", 0.5) == Poisson(0.5)
    assert build_sampling("full", None) == Full()
    with pytest.raises(RequestError, match=r"unknown sampling 'poison'; did you mean 'poisson'"):
        build_sampling("poison", 0.5)
    with pytest.raises(RequestError, match="needs a batch"):
        build_sampling("poisson", None)
