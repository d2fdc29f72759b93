"""The one-run audit: many canaries in one client, each with its own coordinate and coin."""

from __future__ import annotations

import numpy as np
import torch

from tacit.algorithms.algorithm import Algorithm
from tacit.compress import Direct, Identity
from tacit.engine.audit.game import Game
from tacit.engine.audit.model import clients_with
from tacit.engine.audit.promises import promises_of
from tacit.engine.audit.stage import CoinFlips, Tactic, coins_of, pulls_of
from tacit.errors import RequestError, count
from tacit.federation import Federation
from tacit.privacy import Adversary, Target, Unit
from tacit.privacy.accountant.pairs import Array
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
    """A lower bound on epsilon from a single run of a single client that holds only canaries.

    The adversary sees all messages of that client and rehearses with a client of its own. At the same effort this
    is weaker than repeated runs, because all canaries share the run's delta; but it would work on a deployed
    client.

    Guarantee: Steinke, Nasr & Jagielski 2023 (see `one_run_p_value`); turning one coin replaces one record.
    """
    count("canaries", canaries, at_least=10)
    if algorithm.trust.adversary is not Adversary.SERVER or algorithm.work.unit is not Unit.RECORD:
        raise RequestError(
            f"one-run attacks the messages of one client about its records, but {algorithm.name!r} promises "
            "something about all clients together or about whole clients: use repeated-runs"
        )
    promise, *_ = promises_of(
        algorithm,
        records=canaries,
        clients=1,
        rounds=rounds,
        privacy=privacy,
        whole_clients=None,
        dim=canaries,
        seed=seed,
    )
    game = promise.stage
    assert isinstance(game, Game), "the messages of one client are a game"
    known, hidden = (coins_of(game.randomness, canaries, number) for number in (0, 1))
    silent = game.play(_client(game, known, 0), 0, Tactic(), 0.0, Direct(Identity()))
    rehearsal = Rehearsal(_seen(game, known, 0), _by_canary(silent), known)
    name, attack = next(iter(rehearsed_attacks(rehearsal, np.ones(1)).items()))
    scores = attack(_seen(game, hidden, 1))
    return AuditResult(
        method="one run",
        algorithm=algorithm.name,
        data="gradient game",
        adjacency=game.adjacency,
        rounds=game.rounds,
        records=canaries,
        noise_multiplier=game.noise,
        at_claim=one_run_finding(scores, hidden, promise.claim, confidence=confidence, attack=name),
        notes=promise.notes,
    )


def _seen(game: Game, present: CoinFlips, number: int) -> Array:
    client = _client(game, present, number)
    return _by_canary(game.play(client, number, Tactic(), game.noise, game.algorithm.uplink))


def _client(game: Game, present: CoinFlips, number: int) -> Federation:
    length = game.algorithm.work.bound.norm(game.dim)
    return clients_with(
        torch.diag(torch.from_numpy(pulls_of(present, game.adjacency) * length)).float(), torch.tensor([number])
    )


def _by_canary(vectors: Array) -> Array:
    """Turns coordinates into separate trials: (1, rounds, canaries) to (canaries, rounds, 1)."""
    return vectors.transpose(2, 1, 0)
