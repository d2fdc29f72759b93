"""Tables 1 and 2 of SoteriaFL (Li et al. 2022) in numbers: orders of utility, communication and computation.

The letters of the formulas are those of `tacit.theory.soteriafl`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.theory.soteriafl.corollaries import sgd_batch
from tacit.theory.soteriafl.problem import Problem


@dataclass(frozen=True)
class Table1Row:
    """One line of Table 1; `rounds` and `communication` are None where the paper has a single node."""

    algorithm: str
    privacy: str
    remark: str
    utility: float
    rounds: float | None
    communication: float | None


def table_1(problem: Problem) -> list[Table1Row]:
    """Table 1 in numbers: orders, with constant 1 and, as in the table, G = L = 1.

    Communication is n d T / (1+w), with w = 0 for algorithms that do not compress. For Q-DPSGD-1 the paper's
    sigma~^2 is read as 1 + w; its printed communication lacks the factor d of the table's own formula, which is
    included here.

    >>> p = Problem(clients=100, records=1000, dim=10, omega=1.0, epsilon=1.0, delta=1e-5)
    >>> [row.algorithm for row in table_1(p) if row.communication is None]
    ['rppsgd', 'dp-sgd', 'dp-srm']
    """
    n, tau, alone = problem.clients, problem.tau, problem.privacy_cost
    uncompressed = alone / math.sqrt(n)
    shared = uncompressed * math.sqrt(1 + problem.omega)
    q_spread = (1 + problem.omega) / n + 1 / problem.records
    one, many = "single node", "n nodes, no compression"
    direct, shifted = "n nodes, direct compression", "n nodes, shifted compression"
    orders: list[tuple[str, str, str, float, float | None]] = [
        ("rppsgd", "DP", one, alone * math.sqrt(math.log(problem.records / problem.delta)), None),
        ("dp-sgd", "DP", one, alone, None),
        ("dp-srm", "DP", one, alone, None),
        ("distributed-dp-srm", "DP", many, alone / n, n / alone),
        ("ldp-svrg", "LDP", many, uncompressed, 1 / uncompressed),
        ("ldp-spider", "LDP", many, uncompressed, 1 / uncompressed),
        ("q-dpsgd-1", "LDP", direct, (q_spread * alone) ** (2 / 3), q_spread / alone**2),
        ("sdm-dsgd", "LDP", direct, uncompressed, n**2 / shared + 1 / alone**2),
        ("cdp-sgd", "LDP", direct, shared, 1 / shared + 1 / alone**2),
        ("soteriafl-sgd", "LDP", shifted, shared * (1 + math.sqrt(tau)), (1 + math.sqrt(tau)) / shared),
        ("soteriafl-gd", "LDP", shifted, shared * (1 + math.sqrt(tau)), (1 + math.sqrt(tau)) / shared),
        ("soteriafl-svrg", "LDP", shifted, shared, (1 + tau) / shared),
        ("soteriafl-saga", "LDP", shifted, shared, (1 + tau) / shared),
    ]

    def communication(remark: str, rounds: float | None) -> float | None:
        message = problem.dim if remark == many else problem.dim / (1 + problem.omega)
        return None if rounds is None else n * message * rounds

    return [
        Table1Row(name, privacy, remark, order, rounds, communication(remark, rounds))
        for name, privacy, remark, order, rounds in orders
    ]


@dataclass(frozen=True)
class Table2Row:
    """One entry of Table 2."""

    algorithm: str
    gradient_complexity: float


def table_2(problem: Problem) -> list[Table2Row]:
    """Table 2 in numbers: the gradients that a client computes in all rounds, T b, as orders with constant 1.

    GD K (1 + sqrt(tau)) m, SGD K (1 + sqrt(tau)) b, SVRG and SAGA K (1 + tau) m^(2/3).

    >>> p = Problem(clients=100, records=1000, dim=10, omega=0.0, epsilon=1.0, delta=math.exp(-10))
    >>> [(row.algorithm, round(row.gradient_complexity)) for row in table_2(p)][::3]
    [('soteriafl-gd', 1316228), ('soteriafl-saga', 110000)]
    """
    plain = problem.rounds_scale * (1 + math.sqrt(problem.tau))
    reduced = problem.rounds_scale * (1 + problem.tau) * problem.records ** (2 / 3)
    return [
        Table2Row("soteriafl-gd", plain * problem.records),
        Table2Row("soteriafl-sgd", plain * sgd_batch(problem, problem.tau / (2 * (1 + problem.omega)))),
        Table2Row("soteriafl-svrg", reduced),
        Table2Row("soteriafl-saga", reduced),
    ]
