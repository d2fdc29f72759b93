"""From private vectors to bytes and back: compressors, shifted compression, and the wire format."""

from __future__ import annotations

from tacit.compress.chain import Chain
from tacit.compress.compressor import Compressor, Packets
from tacit.compress.error_feedback import ErrorFeedback
from tacit.compress.identity import Identity
from tacit.compress.indices import rand_k_indices
from tacit.compress.natural import Natural
from tacit.compress.parse import parse_compressor
from tacit.compress.qsgd import Qsgd
from tacit.compress.quantiser import Quantiser
from tacit.compress.rand_k import RandK
from tacit.compress.shared import SharedCoordinates
from tacit.compress.top_k import TopK
from tacit.compress.uplink import ControlVariates, Direct, Shifted, Uplink, prescribed_shift_step

__all__ = [
    "Chain",
    "Compressor",
    "ControlVariates",
    "Direct",
    "ErrorFeedback",
    "Identity",
    "Natural",
    "Packets",
    "Qsgd",
    "Quantiser",
    "RandK",
    "SharedCoordinates",
    "Shifted",
    "TopK",
    "Uplink",
    "parse_compressor",
    "prescribed_shift_step",
    "rand_k_indices",
]
