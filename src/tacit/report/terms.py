"""What the words of a promise mean, in the terms of NIST SP 800-226 (2025)."""

from __future__ import annotations

_TRUST = {
    "server": "Local: every client adds its own noise before anything leaves it. Nobody else is trusted.",
    "shuffler": "Shuffled: every client adds noise, and a shuffler is trusted to mix messages and help nobody.",
    "secure-sum": "Secure sums: messages are masked, so that the server can open only sums over enough clients.",
    "cohort": "Secure sums: only each round's sum is seen. Whoever computes it is trusted to show nothing else.",
    "sum": "Secure sums: only each round's sum is seen, not who took part. Whoever computes it is trusted.",
    "model": "Central: the server is trusted with everything that clients send.",
}
_UNITS = {
    "record": "One record. A person with several records is protected less: their records' epsilons add up.",
    "person": "One person with all rows at a client. With rows at several clients, their epsilons add up.",
    "client": "One client with all of its records.",
}


def glossary(unit: str, adversary: str, adjacency: str) -> tuple[tuple[str, str], ...]:
    """Terms and their meaning for a promise with this unit, adversary and adjacency."""
    neighbours = {
        "replace-one": f"Two data sets that differ in the content of one {unit} (bounded; the stricter choice).",
        "add-remove": f"Two data sets, in one of which one {unit} contributes nothing (the weaker choice). The "
        f"number of {'clients' if unit == 'client' else 'records'} is public, and the same in both.",
    }
    return (
        ("unit of privacy", _UNITS[unit]),
        (
            "privacy loss budget (epsilon, delta)",
            "Epsilon limits how much more likely anything seen becomes because of one unit: by a factor of at "
            "most e^epsilon, apart from a probability of delta. Smaller is better; 0 would reveal nothing.",
        ),
        ("neighbouring data sets", neighbours[adjacency]),
        ("trust model", _TRUST[adversary]),
        (
            "composition",
            "Everything that a client releases is accounted for together. What is computed from releases later "
            "(post-processing) costs nothing more.",
        ),
    )
