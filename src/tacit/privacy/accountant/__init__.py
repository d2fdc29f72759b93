"""What events cost: dominating pairs, their composition, and the noise that a target needs."""
