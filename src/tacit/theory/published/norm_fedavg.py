"""DP-NormFedAvg (Das et al. 2022): client-level noise shared by the participants, and its value without secrecy.

Theorem 3 sets the variance on the mean of r expected participants to q K C^2 ln(1/delta) / (n epsilon)^2 and
leaves the constant q open, so there is no formula to check: the noise here is the least that makes the label true
as the paper reads it (the adversary sees only sums, and not who takes part; a client contributes or does not).
Each of r participants adds z C / sqrt(r). If participants are known, or a single message is seen, the same noise
is worth less.
"""

from __future__ import annotations

import math

from tacit.errors import count, positive, probability
from tacit.privacy import Adjacency, calibrate_noise, epsilon
from tacit.privacy.events import gaussian, poisson, repeated, revealed_batches
from tacit.theory.published.row import Row

PAPER = "DP-NormFedAvg (Das et al.), least noise that makes the label true for sums with secret participants"

SECRET = "sums, participants secret"
KNOWN = "sums, participants known"
MESSAGE = "one message alone"
CONSTANT = "constant of Theorem 3"

EXPERIMENTS = (("Fashion-MNIST", 3000), ("CIFAR-10, CIFAR-100", 5000))
"""Name and number of clients; a fifth of them is expected in every round (appendix G)."""

ROUNDS = (100, 500)
"""The paper does not say how many rounds these experiments took; these are the fewest and most plausible."""


def row(setting: str, *, epsilon: float, delta: float, records: int, batch: float, rounds: int) -> Row:
    """What the least noise for a label is worth against others; `batch` of `records` clients are expected."""
    rate = probability("batch / records", positive("batch", batch) / count("records", records))
    noise = calibrate_noise(
        lambda z: repeated(poisson(rate, z), rounds),
        epsilon=epsilon,
        delta=delta,
        adjacency=Adjacency.ADD_REMOVE,
    )
    # A client takes part by its own coin: the noise is z bounds on the sum, or its own share on its message.
    constant = (noise * epsilon / rate) ** 2 / (rounds * -math.log(delta))
    return Row(
        setting=setting,
        label=epsilon,
        delta=delta,
        records=records,
        batch=batch,
        rounds=rounds,
        noise_multiplier=noise,
        true=_true(noise, rate, batch, rounds, delta),
        factors={CONSTANT: constant},
    )


def table() -> tuple[Row, ...]:
    """The labels of appendix G, and that of the synthetic problem of appendix F, where all clients take part."""
    rows = [
        row(name, epsilon=label, delta=1e-5, records=clients, batch=clients / 5, rounds=rounds)
        for name, clients in EXPERIMENTS
        for label in (2.0, 5.0)
        for rounds in ROUNDS
    ]
    return (*rows, row("synthetic", epsilon=5.0, delta=1e-6, records=100, batch=100, rounds=500))


def _true(noise: float, rate: float, participants: float, rounds: int, delta: float) -> dict[str, float]:
    secret = repeated(poisson(rate, noise), rounds)
    known = revealed_batches(rounds, rate, noise, 1.0, 0.0)
    # The sender of a message is known, so its neighbour is another message of the same client.
    message = gaussian(noise / math.sqrt(participants))
    return {
        SECRET: epsilon(secret, delta, Adjacency.ADD_REMOVE),
        KNOWN: epsilon(known, delta, Adjacency.ADD_REMOVE),
        MESSAGE: epsilon(message, delta),
    }
