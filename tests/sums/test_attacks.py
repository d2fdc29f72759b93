"""Attacks on secure sums. Each fails, and each works once its defence is taken away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.sums.consortium import CONTEXT, Consortium, messages, opened, total

from tacit.errors import MessageError
from tacit.sums import secrets as sums_secrets
from tacit.sums import silo as sums_silo
from tacit.sums.arithmetic import Residues
from tacit.sums.group import Bundle, KeyBatch, Rounds, SumGroup
from tacit.sums.masks import add_mask, agreed
from tacit.sums.requests import Closing, SumStep, signatures_to_bytes
from tacit.sums.secrets import Secrets, own_seed, pair_seed
from tacit.sums.server import Prepared, TooFewError
from tacit.sums.shamir import SHARE_BYTES, restored
from tacit.sums.silo import SiloState, SumSilo

SILOS, QUORUM, COLLUDER = 5, 4, 0
EVERYBODY = frozenset(range(SILOS))
Without = Callable[[pytest.MonkeyPatch], None]


def _with_and_without(*sabotages: Without) -> pytest.MarkDecorator:
    """Run an attack with all defences, and again without each of these."""
    return pytest.mark.parametrize("sabotage", [None, *sabotages])


@pytest.fixture
def defended(sabotage: Without | None, monkeypatch: pytest.MonkeyPatch) -> bool:
    if sabotage is not None:
        sabotage(monkeypatch)
    return sabotage is None


def _sum_of(
    consortium: Consortium, prepared: Prepared, masked: dict[int, Residues], silos: Sequence[int]
) -> Residues | None:
    """What the server gets if it asks everybody to open this list."""
    try:
        closing = Closing(0, CONTEXT, frozenset(silos))
        return opened(consortium.group, consortium.ask, prepared, closing, total(masked, silos))
    except (TooFewError, MessageError):
        return None


def _without_commitment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SumSilo, "_committed", lambda self, state, closing: state)


def _without_memory_on_disk(patch: pytest.MonkeyPatch) -> None:
    ask = Consortium.ask

    def forgetful(self: Consortium, request: bytes, silos: Sequence[int]) -> dict[int, bytes]:
        before = list(self.disks)
        answers = ask(self, request, silos)
        if request[0] in (SumStep.SIGN, SumStep.REVEAL):
            self.disks = before
        return answers

    patch.setattr(Consortium, "ask", forgetful)


@_with_and_without(_without_commitment, _without_memory_on_disk)
def test_two_sets(defended: bool) -> None:
    """Two sums of one round that differ by one silo would show that silo's own message."""
    consortium, sent = Consortium(SILOS, QUORUM, 1, colluders=[COLLUDER]), messages(SILOS)
    prepared, masked = consortium.prepared(), consortium.all_masked(0, sent)
    everybody = _sum_of(consortium, prepared, masked, range(5))
    others = _sum_of(consortium, prepared, masked, range(4))
    assert everybody is not None
    assert (others is None) == defended
    if others is not None:
        assert np.array_equal(everybody - others, sent[4]), "the message of silo 4"


def _with_a_low_threshold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SumGroup, "threshold", 3)


@_with_and_without(_with_a_low_threshold)
def test_two_sets_asked_of_two_groups(defended: bool) -> None:
    """Half of the honest silos are shown one list, half another; the colluder helps with both."""
    both = 0
    for first in ([1, 2], [1, 2, 3], [1], []):
        consortium, sent = Consortium(SILOS, QUORUM, 1, colluders=[COLLUDER]), messages(SILOS)
        prepared, masked = consortium.prepared(), consortium.all_masked(0, sent)
        groups = [0, *first], [0, *(n for n in range(1, 5) if n not in first)]
        opens = 0
        for silos, group in zip((range(5), range(4)), groups, strict=True):
            closing = Closing(0, CONTEXT, frozenset(silos))
            try:
                whole = total(masked, silos)
                opened(
                    consortium.group, lambda r, _, c=consortium, g=group: c.ask(r, g), prepared, closing, whole
                )
                opens += 1
            except TooFewError:
                pass
        both += opens == 2
    assert (both == 0) == defended


def _without_a_least_size(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SumSilo, "_check_list", lambda self, closing, batch: None)


@_with_and_without(_without_a_least_size)
def test_a_set_below_the_quorum(defended: bool) -> None:
    consortium, sent = Consortium(SILOS, QUORUM, 1, colluders=[COLLUDER]), messages(SILOS)
    prepared, masked = consortium.prepared(), consortium.all_masked(0, sent)
    alone = _sum_of(consortium, prepared, masked, [3])
    assert (alone is None) == defended
    if alone is not None:
        assert np.array_equal(alone, sent[3])


