"""The shuffler as a party: it mixes messages that it cannot read (see `mixing`)."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.deploy.frames import Reply, Request
from tacit.deploy.job import Job
from tacit.deploy.mixing import DIGEST_BYTES, PublicKeys, context_of, mixing_of, uncovered
from tacit.deploy.seam import Code
from tacit.errors import MessageError, RequestError

SHUFFLER = "shuffler"
"""The shuffler's name among the parties."""


class ShufflerParty:
    """Answers "mix" requests: the digest of the point, then the covered messages of the round's silos, in order.

    Guarantee: the answer is a function of all messages of the round that does not depend on their order. There is
    no answer unless every silo of the round has sent its own message, for this job, run, round and point. The
    shuffler has no memory: a silo has one message per round, so nothing can be learnt by asking again.
    """

    def __init__(self, job: Job, key: X25519PrivateKey, keys: PublicKeys) -> None:
        mixing = mixing_of(job.algorithm)
        if mixing is None:
            raise RequestError(
                f"algorithm {job.recipe.algorithm!r} needs no shuffler: each of its messages has enough noise"
            )
        if missing := sorted(set(job.sites) - set(keys.silos)):
            raise RequestError(f"no keys of {', '.join(missing)}: this folder belongs to another consortium")
        self._job, self._mixing, self._key, self._keys = job, mixing, key, keys

    def step(self, request: bytes) -> bytes:
        """Answer with the mixed messages, or with a code and nothing else."""
        each, sites = self._mixing.covered_bytes, len(self._job.sites)
        try:
            asked = Request.decode(request, body_limit=DIGEST_BYTES + sites * each)
        except MessageError:
            return Reply(Code.MALFORMED, SHUFFLER).encode()
        code, body = self._mixed(asked)
        insecure = self._job.insecure
        return Reply(code, SHUFFLER, asked.run, asked.round, insecure=insecure, body=body).encode()

    def _mixed(self, asked: Request) -> tuple[Code, bytes]:
        if asked.kind != "mix" or asked.job != self._job.digest:
            return Code.OTHER_JOB, b""
        if asked.round >= self._job.rounds:
            return Code.NO_SUCH_ROUND, b""
        cohort, each = self._job.cohort(asked.round), self._mixing.covered_bytes
        digest, covered = asked.body[:DIGEST_BYTES], asked.body[DIGEST_BYTES:]
        if len(covered) != len(cohort) * each:
            return Code.TOO_FEW, b""
        context = context_of(asked.job, asked.run, asked.round, digest)
        try:
            opened = [
                uncovered(covered[n * each : (n + 1) * each], site, self._key, self._keys, context)
                for n, site in enumerate(cohort)
            ]
        except MessageError:
            return Code.BAD_MESSAGE, b""
        return Code.OK, self._mixing.mix(opened)
