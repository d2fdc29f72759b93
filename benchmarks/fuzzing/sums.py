"""Hostile bytes at every step of secure sums: to a silo, to the server, and in what is kept and published."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from small_consortium import RUN, SUMS, Small, recipe

from fuzzing.hostile import Target, bent_bytes, bent_tree
from tacit.deploy.final_parts import Gathered
from tacit.deploy.frames import Reply, Request, point_to_bytes
from tacit.deploy.parts import Part
from tacit.deploy.signatures import sign
from tacit.deploy.silo_checks import Trusted
from tacit.deploy.summing import Summing
from tacit.deploy.verification import verify
from tacit.errors import MessageError
from tacit.sums.arithmetic import Residues
from tacit.sums.group import KeyBatch, Rounds, SumGroup
from tacit.sums.requests import Closing, SumStep
from tacit.sums.server import Prepared, deliver, opening_secrets, prepare, unmasked
from tacit.sums.silo import SiloState, SumSilo

CONTEXT, LENGTH = bytes(range(32)), 5


class _Played:
    """One round of the protocol between three silos, of which all bytes are kept."""

    def __init__(self, made: Small) -> None:
        self.group: SumGroup = Summing(made.job).group(RUN)
        self.silos = [SumSilo(self.group, n, made.signing[site]) for n, site in enumerate(made.job.sites)]
        self.states = [SiloState() for _ in self.silos]
        self.asked: list[tuple[SiloState, bytes]] = []
        """state and request of silo 0 at every step"""
        self.answers: dict[SumStep, dict[int, bytes]] = {}
        self.rounds = Rounds(0, 0, 2)
        prepared = prepare(self.group, self.ask, self.rounds, range(3))
        assert isinstance(prepared, Prepared)
        self.prepared = prepared
        deliver(self.ask, prepared)
        self.values = [np.full(LENGTH, n, np.uint32) for n in range(3)]
        masked = []
        for n in range(2):
            self.states[n], one = self.silos[n].mask(self.states[n], 0, CONTEXT, self.values[n])
            masked.append(one)
        # Silo 2 has vanished, so that the list is signed, and one of its keys is revealed.
        self.closing = Closing(0, CONTEXT, frozenset((0, 1)))
        self.masked: Residues = np.sum(masked, axis=0, dtype=np.uint32)
        secrets = opening_secrets(self.group, self.ask, prepared, self.closing)
        unmasked(prepared.batch, self.closing, self.masked, secrets)

    def ask(self, request: bytes, silos: Sequence[int]) -> Mapping[int, bytes]:
        """Sound answers of all silos."""
        if 0 in silos:
            self.asked.append((self.states[0], request))
        answers = {}
        for n in silos:
            self.states[n], answers[n] = self.silos[n].answer(self.states[n], request)
        self.answers[SumStep(request[0])] = answers
        return answers

    def bent(self, rng: random.Random) -> tuple[SumStep, int, bytes]:
        """One answer of one silo, bent."""
        step = rng.choice([s for s in self.answers if s is not SumStep.DELIVER])
        silo = rng.randrange(3)
        return step, silo, bent_bytes(rng, self.answers[step][silo])

    def served(self, lie: tuple[SumStep, int, bytes]) -> object:
        """A server to whom one silo lies. If it opens a sum, it is the sum."""
        step, liar, answer = lie

        def ask(request: bytes, silos: Sequence[int]) -> Mapping[int, bytes]:
            told = dict(self.answers[SumStep(request[0])])
            if SumStep(request[0]) is step:
                told[liar] = answer
            return {n: told[n] for n in silos}

        prepared = prepare(self.group, ask, self.rounds, range(3))
        if not isinstance(prepared, Prepared) or prepared.to_bytes() != self.prepared.to_bytes():
            return prepared
        secrets = opening_secrets(self.group, ask, prepared, self.closing)
        total = unmasked(prepared.batch, self.closing, self.masked, secrets)
        if not np.array_equal(total, self.values[0] + self.values[1]):
            raise AssertionError("what was opened is not the sum")
        return total


def sum_targets(place: Path) -> list[Target]:
    """All of them; `place` is a directory that they may write into."""
    asked = {"held_back": 0.25, "epsilon_share": 0.5}
    made = Small(recipe(**SUMS, evaluation_settings=asked), place / "sums")
    finished = made.server().run()
    played = _Played(made)
    return [
        *(_step(played, SumStep(request[0]), state, request) for state, request in played.asked),
        Target("sum server", played.bent, played.served, 0.1),
        *_read(made, played),
        _silo(Small(recipe(**SUMS, evaluation_settings=asked), place / "asked sums")),
        *_published(made, finished.certificate),
    ]


def _step(played: _Played, step: SumStep, state: SiloState, request: bytes) -> Target:
    """Requests of one step to a silo that waits for it, the rest of which is bent."""

    def hostile(rng: random.Random) -> bytes:
        return bent_bytes(rng, request) if rng.random() < 0.3 else request[:1] + bent_bytes(rng, request[1:])

    return Target(f"sum {step.name.lower()}", hostile, lambda body: played.silos[0].answer(state, body), 0.1)


def _read(made: Small, played: _Played) -> list[Target]:
    summing, dim = Summing(made.job), 9
    message = summing.to_bytes(np.arange(summing.kept, dtype=np.uint32))
    batch, state = played.prepared.batch.to_bytes(), json.loads(played.states[0].to_bytes())
    parts = {masked: Part(7, tuple(map(float, range(dim)))).to_bytes(masked=masked) for masked in (False, True)}

    def hostile_state(rng: random.Random) -> bytes:
        sound = json.dumps(state).encode()
        try:
            return bent_bytes(rng, sound) if rng.random() < 0.3 else json.dumps(bent_tree(rng, state)).encode()
        except (ValueError, TypeError, RecursionError):
            # Nothing that JSON can say.
            return b"[" * 20_000

    return [
        Target("sum message", lambda rng: bent_bytes(rng, message), summing.from_bytes),
        Target(
            "sum keys", lambda rng: bent_bytes(rng, batch), lambda b: KeyBatch.from_bytes(b, played.group), 0.1
        ),
        Target("sum memory", hostile_state, SiloState.from_bytes),
        *(
            Target(
                f"{'masked ' if masked else ''}part",
                lambda rng, part=part: bent_bytes(rng, part),
                lambda body, masked=masked: Part.from_bytes(body, dim, masked=masked),
            )
            for masked, part in parts.items()
        ),
    ]


def _silo(made: Small) -> Target:
    """Requests of all kinds to a silo of a job with sums; what it answers is an answer."""
    silo, body, rounds = made.silo("berlin"), point_to_bytes(made.job.start()), made.job.rounds

    def hostile(rng: random.Random) -> bytes:
        kind: Any = rng.choice(("round", "sum", "sum", "sum", "correct", "evaluate", "certify"))
        steps = bytes([rng.randrange(8)]) + rng.choice(
            (Rounds(rng.randrange(5), 0, 1).to_bytes(), rng.randbytes(50))
        )
        content = bent_bytes(rng, steps if kind == "sum" else body) if rng.random() < 0.5 else body
        round = rng.choice((0, 1, rounds - 1, rounds, rounds + 1, 2**31 - 1))
        return Request(kind, rng.choice((RUN, "f" * 32)), round, made.job.digest, {}, content).encode()

    def read(frame: bytes) -> object:
        answer = silo.step(frame)
        try:
            return Reply.decode(answer, body_limit=2**22)
        except MessageError as error:
            raise AssertionError(f"a silo answered with no answer: {error}") from error

    return Target("sum silo", hostile, read, 0.1)


def _published(made: Small, certificate: bytes) -> list[Target]:
    """The opened evaluation in a run's certificate, as a lying server would sign it."""
    run = {k: v for k, v in json.loads(certificate).items() if k not in ("format", "public_key", "signature")}
    text, sound, group = made.job.text.encode(), run["evaluation"], Summing(made.job).group(run["run"])
    assert made.job.evaluation is not None
    dim = made.job.evaluation.scoring.dim

    def hostile(rng: random.Random) -> bytes:
        try:
            return sign({**run, "evaluation": bent_tree(rng, sound)}, made.signing["server"])
        except (ValueError, TypeError, RecursionError, AttributeError):
            # Nothing that JSON can say.
            return bent_bytes(rng, certificate)

    def read(told: Any) -> object:
        return Gathered.from_dict(told, made.job.sites, dim, masked=True).opened(group)

    return [
        Target("evaluation certificate", hostile, lambda c: verify(c, {}, Trusted(job=text)), 0.02),
        Target("evaluation opened", lambda rng: bent_tree(rng, sound), read, 0.1),
    ]
