"""Behind a shuffler: all messages of a round or none, in every order, whatever the server tries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.deploy.frames import Reply, Request
from tacit.deploy.guard import admit
from tacit.deploy.job import Job
from tacit.deploy.mixing import Added, Covers, InRandomOrder, PublicKeys, context_of, mixing_of, point_digest
from tacit.deploy.policy import Policy
from tacit.deploy.reading import QuorumError
from tacit.deploy.sealing import public_bytes, unseal
from tacit.deploy.seam import Code
from tacit.deploy.shuffler import SHUFFLER, ShufflerParty
from tacit.deploy.signatures import CertificateError, sign
from tacit.engine.plan import plan
from tacit.engine.simulate import simulate
from tacit.errors import MessageError, RequestError
from tacit.privacy import events
from tacit.privacy.accountant.filter import least_epsilon

RUN = "0123456789abcdef" * 2
OPEN: dict[str, Any] = dict.fromkeys(("snapshot_probability", "compressor"), "leave out")
OPEN |= {"sampling": "without-replacement", "batch": 4.0}
GAUSSIAN: dict[str, Any] = {"algorithm": "shuffled-mb-sgd", "epsilon": 2.0, **OPEN}
COINS = {
    "algorithm": "shuffled-accelerated", "epsilon": 8.0,
    "stages": 2, "strong_convexity": 0.1, "projection": "ball:5", "rounds": 3, **OPEN,
}  # fmt: skip
BOTH = pytest.mark.parametrize("settings", [GAUSSIAN, COINS], ids=["gaussian", "coins"])


def _sent(made: Any, **request: Any) -> list[bytes]:
    """What every silo sends for one round."""
    return [
        Reply.decode(made.silo(site).step(made.request(0, **request)), body_limit=10**6).body
        for site in made.job.sites
    ]


def _mix(made: Any, sent: list[bytes], **changes: Any) -> Reply:
    mixing = mixing_of(made.job.algorithm)
    assert mixing is not None
    digest = point_digest(Request.decode(made.request(0)).body)
    body = digest + b"".join(message[: mixing.covered_bytes] for message in sent)
    request = replace(Request("mix", RUN, 0, made.job.digest, body=body), **changes)
    return Reply.decode(made.shuffler().step(request.encode()), body_limit=10**6)


def test_a_shuffler_runs_no_code_of_a_job(consortium: Callable[..., Any]) -> None:
    """It has no policy that could list a model of the job's own."""
    text = consortium(**GAUSSIAN).job.text
    own = 'model = { name = "module:os:system", command = "true" }'
    assert 'model = "logistic"' in text
    with pytest.raises(RequestError, match="code that the shuffler would have to run"):
        Job.from_text(text.replace('model = "logistic"', own))


@BOTH
def test_a_run_through_a_shuffler_learns_what_the_simulator_learns(
    consortium: Callable[..., Any], settings: dict[str, Any]
) -> None:
    made = consortium(**{**settings, "noise": "gaussian"})
    run = simulate(
        plan(made.job.algorithm, made.federation, rounds=made.job.rounds, privacy=made.job.target("site-0")),
        evaluate_every=made.job.rounds,
    )
    # Sums in another order: equal to rounding.
    torch.testing.assert_close(made.server().run().parameters, run.parameters, rtol=1e-4, atol=1e-5)


@BOTH
def test_the_certificate_shows_both_promises(consortium: Callable[..., Any], settings: dict[str, Any]) -> None:
    made = consortium(**settings)
    certificate = made.verified(made.server().run().certificate).body
    for silo in certificate["silos"].values():
        assert silo["adversary"] == "shuffler"
        assert silo["epsilon"]["run"] <= settings["epsilon"]
        alone = silo["run_if_others_help"]["server"]["epsilon"]
        assert alone is None or alone >= silo["epsilon"]["run"] * (1 - 1e-9)
        assert "random order from a trusted shuffler" in silo["promise"]
        assert "Should the shuffler help the server, of this run alone: Against the server" in silo["promise"]


def test_a_certificate_cannot_lie_about_a_shuffler_that_helps(consortium: Callable[..., Any]) -> None:
    made = consortium(**GAUSSIAN)
    silo = dict(made.verified(made.server().run().certificate).body["silos"]["site-0"])
    for name in ("signature", "public_key", "format"):
        silo.pop(name)
    key = made.signing["site-0"]
    made.verified(sign(silo, key))
    silo["run_if_others_help"]["server"]["epsilon"] *= 0.9
    with pytest.raises(CertificateError, match="run_if_others_help"):
        made.verified(sign(silo, key))


