"""Deployment: the same algorithms between real parties, in which each silo keeps its own promise."""
