"""A silo's half of secure sums: Bonawitz et al. 2017, against a server that lies.

A message is masked twice: with a mask of the silo's own, and with one for each other member of the batch, which
cancels in the sum. Every member holds shares of each silo's two secrets for the round: the seed of its own mask,
and the key of its pairwise masks. The server lists the silos whose messages arrived. Members then reveal shares
of the own masks of the silos in the list, and of the pair keys of those not in it. A silo with both secrets
revealed would be bare, so a member reveals one kind per silo and round, never both.

What keeps a lying server from more than one sum per round:

- Keys are signed by the provisioned identities, for one session and batch, and every member signs the batch: all
  members have the same one.
- A member commits itself to one list per round. The list has at least `quorum` silos, and a member reveals
  nothing before `threshold` members have signed the same list. Two lists cannot both get that many.
- The list of all members needs no signatures, which saves an exchange when nobody vanished. To open it takes the
  shares of `threshold` members that are committed to it. If so many have signed another list, then too few are
  left to reveal the own masks of the silos outside that list.
- A silo masks one message per round, and none for a round whose list it has seen, nor for an earlier round.

State is explicit: every step takes a state and returns the next one with its answer. **Write the new state to
disk before the answer leaves.** Then a silo that restarts at any moment stays committed to what it said.
"""

from __future__ import annotations

import dataclasses
import json
import secrets as entropy
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.errors import DataError, MessageError
from tacit.sums.arithmetic import Residues
from tacit.sums.group import ROUNDS_BYTES, SIGNATURE_BYTES, KeyBatch, Rounds, SumGroup
from tacit.sums.masks import KEY_BYTES, add_mask
from tacit.sums.requests import Closing, SumStep, asked, signatures_from_bytes
from tacit.sums.secrets import Secrets, own_seed, pair_seed, parcel_bytes
from tacit.sums.shamir import SHARE_BYTES


@dataclass(frozen=True)
class SiloState:
    """What a silo must remember of a run's sums.

    rounds, seed: the current batch and the seed of this silo's secrets; empty before the first batch.
    batch: the batch with everybody's keys that this silo signed; empty until then.
    shares: this silo's shares of all members' secrets, member by member, round by round; empty until they came.
    masked: the last round for which a message was masked, with its context.
    closed: the list that the silo committed itself to last (`Closing`), with its round.
    """

    rounds: bytes = b""
    seed: bytes = b""
    batch: bytes = b""
    shares: bytes = b""
    masked: int = -1
    context: bytes = b""
    closed: int = -1
    closing: bytes = b""

    def to_bytes(self) -> bytes:
        """The state for a file that only the silo can read."""
        values = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in dataclasses.asdict(self).items()
        }
        return json.dumps(values).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> SiloState:
        """The inverse."""
        try:
            values: dict[str, Any] = {
                name: bytes.fromhex(value) if isinstance(value, str) else int(value)
                for name, value in json.loads(content).items()
            }
            return cls(**values)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise DataError(f"a silo's memory of its sums is corrupted: {error}") from error


