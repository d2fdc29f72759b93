"""The game of sums whose noise is drawn at once, as the simulator does where nobody sees a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.trust import Travel
from tacit.client.cohort import Cohort
from tacit.compress.uplink import Uplink
from tacit.engine.audit.game import Game
from tacit.engine.audit.model import BEYOND
from tacit.engine.audit.stage import Tactic
from tacit.engine.pooled import pooled_std, sent_as_they_are, with_pooled_noise
from tacit.engine.round import POINT, ClientState, add_messages, client_round, client_start, shared_coordinates
from tacit.federation import Federation
from tacit.models.linear import LinearModel, least_squares
from tacit.privacy import Unit
from tacit.privacy.accountant.pairs import Array
from tacit.state import State

MOST_ROUNDS, MOST_TRIALS, _FEATURES = 2, 250, 64
"""Sums are made one by one, about a millisecond each. So there are few of them, each of many numbers whose noise
can be measured; and no round depends on the noise of another."""


def draws_at_once(algorithm: Algorithm) -> bool:
    """Whether the simulator draws the noise of this algorithm's sums at once."""
    return algorithm.travel is Travel.SUMMED and not algorithm.work.noise.secret


def adds_up_unwritten(algorithm: Algorithm) -> bool:
    """Whether its sums may be made without writing out a message: those of updates of linear models."""
    return isinstance(algorithm.work.model, LinearModel) and algorithm.work.unit is Unit.CLIENT


@dataclass(frozen=True)
class PooledGame(Game):
    """A game of sums, each made by the code of the simulator, with the noise of all shares drawn at once.

    With a `linear` model, works may add up without writing out a message (`Work.summed`). A client then has one
    record of least squares, and its update has the direction of that record and the sign of its target.
    """

    linear: bool = False

    def placed(self) -> Game:
        if not self.linear:
            return super().placed()
        model = least_squares(features=max(self.dim, _FEATURES), intercept=False)
        work = replace(self.algorithm.work, model=model)  # type: ignore[type-var]  # works are dataclasses
        return replace(self, algorithm=replace(self.algorithm, work=work), records=1)

    def play(self, federation: Federation, first: int, tactic: Tactic, noise: float, uplink: Uplink) -> Array:
        """All rounds of the trials that these clients belong to."""
        algorithm = replace(self.algorithm, uplink=uplink)
        seat, trust, work, length = self.seat, algorithm.trust, algorithm.work, algorithm.length
        sources = self._sources(federation.clients // seat.clients, first)
        broadcast = uplink.broadcast(uplink.server_init(length))
        rounds = self._points(federation, tactic)
        _, point = next(rounds)
        state, bound, seen = client_start(algorithm, point, federation), work.bound.norm(self.dim), []
        for t, point in rounds:
            who = seat.present(algorithm, noise, t, sources)
            members, shares = (part.split(list(who.counts)) for part in (who.positions, who.multipliers))
            totals, state = self._totals(algorithm, {POINT: point, **broadcast}, federation, t, members, state)
            at = shared_coordinates(algorithm, length, t, self.randomness)
            shown = torch.full((len(sources), length), torch.nan)
            for total, own, share, source, row in zip(totals, members, shares, sources, shown, strict=True):
                topped = trust.top_up(total, noise, bound, len(own), t, source)
                std = pooled_std(work, federation.sizes[own], share, None)
                topped = with_pooled_noise(topped, std, at, t, source) if std else topped
                kept = slice(None) if at is None else at
                row[kept] = topped[kept].to(row)
            seen.append(shown.numpy().astype(np.float64))
        return np.stack(seen, axis=1)

    def _totals(
        self,
        algorithm: Algorithm,
        sent: State,
        federation: Federation,
        round: int,
        members: Sequence[Tensor],
        state: ClientState,
    ) -> tuple[Tensor, ClientState]:
        """The sums of all trials, before their noise: (trials, length)."""
        totals = torch.zeros(len(members), algorithm.length)
        if not self.linear:
            everyone = Cohort(federation, torch.cat(list(members)), round, self.randomness)
            silent = torch.zeros(len(everyone.clients), dtype=torch.float64)
            packets, state = client_round(algorithm, sent, everyone, state, silent)
            owners = torch.repeat_interleave(torch.arange(len(members)), torch.tensor([len(m) for m in members]))
            return totals.index_add_(0, owners, packets.dense().to(totals)), state
        quick = sent_as_they_are(algorithm.uplink)
        for total, own in zip(totals, members, strict=True):
            if len(own):
                part = Cohort(federation, own, round, self.randomness)
                silent = torch.zeros(len(own), dtype=torch.float64)
                state = add_messages(algorithm, sent, part, state, silent, total, quick=quick)
        return totals, state

    def _federation(self, pulls: Array, first: int, tactic: Tactic) -> Federation:
        made = super()._federation(pulls, first, tactic)
        if not self.linear:
            return made
        # Super's records are the canaries times a direction: the same here, as targets of that direction.
        direction = torch.from_numpy(self._alike).float()
        targets = BEYOND * made.features @ direction
        return replace(made, features=direction.expand(made.records, -1).contiguous(), targets=targets)

    def _points(self, federation: Federation, tactic: Tactic) -> Iterator[tuple[int, Tensor]]:
        if not self.linear:
            yield from super()._points(federation, tactic)
            return
        for t in range(-1, self.rounds):
            yield t, torch.zeros(self.dim)
