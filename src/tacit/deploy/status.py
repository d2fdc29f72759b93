"""Showing a run: a table in the terminal, and a web page that only this machine can open."""

from __future__ import annotations

import contextlib
import html
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tacit.deploy.advice import ADVICE
from tacit.deploy.seam import Code
from tacit.privacy import Adversary
from tacit.privacy.promises.rounding import up_to

if TYPE_CHECKING:
    from rich.table import Table

    from tacit.deploy.rounds import RoundReport

_COLUMNS = ("silo", "connected", "rounds used", "last problem", "messages, KiB", "epsilon at the end")
_LOSS = "noisy loss"


@dataclass
class SiloStatus:
    """What the server knows about one silo, all of it from the silo's own messages."""

    connected: bool = False
    used: int = 0
    problem: str = ""
    """if its last round went wrong, the code and the number of that round"""
    uplink_bytes: int = 0
    epsilon: float | None = None
    """the cost of its whole part to its records, as it states itself"""
    loss: float | None = None
    """the last noisy mean loss that it released"""


@dataclass
class Board:
    """The state of a run, to show to people; updated from the server's reports."""

    title: str
    rounds: int
    silos: dict[str, SiloStatus]
    round: int = 0
    seconds: float = 0.0
    insecure: bool = False
    reports: bool = False
    """whether silos release their losses"""
    against: str = Adversary.SERVER.description
    """against whom the epsilons hold"""
    note: str = "waiting for the silos"
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def update(self, report: RoundReport) -> None:
        """Update the board with the report of a round."""
        with self._lock:
            self.round, self.seconds, self.note = report.round, report.seconds, ""
            for site, code in report.problems.items():
                self.silos[site].problem = f"{code} (round {report.round})"
            for site, reply in report.replies.items():
                silo = self.silos[site]
                silo.used += 1
                silo.problem = ""
                silo.uplink_bytes += len(reply.body)
                silo.epsilon = reply.epsilon
                silo.loss = silo.loss if reply.loss is None else reply.loss

    def tell(self, text: str) -> None:
        """Show a note (what is missing or wrong) until the next round is done."""
        with self._lock:
            self.note = text

    def saw(self, connected: tuple[str, ...]) -> None:
        """Update who is connected."""
        with self._lock:
            for site, silo in self.silos.items():
                silo.connected = site in connected

    def to_dict(self) -> dict[str, Any]:
        """The board as plain values for JSON."""
        with self._lock:
            return {
                "title": self.title,
                "round": self.round,
                "rounds": self.rounds,
                "seconds_per_round": round(self.seconds, 3),
                "note": self.note,
                "insecure_reproducible": self.insecure,
                "epsilons_hold_against": self.against,
                "silos": {site: dict(vars(silo)) for site, silo in self.silos.items()},
            }

    def explanations(self) -> list[str]:
        """For every problem in the table, its cause and what to do."""
        with self._lock:
            codes = {Code(silo.problem.partition(" ")[0]) for silo in self.silos.values() if silo.problem}
        return [f"{code}: {ADVICE[code].cause}. What to do: {ADVICE[code].way_out}." for code in sorted(codes)]

    def caption(self) -> str:
        """The line below the table."""
        warning = "NO PRIVACY: this is a trial with seeded noise. " if self.insecure else ""
        pace = f", {self.seconds:.2f} s per round" if self.round else ""
        relies = self.against != Adversary.SERVER.description
        held = f". Epsilons hold against {self.against}" if relies else ""
        return f"{warning}round {self.round} of {self.rounds}{pace}{'; ' if self.note else ''}{self.note}{held}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The headings of the table."""
        return (*_COLUMNS, _LOSS) if self.reports else _COLUMNS

    def rows(self) -> list[tuple[str, ...]]:
        """One row of text per silo."""
        with self._lock:
            return [
                (
                    site,
                    "yes" if silo.connected else "no",
                    f"{silo.used}",
                    silo.problem,
                    f"{silo.uplink_bytes / 1024:.1f}",
                    "" if silo.epsilon is None else up_to(silo.epsilon, 4),
                    *(("" if silo.loss is None else f"{silo.loss:.4g}",) if self.reports else ()),
                )
                for site, silo in self.silos.items()
            ]

    def __rich__(self) -> Table:
        from rich.markup import escape
        from rich.table import Table

        caption = "\n".join([self.caption(), *self.explanations()])
        table = Table(title=escape(self.title), caption=escape(caption))
        for column in self.columns:
            table.add_column(column)
        for row in self.rows():
            table.add_row(*map(escape, row))
        return table

    def page(self) -> str:
        """The table as an HTML page that refreshes itself."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows()
        )
        below = "".join(f"<p>{html.escape(one)}</p>" for one in self.explanations())
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
            f"<title>{html.escape(self.title)}</title>"
            "<style>body{font:16px system-ui;margin:2rem}td,th{padding:.3rem .8rem;text-align:left}"
            "table{border-collapse:collapse}tr{border-bottom:1px solid #8884}</style>"
            f"<h1>{html.escape(self.title)}</h1><p>{html.escape(self.caption())}</p>"
            f"<table><tr>{head}</tr>{body}</table>{below}</html>"
        )


@contextlib.contextmanager
def serving(board: Board, port: int = 0) -> Iterator[str]:
    """Serve the board as a read-only page on loopback. Yields the address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of another site, open in a local browser, may send requests under its own host name: refuse.
            host = self.headers.get("Host", "").rpartition(":")[0]
            pages = {
                "/": ("text/html; charset=utf-8", board.page),
                "/status.json": ("application/json", lambda: json.dumps(board.to_dict())),
            }
            if host not in ("127.0.0.1", "localhost") or self.path not in pages:
                self.send_error(404)
                return
            kind, content = pages[self.path]
            body = content().encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Do not log who looks at the page."""

    with ThreadingHTTPServer(("127.0.0.1", port), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
