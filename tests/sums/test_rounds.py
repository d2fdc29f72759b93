"""Sums are exact whoever vanishes, and nothing opens below the quorum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sums.consortium import CONTEXT, Consortium, messages, opened, total

from tacit.errors import DataError, MessageError, RequestError
from tacit.sums.group import KeyBatch, Rounds, SumGroup, threshold_of
from tacit.sums.requests import Closing, SumStep
from tacit.sums.server import Prepared, TooFewError, deliver, prepare
from tacit.sums.shamir import PRIME, checked_share, restored, shares_of
from tacit.sums.silo import SiloState

MOMENTS = ("start", "message", "list")


def test_everybody() -> None:
    consortium, sent = Consortium(4, 3), messages(4)
    prepared = consortium.prepared()
    for round in range(4):
        masked = consortium.all_masked(round, sent)
        closing = Closing(round, CONTEXT, frozenset(range(4)))
        asked: list[int] = []

        def ask(request: bytes, silos: object) -> dict[int, bytes]:
            asked.append(request[0])  # noqa: B023
            return consortium.ask(request, range(4))

        assert np.array_equal(
            opened(consortium.group, ask, prepared, closing, total(masked, range(4))), total(sent, range(4))
        )
        assert asked == [SumStep.REVEAL], "nobody vanished: one exchange after the messages"
        assert all(not np.array_equal(masked[n], sent[n]) for n in range(4))


@pytest.mark.parametrize(
    ("silos", "quorum", "colluding", "rounds"), [(5, 4, 1, 150), (7, 5, 2, 50), (4, 3, 0, 300)]
)
def test_random_vanishing(silos: int, quorum: int, colluding: int, rounds: int) -> None:
    """500 rounds: silos vanish at any step and restart at any moment."""
    coins = np.random.default_rng(silos)
    consortium = Consortium(silos, quorum, colluding)
    group, number, prepared = consortium.group, -1, None
    outcomes = {"opened": 0, "too few": 0}
    used: set[tuple[int, int]] = set()
    for round in range(rounds):
        chance = coins.choice([0.0, 0.02, 0.1, 0.3])

        def drops(silo: int, chance: float = chance) -> bool:
            if gone := bool(coins.random() < chance):
                consortium.restart(silo)
            return gone

        def rarely(silo: int) -> bool:
            return drops(silo, 0.02)

        while prepared is None or round >= prepared.batch.rounds.first + prepared.batch.rounds.count:
            number += 1
            try:
                made = prepare(
                    group,
                    lambda request, among: consortium.ask(request, among, rarely),
                    Rounds(number, round, 16),
                    range(silos),
                )
            except TooFewError:
                continue
            prepared = made if isinstance(made, Prepared) else None
            if prepared is not None:
                deliver(lambda request, among: consortium.ask(request, among, rarely), prepared)
        sent = messages(silos, seed=round)
        masked = {}
        for n in prepared.batch.members:
            if not drops(n):
                try:
                    masked[n] = consortium.mask(n, round, sent[n])
                except MessageError:  # its shares were lost on the way
                    deliver(consortium.ask, prepared)
        arrived = [n for n in masked if not drops(n)]
        closing = Closing(round, CONTEXT, frozenset(arrived))
        try:
            result = opened(
                group,
                lambda request, among: consortium.ask(request, among, drops),
                prepared,
                closing,
                total(masked, arrived),
            )
        except TooFewError:
            outcomes["too few"] += 1
            continue
        outcomes["opened"] += 1
        assert np.array_equal(result, total(sent, arrived))
        assert len(arrived) >= quorum
        assert not used & {(round, n) for n in arrived}
        used |= {(round, n) for n in arrived}
    assert outcomes["opened"] > rounds / 2
    assert outcomes["too few"] > rounds / 50


def test_vanished_silos_up_to_the_quorum_cost_no_round() -> None:
    """Whoever vanishes after sending, before sending or from the start: the rest opens the sum."""
    for gone, moment in itertools.product(itertools.combinations(range(6), 2), MOMENTS):
        consortium, sent = Consortium(6, 4, 1), messages(6)
        rest = [n for n in range(6) if n not in gone]
        made = prepare(consortium.group, consortium.ask, Rounds(0, 0, 1), rest if moment == "start" else range(6))
        assert isinstance(made, Prepared)
        deliver(consortium.ask, made)
        senders = range(6) if moment == "list" else rest
        masked = {n: consortium.mask(n, 0, sent[n]) for n in senders}
        result = opened(
            consortium.group,
            lambda request, among: consortium.ask(request, [n for n in among if n in rest]),  # noqa: B023
            made,
            Closing(0, CONTEXT, frozenset(senders)),
            total(masked, senders),
        )
        assert np.array_equal(result, total(sent, senders))


def test_a_round_can_be_opened_later() -> None:
    """Too few silos for the reveal: nothing opens, and the same list opens when they are back, after restarts."""
    consortium, sent = Consortium(5, 4, 1), messages(5)
    prepared = Prepared.from_bytes(consortium.prepared().to_bytes(), consortium.group)
    masked = {n: consortium.mask(n, 0, sent[n]) for n in range(4)}
    closing, whole = Closing(0, CONTEXT, frozenset(range(4))), total(masked, range(4))
    with pytest.raises(TooFewError, match="signed the list"):
        opened(consortium.group, lambda r, _: consortium.ask(r, [0, 1, 2]), prepared, closing, whole)
    result = opened(consortium.group, consortium.ask, prepared, closing, whole)
    assert np.array_equal(result, total(sent, range(4)))


def test_wrong_shares_open_nothing() -> None:
    consortium, sent = Consortium(4, 3), messages(4)
    prepared, masked = consortium.prepared(), consortium.all_masked(0, sent)

    def spoilt(request: bytes, among: object) -> dict[int, bytes]:
        answers = consortium.ask(request, range(4))
        return {n: bytes(33) + answer[33:] if n == 1 else answer for n, answer in answers.items()}

    closing = Closing(0, CONTEXT, frozenset(range(4)))
    with pytest.raises(MessageError, match=r"wrong|belong"):
        opened(consortium.group, spoilt, prepared, closing, total(masked, range(4)))


def test_messages_for_different_points_do_not_open() -> None:
    consortium, sent = Consortium(4, 3), messages(4)
    prepared = consortium.prepared()
    masked = {n: consortium.mask(n, 0, sent[n], bytes([n == 1]) * 32) for n in range(4)}
    closing = Closing(0, bytes(32), frozenset(range(4)))
    result = opened(consortium.group, consortium.ask, prepared, closing, total(masked, range(4)))
    assert (result != total(sent, range(4))).all(), "masks with the silo of the other point do not cancel"


@given(silos=st.integers(1, 60), quorum=st.integers(1, 60), colluding=st.integers(0, 30))
def test_the_threshold_excludes_two_groups(silos: int, quorum: int, colluding: int) -> None:
    try:
        threshold = threshold_of(silos, quorum, colluding)
    except RequestError:
        assert quorum > silos or quorum - colluding < 2 or 2 * quorum <= silos + colluding
        return
    assert 2 * (threshold - 1) <= silos + colluding < 2 * threshold
    assert colluding < threshold <= quorum


def test_impossible_groups_say_why() -> None:
    for silos, quorum, colluding, reason in (
        (5, 2, 1, "at least two silos"),
        (5, 6, 0, "at most the number"),
        (10, 5, 1, "two sums of one round"),
        (2000, 1500, 0, "at most 1024"),
    ):
        with pytest.raises(RequestError, match=reason):
            threshold_of(silos, quorum, colluding)
    with pytest.raises(RequestError, match="different key"):
        SumGroup(bytes(32), (bytes(32),) * 3, 3, 0)


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_hostile_requests_are_refused(content: bytes) -> None:
    silo, group = _PREPARED.silo(1), _PREPARED.group
    for kind in SumStep:
        try:
            silo.answer(_PREPARED.state(1), bytes([kind]) + content)
        except MessageError:
            continue
        assert kind in (SumStep.ADVERTISE, SumStep.SIGN), "only a well-formed request of fixed length is answered"
    for read in (SiloState.from_bytes, lambda content: KeyBatch.from_bytes(content, group)):
        with pytest.raises((DataError, MessageError)):
            read(content)


_PREPARED = Consortium(3, 3)
_PREPARED.prepared(number=2**31 - 1)


@given(secret=st.binary(min_size=32, max_size=32), threshold=st.integers(1, 6), data=st.data())
def test_any_threshold_of_shares_restores_a_secret(secret: bytes, threshold: int, data: st.DataObject) -> None:
    holders = data.draw(st.lists(st.integers(0, 1000), min_size=threshold, max_size=9, unique=True))
    coefficients = data.draw(st.binary(min_size=48 * threshold, max_size=48 * threshold))
    shares = dict(zip(holders, shares_of(secret, holders, threshold, coefficients), strict=True))
    some = data.draw(st.permutations(holders))[:threshold]
    assert restored({n: shares[n] for n in some}) == secret


def test_a_share_is_a_field_element() -> None:
    with pytest.raises(MessageError):
        checked_share(PRIME.to_bytes(33))
    with pytest.raises(MessageError):
        restored({0: (PRIME - 1).to_bytes(33)})
