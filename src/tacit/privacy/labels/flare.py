"""NVIDIA FLARE's privacy filters. Only SVTPrivacy adds noise.

SVTPrivacy (sparse vector technique, FLARE 2.9) clips every entry of an update to +-gamma, chooses n =
ceil(fraction * parameters) entries and sends them with Laplace noise of scale `2 gamma n / epsilon_release`.
Unless `epsilon_release` is given it is `n * noise_var`: `epsilon` pays for the choice alone, not for the values.
The choice: a threshold with noise gamma/epsilon_threshold, queries with noise 2 gamma n/epsilon_query. The sparse
vector technique (Lyu, Su & Li 2017) costs epsilon_threshold + epsilon_query if it stops after n positive answers.
The filter does not stop: it asks all entries, and any number of answers, up to all, may be positive. That costs
epsilon_threshold + epsilon_query * parameters/n.
"""

from __future__ import annotations

import math

from tacit.errors import RequestError, count, positive, probability
from tacit.privacy.events.plain_numbers import check_delta
from tacit.privacy.labels.verdict import SERVER, Flaw, LabelVerdict, View, nothing
from tacit.privacy.promises.rounding import up_to
from tacit.privacy.promises.terms import Adjacency, Unit

_ORDERS = tuple(1 + 10 ** (k / 20) for k in range(-100, 81))


def svt_privacy(
    *,
    parameters: int,
    rounds: int,
    fraction: float = 0.1,
    epsilon: float = 0.1,
    noise_var: float = 0.1,
    gamma: float = 1e-5,
    tau: float = 1e-6,
    replace: bool = True,
    epsilon_threshold: float | None = None,
    epsilon_query: float | None = None,
    epsilon_release: float | None = None,
    delta: float | None = None,
) -> LabelVerdict:
    """The sparse vector technique on a client's update. The label is `epsilon`, the server the adversary.

    Args:
        parameters: numbers in the model's update.
        rounds: updates that a client sends.
        fraction: as given to the filter.
        epsilon: as given to the filter: the label.
        noise_var: as given to the filter.
        gamma: as given to the filter; noise and clip both scale with it, so it does not change epsilon.
        tau: as given to the filter; any threshold costs the same.
        replace: as given to the filter; sending fewer entries is not credited.
        epsilon_threshold: as given to the filter.
        epsilon_query: as given to the filter.
        epsilon_release: as given to the filter.
        delta: also give the smaller epsilon that holds at this delta.
    """
    parameters, rounds = count("parameters", parameters), count("rounds", rounds)
    label = positive("epsilon", epsilon)
    positive("gamma", gamma)
    sent = min(parameters, math.ceil(parameters * probability("fraction", fraction)))
    threshold, query = _split(label, sent, epsilon_threshold, epsilon_query)
    if epsilon_release is None:
        values = sent * positive("noise_var", noise_var)
    else:
        values = positive("epsilon_release", epsilon_release)
    choice = threshold + query * parameters / sent
    each = values / sent
    said = (
        f"{up_to(choice, 4)} for the choice and {up_to(values, 4)} for {sent} values, in each of {rounds} rounds"
    )
    total = rounds * (choice + values)
    views = [View(SERVER, Unit.CLIENT, Adjacency.REPLACE_ONE, total, 0.0, said)]
    if delta is not None:
        approximate = _approximate(choice, rounds, each, sent * rounds, check_delta(delta))
        views.append(
            View(
                SERVER,
                Unit.CLIENT,
                Adjacency.REPLACE_ONE,
                min(total, approximate),
                delta,
                said + ", by Renyi divergence",
            )
        )
    findings = [
        Flaw(
            f"epsilon = {label:g} pays for choosing entries. Their values cost {up_to(values, 4)} more in every "
            "round"
            + ("" if epsilon_release is not None else f" (noise_var = {noise_var:g} for each of {sent})")
            + ".",
            "Set epsilon_release to what the values may cost in total.",
        ),
        Flaw(
            "The filter does not stop after n accepted entries, as the sparse vector technique must. No more is "
            f"proved for the choice than {up_to(choice, 4)}, not {label:g}.",
            "Use noise on the whole update (tacit, Opacus) instead of choosing entries.",
        ),
        Flaw(
            "Parameters that are single numbers (shape ()) pass without clipping or noise.",
            "Give the model no scalar parameters or buffers, such as BatchNorm's num_batches_tracked.",
        ),
    ]
    if rounds > 1:
        findings.append(
            Flaw(f"epsilon is for one update; a client sends {rounds}.", "Divide the budget over rounds.")
        )
    return LabelVerdict("SVTPrivacy", label, tuple(views), tuple(findings))


