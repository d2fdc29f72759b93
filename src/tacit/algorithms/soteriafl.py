"""SoteriaFL (Li et al. 2022) and its baselines.

All of them are Algorithm 3 of the paper with different parts:

    lines 3-11   the gradient estimator      Minibatch | Svrg | Saga, every record's gradient bounded
    line 12      privacy: + N(0, sigma^2 I)  PrivateGradient, with sigma from the exact accountant
    lines 13-14  compression                 Shifted(C): send v_i = C(g_i - s_i), then s_i += gamma v_i
                                             Direct(C): send v_i = C(g_i)           (Algorithm 1)
    lines 16-18  the server                  v = s + mean of v_i, x -= step v, s += gamma mean of v_i

So SoteriaFL-SGD differs from CDP-SGD by one part, and the uncompressed LDP-SGD from CDP-SGD by another. A full
gradient is a minibatch of all records. The steps, batches and probabilities that the paper's corollaries
prescribe are in `tacit.theory.soteriafl`; the defaults here are the middle of the paper's grid of steps, and its
rand-k of 5% (appendix A).
"""

from __future__ import annotations

from tacit.algorithms.algorithm import Algorithm
from tacit.client.bounds import Bound, ClipNorm
from tacit.client.estimators import DIFFERENCE_BOUND, Minibatch, Saga, Svrg
from tacit.client.private_gradient import PrivateGradient
from tacit.client.sampling import Full, Poisson, Sampling
from tacit.compress import Compressor, Direct, Identity, RandK, Shifted
from tacit.models.model import Model
from tacit.server.self_tuned import descent


def cdp_sgd(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    compressor: Compressor = RandK(fraction=0.05),
    step: float | None = None,
) -> Algorithm:
    """CDP-SGD: minibatch gradients with direct compression (Algorithm 1; Theorem 1).

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        compressor: how messages are compressed.
        step: length of the server's steps.
    """
    work = PrivateGradient(model, Minibatch(sampling), bound)
    return Algorithm("cdp-sgd", work, Direct(compressor), descent(step))


def soteriafl_gd(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    compressor: Compressor = RandK(fraction=0.05),
    step: float | None = None,
    shift_step: float | None = None,
) -> Algorithm:
    """SoteriaFL-GD: full gradients, shifted compression (Algorithm 3, option I with b = m; Corollary 1).

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        compressor: how messages are compressed.
        step: length of the server's steps.
        shift_step: share of a message by which the shift moves; by default what Theorem 3 prescribes for the
            compressor.
    """
    work = PrivateGradient(model, Minibatch(Full()), bound)
    return Algorithm("soteriafl-gd", work, Shifted(compressor, shift_step), descent(step))


def soteriafl_sgd(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    compressor: Compressor = RandK(fraction=0.05),
    step: float | None = None,
    shift_step: float | None = None,
) -> Algorithm:
    """SoteriaFL-SGD: minibatch gradients, shifted compression (Algorithm 3, option I; Corollary 1).

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        compressor: how messages are compressed.
        step: length of the server's steps.
        shift_step: share of a message by which the shift moves; by default what Theorem 3 prescribes for the
            compressor.
    """
    work = PrivateGradient(model, Minibatch(sampling), bound)
    return Algorithm("soteriafl-sgd", work, Shifted(compressor, shift_step), descent(step))


def soteriafl_svrg(
    model: Model,
    *,
    snapshot_probability: float = 0.1,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    compressor: Compressor = RandK(fraction=0.05),
    step: float | None = None,
    shift_step: float | None = None,
    difference_bound: float = DIFFERENCE_BOUND,
) -> Algorithm:
    """SoteriaFL-SVRG: differences to a snapshot, shifted compression (Algorithm 3, option II; Corollary 2).

    Args:
        model: the loss that is trained.
        snapshot_probability: the chance that a round takes a new snapshot.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        compressor: how messages are compressed.
        step: length of the server's steps.
        shift_step: share of a message by which the shift moves; by default what Theorem 3 prescribes for the
            compressor.
        difference_bound: how far a record's gradient may be from that at the snapshot, as a fraction of the
            bound. A smaller one needs less noise; 2 leaves differences as they are.
    """
    work = PrivateGradient(model, Svrg(sampling, snapshot_probability, difference_bound), bound)
    return Algorithm("soteriafl-svrg", work, Shifted(compressor, shift_step), descent(step))


def soteriafl_saga(
    model: Model,
    *,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    compressor: Compressor = RandK(fraction=0.05),
    step: float | None = None,
    shift_step: float | None = None,
    difference_bound: float = DIFFERENCE_BOUND,
) -> Algorithm:
    """SoteriaFL-SAGA: differences to a table, shifted compression (Algorithm 3, option III; Corollary 3).

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        compressor: how messages are compressed.
        step: length of the server's steps.
        shift_step: share of a message by which the shift moves; by default what Theorem 3 prescribes for the
            compressor.
        difference_bound: how far a record's gradient may be from its table entry, as a fraction of the bound. A
            smaller one needs less noise; 2 leaves differences as they are.
    """
    work = PrivateGradient(model, Saga(sampling, difference_bound), bound)
    return Algorithm("soteriafl-saga", work, Shifted(compressor, shift_step), descent(step))


def ldp_sgd(
    model: Model, *, bound: Bound = ClipNorm(1.0), sampling: Sampling = Poisson(0.1), step: float | None = None
) -> Algorithm:
    """LDP-SGD: minibatch gradients with no compression, a baseline of section 6.

    Args:
        model: the loss that is trained.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        step: length of the server's steps.
    """
    work = PrivateGradient(model, Minibatch(sampling), bound)
    return Algorithm("ldp-sgd", work, Direct(Identity()), descent(step))


def ldp_svrg(
    model: Model,
    *,
    snapshot_probability: float = 0.1,
    bound: Bound = ClipNorm(1.0),
    sampling: Sampling = Poisson(0.1),
    step: float | None = None,
    difference_bound: float = DIFFERENCE_BOUND,
) -> Algorithm:
    """LDP-SVRG: differences to a snapshot with no compression, a baseline of section 6.

    Args:
        model: the loss that is trained.
        snapshot_probability: the chance that a round takes a new snapshot.
        bound: the bound on every record's gradient.
        sampling: how a client draws the records of a batch.
        step: length of the server's steps.
        difference_bound: how far a record's gradient may be from that at the snapshot, as a fraction of the
            bound. A smaller one needs less noise; 2 leaves differences as they are.
    """
    work = PrivateGradient(model, Svrg(sampling, snapshot_probability, difference_bound), bound)
    return Algorithm("ldp-svrg", work, Direct(Identity()), descent(step))