def _without_agreement(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SumSilo, "_check_agreement", lambda self, state, closing, signatures: None)


def _without_the_round_in_lists(patch: pytest.MonkeyPatch) -> None:
    signed = SumSilo._list
    patch.setattr(
        SumSilo, "_list", lambda self, state, closing: signed(self, state, dataclasses.replace(closing, round=0))
    )


@_with_and_without(_without_agreement, _without_the_round_in_lists)
def test_a_swapped_round(defended: bool) -> None:
    """Signatures under a list of round 0 are used in round 1: silos would reveal for lists that few agreed to."""
    consortium, sent = Consortium(SILOS, QUORUM, 1, colluders=[COLLUDER]), messages(SILOS)
    consortium.prepared()
    consortium.all_masked(0, sent)
    closing = Closing(0, CONTEXT, frozenset(range(4)))
    signatures = consortium.ask(bytes([SumStep.SIGN]) + closing.to_bytes(consortium.group), range(5))
    assert len(signatures) == 5
    consortium.all_masked(1, sent)
    again = dataclasses.replace(closing, round=1).to_bytes(consortium.group)
    revealed = consortium.ask(bytes([SumStep.REVEAL]) + again + signatures_to_bytes(signatures), range(1, 5))
    assert (revealed == {}) == defended


def _without_identities(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SumGroup, "has_signed", lambda *args: True)


class _Impersonator:
    """A server that plays every other silo towards one victim, with keys of its own."""

    def __init__(self, consortium: Consortium, victim: int, rounds: Rounds) -> None:
        self.group, self.victim, self.rounds = consortium.group, victim, rounds
        self.secrets = {n: Secrets(bytes([n + 1]) * 32) for n in range(SILOS) if n != victim}
        self.key = Ed25519PrivateKey.generate()

    def batch(self, bundle: bytes) -> KeyBatch:
        forged = {n: s.bundle(self.rounds, self.group, self.key) for n, s in self.secrets.items()}
        forged[self.victim] = Bundle.from_bytes(bundle, self.rounds.count)
        return KeyBatch(self.rounds, dict(sorted(forged.items())))

    def delivery(self, batch: KeyBatch, parcels: bytes) -> bytes:
        rows = {
            n: b"".join(s.parcels(n, batch, self.group.threshold)) + bytes(64) for n, s in self.secrets.items()
        }
        rows[self.victim] = parcels
        return b"".join(rows[n] for n in batch.members)


@_with_and_without(_without_identities)
def test_forged_keys(defended: bool) -> None:
    """With keys that the server made for all others, it can remove every mask of one silo."""
    consortium, sent, victim = Consortium(SILOS, QUORUM, 1), messages(SILOS), 2
    forger = _Impersonator(consortium, victim, Rounds(0, 0, 1))
    bundle = consortium.ask(bytes([SumStep.ADVERTISE]) + forger.rounds.to_bytes(), [victim])[victim]
    batch = forger.batch(bundle)
    shared = consortium.ask(bytes([SumStep.SHARE]) + batch.to_bytes(), [victim])
    assert (shared == {}) == defended
    if defended:
        return
    delivery = forger.delivery(batch, shared[victim])
    assert consortium.ask(bytes([SumStep.DELIVER]) + delivery, [victim]) == {victim: b""}
    masked = consortium.mask(victim, 0, sent[victim])
    each = len(shared[victim][:-64]) // SILOS
    parcels = [shared[victim][n * each : (n + 1) * each] for n in range(SILOS)]
    shares = {n: s.opened(parcels[n], victim, n, batch)[:SHARE_BYTES] for n, s in forger.secrets.items()}
    round_id = batch.round_id(0, CONTEXT)
    add_mask(masked, own_seed(restored(shares), round_id), -1)
    for n, s in forger.secrets.items():
        key = pair_seed(s.pair_key(0), batch.bundles[victim].rounds[0][0], (n, victim), round_id)
        add_mask(masked, key, -1 if n > victim else +1)
    assert np.array_equal(masked, sent[victim])


@_with_and_without(_without_identities)
def test_keys_of_another_round(defended: bool) -> None:
    """A silo's keys of two rounds, exchanged by the server."""
    consortium = Consortium(SILOS, QUORUM, 1)
    rounds = Rounds(0, 0, 2)
    answers = consortium.ask(bytes([SumStep.ADVERTISE]) + rounds.to_bytes(), range(SILOS))
    bundles = {n: Bundle.from_bytes(answer, 2) for n, answer in answers.items()}
    bundles[1] = dataclasses.replace(bundles[1], rounds=bundles[1].rounds[::-1])
    shared = consortium.ask(bytes([SumStep.SHARE]) + KeyBatch(rounds, bundles).to_bytes(), [0, 2, 3, 4])
    assert (shared == {}) == defended