def percentile_privacy(
    *, percentile: float = 10, gamma: float = 0.01, rounds: int = 1, claimed_epsilon: float | None = None
) -> LabelVerdict:
    """Sends the largest entries, truncated, without noise.

    Args:
        percentile: as given to the filter.
        gamma: as given to the filter.
        rounds: updates that a client sends.
        claimed_epsilon: the label to check.
    """
    if not 0 <= percentile <= 100:
        raise RequestError(f"percentile must be in [0, 100], not {percentile!r}")
    positive("gamma", gamma)
    count("rounds", rounds)
    return _without_noise("PercentilePrivacy", "truncated entries are sent as they are", claimed_epsilon)


def exclude_vars(
    *, exclude_vars: list[str] | str | None = None, rounds: int = 1, claimed_epsilon: float | None = None
) -> LabelVerdict:
    """Leaves out some layers and sends the others as they are.

    Args:
        exclude_vars: as given to the filter.
        rounds: updates that a client sends.
        claimed_epsilon: the label to check.
    """
    count("rounds", rounds)
    return _without_noise("ExcludeVars", "layers that are not excluded are sent as they are", claimed_epsilon)


def _without_noise(name: str, because: str, claimed: float | None) -> LabelVerdict:
    finding = Flaw(
        f"{name} adds no noise: {because}. A record can be recognised, and often rebuilt, from them.",
        "Add noise at the client (tacit, or Opacus in the local training); a filter of this kind may stay.",
    )
    return LabelVerdict(name, claimed, (nothing(SERVER, Unit.CLIENT, because),), (finding,))


def _split(total: float, sent: int, threshold: float | None, query: float | None) -> tuple[float, float]:
    """As the filter divides `epsilon`: 1 to (2 n)^(2/3) unless given."""
    if threshold is None and query is None:
        threshold = total / (1 + (2 * sent) ** (2 / 3))
    if threshold is None:
        threshold = total - positive("epsilon_query", query or 0.0)
    query = total - threshold if query is None else query
    if threshold <= 0 or query <= 0 or not math.isclose(threshold + query, total, rel_tol=1e-5):
        raise RequestError(
            f"epsilon_threshold = {threshold:g} and epsilon_query = {query:g} must be above 0 and add up to "
            f"epsilon = {total:g}"
        )
    return threshold, query


def _approximate(choice: float, rounds: int, each: float, values: int, delta: float) -> float:
    """The epsilon at `delta` of `rounds` pure mechanisms of `choice` and `values` Laplace ones of `each`.

    Mironov 2017, table II, for Laplace noise; Bun & Steinke 2016, proposition 3.3, for pure mechanisms; Canonne,
    Kamath & Steinke 2020, proposition 12, for the conversion.
    """
    best = math.inf
    for order in _ORDERS:
        grows = math.log(order / (2 * order - 1)) + (order - 1) * each
        falls = math.log((order - 1) / (2 * order - 1)) - order * each
        laplace = (max(grows, falls) + math.log1p(math.exp(-abs(grows - falls)))) / (order - 1)
        divergence = rounds * min(choice, order * choice**2 / 2) + values * laplace
        best = min(best, divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))
    return max(0.0, best)
