"""What a client does in a round: sample, estimate, bound, add noise."""
