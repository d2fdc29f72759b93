"""The cause of every code and what to do about it, for the server's messages, its status page and the docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.deploy.seam import Code


@dataclass(frozen=True)
class Advice:
    """Why a site gave no usable answer, and what can be done about it."""

    cause: str
    way_out: str
    lasting: bool = False
    """True if asking again is useless until somebody has fixed the problem"""


_GO_ON = "the run continues without it as long as there is a quorum"
_SET_BACK = (
    "stop any other server of this consortium and restore the newest state folder. If that is lost, start a new "
    "run, which is charged to the silos again: move checkpoints and rounds.jsonl out of the server's state folder"
)

ADVICE: Mapping[Code, Advice] = {
    Code.NO_ANSWER: Advice(
        "it is connected, but its answer did not arrive before the deadline",
        "look at its console; if its rounds are just slow, raise deadline_seconds in the server's party.toml",
    ),
    Code.NOT_CONNECTED: Advice(
        "it is not running, or cannot reach the server",
        "start it, or look into its log.txt; it is admitted within half a minute of coming back",
    ),
    Code.MALFORMED: Advice(
        "it cannot read the server's requests",
        "install the same version of tacit at the server and at the silo",
        lasting=True,
    ),
    Code.OTHER_JOB: Advice(
        "its job.toml differs from the server's",
        "compare the two files and restore the one that all parties agreed to; for another recipe, provision a "
        "new consortium",
        lasting=True,
    ),
    Code.BAD_POINT: Advice(
        "the model that the server sent it is not finite or has the wrong size",
        "the training diverged: start a new job with a smaller step",
        lasting=True,
    ),
    Code.NO_SUCH_ROUND: Advice(
        "its job has no such round, or it is not this silo's turn",
        "install the same version of tacit at the server and at the silo",
        lasting=True,
    ),
    Code.PAST_ROUND: Advice(
        "it has already answered a later round: the server's state is older than the run",
        _SET_BACK,
        lasting=True,
    ),
    Code.CHANGED_POINT: Advice(
        "it has answered this round for a different model: the server's state is not the one that asked then",
        _SET_BACK,
        lasting=True,
    ),
    Code.BUDGET_SPENT: Advice(
        "its policy has no budget left for another release; a restart does not change that",
        f"{_GO_ON}. The silo's operators may raise epsilon in its policy.toml and restart it; the server's may "
        "lower quorum in party.toml, except with a shuffler",
        lasting=True,
    ),
    Code.BUSY: Advice(
        "another process has locked its ledger",
        "at the silo, stop the second process, backup or copy that holds the lock",
    ),
    Code.STATE_LOST: Advice(
        "its memory of this run is gone, or its records, policy or job have changed since the run began",
        "at the silo, restore the records, policy.toml and job.toml that the run began with; otherwise the silo "
        f"cannot rejoin this run, and {_GO_ON}",
        lasting=True,
    ),
    Code.FAILED: Advice(
        "something failed at the silo, such as a full disk",
        "see state/errors.log at the silo. Once there is disk space it continues by itself; after a failed "
        "computation its operators must remove state/halted",
    ),
    Code.OTHER_SCHEMA: Advice(
        "its table does not fit the job's schema; nothing was sent and nothing was spent",
        "its operators see which column and why, also with tacit silo . --check: correct the table, then restart "
        f"the silo; meanwhile {_GO_ON}",
        lasting=True,
    ),
    Code.STATE_RESTORED: Advice(
        "its state folder is an older copy: the silo has signed a ledger that it no longer has",
        "at the silo, stop any copy that runs elsewhere and restore the newest state folder; if that is lost, "
        f"the silo cannot rejoin, and {_GO_ON}",
        lasting=True,
    ),
    Code.LEDGER_CONFLICT: Advice(
        "it has seen two contradictory ledgers of another silo",
        "the server forwards the evidence to that other silo; restore the newest state folder there",
    ),
    Code.TOO_FEW: Advice(
        "the shuffler did not receive one message from each silo of the round",
        "bring all silos of the round back; the shuffler does not mix fewer",
    ),
    Code.REJECTED: Advice(
        "what arrived is not an answer to the request, or was damaged in transit",
        "it is asked again in the next round; if this persists, install the same version of tacit everywhere",
    ),
    Code.WRONG_ROUND: Advice(
        "it answered a different round, too late", "nothing to do: it is asked again in the next round"
    ),
    Code.REPLAYED: Advice(
        "it sent a message that had already been used",
        "nothing if it happens once; if it persists, look at the silo",
    ),
    Code.BAD_MESSAGE: Advice(
        "its message cannot be read or is not finite",
        "check the silo's records and version; with a shuffler, also that the keys are those of this consortium",
    ),
}
"""Advice for every code except `ok`."""


def advice(problems: Mapping[str, Code]) -> str:
    """Who is missing, why, and what to do: one clause per code.

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
    """The message for a round below its quorum: how many answers it has, and what is wrong with the others."""
    return f"round {round}: {usable} usable answers, but the quorum is {quorum}. Missing: {advice(problems)}"
