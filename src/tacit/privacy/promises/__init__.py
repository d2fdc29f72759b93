"""Privacy promises: what they say, whom they protect, and against whom."""
