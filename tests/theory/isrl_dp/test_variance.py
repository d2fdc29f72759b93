"""Lemma E.3, against the exact variance of every cohort and every batch."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from tacit.errors import RequestError
from tacit.noise.randomness import Purpose, Randomness
from tacit.theory.isrl_dp import ConvexProblem, gradient_variance


def _exact(gradients: np.ndarray, cohort: int, batch: int) -> float:
    """E||mean over a random cohort of a random batch's mean - overall mean||^2, batches with replacement."""
    silos, records, _ = gradients.shape
    overall = gradients.mean(axis=(0, 1))
    total, cases = 0.0, 0
    draws = list(itertools.product(range(records), repeat=batch))
    for chosen in itertools.combinations(range(silos), cohort):
        for picks in itertools.product(draws, repeat=cohort):
            means = [gradients[i, list(pick)].mean(axis=0) for i, pick in zip(chosen, picks, strict=True)]
            total += float(np.sum((np.mean(means, axis=0) - overall) ** 2))
            cases += 1
    return total / cases


@pytest.mark.parametrize(("cohort", "batch"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])
def test_lemma_e_3_is_exact_when_all_silos_spread_alike(cohort: int, batch: int) -> None:
    draw = Randomness(3).generator(Purpose.DATA)
    within = draw.normal(size=(1, 3, 2))
    within -= within.mean(axis=1)
    gradients = within + draw.normal(size=(3, 1, 2))
    spread = np.sqrt(np.sum(within[0] ** 2, axis=1).mean())
    means = gradients.mean(axis=1)
    unlike = np.sqrt(np.sum((means - means.mean(axis=0)) ** 2, axis=1).mean())
    problem = ConvexProblem(
        clients=3,
        records=3,
        dim=2,
        epsilon=1.0,
        delta=0.1,
        lipschitz=10.0,
        cohort=cohort,
        gradient_spread=float(spread),
        heterogeneity=float(unlike),
    )
    found = gradient_variance(problem, batch=batch, noise_std=0.0)
    assert found == pytest.approx(_exact(gradients, cohort, batch))
    assert gradient_variance(problem, batch=batch, noise_std=0.5) == pytest.approx(found + 2 * 0.25 / cohort)


def test_the_bound_in_theorem_f_1_is_too_small_when_silos_stay_away() -> None:
    """4 L^2/(MK) falls with the batch; silos of one kind of record each do not vary less for it."""
    gradients = np.array([[[1.0]] * 2, [[-1.0]] * 2])
    batch = 10_000
    problem = ConvexProblem(clients=2, records=batch, dim=1, epsilon=1.0, delta=0.1, cohort=1)
    exact = _exact(gradients, 1, 1)
    assert exact == 1.0
    assert gradient_variance(problem, batch=batch, noise_std=0.0, empirical=True) == exact > 4 / batch


def test_a_batch_of_everything_has_no_sampling_variance(mnist: ConvexProblem) -> None:
    assert gradient_variance(mnist, batch=1238, noise_std=0.0, empirical=True) == 0
    assert gradient_variance(mnist, batch=1238, noise_std=0.0) == pytest.approx(4 / (25 * 1238))
    some = dataclasses.replace(mnist, cohort=12)
    assert gradient_variance(some, batch=1238, noise_std=0.0, empirical=True) == pytest.approx(13 / 24 * 4 / 12)


def test_batches_must_fit(mnist: ConvexProblem) -> None:
    with pytest.raises(RequestError, match="at most the 1238 records"):
        gradient_variance(mnist, batch=1239, noise_std=1.0)
    with pytest.raises(RequestError, match="noise_std"):
        gradient_variance(mnist, batch=1, noise_std=float("nan"))
