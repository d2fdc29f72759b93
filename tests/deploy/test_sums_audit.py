"""The guessing game on the bytes of deployed sums: a server that keeps everything, and a silo that helps it.

Every record of a silo is a canary of its own: its gradient is as long as the bound allows, along a coordinate
that no other record touches, and its label (a fair coin) turns the gradient round. So one run has a trial for
every coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.deploy.lying_server import RUN, LyingServer

from tacit.deploy.summing import Summing
from tacit.engine.audit.promises import curve_of
from tacit.federation import Federation
from tacit.privacy import Adjacency
from tacit.privacy.audit import ClaimedPoint
from tacit.privacy.audit.rules import Guesses, Rule
from tacit.sums import encoding as encodings
from tacit.sums import silo as silos
from tacit.sums.arithmetic import Residues
from tacit.sums.masks import add_mask
from tacit.sums.secrets import pair_seed
from tacit.sums.shamir import SHARE_BYTES, restored
from tacit.sums.silo import SiloState, SumSilo

CANARIES, ROUNDS = 800, 2
COLLUDER, TARGET, LATE = 0, 1, 4
CONFIDENCE = 1 - 1e-6
"""Noise comes from the operating system: no seed makes these tests repeatable."""

SETTINGS: dict[str, Any] = {
    "trust": "sum", "sites": 5, "quorum": 4, "colluding": 1, "algorithm": "noisy-mb-sgd", "epsilon": 8.0,
    "sampling": "full", "batch": "leave out", "compressor": "leave out", "records": CANARIES, "dim": CANARIES,
    "rounds": ROUNDS,
}  # fmt: skip


def _canaries(seed: int) -> tuple[Federation, torch.Tensor]:
    """Five silos of canaries, and the coins of each: (silos, canaries)."""
    coins = torch.rand(5, CANARIES, generator=torch.Generator().manual_seed(seed)) < 0.5
    # Of the others, the adversary knows every record.
    coins[[n for n in range(5) if n not in (TARGET, LATE)]] = False
    features = 1000 * torch.eye(CANARIES).repeat(5, 1)
    owners = torch.arange(5).repeat_interleave(CANARIES).tolist()
    return Federation.from_arrays(features, coins.long().flatten(), owners, classes=2), coins


class _Adversary:
    """The server, with every byte that it got, and all keys of silo 0. Silo 4's messages arrive too late."""

    def __init__(self, made: Any) -> None:
        self._server, self._summing = LyingServer(made, ROUNDS), Summing(made.job)
        self.terms = self._server.silos[TARGET].terms
        self.sums, self.late = np.zeros(CANARIES), np.zeros(CANARIES)
        for round in range(ROUNDS):
            # At the same point in every round: there all gradients are as long as they can be.
            bodies = {n: reply.body for n, reply in self._server.masked(round).items()}
            messages = {n: self._summing.from_bytes(body) for n, body in bodies.items()}
            used = [n for n in messages if n != LATE]
            total = self._server.total(used, [messages[n] for n in used], round)
            self.sums += self._values(total - self._sent_by_colluder(messages[COLLUDER], round))
            self.late += self._values(self._without_pairs(messages[LATE], round))

    def _sent_by_colluder(self, message: Residues, round: int) -> Residues:
        """What silo 0 added: its masks follow from its keys."""
        made = self._server.made
        kept = SiloState.from_bytes((made.directory / "site-0" / "sums" / f"{RUN}.json").read_bytes())
        silo = SumSilo(self._server.group, COLLUDER, made.signing["site-0"])
        again = replace(kept, masked=-1, closed=-1)
        _, mask = silo.mask(again, round, self._server.context, np.zeros_like(message))
        return message - mask

    def _without_pairs(self, message: Residues, round: int) -> Residues:
        """The late message without the masks of its pairs: enough silos told their shares of that key."""
        batch, group = self._server.prepared.batch, self._server.group
        shares = {n: a[LATE * SHARE_BYTES :][:SHARE_BYTES] for n, a in self._server.revealed.items()}
        key = restored(dict(list(shares.items())[: group.threshold]))
        bare = message.copy()
        for peer, bundle in batch.bundles.items():
            if peer != LATE:
                public = bundle.rounds[batch.rounds.place(round)][0]
                seed = pair_seed(key, public, (LATE, peer), batch.round_id(round, self._server.context))
                add_mask(bare, seed, -1 if peer > LATE else +1)
        return bare

    def _values(self, residues: Residues) -> np.ndarray[Any, Any]:
        encoding = self._summing.encoding()
        return encoding.decode(encoding.ring.residues(residues.astype(np.int64))).numpy()[:CANARIES]

    def guesses(self, views: np.ndarray[Any, Any], coins: torch.Tensor, others: int) -> tuple[Guesses, Rule]:
        """Guesses about all canaries of a silo in a sum with `others` more silos, whose records are known."""
        claim = ClaimedPoint(self.terms.epsilon, self.terms.policy.delta)
        claim = curve_of(self.terms.event(ROUNDS), claim, Adjacency.REPLACE_ONE)[1]
        # A label of 1 turns the gradient to the negative side.
        scores = others * ROUNDS / CANARIES - views
        rule = Rule("sign", 0.0, 0.0, claim, 0.0)
        return rule.guess({"sign": scores}, coins.numpy()), rule


def _played(consortium: Callable[..., Any], seed: int = 0) -> tuple[_Adversary, torch.Tensor]:
    records, coins = _canaries(seed)
    return _Adversary(replace(consortium(**SETTINGS), federation=records)), coins


def test_the_server_and_a_colluder_learn_no_more_than_the_promise(consortium: Callable[..., Any]) -> None:
    adversary, coins = _played(consortium)
    guesses, rule = adversary.guesses(adversary.sums, coins[TARGET], others=2)
    assert not rule.finding(guesses, confidence=CONFIDENCE).violated
    # The game is not blind: it gets close to the promise.
    assert guesses.delta(rule.claim.epsilon, 0.95) > rule.claim.delta / 2
    guesses, _ = adversary.guesses(adversary.late, coins[LATE], others=0)
    assert guesses.delta(0.0, CONFIDENCE) == 0, "a late message stays masked"


def test_the_game_finds_halved_shares(consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = encodings.lattice_steps
    monkeypatch.setattr(encodings, "lattice_steps", lambda row, std, *rest: drawn(2 * row, std, *rest) // 2)
    adversary, coins = _played(consortium)
    guesses, rule = adversary.guesses(adversary.sums, coins[TARGET], others=2)
    assert rule.finding(guesses, confidence=CONFIDENCE).violated


def test_the_game_finds_messages_without_a_mask_of_their_own(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the masks of pairs alone, a late message would be bare, with one share of the noise."""
    own = silos.add_mask
    monkeypatch.setattr(silos, "own_seed", lambda *about: b"")
    monkeypatch.setattr(silos, "add_mask", lambda to, seed, sign: own(to, seed, sign) if seed else None)
    adversary, coins = _played(consortium)
    guesses, rule = adversary.guesses(adversary.late, coins[LATE], others=0)
    assert rule.finding(guesses, confidence=CONFIDENCE).violated
