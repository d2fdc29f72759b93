"""Choosing what to run before any record is touched: needs, candidates, trials on made-up records."""
