"""Error feedback is EF21-SGDM, and its two halves agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tacit.compress import Compressor, ErrorFeedback, Identity, RandK, TopK
from tacit.errors import RequestError

Generators = Callable[..., list[np.random.Generator]]
CLIENTS, DIM, ROUNDS = 4, 12, 9


def _vectors(round: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(round).standard_normal((CLIENTS, DIM), dtype=np.float32))


def _largest(row: torch.Tensor, k: int) -> torch.Tensor:
    kept = torch.zeros_like(row)
    at = row.abs().argsort(descending=True)[:k]
    kept[at] = row[at]
    return kept


def test_it_is_the_algorithm_of_the_paper(generators: Generators) -> None:
    """Written out vector by vector, with cohorts in which some are missing."""
    uplink, eta, k = ErrorFeedback(TopK(count=3), momentum=0.25), 0.25, 3
    state, server = uplink.init(CLIENTS, DIM), uplink.server_init(DIM)
    average, known, sent = torch.zeros(CLIENTS, DIM), torch.zeros(CLIENTS, DIM), [0] * CLIENTS
    for t in range(ROUNDS):
        cohort = torch.arange(CLIENTS) if t % 3 else torch.tensor([0, 2])
        packets, state = uplink.send(_vectors(t)[cohort], state, cohort, generators(len(cohort), seed=t))
        direction, server = uplink.receive(packets.sum(), server, cohort=len(cohort), clients=CLIENTS)
        for i in cohort.tolist():
            average[i] += max(eta, 1 / (1 + sent[i])) * (_vectors(t)[i] - average[i])
            sent[i] += 1
            known[i] += _largest(average[i] - known[i], k)
        torch.testing.assert_close(direction, known.mean(0), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(state["shift"], known, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("compressor", [TopK(count=2), RandK(count=2), Identity()], ids=str)
def test_what_is_left_out_comes_later(compressor: Compressor, generators: Generators) -> None:
    uplink, rows = ErrorFeedback(compressor, momentum=1.0), _vectors(0)
    state, server = uplink.init(CLIENTS, DIM), uplink.server_init(DIM)
    errors = []
    for t in range(60):
        packets, state = uplink.send(rows, state, torch.arange(CLIENTS), generators(CLIENTS, seed=t))
        direction, server = uplink.receive(packets.sum(), server, cohort=CLIENTS, clients=CLIENTS)
        errors.append(float((direction - rows.mean(0)).norm()))
    assert errors[-1] < 0.02 * float(rows.mean(0).norm())
    torch.testing.assert_close(server["shift"], state["shift"].mean(0), atol=1e-5, rtol=1e-4)


def test_clients_do_not_depend_on_chunks(generators: Generators) -> None:
    uplink, everyone = ErrorFeedback(TopK(count=3)), torch.arange(CLIENTS)
    whole, parts = uplink.init(CLIENTS, DIM), uplink.init(CLIENTS, DIM)
    for t in range(3):
        together, whole = uplink.send(_vectors(t), whole, everyone, generators(CLIENTS, seed=t))
        messages = []
        for one in everyone.split(1):
            alone, parts = uplink.send(_vectors(t)[one], parts, one, [generators(CLIENTS, seed=t)[int(one)]])
            messages += alone.encode()
        assert messages == together.encode()


def test_momentum_is_a_weight() -> None:
    with pytest.raises(RequestError, match="momentum"):
        ErrorFeedback(TopK(count=3), momentum=0.0)