class SumSilo:
    """One silo of a group. `answer` and `mask` raise `MessageError` for anything that the silo must not do."""

    def __init__(self, group: SumGroup, me: int, identity: Ed25519PrivateKey) -> None:
        """Open a silo.

        group: the silos and what they agreed on.
        me: this silo's number in the group.
        identity: its private key.
        """
        self._group, self._me, self._identity = group, me, identity
        self._known: tuple[bytes, KeyBatch] | None = None

    def answer(self, state: SiloState, request: bytes) -> tuple[SiloState, bytes]:
        """The state that must be on disk before the answer leaves, and the answer."""
        kind, content = asked(request)
        match kind:
            case SumStep.ADVERTISE:
                return self._advertise(state, Rounds.from_bytes(content))
            case SumStep.SHARE:
                return self._share(state, content)
            case SumStep.DELIVER:
                return self._deliver(state, content)
            case SumStep.SIGN:
                closing = Closing.from_bytes(content, self._group)
                state = self._committed(state, closing)
                return state, self._group.signed(self._identity, "list", self._list(state, closing))
            case SumStep.REVEAL:
                length = Closing.length(self._group)
                closing = Closing.from_bytes(content[:length], self._group)
                self._check_agreement(state, closing, signatures_from_bytes(content[length:], self._group))
                state = self._committed(state, closing)
                return state, self._revealed(state, closing)

    def mask(self, state: SiloState, round: int, context: bytes, message: Residues) -> tuple[SiloState, Residues]:
        """Mask the message of a round, once. Keep the result: it must be sent again if it is asked for again.

        round: a later one than every round that was masked or closed before.
        context: 32 bytes; messages of silos with different contexts do not open.
        message: integers, of which the sum modulo 2^32 or any smaller power of two is wanted.
        """
        batch = self.check_ready(state, round)
        place = batch.rounds.place(round)
        secrets, round_id = Secrets(state.seed), batch.round_id(round, context)
        masked = message.copy()
        add_mask(masked, own_seed(secrets.self_seed(place), round_id), +1)
        private = secrets.pair_key(place)
        for peer, bundle in batch.bundles.items():
            if peer != self._me:
                key = pair_seed(private, bundle.rounds[place][0], (self._me, peer), round_id)
                add_mask(masked, key, +1 if peer > self._me else -1)
        return dataclasses.replace(state, masked=round, context=context), masked

    def check_ready(self, state: SiloState, round: int) -> KeyBatch:
        """The batch with which a message of this round can be masked; `MessageError` if there is none."""
        batch = self._ready(state)
        batch.rounds.place(round)
        self._check_new(state, round)
        return batch

    def _check_new(self, state: SiloState, round: int) -> None:
        if round <= max(state.masked, state.closed):
            raise MessageError("a message of this round, or of a later one, may already be open")

    def _advertise(self, state: SiloState, rounds: Rounds) -> tuple[SiloState, bytes]:
        """Draw secrets for a new batch. They replace those of the last one, which is over."""
        if rounds.to_bytes() != state.rounds:
            if state.rounds and rounds.number <= Rounds.from_bytes(state.rounds).number:
                raise MessageError("a later batch was prepared")
            if rounds.first <= max(state.masked, state.closed):
                raise MessageError("a batch begins before the last round that was answered")
            state = dataclasses.replace(
                state,
                rounds=rounds.to_bytes(),
                seed=entropy.token_bytes(KEY_BYTES),
                batch=b"",
                shares=b"",
            )
        return state, self._bundle(state, rounds)

    def _bundle(self, state: SiloState, rounds: Rounds) -> bytes:
        return Secrets(state.seed).bundle(rounds, self._group, self._identity).to_bytes()

    def _share(self, state: SiloState, content: bytes) -> tuple[SiloState, bytes]:
        """Sign the batch, and share this silo's secrets among its members. Only one batch has this number."""
        if not state.rounds or content[:ROUNDS_BYTES] != state.rounds:
            raise MessageError("this silo has no keys for that batch")
        batch = self._batch(content)
        if self._me not in batch.bundles or batch.bundles[self._me].to_bytes() != self._bundle(
            state, batch.rounds
        ):
            raise MessageError("the batch does not have this silo's own keys")
        if state.batch not in (b"", content):
            raise MessageError("another batch of this number was signed")
        parcels = Secrets(state.seed).parcels(self._me, batch, self._group.threshold)
        signature = self._group.signed(self._identity, "batch", batch.digest)
        return dataclasses.replace(state, batch=content), b"".join(parcels) + signature

    def _deliver(self, state: SiloState, content: bytes) -> tuple[SiloState, bytes]:
        """Take the other members' shares, if all of them have signed the same batch."""
        if not state.batch:
            raise MessageError("this silo has not signed the batch")
        batch = self._batch(state.batch)
        each, members = parcel_bytes(batch.rounds.count), len(batch.members)
        row = members * each + SIGNATURE_BYTES
        if len(content) != members * row:
            raise MessageError("the shares of a batch have the wrong length")
        column, shares = batch.members.index(self._me) * each, b""
        for n, peer in enumerate(batch.members):
            part = content[n * row : (n + 1) * row]
            self._check_signed(peer, part[-SIGNATURE_BYTES:], batch)
            shares += Secrets(state.seed).opened(part[column : column + each], peer, self._me, batch)
        return dataclasses.replace(state, shares=shares), b""

    def _check_signed(self, peer: int, signature: bytes, batch: KeyBatch) -> None:
        if not self._group.has_signed(peer, signature, "batch", batch.digest):
            raise MessageError(f"silo {peer} has not signed this batch")

    def _check_agreement(self, state: SiloState, closing: Closing, signatures: dict[int, bytes]) -> None:
        """Unless the list is that of all members, `threshold` of them must have signed it."""
        batch = self._ready(state)
        if closing.silos == set(batch.members):
            return
        text = self._list(state, closing)
        signed = {
            silo
            for silo, signature in signatures.items()
            if silo in batch.bundles and self._group.has_signed(silo, signature, "list", text)
        }
        if len(signed) < self._group.threshold:
            raise MessageError(f"{len(signed)} members have signed the list, fewer than {self._group.threshold}")

    def _committed(self, state: SiloState, closing: Closing) -> SiloState:
        """Commit this silo to a list for a round; refused if it is committed to another one."""
        batch = self._ready(state)
        batch.rounds.place(closing.round)
        content = closing.to_bytes(self._group)
        if closing.round < max(state.masked, state.closed):
            raise MessageError("the round is over")
        if closing.round == state.closed:
            if content != state.closing:
                raise MessageError("this silo is committed to another list of this round")
            return state
        self._check_list(closing, batch)
        if self._me in closing.silos and (state.masked, state.context) != (closing.round, closing.context):
            raise MessageError("the list has this silo, which has sent no such message")
        return dataclasses.replace(state, closed=closing.round, closing=content)

    def _check_list(self, closing: Closing, batch: KeyBatch) -> None:
        if len(closing.silos) < self._group.quorum or not closing.silos <= set(batch.members):
            raise MessageError(f"the list does not have {self._group.quorum} members of the batch")

    def _list(self, state: SiloState, closing: Closing) -> bytes:
        """What silos sign: the list, in this batch."""
        return self._ready(state).digest + closing.to_bytes(self._group)

    def _revealed(self, state: SiloState, closing: Closing) -> bytes:
        """One share for every member: of its own mask if it is in the list, of its pair key if it is not."""
        batch = self._ready(state)
        place = batch.rounds.place(closing.round)
        revealed = b""
        for n, peer in enumerate(batch.members):
            of_own_mask = 2 * (n * batch.rounds.count + place) * SHARE_BYTES
            start = of_own_mask if peer in closing.silos else of_own_mask + SHARE_BYTES
            revealed += state.shares[start : start + SHARE_BYTES]
        return revealed

    def _ready(self, state: SiloState) -> KeyBatch:
        if not state.shares:
            raise MessageError("no batch is prepared")
        return self._batch(state.batch)

    def _batch(self, content: bytes) -> KeyBatch:
        """Read and check a batch. The last one is kept, because checking it takes a signature per member."""
        if self._known is None or self._known[0] != content:
            self._known = content, KeyBatch.from_bytes(content, self._group)
        return self._known[1]
