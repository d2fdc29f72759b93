"""Flower's LocalDpMod: a client clips its whole update and adds noise to it.

LocalDpMod clips a client's whole update to `clipping_norm` and adds noise of standard deviation
`sensitivity * sqrt(2 ln(1.25/delta)) / epsilon`. `sensitivity` is an argument of its own; what counts is the
noise over 2 * clipping_norm, the distance of two clipped updates, and how many messages a client sends.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, count, positive
from tacit.privacy.events.plain_numbers import check_delta
from tacit.privacy.labels.flower import in_rounds, not_negative
from tacit.privacy.labels.verdict import SERVER, Flaw, LabelVerdict, every_round
from tacit.privacy.labels.verdict import view as cost
from tacit.privacy.promises.terms import Unit


def local_dp_mod(
    *,
    clipping_norm: float,
    sensitivity: float,
    epsilon: float,
    delta: float,
    rounds: int,
    flwr_version: str | None = None,
) -> LabelVerdict:
    """A client's noise on its own update. The label is `epsilon`, the server the adversary.

    Args:
        clipping_norm: as given to LocalDpMod.
        sensitivity: as given to LocalDpMod.
        epsilon: as given to LocalDpMod: the label.
        delta: as given to LocalDpMod.
        rounds: messages that a client sends over the whole training.
        flwr_version: the version of Flower; before 1.14 the noise was computed and thrown away.
    """
    clip, label = positive("clipping_norm", clipping_norm), positive("epsilon", epsilon)
    rounds, delta = count("rounds", rounds), check_delta(delta)
    stated = not_negative("sensitivity", sensitivity)
    std = stated * math.sqrt(2 * math.log(1.25 / delta)) / label
    findings = []
    if flwr_version is not None and _version(flwr_version) < (1, 14):
        std = 0.0
        findings.append(
            Flaw(
                f"LocalDpMod of flwr {flwr_version} computes noisy parameters and sends the others: there is no "
                "noise.",
                "Use flwr 1.14 or later.",
            )
        )
    elif stated == 0:
        findings.append(Flaw("sensitivity = 0 adds no noise.", f"Set sensitivity = {2 * clip:g}."))
    elif stated < 2 * clip:
        findings.append(
            Flaw(
                f"sensitivity = {stated:g} is below 2 * clipping_norm = {2 * clip:g}, by which a client's data "
                f"can move its update: the noise is {2 * clip / stated:.3g} times too small.",
                f"Set sensitivity = {2 * clip:g}.",
            )
        )
    if rounds > 1:
        findings.append(
            Flaw(
                f"epsilon = {label:g} is for one message; a client sends {rounds}.",
                "Divide the budget over the rounds: tacit account shows what they cost together.",
            )
        )
    if label > 1:
        findings.append(
            Flaw(
                f"The formula behind the noise is proved for epsilon of at most 1, not for {label:g}.",
                "Calibrate with the exact Gaussian mechanism (Balle & Wang 2018), as tacit does.",
            )
        )
    multiplier = std / clip
    because = f"noise {std:.4g} on updates of norm {clip:g} in {in_rounds(rounds)}"
    return LabelVerdict(
        "LocalDpMod",
        label,
        (cost(SERVER, Unit.CLIENT, "replace-one", every_round(multiplier), rounds, delta, because),),
        tuple(findings),
    )


def _version(text: str) -> tuple[int, ...]:
    parts = str(text).split(".")[:2]
    if not all(part.isdigit() for part in parts):
        raise RequestError(f"flwr_version must look like 1.13.1, not {text!r}")
    return tuple(int(part) for part in parts)