@BOTH
def test_a_lost_silo_or_shuffler_means_that_the_round_is_not_read(
    consortium: Callable[..., Any], settings: dict[str, Any]
) -> None:
    for lost in ("site-1", SHUFFLER):
        made = consortium(**settings)
        made = replace(made, directory=made.directory / lost)
        gone = made.backend(lambda site, lost=lost: "lose-request" if site == lost else "none")
        with pytest.raises(QuorumError):
            made.server(gone, quorum=1).run()
        # Nobody has lost anything by it: the round is asked for again, and the same bytes come.
        assert made.server().run().answered == dict.fromkeys(made.job.sites, made.job.rounds)


def test_damage_and_deaths_behind_a_shuffler_change_nothing(consortium: Callable[..., Any]) -> None:
    made = consortium(**{**GAUSSIAN, "rounds": 8})
    generator = np.random.default_rng(5)
    kinds = ["none", "lose-answer", "duplicate-request", "damage-answer:99", "die:after ledger", "delay-answer"]
    happened: Counter[str] = Counter()

    def faults(site: str) -> str:
        fault = kinds[generator.integers(len(kinds))]
        happened[fault] += 1
        return fault if site != SHUFFLER or not fault.startswith("die") else "none"

    backend, finished = made.backend(faults), None
    while finished is None:
        try:
            finished = made.server(backend, attempts=20).run()
        except QuorumError:
            continue
    assert finished.answered == dict.fromkeys(made.job.sites, 8)
    assert min(happened[kind] for kind in kinds) > 3, happened
    for site in made.job.sites:
        with made.silo(site).ledger.page() as page:
            assert page.account.runs[0][1].releases == 8
            assert least_epsilon(page.account.events(), 1e-4, made.policies[site].adjacency) <= 2.0


def test_messages_come_back_in_every_order(consortium: Callable[..., Any]) -> None:
    made = consortium(**GAUSSIAN)
    sent = _sent(made)
    mixing = mixing_of(made.job.algorithm)
    assert isinstance(mixing, InRandomOrder)
    size = mixing.mixed_bytes // 3
    orders: Counter[tuple[bytes, ...]] = Counter()
    for _ in range(240):
        body = _mix(made, sent).body
        orders[tuple(body[n * size : (n + 1) * size] for n in range(3))] += 1
    assert len(orders) == 6
    assert len({frozenset(order) for order in orders}) == 1
    # Each is seen 40 times on average; that one is seen fewer than 10 times has a chance below 1e-8.
    assert min(orders.values()) >= 10


def test_the_shuffler_cannot_read_and_the_server_cannot_see_whose(consortium: Callable[..., Any]) -> None:
    made = consortium(**GAUSSIAN)
    sent = _sent(made)
    context = context_of(made.job.digest, RUN, 0, point_digest(Request.decode(made.request(0)).body))
    with pytest.raises(MessageError):
        unseal(sent[0], made.sealing["server"], context)
    inner = _mix(made, sent).body[: len(sent[0]) - 48]
    with pytest.raises(MessageError):
        unseal(inner, made.sealing[SHUFFLER], context)
    assert unseal(inner, made.sealing["server"], context)
    # All that a silo sends has one length, and is other bytes for the same message.
    assert len({len(message) for message in sent}) == 1


def test_the_sum_of_masked_counts_is_that_of_the_messages_and_one_alone_is_uniform(
    consortium: Callable[..., Any],
) -> None:
    made = consortium(**COINS)
    bits, dim = made.job.algorithm.uplink.compressor, made.job.algorithm.work.model.dim
    mixing = mixing_of(made.job.algorithm)
    assert isinstance(mixing, Added)
    ones = np.random.default_rng(1).integers(0, bits.bits + 1, size=(3, dim))
    messages = bits.compress(bits.values(ones), [np.random.default_rng(0)] * 3).encode()
    covers = [Covers(site, made.sealing[site], made.keys) for site in made.job.sites]
    sent = [mixing.cover(message, cover, b"context") for message, cover in zip(messages, covers, strict=True)]
    seeds = [
        unseal(m[: mixing.covered_bytes], made.sealing[SHUFFLER], b"context" + c.site.encode(),
               sender=public_bytes(c.key))
        for m, c in zip(sent, covers, strict=True)
    ]  # fmt: skip
    total = mixing.total(sent, mixing.mix(seeds), made.sealing["server"], b"context")
    torch.testing.assert_close(total, bits.values(ones).sum(dim=0))
    again = [mixing.cover(messages[0], covers[0], b"context")[mixing.covered_bytes :] for _ in range(400)]
    numbers = np.frombuffer(b"".join(again), dtype="<u4") / 2**32
    # The mean of n uniform numbers is within six of its deviations of 1/2.
    assert abs(numbers.mean() - 0.5) < 6 / np.sqrt(12 * len(numbers))
    with pytest.raises(MessageError, match="do not add up"):
        mixing.total(sent[:2], mixing.mix(seeds), made.sealing["server"], b"context")


