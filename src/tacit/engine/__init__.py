"""The round, the simulator, history and checkpoints."""
