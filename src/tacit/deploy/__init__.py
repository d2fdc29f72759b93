"""Deployment: the same algorithms between real parties, each of which keeps its own promise."""
