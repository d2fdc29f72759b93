"""What each paper's theorems prescribe and promise, one module a paper."""
