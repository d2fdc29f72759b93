"""Private side computations: what a run must know about the records before it trains, released and paid for.

Choosing a clip norm is a look at private data. Here it is a Gaussian release of every client by itself, whose
event composes with training in one accountant.
"""

from tacit.privacy.side.budget import split_target
from tacit.privacy.side.clip_norm import clip_norm_from_quantile
from tacit.privacy.side.quantile import private_quantile
from tacit.privacy.side.release import SideRelease

__all__ = ["SideRelease", "clip_norm_from_quantile", "private_quantile", "split_target"]
