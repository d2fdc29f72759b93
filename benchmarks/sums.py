"""What secure sums cost a silo and the server, in processor time of one core and without a network.

One silo of M masks a message of 10^6 coordinates; then a group opens a sum of that length, with and without silos
that vanished. Run: OMP_NUM_THREADS=1 python benchmarks/sums.py
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tacit.sums.arithmetic import Ring
from tacit.sums.group import Rounds, SumGroup
from tacit.sums.requests import Closing
from tacit.sums.server import Prepared, deliver, opening_secrets, prepare, rounds_ahead, unmasked
from tacit.sums.silo import SiloState, SumSilo

DIM = 1_000_000
CONTEXT = bytes(32)


def measure(silos: int, quorum: int, colluding: int) -> None:
    """Print the times of one group."""
    keys = [Ed25519PrivateKey.generate() for _ in range(silos)]
    publics = tuple(key.public_key().public_bytes_raw() for key in keys)
    group = SumGroup(bytes(32), publics, quorum, colluding)
    parties = [SumSilo(group, n, key) for n, key in enumerate(keys)]
    states = [SiloState()] * silos
    spent = 0.0

    def ask(request: bytes, among: Sequence[int]) -> dict[int, bytes]:
        nonlocal spent
        answers = {}
        for n in among:
            start = time.process_time()
            states[n], answers[n] = parties[n].answer(states[n], request)
            spent += time.process_time() - start
        return answers

    rounds = rounds_ahead(silos)
    prepared = prepare(group, ask, Rounds(0, 0, rounds), range(silos))
    assert isinstance(prepared, Prepared)
    deliver(ask, prepared)
    print(f"{silos} silos, quorum {quorum}, colluding {colluding}, threshold {group.threshold}")
    print(
        f"  preparing {rounds} rounds: {spent / silos:.3f} s per silo, "
        f"{len(prepared.delivery) / 1e6:.1f} MB to each"
    )

    ring = Ring.for_sum(silos=silos, bound=0.1, noise_std=0.1, dim=DIM, rounds=100)
    message = ring.encode(np.random.default_rng(0).normal(0, 0.1, DIM))
    start = time.process_time()
    _, masked = parties[0].mask(states[0], 0, CONTEXT, message)
    masking = time.process_time() - start
    start = time.process_time()
    packed = ring.to_bytes(masked)
    packing = time.process_time() - start
    print(
        f"  masking {DIM:,} coordinates: {masking:.2f} s per silo and round; "
        f"packing {ring.bits} bits: {packing:.2f} s"
    )
    assert len(packed) == ring.message_bytes(DIM)

    for round, gone in ((0, 0), (1, silos - quorum)):
        present = range(silos - gone)
        sent = {}
        for n in present:
            states[n], sent[n] = parties[n].mask(states[n], round, CONTEXT, message[:1000])
        spent, start = 0.0, time.process_time()
        closing = Closing(round, CONTEXT, frozenset(present))
        # Only the first thousand coordinates are masked: the server's work is the same whatever it gets.
        masked = np.zeros(DIM, np.uint32)
        masked[:1000] = np.sum(list(sent.values()), axis=0, dtype=np.uint32)
        secrets = opening_secrets(group, lambda request, _, p=present: ask(request, p), prepared, closing)
        total = unmasked(prepared.batch, closing, masked, secrets)
        server = time.process_time() - start - spent
        assert np.array_equal(
            ring.residues(total[:1000].astype(np.int64)),
            ring.residues(message[:1000].astype(np.int64) * len(present)),
        )
        print(
            f"  opening with {gone} silos gone: {spent / len(present):.3f} s per silo, "
            f"{server:.3f} s at the server"
        )


if __name__ == "__main__":
    for numbers in ((5, 4, 1), (20, 16, 4), (100, 80, 10)):
        measure(*numbers)
