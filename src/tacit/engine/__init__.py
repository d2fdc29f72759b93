"""The engine: plans, rounds, the simulator, histories, checkpoints and audits."""
