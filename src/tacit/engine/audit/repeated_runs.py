"""The audit by repeated runs: one canary, one coin, many independent trials."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tacit.algorithms.algorithm import Algorithm
from tacit.engine.audit.measured import measured
from tacit.engine.audit.promises import Promise, promises_of
from tacit.engine.audit.side import SideStage
from tacit.engine.audit.stage import AuditStage, Tactic, rehearse
from tacit.errors import count
from tacit.privacy import Target
from tacit.privacy.accountant.pairs import Array
from tacit.privacy.audit import Attack, AuditResult, Rehearsal, best_rule

TRIALS, DIM = 4000, 4

CURVE_CONFIDENCE = 0.999
"""Confidence at which a point of the claimed curve is tested."""

FEWEST_TRIALS = 500

_REHEARSED, _FEWEST_REHEARSED = 0.15, 100
"""Length of the rehearsal of every tactic, as a fraction of the trials that follow, and its minimum."""

_PRACTISED = 0.3
"""The fraction of the trials used for choosing what to guess."""


def audit(
    algorithm: Algorithm,
    *,
    records: int,
    rounds: int,
    privacy: Target,
    clients: int = 1,
    whole_clients: Target | None = None,
    trials: int = TRIALS,
    confidence: float = 0.95,
    seed: int = 0,
    dim: int = DIM,
    sides: tuple[SideStage, ...] = (),
    pooled: bool = False,
) -> AuditResult:
    """A lower bound on the epsilon of every promise that a run makes, and checks of what the promises rely on.

    Args:
        algorithm: the algorithm to audit; only its model is replaced by the auditor's.
        records: number of records of the audited client.
        rounds: rounds that the client, or the crowd, is charged for.
        privacy: the promise that the noise is calibrated to.
        clients: clients in the federation, for promises that rely on a crowd.
        whole_clients: the target for whole clients, if there is one in addition to that of their records.
        trials: independent runs, not counting rehearsals.
        confidence: confidence of the lower bound.
        seed: seed of all randomness.
        dim: number of coordinates in the game; 1 ignores sparse compressors.
        sides: what clients release besides their messages, which the promises cover and the adversary sees.
        pooled: whether to play a promise about sums also as the simulator keeps it, with all noise drawn at once.

    In every trial a coin decides whether a client holds the canary or its replacement (for add/remove: one that
    adds nothing). For promises to whole clients, all records of the client are canaries. The adversary is the one
    that the promise names, sees what the promise lets it see, and knows everything else. Other records add
    nothing, or pull against the canary, which is the worst case for batches of a fixed size; rehearsals before
    the trials tell which is better. Some trials are used for choosing what to guess; the others are used once.

    Guarantee: for an algorithm that keeps its promise, `lower_bound` exceeds the promised epsilon with
    probability at most 1 - `confidence`; `on_curve` is violated with probability at most 0.001, and so is each
    check. Coins that are public in the algorithm (SVRG's snapshots) are the same in all trials: the promise is
    made for every outcome of them.
    """
    count("trials", trials, at_least=FEWEST_TRIALS)
    promises = promises_of(
        algorithm,
        records=records,
        clients=count("clients", clients),
        rounds=rounds,
        privacy=privacy,
        whole_clients=whole_clients,
        dim=dim,
        seed=seed,
        sides=sides,
        pooled=pooled,
    )
    results = [audit_promise(promise, trials=trials, confidence=confidence) for promise in promises]
    return replace(results[0], beside=tuple(results[1:]))


def audit_promise(promise: Promise, *, trials: int, confidence: float) -> AuditResult:
    """Audits one promise: guesses first, then the measured checks."""
    trials = min(trials, promise.most_trials or trials)
    stage = promise.stage
    practised = int(_PRACTISED * trials)
    rehearsed = _rehearse_all(promise, trials, confidence)
    attacks, first = rehearsed.attacks, rehearsed.trials

    practice = rehearse(stage, rehearsed.tactic, practised, first)
    scores = _scores(stage, attacks, practice, first)
    on_curve = best_rule(scores, practice.present, promise.curve, confidence=CURVE_CONFIDENCE)
    at_claim = best_rule(scores, practice.present, [promise.claim], confidence=CURVE_CONFIDENCE)

    first += practised
    played = rehearse(stage, rehearsed.tactic, trials - practised, first)
    used = {name: attacks[name] for name in {on_curve.attack, at_claim.attack}}
    scores = _scores(stage, used, played, first)
    guesses = on_curve.guess(scores, played.present)
    epsilon = on_curve.claim.epsilon
    return AuditResult(
        method="repeated runs",
        algorithm=stage.name,
        data="gradient game",
        adjacency=stage.adjacency,
        rounds=stage.rounds,
        records=stage.records,
        noise_multiplier=stage.noise,
        at_claim=at_claim.finding(at_claim.guess(scores, played.present), confidence=confidence),
        on_curve=on_curve.finding(guesses, confidence=CURVE_CONFIDENCE),
        equivalent_epsilon=promise.equivalent(epsilon, guesses.delta(epsilon, confidence)),
        adversary=stage.adversary,
        unit=stage.unit,
        clients=stage.clients,
        checks=measured(stage, first + len(played.present)),
        guesses_notice_half=_notices_half(promise, rehearsed.rehearsal, practice, played, first),
        notes=promise.notes,
    )


@dataclass(frozen=True)
class _Rehearsed:
    """The tactic that did best, and what was learnt with it."""

    tactic: Tactic
    rehearsal: Rehearsal
    attacks: dict[str, Attack]
    trials: int
    """number of trials in all rehearsals"""


def _rehearse_all(promise: Promise, trials: int, confidence: float) -> _Rehearsed:
    stage = promise.stage
    each = max(_FEWEST_REHEARSED, int(_REHEARSED * trials))
    first = 0
    found: list[tuple[float, _Rehearsed]] = []
    for tactic in stage.tactics:
        rehearsal = rehearse(stage, tactic, each, first)
        attacks = stage.attacks(rehearsal)
        scores = _scores(stage, attacks, rehearsal, first)
        rule = best_rule(scores, rehearsal.present, promise.curve, confidence=confidence)
        found.append((rule.margin, _Rehearsed(tactic, rehearsal, attacks, each * len(stage.tactics))))
        first += each
    return max(found, key=lambda one: one[0])[1]


def _scores(stage: AuditStage, attacks: dict[str, Attack], trials: Rehearsal, first: int) -> dict[str, Array]:
    """The scores that the attacks give to what the adversary sees."""
    seen = stage.hidden(trials.views, first)
    return {name: attack(seen) for name, attack in attacks.items()}


def _notices_half(
    promise: Promise, rehearsal: Rehearsal, practice: Rehearsal, played: Rehearsal, first: int
) -> bool:
    """Whether guesses about the same trials with half of the noise refute the promise."""
    stage = promise.stage
    learnt, chosen, tested = (_with_half_the_noise(trials) for trials in (rehearsal, practice, played))
    attacks = stage.attacks(learnt)
    rule = best_rule(
        _scores(stage, attacks, chosen, first), chosen.present, promise.curve, confidence=CURVE_CONFIDENCE
    )
    guesses = rule.guess(_scores(stage, attacks, tested, first), tested.present)
    return rule.finding(guesses, confidence=CURVE_CONFIDENCE).violated


def _with_half_the_noise(trials: Rehearsal) -> Rehearsal:
    return replace(trials, views=trials.signals + trials.residuals / 2)
