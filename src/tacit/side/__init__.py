"""Private side computations: what is learned about records before and after training, with privacy accounting.

Choosing a clip norm uses private data. Here each client makes a Gaussian release for it, whose event is composed
with training in one accountant.
"""

from tacit.side.budget import split_target
from tacit.side.clip_norm import clip_norm_from_quantile
from tacit.side.evaluation import private_evaluation
from tacit.side.quantile import private_quantile
from tacit.side.ranges import private_ranges
from tacit.side.release import SideRelease

__all__ = [
    "SideRelease",
    "clip_norm_from_quantile",
    "private_evaluation",
    "private_quantile",
    "private_ranges",
    "split_target",
]
