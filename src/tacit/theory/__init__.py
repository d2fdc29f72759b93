"""What each paper's theorems prescribe and promise, with one module per paper."""
