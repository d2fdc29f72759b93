"""What a finished run promises, computed again from the events in its directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tacit.engine.account import account_run
from tacit.errors import DataError, reason
from tacit.privacy import Adjacency, Adversary, Guarantee, Unit, events
from tacit.privacy.promises.terms import weakest

LEDGER, SUMMARY, CERTIFICATE = "ledger.jsonl", "summary.json", "certificate.json"


def promised(directory: Path) -> Guarantee | None:
    """The guarantee of a run, or of all silos of a deployment that signed; None if it was not private.

    Guarantee: no epsilon is read. All follow from the events in the ledger, which must agree with the summary, or
    in the certificate. Signatures are not checked: `tacit verify` does that.
    """
    certificate, ledger = directory / CERTIFICATE, directory / LEDGER
    if certificate.is_file() and (directory / SUMMARY).is_file():
        raise DataError(
            f"{directory} has both the {SUMMARY} of a simulation and the {CERTIFICATE} of a deployment, so it is "
            "not clear which says what was promised"
        )
    if certificate.is_file():
        try:
            return _of_silos(json.loads(certificate.read_text()))
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{certificate} is not the certificate of a run: {reason(error)}") from error
    if not ledger.is_file():
        raise DataError(f"{directory} has neither {LEDGER} nor {CERTIFICATE}: nothing says what was promised")
    account = account_run(directory)
    if account.differences:
        raise DataError(f"{directory}: ledger and summary disagree: {account.differences[0]}")
    return account.guarantee


def _of_silos(content: dict[str, Any]) -> Guarantee | None:
    """What the certificates of silos promise together: each silo's part is about all that it ever released.

    Silos set their own budgets, and may differ in other terms, too. What holds for all of them is said here: the
    stricter adjacency, whose epsilon is computed for every silo, the weaker adversary, and all that any of them
    takes as public.
    """
    if content["insecure_reproducible"]:
        return None
    silos = [content] if content["kind"] == "silo" else [one for one in content["silos"].values() if one]
    if not silos:
        raise DataError("no silo has signed what it released")
    deltas = tuple(one["delta"] for one in silos)
    (unit,) = {one["unit"] for one in silos}
    against = weakest([Adversary(one["adversary"]) for one in silos])
    sums = against is Adversary.SECURE_SUM
    strict = any(one["adjacency"] == Adjacency.REPLACE_ONE for one in silos)
    return Guarantee(
        tuple(events.from_dict(one["events"]["collaboration"]) for one in silos),
        max(deltas),
        Adjacency.REPLACE_ONE if strict else Adjacency.ADD_REMOVE,
        Unit(unit),
        against,
        tuple(dict.fromkeys(what for one in silos for what in one["public"])),
        deltas,
        min(one.get("colluding", 0) for one in silos if one["adversary"] == against) if sums else 0,
    )
