"""Randomness and noise."""
