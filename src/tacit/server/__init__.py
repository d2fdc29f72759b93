"""The server: who takes part in a round, and how the model moves along the combined direction."""
