"""Chooses what to run before any record is used: noise needs, candidates, and trials on synthetic records."""
