"""Sums behind a shuffler, quantised and with binomial noise: ISRL-DP (Lowy & Razaviyayn 2023)."""

from tacit.shuffle.vector_sum import VectorSum

__all__ = ["VectorSum"]
