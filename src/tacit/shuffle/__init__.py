"""Sums behind a shuffler, with noise that quantises first: the binomial protocols of ISRL-DP."""

from tacit.shuffle.vector_sum import VectorSum

__all__ = ["VectorSum"]
