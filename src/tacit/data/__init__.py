"""Data for a federation: named data sets, clients' own files, and ways to deal records to clients."""

from __future__ import annotations

from tacit.data.datasets import DATASETS, DatasetEntry
from tacit.data.files import from_files
from tacit.data.named import load
from tacit.data.partition import PARTITIONERS, Partition, Partitioner, parse_partition

__all__ = [
    "DATASETS",
    "PARTITIONERS",
    "DatasetEntry",
    "Partition",
    "Partitioner",
    "from_files",
    "load",
    "parse_partition",
]
