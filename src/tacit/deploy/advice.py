"""What to do about every code: its cause and the way out, for the server's messages, its page and the docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.deploy.seam import Code


@dataclass(frozen=True)
class Advice:
    """Why a site has no usable answer, and who can do what about it."""

    cause: str
    way_out: str
    lasting: bool = False
    """whether asking again cannot help before somebody has done something"""


_GO_ON = "the run goes on without it as long as there is a quorum"
_SET_BACK = (
    "stop any other server of this consortium, and bring back the newest state folder. If that is gone, begin a "
    "new run, which silos pay for again: move checkpoints and rounds.jsonl out of the server's state folder"
)

ADVICE: Mapping[Code, Advice] = {
    Code.NO_ANSWER: Advice(
        "it is connected, and its answer did not come before the deadline",
        "look at its console; if its rounds just take long, raise deadline_seconds in the server's party.toml",
    ),
    Code.NOT_CONNECTED: Advice(
        "it is not running, or cannot reach the server",
        "start it, or look into its log.txt: it is let in within half a minute of being back",
    ),
    Code.MALFORMED: Advice(
        "it cannot read the server's requests",
        "install the same version of tacit at the server and at the silo",
        lasting=True,
    ),
    Code.OTHER_JOB: Advice(
        "its job.toml is not the server's",
        "compare the two files, and bring back the one that all parties agreed to; for another recipe, provision "
        "a new consortium",
        lasting=True,
    ),
    Code.BAD_POINT: Advice(
        "the model that it was sent is not finite, or has another size",
        "the training diverged: a smaller step, in a new job",
        lasting=True,
    ),
    Code.NO_SUCH_ROUND: Advice(
        "the round is not among those of its job, or it is not its turn",
        "install the same version of tacit at the server and at the silo",
        lasting=True,
    ),
    Code.PAST_ROUND: Advice(
        "it has answered a later round: the server's state is older than the run",
        _SET_BACK,
        lasting=True,
    ),
    Code.CHANGED_POINT: Advice(
        "it has answered this round for another model: the server's state is not the one that asked",
        _SET_BACK,
        lasting=True,
    ),
    Code.BUDGET_SPENT: Advice(
        "its policy cannot bear another release, and no restart changes that",
        f"{_GO_ON}. Its own people may raise epsilon in its policy.toml and start it again; the server may "
        "lower quorum in its party.toml, except behind a shuffler",
        lasting=True,
    ),
    Code.BUSY: Advice(
        "another process holds its ledger",
        "at the silo, end the second process, the backup or the copy that does",
    ),
    Code.STATE_LOST: Advice(
        "what it remembers of this run is gone, or its records, policy or job are no longer those it began with",
        "at the silo, bring back the records, the policy.toml and the job.toml of the run's beginning; otherwise "
        f"it is out of this run for good, and {_GO_ON}",
        lasting=True,
    ),
    Code.FAILED: Advice(
        "something failed at the silo, such as a full disk",
        "its state/errors.log has the reason. Once there is room it goes on by itself; after a failed "
        "computation its people must remove state/halted",
    ),
    Code.STATE_RESTORED: Advice(
        "its state folder is an older copy: it has signed a ledger that it no longer holds",
        "at the silo, stop any copy that runs elsewhere, and put the newest state folder back; if that is lost, "
        f"it is out for good, and {_GO_ON}",
        lasting=True,
    ),
    Code.LEDGER_CONFLICT: Advice(
        "it has seen two ledgers of another silo that contradict each other",
        "the server passes the evidence on. At the silo in question, put the newest state folder back",
    ),
    Code.TOO_FEW: Advice(
        "the shuffler did not get one message of each silo of the round",
        "bring all silos of the round back: fewer are not mixed",
    ),
    Code.REJECTED: Advice(
        "what came is no answer to the request, or was damaged on its way",
        "it is asked again in the next round; if it lasts, install the same version of tacit everywhere",
    ),
    Code.WRONG_ROUND: Advice(
        "it answered another round, too late", "nothing: it is asked again in the next round"
    ),
    Code.REPLAYED: Advice(
        "it sent a message again that was used before",
        "nothing if it happens once; if it lasts, look at the silo",
    ),
    Code.BAD_MESSAGE: Advice(
        "its message cannot be read, or is not finite",
        "look at the silo's records and version; behind a shuffler, the keys are not those of this consortium",
    ),
}
"""For every code but `ok`."""


def advice(problems: Mapping[str, Code]) -> str:
    """Who is missing, why, and what to do, one clause a code.

    >>> advice({"porto": Code.MALFORMED, "lyon": Code.MALFORMED}).partition(" (")[0]
    'lyon, porto: malformed'
    """
    sites: dict[Code, list[str]] = {}
    for site, code in sorted(problems.items()):
        sites.setdefault(code, []).append(site)
    return ". ".join(
        f"{', '.join(named)}: {code} ({ADVICE[code].cause}): {ADVICE[code].way_out}"
        for code, named in sites.items()
    )


def too_few(round: int, usable: int, quorum: int, problems: Mapping[str, Code]) -> str:
    """What a round lacks, and why."""
    return f"round {round}: {usable} usable answers, and the quorum is {quorum}. Without {advice(problems)}"
