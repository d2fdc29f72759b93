"""What `benchmarks/fuzz.py` feeds to whom."""
