"""Reading what a certificate states, with care: anyone who has a key can sign anything."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dp_accounting import DpEvent

from tacit.deploy.claims import accountant
from tacit.deploy.final_release import FinalTerms
from tacit.deploy.finals import Final
from tacit.deploy.heads import Head, contradict
from tacit.deploy.job import Job
from tacit.deploy.parts import LARGEST_SUM
from tacit.deploy.signatures import CertificateError
from tacit.deploy.spent import Spent
from tacit.deploy.stated import LEDGER_FILE, Stated
from tacit.errors import TacitError
from tacit.privacy import Adjacency, Adversary, events
from tacit.privacy.accountant.dominate import leaves
from tacit.privacy.accountant.filter import MOST_RUNS
from tacit.privacy.events.runs import ChosenRunsDpEvent
from tacit.side.ranges import STEPS

_MOST = 2**53
_MOST_KINDS, _MOST_TIMES = 16, 10**8
"""The most kinds of releases that a run in a certificate may have, and the most rounds or clients."""

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_RUN = re.compile(r"[0-9a-f]{32}\Z")
_ROUND = re.compile(r"0|[1-9][0-9]{0,9}\Z")
_WITNESSED = frozenset({"newest", "before_run", "contradiction"})


def read_stated(body: Mapping[str, Any], job: Job | None) -> Stated:
    """Read what a silo's certificate states; `CertificateError` if it is malformed."""
    try:
        report, policy, found = body.get("report"), table(body["policy"]), table(body["events"])
        known = job.algorithm.work.public if job is not None else ()
        run = word(body["run"])
        if not _RUN.match(run):
            raise ValueError(f"run {run!r} is not 32 hexadecimal digits")
        return Stated(
            site=word(body["site"]),
            run=run,
            records=None if "records" not in body else whole(body["records"], at_least=1),
            noise_multiplier=number(body["noise_multiplier"]),
            report_noise=0.0 if report is None else number(table(report)["noise_multiplier"]),
            epsilon=number(policy["epsilon"]),
            delta=number(policy["delta"]),
            adjacency=Adjacency(word(body["adjacency"])),
            also_public=tuple(word(one) for one in _list(body["public"])[len(known) :]),
            spent=Spent(
                event(found["run"]),
                event(found["collaboration"]),
                Adversary(word(body["adversary"])),
                {_round(round): digest(point) for round, point in table(body["points"]).items()},
                {**_head(body["ledger"]), "before_run": _head(table(body["ledger"])["before_run"])},
                None if "colluding" not in body else whole(body["colluding"], at_least=0),
            ),
            witnessed={site: _witnessed(told) for site, told in table(body["witnessed"]).items()},
            files={LEDGER_FILE: digest(table(body["files"])[LEDGER_FILE])},
            accountant=software(body["accountant"]),
            finals=_finals(body, job),
            made=_made(body, job),
            learned=_learned(body, job),
        )
    except (TacitError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CertificateError(f"it lacks what an epsilon is computed from: {error}") from error


def _finals(body: Mapping[str, Any], job: Job | None) -> dict[Final, FinalTerms]:
    """The terms of final releases."""
    found = [name for name in Final if name in body]
    if job is not None and found != [one.name for one in job.finals]:
        raise ValueError("its final releases are not those of the job")
    said = {name: table(body[name]) for name in found}
    return {
        name: FinalTerms(number(one["noise_multiplier"]), whole(one["records"], at_least=1))
        for name, one in said.items()
    }


def _made(body: Mapping[str, Any], job: Job | None) -> dict[Final, dict[str, Any]]:
    """The final releases that were made."""
    dims = {} if job is None else {one.name: one.question.dim for one in job.finals}
    found: dict[Final, dict[str, Any]] = {}
    for name in Final:
        if name.made not in body:
            continue
        if name not in body:
            raise ValueError(f"it has the sums of a {name} that was not charged")
        said = table(body[name.made])
        sums = _list(said["sums"])
        if not all(type(one) is float and abs(one) <= LARGEST_SUM for one in sums):
            raise TypeError(f"the sums of its {name} are not sums over records")
        if job is not None and len(sums) != dims[name]:
            raise ValueError(f"its {name} has {dims[name]} sums, not {len(sums)}")
        if job is not None and job.summed != ("batch" in said):
            raise ValueError(f"the sums of its {name} are masked if, and only if, the job has secure sums")
        masked_with = {"batch": digest(said["batch"])} if "batch" in said else {}
        found[name] = {"point": digest(said["point"]), "sums": sums, **masked_with}
    return found


def _learned(body: Mapping[str, Any], job: Job | None) -> dict[str, Any] | None:
    if "learned" not in body:
        if job is not None and job.ranges is not None and body["points"]:
            raise ValueError("it does not state the ranges that its records were prepared with")
        return None
    said = table(body["learned"])
    ranges = {word(name): [_finite(end) for end in _list(pair)] for name, pair in table(said["ranges"]).items()}
    if not all(len(pair) == 2 for pair in ranges.values()):
        raise ValueError("one of its ranges does not have two ends")
    if job is not None:
        limits = {} if job.ranges is None else {one.name: one for one in job.ranges.limits}
        inside = all(
            limits[name].lower <= pair[0] < pair[1] <= limits[name].upper
            for name, pair in ranges.items()
            if name in limits
        )
        if ranges.keys() != limits.keys() or not inside:
            raise ValueError("its ranges are not those that the job leaves open, within their limits")
    steps = {name: [_finite(one) for one in _list(sums)] for name, sums in table(said["steps"]).items()}
    dim = 2 * len(ranges)
    if not all(_ROUND.match(step) and int(step) < STEPS and len(sums) == dim for step, sums in steps.items()):
        raise ValueError("its sums are not those of steps of a search for its ranges")
    told = {"point": digest(said["point"]), "ranges": ranges, "records": whole(said["records"], at_least=1)}
    return {**told, "steps": steps}


def _finite(value: object) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise TypeError(f"{value!r:.60} is not a finite number")
    return value


def heads_of(stated: Stated) -> dict[str, dict[str, list[Head]]]:
    """The heads that a silo has witnessed: by the silo that they are of, then by what they are evidence for."""
    return {
        site: {
            name: [Head.from_values(head) for head in (values if name == "contradiction" else [values])]
            for name, values in told.items()
        }
        for site, told in stated.witnessed.items()
    }


def event(value: object) -> DpEvent:
    """An event that can be accounted for in reasonable time: whoever signs can make up any number of releases."""
    runs = table(value).get("runs", [])
    if isinstance(runs, list) and len(runs) > MOST_RUNS:
        raise ValueError(f"{len(runs)} runs under one policy, which has no more than {MOST_RUNS}")
    made = events.from_dict(table(value))
    for run in made.runs if isinstance(made, ChosenRunsDpEvent) else (made,):
        kinds = {json.dumps(events.to_dict(leaf)) for leaf, _ in leaves(run)}
        if len(kinds) > _MOST_KINDS:
            raise ValueError(f"a run of {len(kinds)} kinds of releases: no run has more than {_MOST_KINDS}")
    for name, number in _whole_numbers(value):
        if name in ("rounds", "clients") and number > _MOST_TIMES:
            raise ValueError(f"{name} = {number}: no run has more than {_MOST_TIMES}")
    return made


def _whole_numbers(value: object) -> Iterator[tuple[str, int]]:
    for name, inner in value.items() if isinstance(value, dict) else ():
        if type(inner) is int:
            yield name, inner
        for part in inner if isinstance(inner, list) else (inner,):
            yield from _whole_numbers(part)


def _witnessed(told: object) -> dict[str, Any]:
    values = table(told)
    if not values or not values.keys() <= _WITNESSED:
        raise ValueError(f"witnessed heads must be among {', '.join(sorted(_WITNESSED))}")
    for name, value in values.items():
        if name != "contradiction":
            Head.from_values(value)
            continue
        one, other = (Head.from_values(head) for head in _list(value))
        if not contradict(one, other):
            raise ValueError("two witnessed heads are said to contradict each other, but do not")
    return values


def _head(values: object) -> dict[str, Any]:
    found = table(values)
    return {"lines": whole(found["lines"]), "hash": digest(found["hash"])}


def software(value: object) -> dict[str, str]:
    """By what epsilons were computed."""
    found = {name: word(text) for name, text in table(value).items()}
    if found.keys() != accountant().keys():
        raise ValueError(f"accountant must have {', '.join(accountant())}")
    return found


def table(value: object) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.60} is not an object")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.60} is not a list")
    return value


def word(value: object) -> str:
    """A string that can be printed on one line of a terminal."""
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or len(value) > 1000:
        raise TypeError(f"{value!a:.60} is not a plain word")
    return value


def whole(value: object, *, at_least: int = 0) -> int:
    """A whole number that every reader of JSON can hold."""
    if type(value) is not int or not at_least <= value < _MOST:
        raise TypeError(f"{value!r:.60} is not a whole number of at least {at_least}")
    return value


def number(value: object) -> float:
    """A finite number above 0, written as a float."""
    if type(value) is not float or not math.isfinite(value) or value <= 0:
        raise TypeError(f"{value!r:.60} is not a number above 0")
    return value


def digest(value: object) -> str:
    """A SHA-256 in hexadecimal digits."""
    if not isinstance(value, str) or not _DIGEST.match(value):
        raise TypeError(f"{value!r:.60} is not a digest")
    return value


def _round(value: str) -> int:
    if not _ROUND.match(value) or int(value) >= 2**31:
        raise ValueError(f"{value!r:.60} is not a round")
    return int(value)
