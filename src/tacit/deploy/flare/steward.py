"""`python -m tacit.deploy.flare.steward`: keeps FLARE's job running as long as the server needs it.

FLARE starts a job with the silos that are connected. It does not let a late or restarted silo join a running job,
and does not resume a job after a crash. So the steward submits the job, resubmits it when it has ended, and
restarts it when a connected silo is not part of it. This loses nothing: the run's state is in `tacit server` and
in the silos, and a repeated request gets the same answer. The steward reports what it sees as JSON lines.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.deploy.flare.job import write_job
from tacit.deploy.flare.kits import ADMIN

POLL_SECONDS = 1.0
NO_JOBS = "no_jobs"
"""FLARE's term for a client that replies but runs nothing."""
GATHER_SECONDS = 30.0
"""How long to wait for all silos before starting a job with a quorum."""
SETTLE_SECONDS = 15.0
"""How long a new job is left alone; silos need some time to start it."""
LONGEST_SECONDS = 600.0
"""The longest wait before another attempt to include a silo that does not start its job."""


@dataclass
class Steward:
    """Decides what to do about the job; `session` is FLARE's."""

    session: Any
    sites: frozenset[str]
    quorum: int
    folder: Path
    """where the job is written before it is submitted"""
    job: str | None = None
    submitted_at: float = 0.0
    waiting_since: float = field(default_factory=time.monotonic)
    failures: int = 0
    """number of submitted jobs in a row that ended before they were seen running"""
    in_vain: int = 0
    """number of restarts in a row for silos that still could not join (because of a full disk, for example)"""

    def look(self, now: float) -> dict[str, Any]:
        """Checks once, acts if needed, and reports the state."""
        working, idle = self._silos()
        connected = working | idle
        status = self.session.get_job_status(self.job) if self.job is not None else None
        if status is not None and status.upper().startswith("FINISHED"):
            self.job, self.waiting_since = None, now
        elif working:
            self.failures = 0
        if self.job is None:
            waited = now - self.waiting_since
            enough = connected >= self.sites or (len(connected) >= self.quorum and waited > GATHER_SECONDS)
            if enough and waited >= min(GATHER_SECONDS, 2.0**self.failures - 1):
                self._submit(now)
                self.failures += 1
        elif now - self.submitted_at > SETTLE_SECONDS:
            if not idle:
                self.in_vain = 0
            elif now - self.submitted_at > min(LONGEST_SECONDS, SETTLE_SECONDS * 4**self.in_vain):
                self.session.abort_job(self.job)
                self.job, self.waiting_since, self.in_vain = None, now, self.in_vain + 1
        return {"connected": sorted(connected), "working": sorted(working), "job": self.job, "status": status}

    def _submit(self, now: float) -> None:
        folder = write_job(self.folder, min_sites=min(self.quorum, len(self.sites)))
        self.job, self.submitted_at = self.session.submit_job(str(folder)), now

    def _silos(self) -> tuple[set[str], set[str]]:
        """The silos that work on a job, and the connected ones that do not; silent ones are in neither."""
        if not self.session.get_connected_client_list():
            return set(), set()
        working, idle = set(), set()
        for row in self.session.get_client_job_status() or []:
            if row.get("job_id"):
                working.add(row["client_name"])
            elif row.get("status") == NO_JOBS:
                idle.add(row["client_name"])
        return working & self.sites, idle & self.sites


def main(admin_folder: str, quorum: int, sites: list[str]) -> None:
    """Watches until killed; reopens a lost session."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    from tacit.deploy.flare.lifeline import hold_lifeline

    hold_lifeline()
    steward: Steward | None = None
    while True:
        try:
            session = new_secure_session(ADMIN, admin_folder, timeout=30.0)
            steward = steward or Steward(session, frozenset(sites), quorum, Path(admin_folder) / "job")
            steward.session = session
            while True:
                print(json.dumps(steward.look(time.monotonic())), flush=True)
                time.sleep(POLL_SECONDS)
        except Exception as error:  # the server may be starting, or gone for a moment
            print(json.dumps({"trouble": f"{type(error).__name__}: {error}"}), flush=True)
            time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
