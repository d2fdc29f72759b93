"""The server's half of secure sums. It is trusted with nothing: it passes bytes on, and adds.

`prepare` and `deliver` take three exchanges and make a batch of rounds ready. Opening a round takes one exchange
if the messages of all members arrived, two if not. `ask` sends one request to some silos and returns the answers
that came. Every request may be repeated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tacit.errors import MessageError, TacitError
from tacit.sums.arithmetic import Residues
from tacit.sums.group import ROUNDS_BYTES, SIGNATURE_BYTES, Bundle, KeyBatch, Rounds, SumGroup, check_bundle
from tacit.sums.masks import add_mask, public_half
from tacit.sums.requests import Closing, SumStep, signatures_to_bytes
from tacit.sums.secrets import commitment_to, own_seed, pair_seed, parcel_bytes
from tacit.sums.shamir import SHARE_BYTES, checked_share, restored, weights_of

Ask = Callable[[bytes, Sequence[int]], Mapping[int, bytes]]
"""Sends a request to silos (by number) and returns the answers that came."""

MOST_DELIVERED_BYTES = 2**22
"""All shares of a batch travel to all members at once; batches are made so short that they fit."""

MOST_ROUNDS_AHEAD = 64


class TooFewError(TacitError):
    """Fewer silos answered than are needed. Nothing was opened, and it can be tried again."""


def rounds_ahead(silos: int) -> int:
    """How many rounds to prepare together.

    >>> rounds_ahead(5), rounds_ahead(100)
    (64, 6)
    """
    fitting = MOST_DELIVERED_BYTES // (silos**2 * 2 * SHARE_BYTES)
    return max(1, min(MOST_ROUNDS_AHEAD, fitting))


def most_request_bytes(silos: int) -> int:
    """The longest request to a group of this size: all shares of a batch, or all keys."""
    rounds = rounds_ahead(silos)
    delivery = silos * (silos * parcel_bytes(rounds) + SIGNATURE_BYTES)
    return 1 + max(delivery, ROUNDS_BYTES + silos * (2 + Bundle.length(rounds)))


@dataclass(frozen=True)
class Prepared:
    """A batch that is ready, and what every member was sent for it."""

    batch: KeyBatch
    delivery: bytes

    def to_bytes(self) -> bytes:
        """For the server's own file."""
        batch = self.batch.to_bytes()
        return struct.pack("<I", len(batch)) + batch + self.delivery

    @classmethod
    def from_bytes(cls, content: bytes, group: SumGroup) -> Prepared:
        """The inverse."""
        end = 4 + int.from_bytes(content[:4], "little")
        return cls(KeyBatch.from_bytes(content[4:end], group), content[end:])


def prepare(group: SumGroup, ask: Ask, rounds: Rounds, silos: Sequence[int]) -> Prepared | Collection[int]:
    """Prepare a batch of rounds with those of these silos that answer; then `deliver` it.

    Returns the silos that answered the second request if others answered only the first: all keys are then void,
    so try again with the next number and these silos. `TooFewError` if there is no quorum.
    """
    bundles = {}
    for silo, answer in sorted(ask(bytes([SumStep.ADVERTISE]) + rounds.to_bytes(), silos).items()):
        try:
            bundle = Bundle.from_bytes(answer, rounds.count)
            check_bundle(group, rounds, silo, bundle)
        except MessageError:
            continue
        bundles[silo] = bundle
    _need(group.quorum, bundles, "sent keys")
    batch = KeyBatch(rounds, bundles)
    length = len(bundles) * parcel_bytes(rounds.count)
    shared = {
        silo: answer
        for silo, answer in ask(bytes([SumStep.SHARE]) + batch.to_bytes(), batch.members).items()
        if len(answer) == length + SIGNATURE_BYTES
        and group.has_signed(silo, answer[length:], "batch", batch.digest)
    }
    _need(group.quorum, shared, "shared their secrets")
    if len(shared) < len(bundles):
        return sorted(shared)
    return Prepared(batch, b"".join(shared[silo] for silo in batch.members))


def deliver(ask: Ask, prepared: Prepared) -> Collection[int]:
    """Send the members of a batch each other's shares (again); the silos that have them now."""
    return ask(bytes([SumStep.DELIVER]) + prepared.delivery, prepared.batch.members).keys()


def opening_secrets(group: SumGroup, ask: Ask, prepared: Prepared, closing: Closing) -> dict[int, bytes]:
    """What opens the sum over a list: every member's seed of its own mask, or its pair key if it is not in it.

    With them, anybody can open the sum of these masked messages (`unmasked`), and no other. Silos commit
    themselves to the list: keep it on disk, and ask for no other one in this round. `TooFewError` if too few do.
    """
    batch, everyone = prepared.batch, prepared.batch.members
    signatures: dict[int, bytes] = {}
    content = closing.to_bytes(group)
    if closing.silos != set(everyone):
        answers = ask(bytes([SumStep.SIGN]) + content, everyone)
        text = batch.digest + content
        signatures = {n: s for n, s in answers.items() if group.has_signed(n, s, "list", text)}
        _need(group.threshold, signatures, "signed the list")
    request = bytes([SumStep.REVEAL]) + content + signatures_to_bytes(signatures)
    length = SHARE_BYTES * len(everyone)
    revealed = {n: answer for n, answer in ask(request, everyone).items() if len(answer) == length}
    _need(group.threshold, revealed, "revealed their shares")
    return _secrets(batch, dict(list(revealed.items())[: group.threshold]))


def _secrets(batch: KeyBatch, revealed: Mapping[int, bytes]) -> dict[int, bytes]:
    """Each member's secret of the round: the seed of its own mask, or its pair key."""
    weights = weights_of(list(revealed))
    return {
        member: restored(
            {
                n: checked_share(shares[at * SHARE_BYTES : (at + 1) * SHARE_BYTES])
                for n, shares in revealed.items()
            },
            weights,
        )
        for at, member in enumerate(batch.members)
    }


def unmasked(batch: KeyBatch, closing: Closing, masked: Residues, secrets: Mapping[int, bytes]) -> Residues:
    """The sum without its masks; `MessageError` if these are not the secrets of the batch's members."""
    if secrets.keys() != batch.bundles.keys():
        raise MessageError("a sum is opened with one secret of every member")
    place, round_id = batch.rounds.place(closing.round), batch.round_id(closing.round, closing.context)
    total = masked.copy()
    for member, secret in secrets.items():
        pair_public, commitment = batch.bundles[member].rounds[place]
        if member in closing.silos:
            if commitment_to(secret) != commitment:
                raise MessageError(f"the shares of silo {member}'s mask are wrong")
            add_mask(total, own_seed(secret, round_id), -1)
            continue
        if public_half(secret) != pair_public:
            raise MessageError(f"the shares of silo {member}'s key are wrong")
        for silo in closing.silos:
            # As silo `silo` added it: plus for members after it.
            key = pair_seed(secret, batch.bundles[silo].rounds[place][0], (silo, member), round_id)
            add_mask(total, key, -1 if member > silo else +1)
    return total


def _need(least: int, answered: Collection[int], what: str) -> None:
    if len(answered) < least:
        raise TooFewError(f"{len(answered)} silos {what}, and {least} are needed")
