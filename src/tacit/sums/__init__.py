"""Secure sums: a server that opens the sum of many silos' messages, and nothing else."""