def test_keys_of_another_session_or_batch() -> None:
    consortium, rounds = Consortium(SILOS, QUORUM, 1), Rounds(3, 0, 2)
    bundle = Bundle.from_bytes(consortium.ask(bytes([SumStep.ADVERTISE]) + rounds.to_bytes(), [1])[1], 2)
    elsewhere = dataclasses.replace(consortium.group, session=b"x" * 32)
    for group, other in (
        (elsewhere, rounds),
        (consortium.group, Rounds(4, 0, 2)),
        (consortium.group, Rounds(3, 1, 2)),
    ):
        assert not group.has_signed(1, bundle.signature, "keys", other.to_bytes() + bundle.keys)


def _with_a_cipher_for_all_batches(patch: pytest.MonkeyPatch) -> None:
    def cipher(self: Secrets, sender: int, receiver: int, batch: KeyBatch, public: bytes) -> object:
        key = agreed(b"k" * 32, Secrets(b"s" * 32).bundle(Rounds(0, 0, 1), _GROUP, _KEY).sealing, "shares", b"")
        return sums_secrets.AESGCM(key)

    patch.setattr(Secrets, "_cipher", cipher)


_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_GROUP = Consortium(3, 3).group


@_with_and_without(_with_a_cipher_for_all_batches)
def test_replayed_shares(defended: bool) -> None:
    """Shares of an old batch, delivered in a new one: peers would reveal the other half of an old secret."""
    consortium, sent, victim = Consortium(SILOS, QUORUM, 1), messages(SILOS), 4
    old = consortium.prepared(rounds=1)
    masked = consortium.all_masked(0, sent)
    assert _sum_of(consortium, old, masked, range(5)) is not None, "peers have revealed the victim's own mask"
    new = consortium.prepared(number=1, first=1, rounds=1)
    row = len(new.delivery) // SILOS
    rows = [new.delivery[n * row : (n + 1) * row] for n in range(SILOS)]
    rows[victim] = old.delivery[victim * row :][: row - 64] + rows[victim][-64:]
    delivered = consortium.ask(bytes([SumStep.DELIVER]) + b"".join(rows), range(4))
    assert (delivered == {}) == defended
    if defended:
        return
    closing = Closing(1, CONTEXT, frozenset(range(4)))
    for n in range(4):
        consortium.mask(n, 1, sent[n])
    content = closing.to_bytes(consortium.group)
    signatures = consortium.ask(bytes([SumStep.SIGN]) + content, range(4))
    answers = consortium.ask(bytes([SumStep.REVEAL]) + content + signatures_to_bytes(signatures), range(4))
    pair_key = restored({n: shares[victim * SHARE_BYTES :] for n, shares in answers.items()})
    assert pair_key != Secrets(consortium.state(victim).seed).pair_key(0)
    assert sums_secrets.public_half(pair_key) == old.batch.bundles[victim].rounds[0][0], "the old round's key"


def _without_the_past(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SumSilo, "_check_new", lambda self, state, round: None)


@_with_and_without(_without_the_past)
def test_a_server_restarted_from_an_old_copy(defended: bool) -> None:
    """It asks for a round again: a second message under the same masks would show the difference of the two."""
    consortium, sent, other = Consortium(SILOS, QUORUM, 1), messages(SILOS), messages(SILOS, seed=1)
    prepared = consortium.prepared()
    old = prepared.to_bytes()
    masked = consortium.all_masked(0, sent)
    assert _sum_of(consortium, prepared, masked, range(5)) is not None
    restored_server = Prepared.from_bytes(old, consortium.group)
    assert _sum_of(consortium, restored_server, masked, range(4)) is None, "another list"
    for number in (0, 1):
        request = bytes([SumStep.ADVERTISE]) + Rounds(number, 0, 3).to_bytes()
        assert consortium.ask(request, range(5)) == {}, "another batch for the same round"
    consortium.restart(2)
    if defended:
        with pytest.raises(MessageError, match="may already be open"):
            consortium.mask(2, 0, other[2])
    else:
        assert np.array_equal(consortium.mask(2, 0, other[2]) - masked[2], other[2] - sent[2])


