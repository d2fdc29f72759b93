"""What a silo signs under its own name: the head of its ledger with every answer, in the end a certificate."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from tacit.deploy.frames import Request, heads_to_values
from tacit.deploy.guard import Terms
from tacit.deploy.heads import Head
from tacit.deploy.identities import check_own_key
from tacit.deploy.ledger import Page
from tacit.deploy.statements import MODEL_FILE, testify
from tacit.deploy.witness import Witness
from tacit.engine.trained import Trained


class Notary:
    """A silo's signing key, and its witness of the others' ledgers, in `state_dir`.

    Its methods take the page of the ledger, so that nothing changes between what is looked at and what is signed.
    """

    def __init__(self, terms: Terms, key: Ed25519PrivateKey, state_dir: Path) -> None:
        silos = check_own_key(terms.job.identities, terms.site, key).silos
        self._terms, self._key, self._directory = terms, key, state_dir
        self._witness = Witness(state_dir / "witnessed.json", terms.site, silos)

    def check(self, page: Page) -> None:
        """Refuse to go on with a ledger that lacks a line which this silo has signed."""
        self._witness.check_own(page.hash_at)

    def take(self, asked: Request, page: Page) -> None:
        """Take in the heads of a request, and refuse it if they show that a ledger was set back."""
        self._witness.take(asked.heads, page.hash_at, run=asked.run, runs=dict(page.account.runs))

    def head(self, run: str, page: Page) -> Head:
        """The head of the ledger as it is now, signed for the last round of a run that was answered.

        Never for a round that a request merely names: a server could have fewer lines signed for a later round.
        """
        mine = page.account.run(run)
        return Head.sign(
            self._key,
            self._terms.site,
            job=self._terms.job.digest,
            run=run,
            round=mine.last["round"] if mine and mine.last else 0,
            lines=page.account.lines,
            hash=page.account.hash,
        )

    def heads(self, run: str, page: Page) -> bytes:
        """All heads that it has witnessed and its own as it is now, for a server that asks."""
        heads = {**self._witness.newest(), self._terms.site: self.head(run, page)}
        return json.dumps({"heads": heads_to_values(heads)}).encode()

    def certificate(self, run: str, parameters: Tensor, page: Page) -> bytes:
        """The certificate of a run. The model is kept for the silo's people, and not vouched for."""
        directory = self._directory / "certificates" / run
        Trained(self._terms.job.algorithm.work.model, parameters).save(directory / MODEL_FILE)
        witnessed = self._witness.testimony(run)
        return testify(self._terms, page.export(), run, witnessed, self._key, directory)
