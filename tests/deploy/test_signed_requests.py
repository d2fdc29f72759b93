"""A silo answers its server, and nobody who only knows what every silo knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.deploy.frames import Reply
from tacit.deploy.seam import Code
from tacit.deploy.signatures import sign
from tacit.deploy.signed_requests import SIGNATURE_BYTES, OnlyForServer, SigningBackend


@dataclass
class _Carrier:
    """A network that keeps what it carries."""

    carried: list[bytes] = field(default_factory=list)

    def run_round(self, request: bytes, **others: Any) -> dict[str, Any]:
        self.carried.append(request)
        return {}


def _signed(request: bytes, key: Ed25519PrivateKey) -> bytes:
    carrier = _Carrier()
    SigningBackend(carrier, key).run_round(request, sites=("site-0",), quorum=1, deadline_seconds=1.0)
    (carried,) = carrier.carried
    return carried


def _code(answer: bytes) -> Code:
    return Reply.decode(answer, body_limit=10_000).code


def test_another_silo_cannot_spend_a_silos_budget(consortium: Callable[..., Any]) -> None:
    """It knows the job, and can write any request. Nothing is charged for it."""
    made = consortium()
    silo = made.silo("site-0")
    guarded = OnlyForServer(silo, "site-0", made.job.identities.server)
    forged = made.request(0, run="f" * 32)
    for request in (forged, bytes(SIGNATURE_BYTES) + forged, _signed(forged, made.signing["site-1"]), b""):
        assert _code(guarded.step(request)) is Code.MALFORMED
    with silo.ledger.page() as page:
        assert page.account.runs == ()
    assert _code(guarded.step(_signed(made.request(0), made.signing["server"]))) is Code.OK
    with silo.ledger.page() as page:
        assert len(page.account.runs) == 1


def test_a_copy_gets_the_same_bytes_and_a_changed_one_nothing(consortium: Callable[..., Any]) -> None:
    made = consortium()
    guarded = OnlyForServer(made.silo("site-0"), "site-0", made.job.identities.server)
    request = _signed(made.request(0), made.signing["server"])
    answer = guarded.step(request)
    assert guarded.step(request) == answer
    for other in (made.request(1), made.request(0, point=1.0), made.request(0, run="f" * 32)):
        assert _code(guarded.step(request[:SIGNATURE_BYTES] + other)) is Code.MALFORMED


def test_a_certificate_of_the_server_is_no_signature_of_a_request(consortium: Callable[..., Any]) -> None:
    made = consortium()
    guarded = OnlyForServer(made.silo("site-0"), "site-0", made.job.identities.server)
    certificate = sign({"kind": "run"}, made.signing["server"])
    signature = bytes.fromhex(certificate.rpartition(b'"signature": "')[2][:128].decode())
    assert _code(guarded.step(signature + certificate)) is Code.MALFORMED


@pytest.mark.parametrize("kind", ["heads", "certify"])
def test_nothing_that_is_unsigned_is_read(kind: str, consortium: Callable[..., Any]) -> None:
    made = consortium()
    guarded = OnlyForServer(made.silo("site-0"), "site-0", made.job.identities.server)
    assert _code(guarded.step(made.request(0, kind=kind))) is Code.MALFORMED
    assert _code(guarded.step(_signed(made.request(0, kind=kind), made.signing["server"]))) is not Code.MALFORMED
