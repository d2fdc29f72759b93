"""Transport by NVIDIA FLARE: it authenticates the parties and moves their bytes, and nothing else.

FLARE's own processes hold neither records nor keys to the ledger. At the server its controller, at a silo its
executor, hand every message on through a local socket to the process of `tacit` that started them (`relay`).
"""
