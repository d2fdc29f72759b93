"""Secure sums between real processes: a silo is killed, and the server keeps every byte."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="deployment over FLARE needs the extra: pip install 'tacit[deploy]'")

from tacit.client.cohort import Cohort
from tacit.deploy.frames import Reply, Request, state_from_bytes
from tacit.deploy.job import Job
from tacit.deploy.party_folder import PartyFolder
from tacit.deploy.signed_requests import SIGNATURE_BYTES
from tacit.deploy.silo_checks import Trusted
from tacit.deploy.site_records import at_site
from tacit.deploy.summing import Summing
from tacit.deploy.verification import verify
from tacit.engine.recipe import Recipe
from tacit.engine.round import client_start, summands
from tacit.federation import Federation
from tacit.sums.requests import Closing, SumStep
from tacit.sums.server import Prepared, opening_secrets, unmasked
from tacit.sums.silo import SiloState, SumSilo

pytestmark = pytest.mark.slow

ROUNDS, FEATURES, RECORDS = 12, 400, 40
HELPER, KILLED = "silo-1", "silo-2"


def _federation() -> Federation:
    features = torch.randn(4 * RECORDS, FEATURES, generator=torch.Generator().manual_seed(2))
    owners = [row // RECORDS for row in range(4 * RECORDS)]
    return Federation.from_arrays(features, (features[:, 0] > 0).long(), owners, classes=2)


def _request(signed: bytes) -> Request:
    return Request.decode(signed[SIGNATURE_BYTES:], body_limit=10**7)


class _Kept:
    """Everything that the server sent and got, and the keys of a silo that helps it."""

    def __init__(self, log: Path, job: Job, keys: SiloState, helper: PartyFolder, state: Path) -> None:
        rows = [line.split() for line in log.read_text().splitlines()]
        self._asked = [
            (site, _request(bytes.fromhex(asked)), bytes.fromhex(answer)) for site, asked, answer in rows
        ]
        self.job, self._keys, self._helper, self._summing = job, keys, helper, Summing(job)
        self.group = self._summing.group(self._asked[0][1].run)
        # Behind the name of the run and the number of the batch.
        self._prepared = Prepared.from_bytes((state / "sums" / "batch").read_bytes()[20:], self.group)

    def lists(self, round: int) -> list[Closing]:
        """The lists for which shares were asked, each once."""
        length = Closing.length(self.group)
        found = {
            asked.body[1 : 1 + length]
            for _, asked, _ in self._asked
            if asked.kind == "sum" and asked.round == round and asked.body[0] in (SumStep.SIGN, SumStep.REVEAL)
        }
        return [Closing.from_bytes(content, self.group) for content in found]

    def noise(self, round: int, records: Federation) -> tuple[int, Any]:
        """What hides the records of the honest silos in the opened sum of a round, and how many they are."""
        (closing,) = self.lists(round)
        messages, points = {}, {}
        for site, asked, answer in self._asked:
            if asked.kind == "round" and asked.round == round:
                number = self.job.sites.index(site)
                messages[number] = self._summing.from_bytes(Reply.decode(answer, body_limit=10**6).body)
                points[number] = asked.body
        total: Any = np.sum([messages[n] for n in closing.silos], axis=0, dtype=np.uint32)
        secrets = opening_secrets(self.group, self._again, self._prepared, closing)
        total = unmasked(self._prepared.batch, closing, total, secrets)
        me = self.job.sites.index(HELPER)
        silo = SumSilo(self.group, me, self._helper.signing_key())
        _, mask = silo.mask(self._keys, round, closing.context, np.zeros_like(total))
        encoding = self._summing.encoding()
        left = encoding.decode(encoding.ring.residues((total - (messages[me] - mask)).astype(np.int64)))
        honest = closing.silos - {me}
        return len(honest), left - sum(self._exact(n, round, points[n], records) for n in honest)

    def _again(self, body: bytes, silos: Any) -> dict[int, bytes]:
        """The answers to a request that the server has made, whatever signatures came with it."""
        end = 1 + Closing.length(self.group)
        return {
            self.job.sites.index(site): Reply.decode(answer, body_limit=10**7).body
            for site, asked, answer in self._asked
            if asked.kind == "sum" and asked.body[:end] == body[:end]
        }

    def _exact(self, number: int, round: int, point: bytes, records: Federation) -> torch.Tensor:
        job = self.job
        own = at_site(job, job.sites[number], records.client(number))
        cohort = Cohort(own, torch.zeros(1, dtype=torch.int64), round, job.randomness())
        start = client_start(job.algorithm, job.start(), own)
        values, _ = summands(job.algorithm, state_from_bytes(point, job.broadcast_shapes), cohort, start)
        return values[0].double()


def test_a_silo_is_killed_and_the_server_knows_no_more_than_sums(
    real_parties: Callable[..., Any], tmp_path: Path
) -> None:
    recipe = Recipe(
        algorithm="noisy-mb-sgd", clients=4, model="logistic", rounds=ROUNDS, noise="lattice", epsilon=4.0,
        trust="sum", quorum=3, colluding=1, algorithm_settings={"sampling": "full", "step": 0.1},
    )  # fmt: skip
    records, log = _federation(), tmp_path / "kept"
    parties = real_parties(recipe, federation=records, deadline_seconds=5.0)
    parties.start("server", TACIT_TEST_KEEP=str(log))
    for site in parties.sites:
        parties.start(site)
    parties.wait(lambda rounds: len(rounds) > 1)
    (keys,) = (parties.folders[HELPER] / "state" / "sums").glob("*.json")
    told = SiloState.from_bytes(keys.read_bytes())
    parties.kill(KILLED)
    assert parties.running[KILLED].returncode == -signal.SIGKILL
    assert parties.running["server"].wait(240) == 0, parties.output("server")

    state, helper = parties.folders["server"] / "state", PartyFolder.open(parties.folders[HELPER])
    certificate = (state / "certificate.json").read_bytes()
    silos = verify(certificate, {}, Trusted(job=helper.job.text.encode())).body["silos"]
    assert silos[KILLED] is None
    without = [line["round"] - 1 for line in parties.rounds() if KILLED not in line["used"]]
    assert without, "the run was over before the silo was killed"

    told = SiloState(told.rounds, told.seed, told.batch, told.shares)
    kept = _Kept(log, helper.job, told, helper, state)
    share = helper.job.noise.share_std
    for round in range(ROUNDS):
        honest, noise = kept.noise(round, records)
        assert honest == (2 if round in without else 3)
        # 401 numbers: their mean square is within 6 deviations of the noise of the honest shares.
        assert float(noise.square().mean()) == pytest.approx(honest * share**2, rel=6 * (2 / len(noise)) ** 0.5)
