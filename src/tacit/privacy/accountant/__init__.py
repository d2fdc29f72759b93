"""The privacy cost of events: dominating pairs, their composition, and the noise that a target needs."""
