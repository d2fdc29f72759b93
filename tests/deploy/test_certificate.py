"""A certificate holds as it was signed, and not with one flipped byte, in it or in what it names."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from tacit.cli.verify import verify as verify_verb
from tacit.deploy.frames import Reply
from tacit.deploy.report import Report
from tacit.errors import DataError, RequestError
from tacit.privacy.certificate import CertificateError, load_or_create_key, public_key_hex, sign, verify
from tacit.privacy.events import gaussian, to_dict

NAMED = ("ledger.jsonl", "job.toml", "model.safetensors")


def _flipped(content: bytes, position: int, bit: int = 0) -> bytes:
    return content[:position] + bytes([content[position] ^ (1 << bit)]) + content[position + 1 :]


def _finished(consortium: Callable[..., Any], **settings: Any) -> Any:
    made = consortium(**{"sites": 2, "rounds": 2, **settings})
    made.server().run()
    return made


def _beside(path: Path) -> dict[str, bytes]:
    return {name: (path.parent / name).read_bytes() for name in NAMED if (path.parent / name).exists()}


def _of_silo(made: Any, site: str = "site-0") -> Path:
    (path,) = (made.directory / site).glob("certificates/*/certificate.json")
    return Path(path)


def test_a_silos_certificate_says_who_is_protected_against_whom(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    path = _of_silo(made)
    found = verify(path.read_bytes(), _beside(path))
    body = found.body
    assert set(NAMED) <= set(found.checked)
    assert found.not_checked == ()
    assert (body["unit"], body["adversary"], body["adjacency"]) == ("record", "server", "replace-one")
    assert (body["rounds_answered"], body["rounds_planned"], body["records"]) == (2, 2, 24)
    assert body["noise_multiplier"] == made.silo("site-0").terms.noise_multiplier
    assert 0 < body["epsilon"]["run"] <= body["epsilon"]["collaboration"] <= 4.0
    assert body["accountant"]["version"]
    assert "Against the server" in body["promise"]
    assert made.job.digest == body["job"]


def test_the_promise_to_a_whole_site_is_kept_and_in_the_certificate(consortium: Callable[..., Any]) -> None:
    settings = {"client_epsilon": 20.0, "client_delta": 1e-3, "records": 6}
    made, plain = _finished(consortium, **settings), consortium(sites=2, rounds=2, records=6)
    body = verify(_of_silo(made).read_bytes()).body
    assert body["noise_multiplier"] > plain.silo("site-0").terms.noise_multiplier
    whole = body["run_for_the_whole_site"]
    assert body["epsilon"]["run"] < whole["epsilon"] <= 20.0
    assert whole["delta"] == 1e-3
    assert whole["public"] == ["the number of records of every client"]
    lie = {name: value for name, value in body.items() if name not in ("signature", "public_key", "format")}
    lie["run_for_the_whole_site"] = {**whole, "epsilon": whole["epsilon"] * 0.9}
    with pytest.raises(CertificateError, match="the whole site"):
        verify(sign(lie, Ed25519PrivateKey.generate()))
    with pytest.raises(RequestError, match="leave out client_epsilon"):
        consortium(report=Report(1, 1.0, 0.1), **settings).silo("site-0")


WHOLE_SITES: dict[str, Any] = {
    "algorithm": "dp-fedavg",
    "adversary": "server",
    "local_steps": 2,
    "local_step": 0.1,
    "momentum": 0.0,
    "batch": 4.0,
    **dict.fromkeys(("snapshot_probability", "compressor"), "leave out"),
}


def _said(made: Any) -> dict[str, Any]:
    """The certificate of the first silo, but for what is drawn anew in every run."""
    body = verify(_of_silo(made).read_bytes()).body
    drawn = ("run", "files", "ledger", "signature", "public_key")
    return {name: value for name, value in body.items() if name not in drawn}


def test_nothing_that_leaves_a_protected_site_tells_how_many_records_it_has(
    consortium: Callable[..., Any], disk: Path
) -> None:
    said, frames = [], []
    for records in (8, 30):
        made = replace(
            consortium(sites=2, rounds=2, records=records, **WHOLE_SITES), directory=disk / str(records)
        )
        made.server().run()
        said.append(_said(made))
        replies = [Reply.decode(frame, body_limit=2**20) for frame in made.left["site-0"]]
        # The body of an answer is a noisy message; that of the last is the certificate.
        frames.append([(replace(reply, run="", body=b""), len(reply.body)) for reply in replies[:-1]])
    assert said[0] == said[1]
    assert not {"records", "sampling_rate"} & set(said[0])
    assert said[0]["promise"].endswith("Taken as public: the number of clients.")
    assert frames[0] == frames[1]


def test_a_site_tells_its_size_only_if_job_and_policy_say_so(consortium: Callable[..., Any]) -> None:
    told = {**WHOLE_SITES, "public_sizes": True, "sites": 2, "rounds": 2}
    with pytest.raises(RequestError, match="the policy protects it"):
        consortium(policy={"public_sizes": False}, **told).silo("site-0")
    made = _finished(consortium, **told)
    body = _said(made)
    assert (body["records"], body["sampling_rate"]) == (24, 4 / 24)
    assert "the number of records of every client" in body["promise"]
    assert "as many of them" in body["promise"]
    # What was told once cannot be protected any more.
    later = consortium(policy={"epsilon": 50.0}, **{**WHOLE_SITES, "sites": 2})
    with pytest.raises(RequestError, match="can no longer protect it"):
        later.silo("site-0")
    consortium(policy={"epsilon": 50.0, "public_sizes": True}, **{**WHOLE_SITES, "sites": 2}).silo("site-0")


def test_the_least_size_that_a_policy_wants_is_named(consortium: Callable[..., Any]) -> None:
    body = _said(_finished(consortium, policy={"min_records": 20}, **WHOLE_SITES))
    assert "that the site has at least 20 records" in body["promise"]


def test_no_byte_of_a_certificate_can_be_flipped(consortium: Callable[..., Any]) -> None:
    content = _of_silo(_finished(consortium)).read_bytes()
    verify(content)
    for position in range(len(content)):
        for bit in (0, 5):
            with pytest.raises(CertificateError):
                verify(_flipped(content, position, bit))


def test_no_byte_of_what_it_names_can_be_flipped(consortium: Callable[..., Any]) -> None:
    path = _of_silo(_finished(consortium))
    content, files = path.read_bytes(), _beside(path)
    for name, named in files.items():
        for position in range(0, len(named), 7):
            with pytest.raises(CertificateError):
                verify(content, {**files, name: _flipped(named, position)})


def test_reformatting_and_truncating_show(consortium: Callable[..., Any]) -> None:
    content = _of_silo(_finished(consortium)).read_bytes()
    twice = content.replace(b'"format"', b'"format": "tacit-certificate-1",\n  "format"', 1)
    for wrong in (
        content + b"\n",
        content[:-1],
        json.dumps(json.loads(content)).encode(),
        twice,
        b"",
        b"[]",
        b"\xff",
    ):
        with pytest.raises(CertificateError):
            verify(wrong)


def test_the_certificate_of_a_run_vouches_for_those_of_its_silos(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    path = made.directory / "server" / "certificate.json"
    found = verify(path.read_bytes(), _beside(path))
    assert {"certificate of site-0", "certificate of site-1", "model.safetensors"} <= set(found.checked)
    body = json.loads(path.read_bytes())
    assert body["silos"]["site-0"] == json.loads(_of_silo(made).read_bytes())
    # Not even the server's own key can sign for what a silo has not said.
    key = load_or_create_key(made.directory / "server" / "signing.key")
    for change in ({"site": "site-1"}, {"rounds_answered": 1}):
        forged = {name: value for name, value in body.items() if name not in ("signature", "public_key")}
        forged["silos"] = {**body["silos"], "site-0": {**body["silos"]["site-0"], **change}}
        with pytest.raises(CertificateError, match="certificate of site-0"):
            verify(sign(forged, key))
    other = {name: value for name, value in body.items() if name not in ("signature", "public_key")}
    with pytest.raises(CertificateError, match="another site, run or job"):
        verify(sign({**other, "run": "f" * 32}, key))


def test_an_epsilon_below_that_of_its_events_is_no_certificate(tmp_path: Path) -> None:
    key = load_or_create_key(tmp_path / "key")
    event = to_dict(gaussian(3.0))
    body: dict[str, Any] = {
        "kind": "silo",
        "delta": 1e-5,
        "adjacency": "replace-one",
        "events": {"run": event, "collaboration": event},
        "policy": {"epsilon": 10.0},
    }
    verify(sign({**body, "epsilon": {"run": 3.0, "collaboration": 3.0}}, key))
    for wrong in ({"run": 2.0, "collaboration": 3.0}, {"run": 3.0, "collaboration": 11.0}, {"run": 3.0}, None):
        with pytest.raises(CertificateError):
            verify(sign({**body, "epsilon": wrong}, key))


def test_keys_are_made_once_and_kept_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "signing.key"
    key = load_or_create_key(path)
    assert public_key_hex(load_or_create_key(path)) == public_key_hex(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"no key")
    with pytest.raises(DataError, match="not a signing key"):
        load_or_create_key(path)


def test_a_trial_says_that_it_protected_nobody(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium, noise="gaussian")
    body = verify(_of_silo(made).read_bytes()).body
    assert body["insecure_reproducible"] is True
    assert body["promise"].startswith("No privacy")


def _verb(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(verify_verb)
    return CliRunner().invoke(app, list(arguments))


def test_the_verb_checks_what_lies_beside_the_certificate(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    path = _of_silo(made)
    result = _verb(str(path))
    assert result.exit_code == 0, result.output
    assert "Holds." in result.output
    key = json.loads(path.read_bytes())["public_key"]
    told = json.loads(_verb(str(path), "--json", "--key", key).output)
    assert told["valid"] is True
    assert "Holds." in _verb(str(made.directory / "server" / "certificate.json")).output
    assert isinstance(_verb(str(path), "--key", "0" * 64).exception, CertificateError)
    ledger = path.parent / "ledger.jsonl"
    ledger.write_bytes(_flipped(ledger.read_bytes(), 100))
    assert isinstance(_verb(str(path)).exception, CertificateError)
    assert isinstance(_verb(str(path.parent / "missing.json")).exception, DataError)


@pytest.mark.parametrize("fact", [{"records": 23}, {"noise_multiplier": 99.0}, {"unit": "client"}])
def test_the_terms_are_those_of_the_ledger(consortium: Callable[..., Any], fact: dict[str, Any]) -> None:
    path = _of_silo(_finished(consortium))
    body = verify(path.read_bytes(), _beside(path)).body
    lie = {name: value for name, value in body.items() if name not in ("signature", "public_key", "format")}
    with pytest.raises(CertificateError, match="terms"):
        verify(sign({**lie, **fact}, Ed25519PrivateKey.generate()), _beside(path))


@pytest.mark.parametrize("lie", [{"largest_epsilon": 0.1}, {"insecure_reproducible": True}])
def test_a_server_cannot_say_less_of_its_silos_than_they_do(
    consortium: Callable[..., Any], lie: dict[str, Any]
) -> None:
    made = _finished(consortium)
    body = dict(verify((made.directory / "server" / "certificate.json").read_bytes()).body)
    for name in ("signature", "public_key", "format"):
        body.pop(name)
    key = Ed25519PrivateKey.generate()
    verify(sign(body, key))
    with pytest.raises(CertificateError, match="its silos"):
        verify(sign({**body, **lie}, key))


def test_a_certificate_cannot_hide_that_a_run_relied_on_a_shuffler(consortium: Callable[..., Any]) -> None:
    shuffled = {"algorithm": "shuffled-mb-sgd", "sampling": "without-replacement", "batch": 4.0}
    shuffled |= dict.fromkeys(("snapshot_probability", "compressor"), "leave out")
    path = _of_silo(_finished(consortium, **shuffled))
    body = verify(path.read_bytes(), _beside(path)).body
    lie = {name: value for name, value in body.items() if name not in ("signature", "public_key", "format")}
    with pytest.raises(CertificateError, match="relied on somebody"):
        verify(sign({**lie, "adversary": "server"}, Ed25519PrivateKey.generate()), _beside(path))
