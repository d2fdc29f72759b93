"""A certificate holds as it was signed by whom the job names, and with no other number, sentence, byte or key."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tacit.cli.verify import verify as verify_verb
from tacit.deploy.frames import Reply, Request
from tacit.deploy.identities import Identities, read_signing_key
from tacit.deploy.job import Job
from tacit.deploy.report import Report
from tacit.deploy.run_checks import check_run
from tacit.deploy.sealing import write_key
from tacit.deploy.signatures import CertificateError, public_key_hex, read_signed, sign, spelled
from tacit.deploy.silo_checks import Trusted, check_silo, read_basis
from tacit.deploy.verification import verify
from tacit.engine.loaded import load_run
from tacit.errors import DataError, RequestError
from tacit.privacy import Adjacency, Adversary, events
from tacit.privacy.accountant import accounting
from tacit.privacy.accountant import filter as privacy_filter

SHUFFLED = {"algorithm": "shuffled-mb-sgd", "sampling": "without-replacement", "batch": 4.0}
SHUFFLED |= dict.fromkeys(("snapshot_probability", "compressor"), "leave out")


def _flipped(content: bytes, position: int, bit: int = 0) -> bytes:
    return content[:position] + bytes([content[position] ^ (1 << bit)]) + content[position + 1 :]


def _finished(consortium: Callable[..., Any], **settings: Any) -> Any:
    made = consortium(**{"sites": 2, "rounds": 2, **settings})
    made.server().run()
    return made


def _of_run(made: Any) -> Path:
    return Path(made.directory / "server" / "certificate.json")


def _of_silo(made: Any, site: str = "site-0") -> Path:
    (path,) = (made.directory / site).glob("certificates/*/certificate.json")
    return Path(path)


def _beside(path: Path) -> dict[str, bytes]:
    names = ("job.toml", "ledger.jsonl", "model.safetensors")
    return {name: (path.parent / name).read_bytes() for name in names if (path.parent / name).exists()}


def _content(certificate: bytes | Path) -> dict[str, Any]:
    """What was signed, ready to be changed and signed again."""
    body = json.loads(certificate if isinstance(certificate, bytes) else certificate.read_bytes())
    return {name: value for name, value in body.items() if name not in ("format", "public_key", "signature")}


def _in_run(made: Any, **silos: bytes | None) -> bytes:
    """The certificate of the run with other certificates of silos, signed by the server as if they were real."""
    body = _content(_of_run(made))
    body["silos"] |= {site.replace("_", "-"): None if c is None else json.loads(c) for site, c in silos.items()}
    costs = [silo["epsilon"]["collaboration"] for silo in body["silos"].values() if silo]
    return sign({**body, "largest_epsilon": max(costs, default=None)}, made.signing["server"])


def test_a_silos_certificate_says_who_is_protected_against_whom(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    path = _of_silo(made)
    found = verify(path.read_bytes(), _beside(path))
    body = found.body
    assert found.not_checked == ()
    assert made.job.digest in found.keys
    assert (body["unit"], body["adversary"], body["adjacency"]) == ("record", "server", "replace-one")
    assert (body["rounds_answered"], body["rounds_planned"], body["records"]) == (2, 2, 24)
    assert body["noise_multiplier"] == made.silo("site-0").terms.noise_multiplier
    assert 0 < body["epsilon"]["run"] <= body["epsilon"]["collaboration"] <= 4.0
    assert body["accountant"]["version"]
    assert "against the server" in body["promise"]
    assert made.job.digest == body["job"]


def test_a_loaded_deployment_promises_what_its_silos_signed(consortium: Callable[..., Any]) -> None:
    """Every epsilon follows from the events again; other terms are the weakest of any silo."""
    made = _finished(consortium)
    signed = _content(_of_run(made))["silos"]
    loaded = load_run(_of_run(made).parent)
    found = loaded.guarantee
    assert found is not None
    assert found.epsilons == pytest.approx([silo["epsilon"]["collaboration"] for silo in signed.values()])
    assert "for each of 2 clients" in found.sentence()
    assert found.sentence() in repr(loaded)
    alone = load_run(_of_silo(made).parent).guarantee
    assert alone is not None
    assert alone.sentence() == signed["site-0"]["promise"]

    # What a certificate says of its epsilon counts for nothing.
    told = _content(_of_run(made))
    told["silos"]["site-0"] |= {"epsilon": {"run": 0.1, "collaboration": 0.1}, "adjacency": "add-remove"}
    told["silos"]["site-1"] |= {"adversary": "shuffler", "public": ["the weather"]}
    _of_run(made).write_text(json.dumps(told))
    other = load_run(_of_run(made).parent).guarantee
    assert other is not None
    assert other.epsilons == found.epsilons
    assert (other.adjacency, other.adversary) == (Adjacency.REPLACE_ONE, Adversary.SHUFFLER)
    assert set(other.public) == {*found.public, "the weather"}


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"insecure_reproducible": 0, "kind": "run", "silos": {}}'])
def test_a_certificate_that_promises_nothing_readable_is_refused(
    consortium: Callable[..., Any], content: bytes
) -> None:
    made = _finished(consortium)
    _of_run(made).write_bytes(content)
    with pytest.raises(DataError, match="is not the certificate of a run"):
        _ = load_run(_of_run(made).parent).guarantee


def test_a_silo_vouches_for_the_points_it_was_asked_at_and_not_for_the_model(
    consortium: Callable[..., Any],
) -> None:
    made = _finished(consortium)
    body = _content(_of_silo(made))
    model = (_of_run(made).parent / "model.safetensors").read_bytes()
    assert hashlib.sha256(model).hexdigest() in _of_run(made).read_text()
    assert hashlib.sha256(model).hexdigest() not in _of_silo(made).read_text()
    # It is there for the silo's people all the same.
    assert (_of_silo(made).parent / "model.safetensors").read_bytes() == model
    assert set(body["points"]) == {"0", "1"}
    lines = [
        json.loads(json.loads(line)["body"]) for line in _beside(_of_silo(made))["ledger.jsonl"].splitlines()
    ]
    assert body["points"] == {str(line["round"]): line["point"] for line in lines if line["kind"] == "release"}
    assert _content(_of_run(made))["only_stated"]["files"] == "that the run produced this model"


def test_a_forged_certificate_of_a_silo_fails_with_any_key_but_the_jobs(consortium: Callable[..., Any]) -> None:
    """Epsilon 0.0025 where the truth is 4: consistent in itself, and signed by somebody."""
    made = _finished(consortium)
    honest = _content(_of_silo(made))
    assert honest["epsilon"]["run"] > 3.9
    quiet = 1e4
    terms = replace(made.silo("site-0").terms, noise_multiplier=quiet, noise_std=honest["noise_std"] * 1e4)
    event = terms.event(2)
    cost = accounting.epsilon(event, 1e-4)
    assert cost < 0.003
    fake = {**honest, "noise_multiplier": quiet, "epsilon": {"run": cost, "collaboration": cost}}
    together = events.chosen_runs([event], honest["policy"]["epsilon"])
    fake["events"] = {"run": events.to_dict(event), "collaboration": events.to_dict(together)}
    for key in (Ed25519PrivateKey.generate(), made.signing["server"], made.signing["site-1"]):
        forged = sign(fake, key)
        with pytest.raises(CertificateError, match="the job names"):
            made.verified(forged)
        with pytest.raises(CertificateError, match="certificate of 'site-0': it is signed with the key"):
            made.verified(_in_run(made, site_0=forged))
    # Only with its own key can a silo lie about its noise; then no sentence of the truth may be left.
    with pytest.raises(CertificateError, match=r"its (noise_std|promise)"):
        made.verified(sign(fake, made.signing["site-0"]))


def test_the_server_signs_with_the_key_in_the_job_or_not_at_all(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    body = _content(_of_run(made))
    made.verified(sign(body, made.signing["server"]))
    for key in (Ed25519PrivateKey.generate(), made.signing["site-0"]):
        with pytest.raises(CertificateError, match="the job names"):
            made.verified(sign(body, key))
    with pytest.raises(RequestError, match="not the key that the job names"):
        made.server(signer=Ed25519PrivateKey.generate())


def test_swapped_and_foreign_certificates_are_noticed(consortium: Callable[..., Any], tmp_path: Path) -> None:
    made = _finished(consortium)
    first = {site: _of_silo(made, site).read_bytes() for site in ("site-0", "site-1")}
    with pytest.raises(CertificateError, match="another site, run or job"):
        made.verified(_in_run(made, site_0=first["site-1"], site_1=first["site-0"]))
    # The same silos in another run of the same job, with the same keys.
    other = replace(made, directory=tmp_path)
    other.server().run()
    with pytest.raises(CertificateError, match="another site, run or job"):
        made.verified(_in_run(made, site_0=_of_silo(other).read_bytes()))
    # Another job with the same keys.
    later = replace(
        made,
        job=replace(made.job, recipe=made.job.recipe.with_algorithm_settings(step=0.25)),
        directory=tmp_path / "later",
    )
    later.server().run()
    with pytest.raises(CertificateError, match="another site, run or job"):
        made.verified(_in_run(made, site_0=_of_silo(later).read_bytes()))
    with pytest.raises(CertificateError, match="is not its job"):
        made.verified(_of_run(later).read_bytes())
    with pytest.raises(CertificateError, match="not a silo of the job"):
        made.verified(sign({**_content(first["site-0"]), "site": "site-9"}, made.signing["site-0"]))


EDITED: dict[str, Any] = {
    "promise": "Nobody can learn anything (epsilon = 0.001).",
    "unit": "client",
    "adversary": "shuffler",
    "adjacency": "add-remove",
    "public": [],
    "policy": {"epsilon": 9.0, "delta": 1e-3},
    "delta": 1e-9,
    "records": 10**6,
    "sampling_rate": 0.001,
    "noise_multiplier": 99.0,
    "noise_std": 99.0,
    "clip_norm": 0.1,
    "bound": "normalise",
    "sampling": "full",
    "model": "softmax",
    "algorithm": "cdp-sgd",
    "rounds_planned": 1,
    "rounds_answered": 1,
    "points": {},
    "ledger": {"lines": 2, "hash": "0" * 64, "before_run": {"lines": 0, "hash": "0" * 64}},
    "run_if_others_help": {"server": {"event": {"kind": "nothing"}, "epsilon": 0.0}},
    "run_for_the_whole_site": {"epsilon": 0.1, "delta": 1e-5},
    "insecure_reproducible": True,
    "only_stated": {},
    "certified_by": "an authority",
}


def test_no_statement_can_be_edited_even_by_its_signer(consortium: Callable[..., Any]) -> None:
    """Everything follows from the events and the job: the sentence that is printed first, like every number."""
    made = _finished(consortium)
    body = _content(_of_silo(made))
    made.verified(sign(body, made.signing["site-0"]))
    for name, value in EDITED.items():
        assert body.get(name) != value
        lie = sign({**body, name: value}, made.signing["site-0"])
        with pytest.raises(CertificateError):
            made.verified(lie)
        with pytest.raises(CertificateError, match="certificate of 'site-0'"):
            made.verified(_in_run(made, site_0=lie))


def test_nothing_can_be_left_out_even_by_its_signer(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    for path, key in ((_of_silo(made), "site-0"), (_of_run(made), "server")):
        body = _content(path)
        for name in body:
            less = {other: value for other, value in body.items() if other != name}
            with pytest.raises(CertificateError):
                made.verified(sign(less, made.signing[key]))


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_an_epsilon_is_what_its_events_cost(consortium: Callable[..., Any], share: float) -> None:
    made = _finished(consortium)
    body = _content(_of_silo(made))
    for name in ("run", "collaboration"):
        lie = {**body, "epsilon": {**body["epsilon"], name: body["epsilon"][name] * share}}
        with pytest.raises(CertificateError, match="its epsilon"):
            made.verified(sign(lie, made.signing["site-0"]))
        with pytest.raises(CertificateError, match="its epsilon"):
            verify(sign(lie, Ed25519PrivateKey.generate()), {}, Trusted(unknown_keys=True))


def test_the_promise_to_a_whole_site_is_kept_and_in_the_certificate(consortium: Callable[..., Any]) -> None:
    settings = {"client_epsilon": 20.0, "client_delta": 1e-3, "records": 6}
    made, plain = _finished(consortium, **settings), consortium(sites=2, rounds=2, records=6)
    body = made.verified(_of_silo(made).read_bytes()).body
    assert body["noise_multiplier"] > plain.silo("site-0").terms.noise_multiplier
    whole = body["run_for_the_whole_site"]
    assert body["epsilon"]["run"] < whole["epsilon"] <= 20.0
    assert whole["delta"] == 1e-3
    assert whole["public"] == ["the number of records of every client"]
    lie = {**_content(_of_silo(made)), "run_for_the_whole_site": {**whole, "epsilon": whole["epsilon"] * 0.9}}
    with pytest.raises(CertificateError, match="run_for_the_whole_site"):
        made.verified(sign(lie, made.signing["site-0"]))
    with pytest.raises(CertificateError, match="run_for_the_whole_site"):
        verify(sign(lie, made.signing["site-0"]), {}, Trusted(unknown_keys=True))
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
    """The certificate of the first silo, but for what is drawn anew in every run, and digests of that."""
    body = made.verified(_of_silo(made).read_bytes(), _beside(_of_silo(made))).body
    drawn = ("run", "job", "files", "ledger", "points", "witnessed", "signature", "public_key")
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
        # The body of an answer is a noisy message; that of the last is the certificate. The head of a ledger is a
        # hash of what has the noise in it.
        frames.append([(replace(reply, run="", body=b"", head=b""), len(reply.body)) for reply in replies[:-1]])
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
    read_signed(content)
    for position in range(len(content)):
        with pytest.raises(CertificateError):
            read_signed(_flipped(content, position, position % 7))


def test_no_byte_of_what_it_names_can_be_flipped(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    for path in (_of_silo(made), _of_run(made)):
        content, files = path.read_bytes(), _beside(path)
        named = [name for name in files if name != "model.safetensors" or path == _of_run(made)]
        assert len(named) == 2
        for name in named:
            for position in range(0, len(files[name]), max(1, len(files[name]) // 40)):
                with pytest.raises(CertificateError):
                    verify(content, {**files, name: _flipped(files[name], position)})


def test_tricks_with_json_are_not_certificates(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    content = _of_silo(made).read_bytes()
    twice = content.replace(b'"format"', b'"format": "tacit-certificate-2",\n  "format"', 1)
    for wrong in (
        content + b"\n",
        content[:-1],
        json.dumps(json.loads(content)).encode(),
        twice,
        content.replace(b'"records": 24', b'"records": 2.4e1'),
        content.replace(b'"records": 24', b'"records": NaN'),
        content.replace(b'"records": 24', b'"records": 1e999'),
        content.replace(b'"records": 24', b'"records": 1' + b"0" * 5000),
        content.replace(b'"records": 24', b'"records": ' + b"[" * 10**5),
        content.replace(b"silo", b"\\u0073ilo", 1),
        b"\xef\xbb\xbf" + content,
        b"[" * 10**5 + b"]" * 10**5,
        b"",
        b"[]",
        b"{}",
        b"\xff",
    ):
        assert wrong != content
        with pytest.raises(CertificateError):
            made.verified(wrong)


HOSTILE: tuple[Any, ...] = (None, True, 1, -0.0, 1e308, 2**70, "", "\ud800", [], {})


def test_whatever_a_key_holder_signs_is_refused_cleanly(consortium: Callable[..., Any]) -> None:
    """True for 1, 24.0 for 24, huge numbers, deep nesting, surrogates, escapes for the terminal."""
    made = _finished(consortium)
    trusted = Trusted(job=made.job.text.encode())
    deep: Any = {"kind": "nothing"}
    for _ in range(200):
        deep = {"kind": "repeated", "rounds": 1, "event": deep}
    body = json.loads(_of_silo(made).read_bytes())
    basis = read_basis(body, None, trusted)
    for name in _content(_of_silo(made)):
        for value in (*HOSTILE, float(body[name]) if type(body[name]) is int else None):
            if (type(value) is type(body[name]) and value == body[name]) or (name, value) == ("witnessed", {}):
                # The same, or a silo that keeps to itself what it has witnessed: the verdict on the run says so.
                continue
            with pytest.raises(CertificateError):
                check_silo({**body, name: value}, basis)
        with pytest.raises(CertificateError, match="certificate of 'site-0'"):
            made.verified(_with_silo(made, {**_content(_of_silo(made)), name: "\x1b[2J"}))
    for events_of in ("run", "collaboration"):
        with pytest.raises(CertificateError, match="nests"):
            made.verified(
                _with_silo(made, {**_content(_of_silo(made)), "events": {**body["events"], events_of: deep}})
            )
    run = json.loads(_of_run(made).read_bytes())
    basis = read_basis(run, None, trusted)
    for name in _content(_of_run(made)):
        for value in HOSTILE:
            if type(value) is type(run[name]) and value in (run[name], {}):
                # The same, or no problems, and no message used.
                continue
            with pytest.raises(CertificateError):
                check_run({**run, name: value}, basis) if name not in ("kind", "job") else made.verified(
                    sign({**_content(_of_run(made)), name: value}, made.signing["server"])
                )


def test_events_without_end_are_refused_before_anything_is_computed(
    consortium: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _finished(consortium)
    body, key = _content(_of_silo(made)), made.signing["site-0"]

    def refused(run: dict[str, Any], *others: dict[str, Any]) -> None:
        events = {"run": run, "collaboration": {**body["events"]["collaboration"], "runs": [run, *others]}}
        for trusted in (None, Trusted(unknown_keys=True)):
            with pytest.raises(CertificateError, match=r"no run has more than|different runs|1001 runs"):
                verify(sign({**body, "events": events}, key), {} if trusted else _beside(_of_silo(made)), trusted)

    def of_rate(rate: float, rounds: int = 5) -> dict[str, Any]:
        one = {"kind": "poisson", "sampling_rate": rate, "noise_multiplier": 50.0}
        return {"kind": "repeated", "rounds": rounds, "event": one}

    honest = body["events"]["run"]
    several = {"kind": "composed", "events": [of_rate(0.1 + 1e-4 * n) for n in range(300)]}

    def computes(*anything: Any) -> float:
        raise AssertionError("it computes")

    monkeypatch.setattr(privacy_filter, "_least_shift", computes)
    refused(several)
    refused(honest, several)
    refused(honest, of_rate(0.1, rounds=10**9))
    refused(honest, *(of_rate(0.1 + 1e-4 * n) for n in range(300)))
    refused(honest, *[honest] * 1000)


def _with_silo(made: Any, silo: dict[str, Any]) -> bytes:
    body = _content(_of_run(made))
    body["silos"]["site-0"] = json.loads(sign(silo, made.signing["site-0"]))
    return sign(body, made.signing["server"])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["silo", "run", "other"]), st.dictionaries(st.text(max_size=9), JSON, max_size=5), JSON)
def test_made_up_certificates_get_a_clean_error(kind: str, body: dict[str, Any], value: Any) -> None:
    key = Ed25519PrivateKey.generate()
    names = ("silos", "events", "points", "site", "policy", "epsilon", "run", "job")
    made_up = sign({**body, **dict.fromkeys(names, value), "kind": kind}, key)
    for trusted in (Trusted(), Trusted(unknown_keys=True), Trusted(key=public_key_hex(key))):
        with pytest.raises(CertificateError):
            verify(made_up, {"job.toml": b"x = 1"}, trusted)
        with pytest.raises(CertificateError):
            verify(made_up, {}, trusted)


def test_the_certificate_of_a_run_vouches_for_those_of_its_silos(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    found = verify(_of_run(made).read_bytes(), _beside(_of_run(made)))
    assert "signatures of the server and 2 silos" in found.checked
    assert "2 rounds: the server showed all silos the same model" in found.checked
    assert "2 witnessed ledger heads, against the silos' own: none was set back" in found.checked
    assert found.not_checked == ()
    body = json.loads(_of_run(made).read_bytes())
    assert body["silos"]["site-0"] == json.loads(_of_silo(made).read_bytes())
    # Not even the server's own key can sign for what a silo has not said.
    for change in ({"site": "site-1"}, {"rounds_answered": 1}):
        forged = _content(_of_run(made))
        forged["silos"] = {**body["silos"], "site-0": {**body["silos"]["site-0"], **change}}
        with pytest.raises(CertificateError, match="certificate of 'site-0'"):
            made.verified(sign(forged, made.signing["server"]))
    with pytest.raises(CertificateError, match="another site, run or job"):
        made.verified(sign({**_content(_of_run(made)), "run": "f" * 32}, made.signing["server"]))
    # A silo that did not sign is missing, and said to be.
    assert "site-0 gave no certificate" in made.verified(_in_run(made, site_0=None)).not_checked


def test_a_server_cannot_say_of_its_silos_what_they_do_not(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    body = _content(_of_run(made))
    made.verified(sign(body, made.signing["server"]))
    lies: list[dict[str, Any]] = [
        {"largest_epsilon": 0.1},
        {"largest_epsilon": None},
        {"insecure_reproducible": True},
        {"algorithm": "other"},
        {"rounds": 3},
        {"rounds": 1},
        {"messages_used": {"site-0": 3}},
        {"messages_used": {"site-9": 1}},
        {"problems": {"site-0 fell asleep": 1}},
        {"problems": {"site-9 failed": 1}},
        {"only_stated": {}},
        {"silos": {}},
        {"note": "all is well"},
    ]
    for lie in lies:
        with pytest.raises(CertificateError):
            made.verified(sign({**body, **lie}, made.signing["server"]))


class _TwoFaced:
    """A backend of a server that shows one site another model."""

    def __init__(self, honest: Any) -> None:
        self._honest = honest

    def run_round(self, request: bytes, *, sites: Any, **settings: Any) -> dict[str, Any]:
        asked = Request.decode(request)
        other = replace(asked, body=bytes(len(asked.body))).encode() if asked.round == 1 else request
        shown = {site: other if site == "site-1" and asked.kind == "round" else request for site in sites}
        return {site: self._honest.run_round(shown[site], sites=[site], **settings)[site] for site in sites}


def test_a_server_that_shows_silos_different_models_is_found_out(consortium: Callable[..., Any]) -> None:
    made = consortium(rounds=3)
    finished = made.server(_TwoFaced(made.backend())).run()
    with pytest.raises(CertificateError, match="in round 1 the server showed site-1 another model than site-0"):
        made.verified(finished.certificate)


class _Hasty:
    """A backend of a server that has one site certify before the end, and keeps that certificate."""

    def __init__(self, made: Any) -> None:
        self._made, self._honest, self.early = made, made.backend(), b""

    def run_round(self, request: bytes, *, sites: Any, **settings: Any) -> dict[str, Any]:
        asked = Request.decode(request)
        if asked.kind == "round" and asked.round == 2:
            certify = replace(asked, kind="certify", body=bytes(len(asked.body))).encode()
            answer = self._honest.run_round(certify, sites=["site-0"], **settings)["site-0"]
            self.early = Reply.decode(answer, body_limit=2**20).body
        return dict(self._honest.run_round(request, sites=sites, **settings))


def test_an_older_certificate_of_the_same_run_does_not_pass_for_the_last_one(
    consortium: Callable[..., Any],
) -> None:
    made = consortium(sites=2, rounds=4)
    hasty = _Hasty(made)
    finished = made.server(hasty).run()
    assert made.verified(hasty.early).body["rounds_answered"] == 2
    made.verified(finished.certificate)
    body = {**_content(finished.certificate), "messages_used": {"site-0": 2, "site-1": 4}}
    body["silos"] = {**body["silos"], "site-0": json.loads(hasty.early)}
    body["largest_epsilon"] = max(silo["epsilon"]["collaboration"] for silo in body["silos"].values())
    with pytest.raises(CertificateError, match="site-1 holds a ledger head signed by site-0, of 5 lines"):
        made.verified(sign(body, made.signing["server"]))


def test_without_a_job_or_a_key_nobody_knows_who_signed(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    run, silo = _of_run(made).read_bytes(), _of_silo(made).read_bytes()
    for content in (run, silo):
        with pytest.raises(CertificateError, match="it is not known whose keys signed it"):
            verify(content)
        weak = verify(content, {}, Trusted(unknown_keys=True))
        assert weak.keys.startswith("nothing")
        assert any("there is no job here" in missing for missing in weak.not_checked)
    own = public_key_hex(made.signing["site-0"])
    assert verify(silo, {}, Trusted(key=own)).keys == "the one key that you gave"
    with pytest.raises(CertificateError, match="not with"):
        verify(silo, {}, Trusted(key="0" * 64))
    # The server's key says nothing about the silos'.
    with pytest.raises(CertificateError, match="it is not known whose keys"):
        verify(run, {}, Trusted(key=public_key_hex(made.signing["server"])))


def test_a_job_of_the_forgers_own_making_has_another_digest(
    consortium: Callable[..., Any], tmp_path: Path
) -> None:
    """It goes together with the forged certificate, and not with the job that silos signed up for."""
    made = _finished(consortium)
    keys = {party: Ed25519PrivateKey.generate() for party in made.signing}
    known = Identities.of(keys["server"], {site: keys[site] for site in made.job.sites})
    forged = replace(made, job=replace(made.job, identities=known), signing=keys, directory=tmp_path)
    forged.server().run()
    found = verify(_of_run(forged).read_bytes(), _beside(_of_run(forged)))
    assert found.keys == f"job {forged.job.digest}, the job.toml beside the certificate"
    assert forged.job.digest != made.job.digest
    with pytest.raises(CertificateError, match="the one that you gave is not its job"):
        made.verified(_of_run(forged).read_bytes(), _beside(_of_run(forged)))


def test_a_job_beside_a_certificate_cannot_run_code(
    consortium: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _finished(consortium)
    ran = tmp_path / "ran"
    (tmp_path / "evil_model.py").write_text(f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    named = "module:evil_model:make"
    # Built at once, because reports ask whom the algorithm protects.
    report = "\n[consortium.report]\nevery = 1\nloss_bound = 1.0\nepsilon = 0.1\n"
    for model, table in ((f'model = "{named}"', ""), ("", f'[model]\nname = "{named}"\nwidth = 3\n')):
        text = made.job.text.replace('model = "logistic"', model) + table + report
        body = {**_content(_of_run(made)), "job": hashlib.sha256(text.encode()).hexdigest()}
        with pytest.raises(CertificateError, match="code of its own"):
            verify(sign(body, made.signing["server"]), {"job.toml": text.encode()})
        assert not ran.exists()
        # That there was something to be afraid of: whoever trusts the job runs it.
        with pytest.raises(CertificateError, match="is not a job"):
            verify(sign(body, made.signing["server"]), {}, Trusted(job=text.encode()))
        assert ran.exists()
        ran.unlink()
        sys.modules.pop("evil_model")


def test_keys_in_a_job_are_one_for_each_and_all_different(consortium: Callable[..., Any]) -> None:
    job = consortium(sites=2).job
    assert Job.from_text(job.text) == job
    known = job.identities
    assert replace(job, identities=replace(known, server="1" * 64)).digest != job.digest
    for wrong in (
        {"silos": {"site-0": known.server, "site-1": known.silos["site-1"]}},
        {"silos": {"site-0": known.silos["site-0"]}},
        {"silos": {**known.silos, "site-2": "0" * 64}},
        {"server": known.server.upper()},
        {"server": 3},
    ):
        with pytest.raises(RequestError, match="identities"):
            replace(job, identities=replace(known, **wrong))
    with pytest.raises(RequestError, match="identities"):
        Job.from_text(job.text.replace("[consortium.identities]\n", "[consortium.identities]\nextra = 1\n"))


def test_a_silo_without_the_key_that_the_job_names_does_not_start(consortium: Callable[..., Any]) -> None:
    made = consortium(sites=2)
    with pytest.raises(RequestError, match="not the key that the job names for 'site-0'"):
        replace(made, signing={**made.signing, "site-0": made.signing["site-1"]}).silo("site-0")
    draft = replace(made, job=replace(made.job, identities=None))
    with pytest.raises(RequestError, match="names no signing keys"):
        draft.silo("site-0")
    with pytest.raises(RequestError, match="names no signing keys"):
        draft.server()


def test_a_signing_key_is_read_from_its_file_or_refused(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    write_key(tmp_path / "signing.key", key)
    assert public_key_hex(read_signing_key(tmp_path / "signing.key")) == public_key_hex(key)
    (tmp_path / "signing.key").write_bytes(b"no key")
    for path in (tmp_path / "signing.key", tmp_path / "missing.key"):
        with pytest.raises(DataError, match="cannot read the signing key"):
            read_signing_key(path)


def test_a_trial_says_that_it_protected_nobody(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium, noise="gaussian")
    body = made.verified(_of_silo(made).read_bytes()).body
    assert body["insecure_reproducible"] is True
    assert body["promise"].startswith("No privacy")


@pytest.mark.parametrize("settings", [{"report": Report(1, 1.0, 0.1)}, SHUFFLED, {"cohort": 1, "rounds": 4}])
def test_other_kinds_of_runs_are_rebuilt_as_well(
    consortium: Callable[..., Any], settings: dict[str, Any]
) -> None:
    made = _finished(consortium, **settings)
    path = _of_silo(made)
    assert verify(path.read_bytes(), _beside(path)).not_checked == ()
    body = _content(path)
    for lie in ({"report": {**body.get("report", {}), "noise_multiplier": 77.0}}, {"noise_multiplier": 77.0}):
        with pytest.raises(CertificateError):
            made.verified(sign({**body, **lie}, made.signing["site-0"]))


def test_a_certificate_cannot_hide_that_a_run_relied_on_a_shuffler(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium, **SHUFFLED)
    lie = {**_content(_of_silo(made)), "adversary": "server"}
    with pytest.raises(CertificateError, match="its adversary"):
        made.verified(sign(lie, made.signing["site-0"]))


def test_what_is_stated_of_a_ledger_is_what_the_ledger_says(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium, policy={"epsilon": 9.0})
    path = _of_silo(made)
    files, body = _beside(path), _content(path)
    lines = files["ledger.jsonl"].splitlines(keepends=True)
    for cut in (b"".join(lines[:-1]), b"", b"{}\n", b"".join(lines[1:])):
        named = {**body, "files": {"ledger.jsonl": hashlib.sha256(cut).hexdigest()}}
        with pytest.raises(CertificateError, match="ledger"):
            made.verified(sign(named, made.signing["site-0"]), {**files, "ledger.jsonl": cut})
    with pytest.raises(CertificateError, match="not the file that was signed"):
        verify(path.read_bytes(), {**files, "ledger.jsonl": b"".join(lines[:-1])})


def _verb(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(verify_verb)
    return CliRunner().invoke(app, list(arguments))


def test_the_verb_says_what_it_checked_against_what(consortium: Callable[..., Any], tmp_path: Path) -> None:
    made = _finished(consortium)
    for path in (_of_silo(made), _of_run(made)):
        result = _verb(str(path))
        assert result.exit_code == 0, result.output
        assert "The certificate is valid." in result.output
        assert made.job.digest in result.output
        assert "Compare its digest" in " ".join(result.output.split())
        assert all(
            len(line) <= 80 or line == str(path.parent / "report.html") for line in result.output.splitlines()
        )
        own = tmp_path / "job.toml"
        own.write_text(made.job.text)
        sure = _verb(str(path), "--job", str(own))
        assert "the one that you gave" in " ".join(sure.output.split())
        assert "Compare its digest" not in " ".join(sure.output.split())
        told = json.loads(_verb(str(path), "--json").output)
        assert told["valid"] is True
        assert told["keys_checked_against"].startswith(f"job {made.job.digest}")
        assert told["certificate"]["run"] == json.loads(path.read_bytes())["run"]
        own.write_text(made.job.text + "\n")
        assert isinstance(_verb(str(path), "--job", str(own)).exception, CertificateError)


def test_the_verb_fails_without_keys_unless_it_is_told_to_go_on(consortium: Callable[..., Any]) -> None:
    made = _finished(consortium)
    path = _of_run(made)
    (path.parent / "job.toml").unlink()
    assert isinstance(_verb(str(path)).exception, CertificateError)
    failed = _verb(str(path), "--json")
    assert failed.exit_code == 1
    assert json.loads(failed.output)["valid"] is False
    weak = _verb(str(path), "--unknown-keys")
    assert weak.exit_code == 0
    assert "The certificate is valid." not in weak.output
    assert "whoever signed" in " ".join(weak.output.split())
    key = public_key_hex(made.signing["site-0"])
    (_of_silo(made).parent / "job.toml").unlink()
    assert _verb(str(_of_silo(made)), "--key", key).exit_code == 0
    assert isinstance(_verb(str(_of_silo(made)), "--key", "0" * 64).exception, CertificateError)
    assert isinstance(_verb(str(path.parent / "missing.json")).exception, DataError)


def test_the_spelling_is_the_documented_one() -> None:
    assert spelled({"b": 1.5, "a": "\u00e9"}) == b'{\n  "a": "\\u00e9",\n  "b": 1.5\n}\n'
