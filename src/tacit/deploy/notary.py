"""What a silo signs: the head of its ledger with every answer, and a certificate at the end."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from tacit.deploy.frames import Request, heads_to_values
from tacit.deploy.heads import Head
from tacit.deploy.identities import check_own_key
from tacit.deploy.ledger import Page
from tacit.deploy.statements import MODEL_FILE, card_of, ranges_in, testify
from tacit.deploy.terms import Terms
from tacit.deploy.witness import HEADS, Witness
from tacit.engine.trained import Trained


class Notary:
    """A silo's signing key and its record of other silos' ledger heads, kept in `state_dir`.

    Its methods take a page of the ledger, so that nothing can change between reading and signing.
    """

    def __init__(self, terms: Terms, key: Ed25519PrivateKey, state_dir: Path) -> None:
        silos = check_own_key(terms.job.identities, terms.site, key).silos
        self._terms, self._key, self._directory = terms, key, state_dir
        self._witness = Witness(state_dir / HEADS, terms.site, silos)

    def check(self, page: Page) -> None:
        """Refuse to continue with a ledger that lacks a line which this silo has signed."""
        self._witness.check_own(page.hash_at)

    def take(self, asked: Request, page: Page) -> None:
        """Record the heads in a request. Refuse the request if they show that a ledger was set back."""
        self._witness.take(asked.heads, page.hash_at, run=asked.run, runs=dict(page.account.runs))

    def head(self, run: str, page: Page) -> Head:
        """The current head of the ledger, signed for the last round of the run that was answered.

        It is never signed for a round that a request merely names: otherwise a server could obtain a signature
        on fewer lines for a later round.
        """
        mine = page.account.run(run)
        return Head.sign(
            self._key,
            self._terms.site,
            job=self._terms.job.digest,
            run=run,
            round=mine.newest["round"] if mine and mine.newest else 0,
            lines=page.account.lines,
            hash=page.account.hash,
        )

    def heads(self, run: str, page: Page) -> bytes:
        """All heads that this silo has witnessed, and its own current one, for a server that asks."""
        heads = {**self._witness.newest(), self._terms.site: self.head(run, page)}
        return json.dumps({"heads": heads_to_values(heads)}).encode()

    def certificate(self, run: str, parameters: Tensor, page: Page) -> bytes:
        """The certificate of a run. The model is saved for the operators; the silo does not vouch for it."""
        directory, job, mine = self._directory / "certificates" / run, self._terms.job, page.account.run(run)
        model, learned = Trained(job.algorithm.work.model, parameters), None if mine is None else mine.learned
        if job.ranges is None or learned is not None:
            # With its schema and the names of its classes it can be used here, too.
            card_of(job, ranges_in(job, {} if learned is None else learned["ranges"])).save(directory, model)
        else:
            # Away during the search, the silo does not know what the model's numbers mean.
            model.save(directory / MODEL_FILE)
        witnessed = self._witness.testimony(run)
        return testify(self._terms, page.export(), run, witnessed, self._key, directory)