def test_no_message_after_the_list_and_no_list_of_the_past() -> None:
    consortium, sent = Consortium(SILOS, QUORUM, 1), messages(SILOS)
    prepared = consortium.prepared()
    masked = {n: consortium.mask(n, 0, sent[n]) for n in range(4)}
    assert _sum_of(consortium, prepared, masked, range(4)) is not None
    with pytest.raises(MessageError, match="may already be open"):
        consortium.mask(4, 0, sent[4])
    consortium.mask(4, 2, sent[4])
    late = Closing(1, CONTEXT, frozenset(range(4))).to_bytes(consortium.group)
    assert 4 not in consortium.ask(bytes([SumStep.SIGN]) + late, range(5))


def test_a_batch_signed_by_all_or_by_nobody() -> None:
    """A server that shows silos different batches of one number gets no shares delivered."""
    consortium, rounds = Consortium(SILOS, QUORUM, 1), Rounds(0, 0, 1)
    answers = consortium.ask(bytes([SumStep.ADVERTISE]) + rounds.to_bytes(), range(SILOS))
    bundles = {n: Bundle.from_bytes(answer, 1) for n, answer in answers.items()}
    small = KeyBatch(rounds, {n: bundles[n] for n in range(4)})
    whole = KeyBatch(rounds, bundles)
    first = consortium.ask(bytes([SumStep.SHARE]) + small.to_bytes(), [0, 1])
    assert consortium.ask(bytes([SumStep.SHARE]) + whole.to_bytes(), range(SILOS)).keys() == {2, 3, 4}
    assert len(first) == 2
    with pytest.raises(MessageError, match="signed"):
        SumSilo(consortium.group, 0, consortium.keys[0])._check_signed(2, bytes(64), small)


def _victims_seed(consortium: Consortium, prepared: Prepared, colluders: Sequence[int], victim: int) -> bytes:
    """What colluders make of their shares of the victim's own mask, all of their memory at hand."""
    shares = {}
    for n in colluders:
        state = consortium.state(n)
        each = len(state.shares) // SILOS
        shares[n] = state.shares[victim * each :][:SHARE_BYTES]
    try:
        return restored(shares)
    except MessageError:
        return b""


@pytest.mark.parametrize("colluders", [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]])
def test_colluders_who_reveal_everything(colluders: list[int]) -> None:
    """Shares of fewer than the threshold say nothing; the threshold of 4 would open the victim's mask."""
    consortium, sent, victim = Consortium(SILOS, QUORUM, 1), messages(SILOS), 4
    prepared = consortium.prepared()
    consortium.all_masked(0, sent)
    found = _victims_seed(consortium, prepared, colluders, victim)
    enough = len(colluders) >= consortium.group.threshold
    assert (found == Secrets(consortium.state(victim).seed).self_seed(0)) == enough


def test_an_opened_sum_shows_colluders_the_sum_of_the_honest_and_no_more() -> None:
    """With every own mask and the colluder's keys, the honest silos' messages are known as one sum alone."""
    consortium, sent = Consortium(SILOS, QUORUM, 1), messages(SILOS)
    prepared, masked = consortium.prepared(), consortium.all_masked(0, sent)
    assert _sum_of(consortium, prepared, masked, range(5)) is not None
    round_id = prepared.batch.round_id(0, CONTEXT)
    helper = Secrets(consortium.state(COLLUDER).seed)
    bare = {}
    for n in range(1, SILOS):
        bare[n] = masked[n].copy()
        add_mask(bare[n], own_seed(Secrets(consortium.state(n).seed).self_seed(0), round_id), -1)
        key = pair_seed(helper.pair_key(0), prepared.batch.bundles[n].rounds[0][0], (COLLUDER, n), round_id)
        add_mask(bare[n], key, +1)
    assert np.array_equal(total(bare, range(1, 5)), total(sent, range(1, 5)))
    for some in ([1], [4], [1, 2], [1, 2, 3], [2, 3, 4]):
        assert (total(bare, some) != total(sent, some)).all()


def test_secrets_are_new_for_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(sums_silo.entropy, "token_bytes", lambda n: drawn.append(n) or bytes([len(drawn)]) * n)
    silo = Consortium(3, 3).silo(0)
    state, first = silo.answer(SiloState(), bytes([SumStep.ADVERTISE]) + Rounds(0, 0, 2).to_bytes())
    again, same = silo.answer(state, bytes([SumStep.ADVERTISE]) + Rounds(0, 0, 2).to_bytes())
    _, second = silo.answer(again, bytes([SumStep.ADVERTISE]) + Rounds(1, 0, 2).to_bytes())
    assert (state, first) == (again, same)
    assert drawn == [32, 32]
    assert not {first[n : n + 32] for n in range(0, 160, 32)} & {second[n : n + 32] for n in range(0, 160, 32)}