@BOTH
def test_a_server_cannot_have_fewer_or_other_messages_mixed(
    consortium: Callable[..., Any], settings: dict[str, Any]
) -> None:
    made = consortium(**settings)
    sent = _sent(made)
    assert _mix(made, sent).code is Code.OK
    assert _mix(made, sent[:2]).code is Code.TOO_FEW
    # Its own messages beside one silo's; one silo's twice; two exchanged.
    forged = Covers("site-1", X25519PrivateKey.generate(), made.keys)
    own = mixing_of(made.job.algorithm).cover(_plain(made), forged, _context(made))  # type: ignore[union-attr]  # shuffled
    for crowd in ([sent[0], own, sent[2]], [sent[0], sent[0], sent[2]], [sent[1], sent[0], sent[2]]):
        assert _mix(made, crowd).code is Code.BAD_MESSAGE
    assert _mix(made, sent, round=1).code is Code.BAD_MESSAGE
    assert _mix(made, sent, run="f" * 32).code is Code.BAD_MESSAGE
    assert _mix(made, sent, job="0" * 64).code is Code.OTHER_JOB
    assert _mix(made, sent, kind="round").code is Code.OTHER_JOB
    assert _mix(made, sent, round=made.job.rounds).code is Code.NO_SUCH_ROUND
    assert Reply.decode(made.shuffler().step(b"junk"), body_limit=0).code is Code.MALFORMED


def _context(made: Any) -> bytes:
    return context_of(made.job.digest, RUN, 0, point_digest(Request.decode(made.request(0)).body))


def _plain(made: Any) -> bytes:
    compressor, dim = made.job.algorithm.uplink.compressor, made.job.algorithm.work.model.dim
    coins = isinstance(mixing_of(made.job.algorithm), Added)
    rows = compressor.values(np.zeros((1, dim), dtype=np.int64)) if coins else torch.zeros(1, dim)
    return bytes(compressor.compress(rows, [np.random.default_rng(0)]).encode()[0])


def test_silos_that_were_sent_different_points_are_not_mixed(consortium: Callable[..., Any]) -> None:
    made = consortium(**GAUSSIAN)
    elsewhere = replace(made, directory=made.directory / "elsewhere")
    sent = [_sent(made)[0], *_sent(elsewhere, point=0.25)[1:]]
    assert _mix(made, sent).code is Code.BAD_MESSAGE


def test_a_silo_does_not_mix_and_a_shuffler_does_not_answer_rounds(consortium: Callable[..., Any]) -> None:
    made = consortium(**GAUSSIAN)
    asked = made.request(0, kind="mix")
    assert Reply.decode(made.silo("site-0").step(asked), body_limit=0).code is Code.MALFORMED
    assert Reply.decode(made.shuffler().step(made.request(0)), body_limit=0).code is Code.OTHER_JOB


def test_one_spoilt_message_is_left_out(consortium: Callable[..., Any]) -> None:
    made = consortium(**GAUSSIAN)
    mixing = mixing_of(made.job.algorithm)
    assert isinstance(mixing, InRandomOrder)
    sent, context = _sent(made), _context(made)
    cover = Covers("site-2", made.sealing["site-2"], made.keys)
    sent[2] = mixing.cover(bytes(mixing.compressor.message_bytes(mixing.dim)), cover, context)
    total = mixing.total(sent, _mix(made, sent).body, made.sealing["server"], context)
    assert bool(torch.isfinite(total).all())
    with pytest.raises(MessageError, match="no message"):
        mixing.total(sent, bytes(mixing.mixed_bytes), made.sealing["server"], context)


def test_a_policy_says_whether_a_shuffler_is_trusted(consortium: Callable[..., Any]) -> None:
    made = consortium(**GAUSSIAN)
    records = made.federation.client(0)
    policy = made.policies["site-0"]
    assert Policy.from_toml(policy.to_toml()).adversary == "shuffler"
    with pytest.raises(RequestError, match="adversary = 'server' in the policy requires more"):
        admit(made.job, replace(policy, adversary="server"), "site-0", records)
    with pytest.raises(RequestError, match="asks for less noise"):
        admit(made.job, replace(policy, epsilon=1.0), "site-0", records)
    with pytest.raises(RequestError, match="must be one of server, shuffler"):
        replace(policy, adversary="cohort")
    made.silo("site-0").step(made.request(0))
    plain = consortium()
    strict = replace(plain, directory=made.directory)
    with pytest.raises(RequestError, match="can no longer be kept"):
        strict.silo("site-0")


