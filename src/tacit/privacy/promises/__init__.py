"""What is promised, to whom, and against whom."""
