"""Transport over NVIDIA FLARE, which only authenticates the parties and carries their bytes.

FLARE's processes hold no records and no ledger keys. FLARE's controller (at the server) and executor (at a silo)
pass every message through a local socket to the `tacit` process that started them (`relay`).
"""