def test_the_noise_is_that_of_the_smallest_and_other_batches_are_refused(consortium: Callable[..., Any]) -> None:
    made = consortium(**GAUSSIAN)
    more = consortium(records=40).federation.client(0)
    assert (
        admit(made.job, made.policies["site-0"], "site-0", more).noise_multiplier
        == made.silo("site-1").terms.noise_multiplier
    )
    fewer = consortium(records=20).federation.client(0)
    with pytest.raises(RequestError, match="counts on 24 records"):
        admit(made.job, made.policies["site-0"], "site-0", fewer)
    whole = consortium(**{**GAUSSIAN, "sampling": "full", "batch": None})
    with pytest.raises(RequestError, match="another batch"):
        admit(whole.job, whole.policies["site-0"], "site-0", more)


def test_what_is_missing_is_said_before_anything_starts(consortium: Callable[..., Any]) -> None:
    made = consortium(**GAUSSIAN)
    bare = replace(made, sealing={})
    with pytest.raises(RequestError, match="no keys for it"):
        bare.silo("site-0")
    with pytest.raises(RequestError, match="needs a shuffler"):
        bare.server(made.backend())
    with pytest.raises(RequestError, match="needs no shuffler"):
        ShufflerParty(consortium().job, made.sealing[SHUFFLER], made.keys)
    with pytest.raises(RequestError, match="no keys of site-0"):
        ShufflerParty(made.job, made.sealing[SHUFFLER], replace(made.keys, silos={}))
    with pytest.raises(RequestError, match="leaves min_records open"):
        replace(made.job, min_records=None)
    assert PublicKeys.from_values(made.keys.to_values()) == made.keys
    for wrong in (
        {},
        {"server": "00", "shuffler": "00", "silos": {}},
        {"server": 3, "shuffler": "", "silos": {}},
    ):
        with pytest.raises(RequestError):
            PublicKeys.from_values(wrong)


def test_the_ledger_charges_what_the_crowd_hides(consortium: Callable[..., Any]) -> None:
    made = consortium(**GAUSSIAN)
    made.server().run()
    with made.silo("site-0").ledger.page() as page:
        account = page.account
    assert account.adversaries == {"shuffler"}
    algorithm, terms = made.job.algorithm, made.silo("site-0").terms
    expected = algorithm.trust.event(algorithm.work, 3, 24, terms.noise_multiplier, made.job.rounds)
    assert [events.to_dict(event) for event in account.events()] == [events.to_dict(expected)]


@BOTH
def test_one_promise_for_all_who_hide_each_other(
    consortium: Callable[..., Any], settings: dict[str, Any]
) -> None:
    """Others with a larger epsilon would add less noise than the account of the first takes them to add."""
    with pytest.raises(RequestError, match="one epsilon and delta for all"):
        consortium(**{**settings, "epsilon": [1.0, 8.0, 8.0]})
    same = consortium(**{**settings, "epsilon": [settings["epsilon"]] * 3})
    assert (
        same.silo("site-0").terms.noise_multiplier == consortium(**settings).silo("site-0").terms.noise_multiplier
    )


@BOTH
def test_a_policy_may_allow_for_more_than_any_job_may_ask(
    consortium: Callable[..., Any], settings: dict[str, Any]
) -> None:
    """The policy's epsilon is for many runs; what theorems want to be small is that of one."""
    assert consortium(policy={"epsilon": 30.0}, **settings).silo("site-0").terms.epsilon <= settings["epsilon"]
    with pytest.raises(RequestError, match="is above"):
        consortium(**{**settings, "epsilon": 30.0})


@BOTH
def test_a_shuffler_that_is_away_for_a_moment_does_not_stop_the_run(
    consortium: Callable[..., Any], settings: dict[str, Any]
) -> None:
    made = consortium(**settings)
    asked: Counter[str] = Counter()

    def faults(site: str) -> str:
        asked[site] += 1
        return "lose-answer" if site == SHUFFLER and asked[site] % 3 else "none"

    made.server(made.backend(faults)).run()
    assert asked[SHUFFLER] == 3 * made.job.rounds
