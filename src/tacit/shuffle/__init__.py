"""Sums behind a shuffler, with noise that quantises first: the binomial protocols of ISRL-DP."""

from tacit.privacy.coins import CoinNoise, published_epsilon
from tacit.shuffle.vector_sum import VectorSum, vector_sum

__all__ = ["CoinNoise", "VectorSum", "published_epsilon", "vector_sum"]
