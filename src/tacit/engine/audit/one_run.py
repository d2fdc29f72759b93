"""The audit by one run: many canaries in one client, each with a coordinate and a coin of its own."""

from __future__ import annotations

import numpy as np
import torch

from tacit.algorithms.algorithm import Algorithm
from tacit.engine.audit.game import Array, Coins, Game, clients_with
from tacit.errors import count
from tacit.federation import Federation
from tacit.privacy import Target
from tacit.privacy.audit import AuditResult, Rehearsal, one_run_finding, rehearsed_attacks

CANARIES = 1000


def audit_one_run(
    algorithm: Algorithm,
    *,
    rounds: int,
    privacy: Target,
    canaries: int = CANARIES,
    confidence: float = 0.95,
    seed: int = 0,
) -> AuditResult:
    """A lower bound on epsilon from a single client that holds nothing but canaries, in a single run.

    The adversary has all messages of that client and rehearses with one of its own. Weaker than repeated runs
    at the same effort, because all canaries share the run's delta; but it would work on a deployed client.

    Guarantee: Steinke, Nasr & Jagielski 2023 (see `one_run_p_value`); turning one coin replaces one record.
    """
    count("canaries", canaries, at_least=10)
    game = Game.of(algorithm, records=canaries, rounds=rounds, privacy=privacy, dim=canaries, seed=seed)
    known, hidden = game.coins(canaries, 0), game.coins(canaries, 1)
    rehearsal = Rehearsal(
        _by_canary(game.messages(_client(game, known, 0))),
        _by_canary(game.signals(_client(game, known, 0))),
        known,
    )
    name, attack = next(iter(rehearsed_attacks(rehearsal, np.ones(1)).items()))
    scores = attack(_by_canary(game.messages(_client(game, hidden, 1))))
    return AuditResult(
        method="one run",
        algorithm=algorithm.name,
        data="gradient game",
        adjacency=game.adjacency,
        rounds=rounds,
        records=canaries,
        noise_multiplier=game.noise_multiplier,
        at_claim=one_run_finding(scores, hidden, game.claim, confidence=confidence, attack=name),
    )


def _client(game: Game, present: Coins, number: int) -> Federation:
    return clients_with(torch.diag(game.pulls(present)).float(), clients=1, first=number)


def _by_canary(vectors: Array) -> Array:
    """Coordinates as trials of their own: (1, rounds, canaries) to (canaries, rounds, 1)."""
    return vectors.transpose(2, 1, 0)
