"""What a silo has spent of its policy's budget, and what is left, for the silo's operators."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from tacit.deploy.home import LEDGER, look
from tacit.deploy.identities import SIGNING_KEY, read_signing_key
from tacit.deploy.ledger import read_hash
from tacit.deploy.ledger_account import FIRST_HASH, Account
from tacit.deploy.policy import Policy
from tacit.deploy.signatures import public_key_hex
from tacit.deploy.terms import Terms
from tacit.deploy.witness import HEADS, Witness
from tacit.engine.files import toml_values
from tacit.errors import RequestError, TacitError
from tacit.privacy import Adversary, Unit, epsilon
from tacit.privacy.accountant.cost import finite
from tacit.privacy.accountant.filter import least_epsilon, room
from tacit.privacy.promises.guarantee import against
from tacit.privacy.promises.protection import in_words
from tacit.privacy.promises.rounding import up_to


@dataclass(frozen=True)
class RunCost:
    """What one run was charged."""

    run: str
    algorithm: str
    releases: int
    planned: int
    """the number of releases that are charged, however many were made"""
    epsilon: float
    """the cost of the whole run by itself, at the policy's delta"""


@dataclass(frozen=True)
class Spending:
    """A ledger's costs compared with the policy that it must keep."""

    policy: Policy
    runs: tuple[RunCost, ...]
    needed: float
    """the least epsilon of a policy that would have allowed all runs; infinite if there is none"""
    left: float
    """the epsilon of the largest Gaussian run that the policy still allows"""
    without_trust: float
    """what all runs cost together if all other parties help the server; infinite if nothing is left"""
    by_person: bool = False
    """whether a record was a person with all of their rows in every run"""

    @classmethod
    def of(cls, account: Account, policy: Policy, *, by_person: bool = False) -> Spending:
        """What an account has spent of a policy."""
        events = account.events()
        runs = tuple(
            RunCost(
                run, str(one.opened.get("algorithm")), one.releases, one.planned, _needed([one.event], policy)
            )
            for run, one in account.runs
        )
        seen = [one.without_trust for _, one in account.runs]
        alone = [event for event in seen if event is not None]
        exposed = _needed(alone, policy) if len(alone) == len(seen) else math.inf
        return cls(policy, runs, _needed(events, policy), room(events, policy.target), exposed, by_person)

    @property
    def whose(self) -> str:
        """Whom the policy protects: a record, a person with all of their rows, or a client."""
        return "person" if self.by_person and self.policy.unit is Unit.RECORD else str(self.policy.unit)

    @property
    def against(self) -> str:
        """Against whom the policy promises something, in words."""
        return against(self.policy.adversary, self.policy.colluding)

    def to_dict(self) -> dict[str, Any]:
        """The spending as plain data for JSON."""
        return {
            "epsilon": self.policy.epsilon,
            "delta": self.policy.delta,
            "adjacency": str(self.policy.adjacency),
            "unit": str(self.policy.unit),
            "whose": self.whose,
            "against": self.against,
            "needed": finite(self.needed),
            "left": self.left,
            "needed_without_trust": finite(self.without_trust),
            "runs": [{**vars(run), "epsilon": finite(run.epsilon)} for run in self.runs],
        }


def _needed(runs: Sequence[DpEvent], policy: Policy) -> float:
    try:
        return least_epsilon(runs, policy.delta, policy.adjacency)
    except TacitError:
        # No epsilon can be proved.
        return math.inf


def is_silo_state(directory: Path) -> bool:
    """Whether a directory is a silo's folder or its state folder."""
    policies = (directory / "policy.toml", directory.absolute().parent / "policy.toml")
    return (directory / LEDGER).exists() or any(path.exists() for path in policies)


def spending_in(directory: Path) -> Spending:
    """Read what a silo has spent, from its folder or its state folder. Writes nothing.

    A ledger is refused if it lacks a line that the silo has signed: what it says is too little.
    """
    # A silo that was never started has a policy, and no state yet.
    folder = (directory / "policy.toml").exists() or (directory / "state").is_dir()
    state = directory / "state" if folder else directory
    path = state.absolute().parent / "policy.toml"
    try:
        policy = Policy.from_toml(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"{path} cannot be read: {error}. A ledger says what was released, but its epsilon also needs the "
            "delta of the silo's policy"
        ) from error
    account = look(state)
    _check_not_set_back(state, path.parent / SIGNING_KEY)
    return Spending.of(account, policy, by_person=_by_person(account, path.with_name("job.toml")))


def _by_person(account: Account, job: Path) -> bool:
    """Whether the job's schema names persons, and all runs were of this job."""
    try:
        text = job.read_text()
        named = "person" in toml_values(text, str(job))["consortium"]["schema"]
    except (OSError, UnicodeDecodeError, RequestError, KeyError, TypeError):
        return False
    digest = hashlib.sha256(text.encode()).hexdigest()
    return named and all(one.opened.get("job") == digest for _, one in account.runs)


def _check_not_set_back(state: Path, key: Path) -> None:
    heads, ledger = state / HEADS, state / LEDGER
    if not heads.exists() or not key.exists():
        return
    mine = public_key_hex(read_signing_key(key))
    hash_at = partial(read_hash, ledger) if ledger.exists() else lambda lines: FIRST_HASH if lines == 0 else None
    Witness(heads, "this silo", {"this silo": mine}).check_own(hash_at)


def exposure(terms: Terms) -> str:
    """A sentence about what a run costs if all other parties help the server; empty if it relies on nobody."""
    policy = terms.policy
    seen = [one.event for one in terms.exposures(terms.planned) if one.adversary is Adversary.SERVER]
    if not seen:
        return ""
    left = in_words(epsilon(seen[0], policy.delta, policy.adjacency))
    return f"epsilon of a run if all other parties help the server: {left}"


def standing(terms: Terms, account: Account) -> str:
    """A sentence about what is left for the job that a silo is started for."""
    policy = terms.policy
    if not account.runs:
        cost = up_to(terms.epsilon, 4)
        return f"nothing is spent of the policy's epsilon {policy.epsilon:g}; a run costs {cost}"
    runs = f"{len(account.runs)} run{'s' if len(account.runs) > 1 else ''}"
    needed = up_to(_needed(account.events(), policy), 4)
    spent = f"{runs} spent {needed} of the policy's epsilon {policy.epsilon:g}"
    another = terms.refusal(account.after(json.dumps(terms.opening("another")))) is None
    unfinished = [run for run, one in account.runs if one.releases < one.planned]
    begun = f"; started but not finished: {', '.join(unfinished)}" if unfinished else ""
    return f"{spent}; {'enough is left' if another else 'nothing is left'} for another run of this job{begun}"
