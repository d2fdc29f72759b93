"""Why a silo does not answer: a code for the server, and a reason for the silo's operators."""

from __future__ import annotations

import os

from tacit.deploy.ledger import UnwritableLedgerError
from tacit.deploy.seam import Code


class RefusedError(Exception):
    """A code for the server and, if there is more to say, a reason for the silo's operators."""

    def __init__(self, code: Code, reason: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.reason = reason


def halted() -> RefusedError:
    """The refusal of a silo that waits for its operators after a failed computation."""
    return RefusedError(
        Code.FAILED,
        "a computation has failed, perhaps because of a record, so nobody is answered until its operators have "
        "looked: see state/errors.log, then remove state/halted",
    )


def told_by_the_machine(error: Exception) -> str:
    """What the machine lacks, if that is why something failed; empty otherwise.

    Other texts, also those of an `OSError` that somebody's code has raised, may quote a record.
    """
    if isinstance(error, UnwritableLedgerError):
        return str(error)
    if isinstance(error, MemoryError):
        return "not enough memory. Nothing was released"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{os.strerror(error.errno)}. Once that is mended, the silo continues by itself"
    return ""
