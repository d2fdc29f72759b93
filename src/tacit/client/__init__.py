"""The client's work in a round: sample, estimate, bound, add noise."""
