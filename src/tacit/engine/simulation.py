"""How one round turns the state of a simulated run into the next."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit._version import __version__
from tacit.algorithms.algorithm import Algorithm
from tacit.algorithms.calibrate import Calibration
from tacit.algorithms.trust import Travel
from tacit.client.cohort import Cohort
from tacit.client.gradient_table import has_past
from tacit.engine.chunks import Chunks
from tacit.engine.history import HistoryRow
from tacit.engine.mapped_memory import mapped_zeros
from tacit.engine.objective import evaluate
from tacit.engine.plan import Plan, encoding_of
from tacit.engine.pooled import pooled_std, sent_as_they_are, with_pooled_noise
from tacit.engine.round import (
    POINT,
    ClientState,
    add_messages,
    broadcast,
    client_start,
    opened_sum,
    server_round,
    server_start,
    shared_coordinates,
    summands,
)
from tacit.engine.simulation_state import SimulationState
from tacit.engine.together import WHOLE, Division
from tacit.errors import DivergedError, RequestError
from tacit.federation import Federation
from tacit.noise.randomness import Purpose, Randomness
from tacit.privacy.promises.terms import Adversary, Unit
from tacit.side.correction import Correction
from tacit.state import State
from tacit.sums.encoding import Encoding


@dataclass(frozen=True)
class Simulation:
    """Everything that stays the same from round to round."""

    plan: Plan
    randomness: Randomness
    memory_limit_bytes: int
    scratch: Path | None = None
    """directory for files that hold what does not fit into memory; the system's default if None"""
    division: Division = WHOLE
    """which clients this process computes"""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the plan."""
        return self.plan.algorithm

    @property
    def federation(self) -> Federation:
        """The records of the plan."""
        return self.plan.federation

    @property
    def calibration(self) -> Calibration:
        """The noise of the plan; there is no other source of noise."""
        return self.plan.calibration

    def start(self) -> SimulationState:
        """The state before the first round."""
        model = self.algorithm.work.model
        point = model.init(self.randomness.generator(Purpose.INIT)).to(self.federation.features.device)
        parts = list(self._chunks.of(torch.arange(self.federation.clients)))
        return SimulationState(
            round=0,
            clients=client_start(self.algorithm, point, self.federation, self.zeros, parts),
            server=server_start(self.algorithm, point),
            releases=torch.zeros(self.federation.clients, dtype=torch.int64),
        )

    def zeros(self, shape: tuple[int, ...]) -> Tensor:
        """Allocates room for what clients remember; in a file if it exceeds the memory limit."""
        if self.federation.features.is_cpu and 4 * math.prod(shape) > self.memory_limit_bytes:
            return mapped_zeros(shape, self.scratch)
        return torch.zeros(shape)

    def placed(self, saved: Tensor) -> Tensor:
        """Copies a tensor of a checkpoint to where `zeros` would allocate it."""
        return self.zeros(tuple(saved.shape)).copy_(saved) if saved.dtype == torch.float32 else saved.clone()

    def cohort(self, round: int) -> Tensor:
        """The positions of the clients that take part in a round."""
        return self.algorithm.participation.cohort(self.federation.clients, round, self.randomness)

    def charged(self, cohort: Tensor) -> Tensor:
        """The positions of the clients that a round of this cohort is charged to."""
        return torch.arange(self.federation.clients) if self.algorithm.trust.charges_everyone else cohort

    def advance(self, state: SimulationState, cohort: Tensor, *, measure: bool = False) -> SimulationState:
        """One round of a cohort; `state` is consumed. With `measure`, also measures the signal-to-noise ratio."""
        sent = broadcast(self.algorithm, state.server, state.round)
        at = shared_coordinates(self.algorithm, self.algorithm.length, state.round, self.randomness)
        total, clients = self._total(sent, cohort, state.clients, state.round, at)
        if not bool(torch.isfinite(total).all()):
            raise DivergedError(f"round {state.round}: the messages are no longer finite; use a smaller step")
        server = server_round(
            self.algorithm,
            total,
            state.server,
            round=state.round,
            cohort=len(cohort),
            clients=self.federation.clients,
            at=at,
        )
        state.releases[self.charged(cohort)] += 1
        bits, evaluations = self._effort(cohort, state)
        ratio = self._signal_to_noise(sent, total, cohort, state.round) if measure else None
        return replace(
            state,
            signal_to_noise=ratio,
            round=state.round + 1,
            clients=clients,
            server=server,
            uplink_bits=state.uplink_bits + bits,
            evaluations=state.evaluations + evaluations,
        )

    def _total(
        self, sent: State, cohort: Tensor, clients: ClientState, round: int, at: Tensor | None
    ) -> tuple[Tensor, ClientState]:
        """The sum of a round's messages with all of its noise, and what the clients remember."""
        trust, work, pooled = self.algorithm.trust, self.algorithm.work, None
        if self._encoding is not None:
            total, clients = self._encoded_sum(sent, cohort, clients, round, at)
        else:
            multipliers = trust.share(self.calibration.noise_multipliers, len(cohort))
            pooled = self._pooled_std(cohort, multipliers)
            if pooled is not None:
                multipliers = torch.zeros_like(multipliers)
            quick = pooled is not None and sent_as_they_are(self.algorithm.uplink)
            total, clients = self._sum(sent, cohort, clients, round, multipliers, quick=quick)
        if self.calibration.guarantee is not None:
            multiplier, bound = float(self.calibration.noise_multipliers[0]), work.bound.norm(work.model.dim)
            total = trust.top_up(total, multiplier, bound, len(cohort), round, self.randomness)
        if pooled:
            total = with_pooled_noise(total, pooled, at, round, self.randomness)
        return total, clients

    def _sum(
        self, sent: State, cohort: Tensor, clients: ClientState, round: int, multipliers: Tensor, *, quick: bool
    ) -> tuple[Tensor, ClientState]:
        """The sum of all messages, in chunks that fit into memory, over all processes."""
        own = self.division.own(cohort, remember=bool(clients.work or clients.uplink))
        sums = torch.zeros(len(own), self.algorithm.length, dtype=sent[POINT].dtype)
        for row, group in zip(sums, own, strict=True):
            for members in self._chunks.of(group):
                part = self._part(members, round)
                clients = add_messages(
                    self.algorithm, sent, part, clients, multipliers[members], row, quick=quick
                )
        return self.division.added(sums), clients

    def _pooled_std(self, cohort: Tensor, multipliers: Tensor) -> float | None:
        """The noise of the sum, if only sums are seen: it is then drawn at once, instead of share by share.

        Shares on a lattice are drawn one by one.
        """
        work = self.algorithm.work
        if self.algorithm.travel is not Travel.SUMMED or work.noise.secret or self._encoding is not None:
            return None
        weights = None if self.federation.weights is None else self.federation.weights[cohort]
        return pooled_std(work, self.federation.sizes[cohort], multipliers[cohort], weights)

    @cached_property
    def _encoding(self) -> Encoding | None:
        """How messages become integers, if sums are made of real shares.

        They are for noise from the operating system, and where a run must give the same bits as a deployment.
        """
        real = self.algorithm.work.noise.secret or self.memory_limit_bytes <= 1
        summed = self.algorithm.trust.adversary is Adversary.SECURE_SUM
        return encoding_of(self.plan) if real and summed else None

    def _encoded_sum(
        self, sent: State, cohort: Tensor, clients: ClientState, round: int, at: Tensor | None
    ) -> tuple[Tensor, ClientState]:
        """The sum of all messages, each on the lattice with its own share of noise, as the server opens it."""
        encoding, federation, total = self._encoding, self.federation, None
        assert encoding is not None, "asked for where there is one"
        for member in cohort.split(1):
            part = self._part(member, round)
            values, clients = summands(self.algorithm, sent, part, clients)
            own = encoding.encode(values[0], self.algorithm.work.noise, part.generators(Purpose.NOISE))
            total = own if total is None else encoding.ring.added(total, own)
        assert total is not None, "a sum has at least two clients"
        weight = len(cohort) if federation.weights is None else float(federation.weights[cohort].sum())
        return opened_sum(self.algorithm, sent, encoding.decode(total), weight, at), clients

    def _effort(self, cohort: Tensor, state: SimulationState) -> tuple[int, float]:
        """The bits that a cohort sends in the next round, and the gradients of records that it computes.

        If it is secret how many clients take part, these are expected numbers.
        """
        each = 8 * self.algorithm.uplink.message_bytes(self.algorithm.length)
        if not self.algorithm.trust.charges_everyone:
            return each * len(cohort), self.algorithm.work.evaluations(self._part(cohort, state.round))
        expected, clients = self.algorithm.participation.divisor(len(cohort)), self.federation.clients
        return round(each * expected), self._evaluations_of_everyone * expected / clients

    @cached_property
    def _evaluations_of_everyone(self) -> float:
        everyone = Cohort(self.federation, torch.arange(self.federation.clients), 0, self.randomness)
        return self.algorithm.work.evaluations(everyone)

    def _signal_to_noise(self, sent: State, total: Tensor, cohort: Tensor, round: int) -> float | None:
        """||sum of bounded updates|| / ||sum of the noise|| (DP-NormFedAvg, appendix F).

        The round is computed again without noise: this is for the researcher, who may look at private data.
        """
        if self.algorithm.work.unit is not Unit.CLIENT or self.calibration.guarantee is None:
            return None
        point, own = sent[POINT], self.division.own(cohort)
        signals = total.new_zeros(len(own), len(total))
        for signal, group in zip(signals, own, strict=True):
            for members in self._chunks.of(group):
                part = replace(self._part(members, round), told=sent)
                silent = torch.zeros(len(members), dtype=torch.float64)
                start = self.algorithm.work.init(point, self.federation)
                signal += self.algorithm.work.run(point, part, start, silent)[0].sum(0).to(signal)
        whole = self.division.added(signals)
        return float(whole.double().norm() / (total - whole).double().norm())

    @cached_property
    def _chunks(self) -> Chunks:
        return Chunks(self.algorithm.work, self.federation, self.memory_limit_bytes)

    def _part(self, members: Tensor, round: int) -> Cohort:
        return Cohort(self.federation, members, round, self.randomness, grams=self._chunks.grams)

    def operations_per_round(self) -> float:
        """Approximate number of multiplications in a round of all clients: forward once, backward twice."""
        records = float(self.algorithm.work.records_in_memory(self.federation.sizes).sum())
        return 3 * records * self.algorithm.work.model.dim

    def model_of(self, state: SimulationState) -> Tensor:
        """The parameters that a state has come to."""
        return self.algorithm.server.output(state.server.update)

    def correction(self, point: Tensor) -> Correction | None:
        """How the trained model has to be corrected, if the plan asks for that: a private release."""
        planned, plan = self.plan.correction, self.plan
        if planned is None:
            return None
        # In the same parts as rounds: one client at a time, if a deployment is to be repeated bit for bit.
        everyone, model = torch.arange(self.federation.clients), self.algorithm.work.model
        batches = [self.federation.batch(part) for part in self._chunks.of(everyone)]
        sums = torch.cat([planned.moments.sums(model, point, batch) for batch in batches])
        return planned.learned(sums, point, self.federation, plan.seed, plan.stream)

    def evaluated(self, state: SimulationState, seconds: float, point: Tensor) -> SimulationState:
        """The same state with one more row in its history: what is measured at a point."""
        if not bool(torch.isfinite(point).all()):
            raise DivergedError(f"after round {state.round} the model is no longer finite; use a smaller step")
        model = self.algorithm.work.model
        seen = evaluate(model, point, self.federation, self.memory_limit_bytes, self.division)
        so_far = [row.grad_norm_sq for row in state.history] + [seen.grad_norm_sq]
        row = HistoryRow(
            round=state.round,
            train_loss=seen.train_loss,
            grad_norm_sq=seen.grad_norm_sq,
            grad_norm_sq_mean=sum(so_far) / len(so_far),
            test_metric=seen.test_metric,
            uplink_bits_per_client=state.uplink_bits // self.federation.clients,
            uplink_bits_total=state.uplink_bits,
            gradient_evaluations=round(state.evaluations) if self.calibration.shows_sizes else None,
            epsilon=self.calibration.epsilon_after(int(state.releases.max())),
            signal_to_noise=state.signal_to_noise,
            seconds=seconds,
        )
        return replace(state, history=state.history.with_row(row), seconds=seconds)

    def check_divided(self, state: SimulationState) -> None:
        """Refuses what several processes cannot compute together."""
        if self._encoding is not None or self.algorithm.work.noise.secret:
            raise RequestError(
                "processes compute together only what all of them can draw: masks, and noise from the operating "
                "system, are drawn in one place; use noise = 'gaussian' with memory_limit_mb above 0, or leave "
                "out torchrun"
            )
        if has_past(state.clients.work):
            raise RequestError(
                f"with this model, {self.algorithm.name} remembers past points that several clients share, and "
                "they cannot be divided between processes: choose a linear model or another algorithm, or leave "
                "out torchrun"
            )

    def collect(self, state: SimulationState) -> None:
        """Copies what all clients remember to the first process, in place.

        A tensor of their memory has a row for each client, or for each record.
        """
        if self.division.together.size == 1:
            return
        clients = self.division.first_clients
        records = self.federation.offsets[torch.tensor(clients)].tolist()
        for tensor in (*state.clients.work.values(), *state.clients.uplink.values()):
            self.division.together.collect(tensor, clients if len(tensor) == self.federation.clients else records)

    def fingerprint(self) -> str:
        """A digest of everything that determines the run: data, parts, noise, seed, version."""
        digest = hashlib.sha256(f"{__version__}|{self.plan.rounds}|{self.randomness}|{self.algorithm!r}".encode())
        federation = self.federation
        weights = torch.empty(0) if federation.weights is None else federation.weights
        # Whoever evaluates the same model on other records would draw the same noise for both.
        held = () if self.plan.evaluation is None else (self.plan.evaluation.held,)
        tested = (tensor for one in held for tensor in (one.features, one.targets, one.sizes))
        own = (federation.features, federation.targets, federation.sizes, federation.ids, weights)
        for tensor in (*own, *tested):
            digest.update(tensor.cpu().contiguous().numpy().reshape(-1).data)
        digest.update(self.calibration.noise_multipliers.numpy().data)
        if self.plan.correction is not None:
            digest.update(repr(self.plan.correction).encode())
        return digest.hexdigest()

    def ledger_header(self) -> dict[str, Any]:
        """The header of the ledger: who releases what, with which noise."""
        return {"version": __version__, **self.calibration.facts(self.federation)}
